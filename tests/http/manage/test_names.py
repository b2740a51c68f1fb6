"""Limits of AMQP apply over HTTP as well: names and keys have at most 255 bytes."""

from __future__ import annotations

import pytest

LONGEST, TOO_LONG = "é" * 127 + "x", "é" * 128
KEY = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": TOO_LONG}


def test_longest_names_and_keys_are_accepted(api, vhost):
    assert api.put("queues", vhost, LONGEST) == 201
    assert api.put("exchanges", vhost, LONGEST, body={"type": "topic"}) == 201
    api.post("bindings", vhost, "e", LONGEST, "q", LONGEST, body={"routing_key": LONGEST})
    [bound] = api.get("bindings", vhost, "e", LONGEST, "q", LONGEST)
    assert bound["routing_key"] == LONGEST
    body = {"arguments": {**KEY, "x-dead-letter-routing-key": LONGEST}}
    assert api.put("queues", vhost, "dying", body=body) == 201


@pytest.mark.parametrize(
    ("method", "path", "body", "reason"),
    [
        ("PUT", ("queues", "{}", TOO_LONG), {}, "queue name is longer than 255 bytes"),
        (
            "PUT",
            ("exchanges", "{}", TOO_LONG),
            {"type": "topic"},
            "exchange name is longer than 255 bytes",
        ),
        (
            "POST",
            ("bindings", "{}", "e", "amq.topic", "q", "q"),
            {"routing_key": TOO_LONG},
            "routing key is longer than 255 bytes",
        ),
        ("PUT", ("queues", "{}", "d"), {"arguments": KEY}, "is not a string of at most 255 bytes"),
        (
            "PUT",
            ("policies", "{}", "p"),
            {"pattern": "", "definition": {"dead-letter-routing-key": TOO_LONG}},
            "must be a string of at most 255 bytes",
        ),
        (
            "PUT",
            ("queues", "{}", "p" * 254),
            {"durable": True, "arguments": {"x-queue-type": "stream", "x-partitions": 2}},
            "queue name is longer than 255 bytes",
        ),
    ],
)
def test_longer_names_and_keys_are_refused(api, vhost, method, path, body, reason):
    api.put("queues", vhost, "q")
    status, said = api.refused(method, *(part.replace("{}", vhost) for part in path), body=body)
    assert status == 400 and reason in said
    assert [row["name"] for row in api.get("queues", vhost)] == ["q"]


def test_import_with_a_long_name_changes_nothing(api, vhost):
    queue = {"durable": True, "auto_delete": False, "arguments": {}}
    rows = [{"name": "fine", **queue}, {"name": TOO_LONG, **queue}]
    assert api.refused("POST", "definitions", vhost, body={"queues": rows})[0] == 400
    assert api.get("queues", vhost) == []
