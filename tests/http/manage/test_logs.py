"""Logs, their records and consumer groups over HTTP, and RabbitMQ's endpoints for streams."""

from __future__ import annotations

import base64
import errno
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.http.manage.client import Api

STREAM = {"x-queue-type": "stream"}


def publish(api, vhost, name, *records):
    return api.post("logs", vhost, name, "publish", body={"records": list(records)})


def records(api, vhost, name, **query):
    return api.get("logs", vhost, name, "records", **query)["records"]


def values(found):
    return [record["value"] for record in found]


@pytest.fixture
def log(api, vhost):
    """A log with two partitions."""
    api.put("logs", vhost, "l", body={"partitions": 2})
    return "l"


@pytest.mark.parametrize(
    ("way", "body"),
    [
        ("logs", {"partitions": 3}),
        ("queues", {"durable": True, "arguments": {"x-queue-type": "stream"}}),
        ("stream/super-streams", {"partitions": 3}),
        ("stream/super-streams", {"binding-keys": "a,b"}),
    ],
)
def test_log_whose_files_cannot_be_created_is_refused(api, vhost, monkeypatch, way, body):
    real = Path.mkdir

    def mkdir(path, *arguments, **options):
        if path.parent.name.startswith(("logs", "leveret-logs-")):
            raise OSError(errno.EMFILE, "Too many open files")
        real(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    status, answer = api.refused("PUT", *way.split("/"), vhost, "l", body=body)[:2]
    assert status == 500
    assert "cannot open" in str(answer)
    assert api.get("logs", vhost) == []


def test_log_is_created_shown_listed_and_deleted(api, vhost):
    body = {"partitions": 3, "max_age": "7D", "max_length_bytes": 1000, "cleanup_policy": "compact"}
    assert api.put("logs", vhost, "l", body=body) == 201
    assert api.put("logs", vhost, "l", body=body) == 204
    row = api.get("logs", vhost, "l")
    assert (row["name"], row["vhost"], row["cleanup_policy"]) == ("l", vhost, "compact")
    assert row["retention"] == {"max_age": "7D", "max_length_bytes": 1000}
    assert [one["queue"] for one in row["partitions"]] == ["l-0", "l-1", "l-2"]
    assert {"index", "first_offset", "next_offset", "bytes", "segments"} <= row["partitions"][
        0
    ].keys()
    assert api.get("logs", vhost) == [row] and row in api.get("logs")
    assert api.delete("logs", vhost, "l") == 204
    assert api.get("logs", vhost) == [] and api.get("queues", vhost) == []
    assert api.refused("GET", "logs", vhost, "l")[0] == 404
    assert api.refused("DELETE", "logs", vhost, "l")[0] == 404


def test_records_are_written_and_read_by_offset(api, vhost, log):
    written = [{"value": f"v{number}", "partition": 1, "headers": {"n": number}}
               for number in range(5)]  # fmt: skip
    assert publish(api, vhost, log, *written) == {"published": 5}
    found = records(api, vhost, log, partition=1, offset=2, count=2)
    assert values(found) == ["v2", "v3"]
    assert [(one["partition"], one["offset"]) for one in found] == [(1, 2), (1, 3)]
    assert found[0]["headers"]["n"] == 2 and found[0]["encoding"] == "string"
    assert abs(found[0]["timestamp"] / 1000 - time.time()) < 60
    assert values(records(api, vhost, log, partition=1, offset="last")) == ["v4"]
    assert records(api, vhost, log, partition=1, offset="next") == []
    assert len(records(api, vhost, log, partition=1, offset="1h")) == 5
    assert len(records(api, vhost, log, partition=1, offset="2020-01-01T00:00:00Z")) == 5
    assert records(api, vhost, log, partition=0) == []


def test_same_key_goes_to_the_same_partition(api, vhost, log):
    keyed = [{"key": f"k{number % 4}", "value": str(number)} for number in range(40)]
    publish(api, vhost, log, *keyed)
    seen: dict[str, set[int]] = {}
    for partition in (0, 1):
        for record in records(api, vhost, log, partition=partition):
            seen.setdefault(record["key"], set()).add(record["partition"])
    assert seen.keys() == {"k0", "k1", "k2", "k3"}
    assert all(len(partitions) == 1 for partitions in seen.values())


def test_binary_values_and_tombstones(api, vhost):
    api.put("logs", vhost, "one", body={"partitions": 1})
    raw = base64.b64encode(b"\xff\x00").decode()
    publish(api, vhost, "one", {"value": raw, "encoding": "base64"}, {"key": "k", "value": None})
    first, second = records(api, vhost, "one")
    assert (first["value"], first["encoding"]) == (raw, "base64")
    assert (second["key"], second["value"]) == ("k", "")


def test_waiting_read_returns_when_a_record_arrives(api, vhost, log, leveret):
    answers: list[Any] = []

    def read():
        answers.append(records(api, vhost, log, partition=0, offset="next", wait=15))

    waiting = threading.Thread(target=read)
    waiting.start()
    other = Api(leveret.http_url)
    deadline = time.monotonic() + 60
    while waiting.is_alive() and time.monotonic() < deadline:
        publish(other, vhost, log, {"value": "at last", "partition": 0})
        waiting.join(0.2)
    other.http.close()
    assert values(answers[0])[0] == "at last"


def test_group_fetches_commits_and_continues(api, vhost, log):
    publish(api, vhost, log, *({"value": f"{n}", "partition": n % 2} for n in range(6)))
    where = ("logs", vhost, log, "groups", "g")
    found = api.post(*where, "fetch", body={"count": 4})["records"]
    assert len(found) == 4
    again = api.post(*where, "fetch", body={"count": 10})["records"]
    assert len(again) == 6  # nothing was committed
    assert api.post(*where, "commit", body={"offsets": {"0": 3, "1": 1}}) == 204
    group = api.get("logs", vhost, log, "groups")[0]
    assert (group["group"], group["members"]) == ("g", [])
    assert group["partitions"] == [
        {"partition": 0, "committed": 3, "end": 3, "lag": 0},
        {"partition": 1, "committed": 1, "end": 3, "lag": 2},
    ]
    left = api.post(*where, "fetch", body={"count": 10})["records"]
    assert [(one["partition"], one["offset"]) for one in left] == [(1, 1), (1, 2)]


def test_members_share_the_partitions_of_a_group(api, vhost, log):
    publish(api, vhost, log, *({"value": f"{n}", "partition": n % 2} for n in range(6)))
    where = ("logs", vhost, log, "groups", "g")
    first = api.post(*where, "members", body={"prefetch": 50})
    assert first["partitions"] == [0, 1]
    second = api.post(*where, "members")
    seen = []
    for member in (first["member"], second["member"]):
        got = api.post(*where, "members", member, "fetch", body={"count": 10, "wait": 10})
        (partition,) = got["partitions"]
        assert [one["offset"] for one in got["records"]] == [0, 1, 2]
        seen += [one["value"] for one in got["records"]]
        done = api.post(*where, "members", member, "commit", body={"offsets": {f"{partition}": 2}})
        assert done == {"offsets": {f"{partition}": 2}}
    assert sorted(seen) == [f"{n}" for n in range(6)]
    shown = api.get("logs", vhost, log, "groups")[0]
    assert [one["consumer_tag"] for one in shown["members"]] == [first["member"], second["member"]]
    assert {one["consumer_tag"] for one in api.get("consumers", vhost)} >= {first["member"]}
    assert api.delete(*where, "members", first["member"]) == 204
    body = {"count": 10, "wait": 10}
    left = api.post(*where, "members", second["member"], "fetch", body=body)["records"]
    assert [one["offset"] for one in left] == [2]
    assert api.refused("POST", *where, "members", first["member"], "fetch", body={})[0] == 404
    assert api.refused("POST", *where, "members", body={"session": 0})[0] == 400
    assert api.delete(*where, "members", second["member"]) == 204


def test_many_groups_are_listed_in_parts(api, vhost, log):
    names = [f"g{number}" for number in range(60)]
    for name in names:
        api.post("logs", vhost, log, "groups", name, "commit", body={"offsets": {"0": 0}})
    rows = api.get("logs", vhost, log, "groups")
    assert [row["group"] for row in rows] == names
    assert all(len(row["partitions"]) == 2 for row in rows)


def test_group_reset_with_and_without_dry_run(api, vhost, log):
    publish(api, vhost, log, *({"value": f"{n}", "partition": 0} for n in range(4)))
    where = ("logs", vhost, log, "groups", "g")
    api.post(*where, "commit", body={"offsets": {"0": 4}})
    looked = api.post(*where, "reset", body={"to": 1, "partition": 0, "dry_run": True})
    assert looked == [{"partition": 0, "from": 4, "to": 1}]
    assert api.get("logs", vhost, log, "groups")[0]["partitions"][0]["committed"] == 4
    moved = api.post(*where, "reset", body={"to": "first"})
    assert [(one["partition"], one["to"]) for one in moved] == [(0, 0), (1, 0)]
    assert len(api.post(*where, "fetch", body={"count": 10})["records"]) == 4
    assert (
        api.post(*where, "reset", body={"to": "2020-01-01T00:00:00", "partition": 0})[0]["to"] == 0
    )
    assert api.delete(*where) == 204
    assert api.get("logs", vhost, log, "groups") == []


@pytest.mark.parametrize(
    ("parts", "body", "status"),
    [
        (("publish",), {"records": [{"value": "x", "partition": 9}]}, 400),
        (("publish",), {"records": [{"value": "x", "encoding": "rot13"}]}, 400),
        (("publish",), {"records": [{"value": "x", "properties": {"priority": "x"}}]}, 400),
        (("publish",), {"records": [{"value": "x"}] * 501}, 400),
        (("publish",), {"records": [{"key": "k"}]}, 400),
        (("groups", "g", "commit"), {"offsets": {"7": 0}}, 404),
        (("groups", "g", "commit"), {"offsets": {"0": 99}}, 400),
        (("groups", "g", "commit"), {"offsets": {"x": 0}}, 400),
        (("groups", "nobody", "reset"), {"to": "first"}, 404),
        (("groups", "g", "fetch"), {"count": 0}, 400),
    ],
)
def test_invalid_requests_have_a_reason(api, vhost, log, parts, body, status):
    api.post("logs", vhost, log, "groups", "g", "fetch", body={"count": 1})
    assert api.refused("POST", "logs", vhost, log, *parts, body=body)[0] == status


def test_reading_refuses_invalid_parameters(api, vhost, log):
    for query in ({"partition": 7}, {"offset": "soon"}, {"count": 0}, {"wait": 99}):
        assert api.refused("GET", "logs", vhost, log, "records", **query)[0] in (400, 404)
    assert api.refused("GET", "logs", vhost, "no", "records")[0] == 404
    assert api.refused("PUT", "logs", vhost, "x", body={"cleanup_policy": "burn"})[0] == 400


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"user_id": "somebody"}, "user_id property set to 'somebody'"),
        ({"expiration": "soon"}, "invalid expiration 'soon'"),
        ({"reply_to": "amq.rabbitmq.reply-to"}, "fast reply consumer does not exist"),
    ],
)
def test_records_are_validated_like_messages(api, vhost, log, properties, reason):
    both = [{"value": "good"}, {"value": "bad", "properties": properties}]
    body = {"records": both}
    status, said = api.refused("POST", "logs", vhost, log, "publish", body=body)
    assert status == 400 and reason in said
    assert api.get("logs", vhost, log)["messages"] == 0
    own = {"value": "own", "properties": {"user_id": "guest", "expiration": "60000"}}
    assert publish(api, vhost, log, own) == {"published": 1}


def test_records_are_refused_while_an_alarm_is_raised(api, vhost, log, leveret, hub):
    def alarm(reason):
        is_set = threading.Event()
        leveret._loop.call_soon_threadsafe(hub.alarms.set, "test", reason)
        leveret._loop.call_soon_threadsafe(is_set.set)
        assert is_set.wait(60)

    alarm("low on carrots")
    body = {"records": [{"value": "x"}]}
    refused = api.refused("POST", "logs", vhost, log, "publish", body=body)
    alarm("")
    assert refused == (503, "publishing is blocked: low on carrots")
    assert publish(api, vhost, log, {"value": "x"}) == {"published": 1}


@pytest.mark.parametrize("digits", [21, 5000])
def test_too_long_numbers_are_refused_with_a_reason(api, vhost, log, digits):
    endless = "9" * digits
    api.post("logs", vhost, log, "groups", "g", "fetch", body={})
    for refused in (
        api.refused("GET", "logs", vhost, log, "records", offset=endless),
        api.refused("POST", "logs", vhost, log, "groups", "g", "reset", body={"to": endless}),
        api.refused("POST", "logs", vhost, log, "groups", "g", "members", body={"start": endless}),
    ):
        assert refused == (400, "an offset has at most 20 digits")
    assert records(api, vhost, log, offset="9" * 20) == []


def test_partitions_count_for_the_limit_of_queues(api, vhost):
    api.put("vhost-limits", vhost, "max-queues", body={"value": 3})
    for way, body in (
        (("logs", vhost, "l"), {"partitions": 3}),
        (("stream", "super-streams", vhost, "l"), {"partitions": 3}),
        (("queues", vhost, "l"), {"durable": True, "arguments": {**STREAM, "x-partitions": 3}}),
    ):
        status, reason = api.refused("PUT", *way, body=body)
        assert (status, "limit in vhost" in reason) == (400, True)
        assert api.get("queues", vhost) == []
    api.put("logs", vhost, "l-0", body={})  # becomes a partition, and is counted once
    assert api.put("logs", vhost, "l", body={"partitions": 2}) == 201
    assert api.refused("PUT", "logs", vhost, "m", body={})[0] == 400


def test_log_permissions_are_those_of_the_queue(api, vhost, log, sign_in):
    api.put("users", "reader", body={"password": "pw", "tags": "management"})
    api.put("permissions", vhost, "reader", body={"configure": "", "write": "", "read": "^l$"})
    reader = sign_in("reader", "pw")
    assert records(reader, vhost, log) == []
    body = {"records": [{"value": "x"}]}
    assert reader.refused("POST", "logs", vhost, log, "publish", body=body)[0] == 403
    assert reader.refused("DELETE", "logs", vhost, log)[0] == 403
    assert reader.refused("PUT", "logs", vhost, "new", body={})[0] == 403
    api.delete("users", "reader")


# RabbitMQ's own ----------------------------------------------------------------------------------


def test_super_stream_is_a_log(api, vhost):
    body = {"partitions": 3, "arguments": {"x-max-age": "7D"}}
    assert api.put("stream", "super-streams", vhost, "s", body=body) == 201
    assert api.put("stream", "super-streams", vhost, "s", body=body) == 204
    row = api.get("logs", vhost, "s")
    assert len(row["partitions"]) == 3 and row["retention"]["max_age"] == "7D"
    assert api.get("exchanges", vhost, "s")["arguments"] == {"x-super-stream": True}
    assert api.delete("stream", "super-streams", vhost, "s") == 204
    assert api.get("logs", vhost) == []


@pytest.mark.parametrize("partitions", [{"partitions": 1}, {"binding-keys": "a"}])
@pytest.mark.parametrize("value", ["nested", 1 << 70, {"k" * 300: 1}, "x" * 140_000])
def test_super_stream_refuses_arguments_that_amqp_cannot_encode(api, vhost, partitions, value):
    if value == "nested":
        for _ in range(900):
            value = [value]
    body = {**partitions, "arguments": {"x-note": value}}
    status, reason = api.refused("PUT", "stream", "super-streams", vhost, "s", body=body)
    assert status == 400 and reason
    assert api.get("queues", vhost) == []
    assert api.get("definitions")


def test_super_stream_by_binding_keys(api, vhost):
    body = {"binding-keys": "eu, us", "arguments": {}}
    assert api.put("stream", "super-streams", vhost, "orders", body=body) == 201
    names = sorted(row["name"] for row in api.get("queues", vhost))
    assert names == ["orders-eu", "orders-us"]
    ask = {"exchange": "orders", "routing_key": "us", "headers": {}}
    assert api.post("route", vhost, body=ask)["queues"] == ["orders-us"]
    both = {"binding-keys": "a", "partitions": 2}
    assert api.refused("PUT", "stream", "super-streams", vhost, "x", body=both)[0] == 400


def test_tracking_has_committed_offsets(api, vhost):
    api.put("logs", vhost, "one", body={"partitions": 1})
    publish(api, vhost, "one", {"value": "a"}, {"value": "b"})
    api.post("logs", vhost, "one", "groups", "g", "commit", body={"offsets": {"0": 2}})
    assert api.get("stream", vhost, "one", "tracking") == {"offsets": {"g": 2}, "writers": {}}
    assert api.refused("GET", "stream", vhost, "no", "tracking")[0] == 404


def test_stream_protocol_lists_are_empty(api, vhost):
    for kind in ("connections", "consumers", "publishers"):
        assert api.get("stream", kind) == api.get("stream", kind, vhost) == []


@pytest.mark.parametrize("way", ["fetch", "commit", "members"])
def test_group_name_has_the_same_limit_as_over_amqp(api, vhost, log, way):
    body = {"offsets": {"0": 0}} if way == "commit" else {}
    where = ("logs", vhost, log, "groups")
    for name in ("g" * 256, "g" * 20_000):
        status, reason = api.refused("POST", *where, name, way, body=body)
        assert status == 400 and reason.endswith("must be a name of 1 to 255 characters")
    assert api.get(*where) == []
    api.post(*where, "g" * 255, way, body=body)
    assert [one["group"] for one in api.get(*where)] == ["g" * 255]
