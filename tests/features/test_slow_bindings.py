"""Bindings that would make matching slow are refused, but kept if they are already stored.

tests/unit/bindings/test_topic.py tests which binding keys these are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pamqp.commands import Queue

from leveret.bindings import Destination, DestinationKind, HeadersMatcher, TopicMatcher
from leveret.broker import Broker
from leveret.broker.definitions import file, importer
from leveret.broker.runtime.slices import run_at_once
from leveret.launch import RunningBroker, ThreadedBroker, in_process_settings
from leveret.model.errors import PreconditionFailed
from leveret.queues.spec import QueueSpec
from tests.support.rawclient import RawClient

Q = Destination(DestinationKind.QUEUE, "q")
SLOW = [f"{'*.' * number}#.a.*.#.b" for number in range(10)]
"""A match takes a step for each `#` and for the words after it."""
REFUSED = "wildcards in too many different places"


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopicMatcher, "max_steps", 20)
    monkeypatch.setattr(HeadersMatcher, "max_steps", 20)


def with_queue(broker: Broker) -> Broker:
    if "q" not in broker.vhosts["/"].queues:
        broker.vhosts["/"].declare_queue(QueueSpec("q", True))
    return broker


def bound_keys(broker: Broker) -> list[str]:
    return [binding.routing_key for binding in broker.vhosts["/"].exchanges["amq.topic"].bindings]


def test_slow_binding_is_refused_with_406(low_limit: None) -> None:
    with ThreadedBroker(in_process_settings()) as running, RawClient(*running.amqp_address) as raw:
        channel = raw.handshake().channel()
        channel.declare("q")
        channel.bind("q", "amq.topic", SLOW[0])
        channel.bind("q", "amq.topic", SLOW[1])
        bind = Queue.Bind(queue="q", exchange="amq.topic", routing_key=SLOW[9])
        channel.refused(bind, 406)
        assert running.running is not None
        assert bound_keys(running.running.broker) == SLOW[:2]


def test_slow_headers_binding_is_refused_with_406(low_limit: None) -> None:
    with ThreadedBroker(in_process_settings()) as running, RawClient(*running.amqp_address) as raw:
        channel = raw.handshake().channel()
        channel.declare("q")
        fields: dict[str, Any] = {f"f{number}": number for number in range(9)}
        channel.bind("q", "amq.headers", "1", fields)
        channel.bind("q", "amq.headers", "2", fields)
        bind = Queue.Bind(queue="q", exchange="amq.headers", routing_key="3", arguments=fields)
        channel.refused(bind, 406)


async def test_stored_slow_binding_is_recovered(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = in_process_settings(data_dir=tmp_path / "data")
    async with RunningBroker(settings) as running:
        for key in SLOW:
            with_queue(running.broker).vhosts["/"].bind("amq.topic", Q, key, {})
    request.getfixturevalue("low_limit")
    async with RunningBroker(settings) as running:
        vhost = running.broker.vhosts["/"]
        assert sorted(bound_keys(running.broker)) == sorted(SLOW)
        with pytest.raises(PreconditionFailed, match=REFUSED):
            vhost.bind("amq.topic", Q, "#.#.slower", {})
        vhost.unbind("amq.topic", Q, SLOW[3], {})
        assert len(bound_keys(running.broker)) == len(SLOW) - 1


def import_bindings(broker: Broker, keys: list[str]) -> None:
    rows: list[Any] = [
        {"source": "amq.topic", "destination": "q", "routing_key": key, "vhost": "/"}
        for key in keys
    ]
    plan = run_at_once(file.parse_definitions({"bindings": rows}))
    run_at_once(importer.check_import(broker, plan))
    run_at_once(importer.apply_import(broker, plan))


async def test_import_is_checked_together_with_existing_bindings(low_limit: None) -> None:
    async with RunningBroker(in_process_settings()) as running:
        broker = with_queue(running.broker)
        with pytest.raises(PreconditionFailed, match=REFUSED):
            import_bindings(broker, SLOW)
        assert bound_keys(broker) == []
        import_bindings(broker, SLOW[:2])
        import_bindings(broker, SLOW[:2])
        with pytest.raises(PreconditionFailed, match=REFUSED):
            import_bindings(broker, SLOW[2:5])
        assert bound_keys(broker) == SLOW[:2]


async def test_import_of_existing_slow_bindings_changes_nothing(
    request: pytest.FixtureRequest,
) -> None:
    async with RunningBroker(in_process_settings()) as running:
        broker = with_queue(running.broker)
        import_bindings(broker, SLOW)
        request.getfixturevalue("low_limit")
        import_bindings(broker, SLOW)
        assert bound_keys(broker) == SLOW
