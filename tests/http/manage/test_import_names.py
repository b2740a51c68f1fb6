"""Imports with name clashes, in the file or with existing objects: all or nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from leveret.broker.definitions.export import export_vhost
from leveret.broker.definitions.file import parse_definitions
from leveret.broker.definitions.importer import apply_import, check_import
from leveret.broker.policies.parameters import LIMITS_NAME, VHOST_LIMITS
from leveret.broker.runtime.slices import run_at_once
from leveret.model.errors import BrokerError

NAMES = ("x", "x-0", "x-1", "x-0-0", "amq.gen-a")
SORTS: dict[str, dict[str, Any]] = {
    "classic": {},
    "log": {"x-queue-type": "stream"},
    "young log": {"x-queue-type": "stream", "x-max-age": "1D"},
    "one partition": {"x-queue-type": "stream", "x-partitions": 1},
    "two partitions": {"x-queue-type": "stream", "x-partitions": 2},
}
_numbers = itertools.count(1)


def queue(name: str, sort: str) -> dict[str, Any]:
    return {"name": name, "durable": True, "auto_delete": False, "arguments": SORTS[sort]}


def exchange(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "type": "direct", "durable": True, "arguments": arguments}


def binding(source: str, kind: str, destination: str) -> dict[str, Any]:
    return {"source": source, "destination_type": kind, "destination": destination}


names = st.sampled_from(NAMES)
documents = st.fixed_dictionaries(
    {
        "queues": st.lists(st.builds(queue, names, st.sampled_from(sorted(SORTS))), max_size=3),
        "exchanges": st.lists(
            st.builds(exchange, names, st.sampled_from([{}, {"x-super-stream": True}])), max_size=1
        ),
        "bindings": st.lists(
            st.builds(binding, names, st.sampled_from(["queue", "exchange"]), names), max_size=1
        ),
    }
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(documents, min_size=1, max_size=3), st.sampled_from([-1, 3]))
@example([{"queues": [queue("x-0", "classic")]}, {"queues": [queue("x", "two partitions")]}], -1)
@example([{"queues": [queue("x", "one partition")]}] * 2, 3)
def test_refused_import_changes_nothing(leveret, files, limit):
    """A refused import changes nothing; an accepted one creates everything."""
    hub, name = leveret.running.broker, f"import/{next(_numbers)}"

    def import_all() -> None:
        vhost = hub.add_vhost(name)
        hub.parameters.put(name, VHOST_LIMITS, LIMITS_NAME, {"max-queues": limit})
        try:
            for document in files:
                before = run_at_once(export_vhost(hub, vhost))
                try:
                    plan = run_at_once(parse_definitions(document, name))
                    run_at_once(check_import(hub, plan))
                except BrokerError:
                    assert run_at_once(export_vhost(hub, vhost)) == before
                else:
                    run_at_once(apply_import(hub, plan))
                    assert vhost.queues.keys() >= {row["name"] for row in document["queues"]}
                    assert not 0 <= limit < len(vhost.queues)
        finally:
            hub.delete_vhost(name)

    leveret.call(import_all)


PARTITIONED = queue("x", "two partitions")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"queues": [queue("x-1", "classic"), PARTITIONED]}, "queue 'x-1' in vhost"),
        ({"queues": [PARTITIONED, queue("x-1", "classic")]}, "inequivalent arg 'x-queue-type'"),
        ({"queues": [queue("x-1", "young log"), PARTITIONED]}, "inequivalent arg 'x-max-age'"),
        ({"queues": [queue("x-1", "two partitions"), PARTITIONED]}, "queue 'x-1' in vhost"),
        ({"queues": [PARTITIONED, queue("x-1", "two partitions")]}, "queue 'x-1' in vhost"),
        ({"queues": [queue("there", "two partitions")]}, "queue 'there-0' in vhost"),
        ({"queues": [queue("front", "two partitions")]}, "exchange 'front' in vhost"),
        ({"queues": [PARTITIONED], "bindings": [binding("x", "queue", "x-2")]}, "no queue 'x-2'"),
        ({"queues": [queue("x", "log") | {"arguments": {"n": 1 << 63}}]}, "does not fit"),
        ({"exchanges": [exchange("y", {"n": 1 << 63})]}, "exchanges[0]: 'arguments' cannot be"),
        ({"bindings": [binding("front", "queue", "there-0") | {"arguments": {"n": 1 << 63}}]},
         "bindings[0]: 'arguments' cannot be written as AMQP"),
    ],
)  # fmt: skip
def test_clash_is_refused_before_anything_is_created(api, vhost, body, reason):
    api.put("queues", vhost, "there-0", body={"durable": True})
    api.put("exchanges", vhost, "front", body={"type": "direct"})
    before = api.get("definitions", vhost)
    body = {"queues": [], **body}
    body["queues"] = [queue("first", "classic"), *body["queues"]]
    status, said = api.refused("POST", "definitions", vhost, body=body)
    assert status == 400 and reason in said
    assert api.get("definitions", vhost) == before


def test_partitions_may_be_defined_and_bound_with_their_log(api, vhost):
    body = {
        "queues": [queue("x-1", "log"), PARTITIONED, queue("x-0", "log")],
        "exchanges": [exchange("y", {})],
        "bindings": [binding("y", "queue", "x-1"), binding("y", "exchange", "x")],
    }
    for _ in range(2):
        assert api.post("definitions", vhost, body=body) == 204
    assert {row["name"] for row in api.get("queues", vhost)} == {"x", "x-0", "x-1"}
    assert len(api.get("logs", vhost, "x")["partitions"]) == 2


def test_default_queue_limit_is_checked_first(api, vhost, hub, leveret):
    most = hub.settings.queue_max
    held = leveret.call(lambda: hub.vhosts[vhost])
    leveret.call(lambda: setattr(hub, "settings", replace(hub.settings, queue_max=2)))
    try:
        body = {"queues": [PARTITIONED]}
        status, said = api.refused("POST", "definitions", vhost, body=body)
        assert (status, "adding 3 queue(s)" in said, len(held.queues)) == (400, True, 0)
    finally:
        leveret.call(lambda: setattr(hub, "settings", replace(hub.settings, queue_max=most)))
