"""Bindings that would make a match slow: refused however they come, kept if they were stored.

What counts is in tests/unit/routing/test_topic.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pamqp.commands import Queue

from bindings import Destination, DestinationKind, HeadersMatcher, TopicMatcher
from leveret.broker import Broker, definition_file, importing
from leveret.launch import RunningBroker, ThreadedBroker, in_process_settings
from leveret.model.errors import PreconditionFailed
from queues import QueueSpec
from tests.support.rawclient import RawClient

Q = Destination(DestinationKind.QUEUE, "q")
SLOW = [f"{'*.' * number}#.a.*.#.b" for number in range(10)]
"""Each takes a step for its `#`, and for what follows."""
REFUSED = "wildcards in too many different places"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopicMatcher, "most_steps", 20)
    monkeypatch.setattr(HeadersMatcher, "most_steps", 20)


def declared(hub: Broker) -> Broker:
    if "q" not in hub.vhosts["/"].queues:
        hub.vhosts["/"].declare_queue(QueueSpec("q", True))
    return hub


def bound(hub: Broker) -> list[str]:
    return [one.routing_key for one in hub.vhosts["/"].exchanges["amq.topic"].bindings]


def test_over_amqp_it_is_406_and_nothing_is_bound(few: None) -> None:
    with ThreadedBroker(in_process_settings()) as running, RawClient(*running.amqp_address) as raw:
        channel = raw.handshake().channel()
        channel.declare("q")
        channel.bind("q", "amq.topic", SLOW[0])
        channel.bind("q", "amq.topic", SLOW[1])
        bind = Queue.Bind(queue="q", exchange="amq.topic", routing_key=SLOW[9])
        channel.refused(bind, 406)
        assert running.running is not None
        assert bound(running.running.broker) == SLOW[:2]


def test_so_it_is_for_fields_of_headers(few: None) -> None:
    with ThreadedBroker(in_process_settings()) as running, RawClient(*running.amqp_address) as raw:
        channel = raw.handshake().channel()
        channel.declare("q")
        fields: dict[str, Any] = {f"f{number}": number for number in range(9)}
        channel.bind("q", "amq.headers", "1", fields)
        channel.bind("q", "amq.headers", "2", fields)
        more = Queue.Bind(queue="q", exchange="amq.headers", routing_key="3", arguments=fields)
        channel.refused(more, 406)


async def test_what_was_stored_is_bound_after_a_restart(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = in_process_settings(data_dir=tmp_path / "data")
    async with RunningBroker(settings) as running:
        for key in SLOW:
            declared(running.broker).vhosts["/"].bind("amq.topic", Q, key, {})
    request.getfixturevalue("few")
    async with RunningBroker(settings) as running:
        vhost = running.broker.vhosts["/"]
        assert sorted(bound(running.broker)) == sorted(SLOW)
        with pytest.raises(PreconditionFailed, match=REFUSED):
            vhost.bind("amq.topic", Q, "#.#.slower", {})
        vhost.unbind("amq.topic", Q, SLOW[3], {})
        assert len(bound(running.broker)) == len(SLOW) - 1


def imported(hub: Broker, keys: list[str]) -> None:
    rows: list[Any] = [
        {"source": "amq.topic", "destination": "q", "routing_key": key, "vhost": "/"}
        for key in keys
    ]
    plan = definition_file.read({"bindings": rows})
    importing.check(hub, plan)
    importing.apply(hub, plan)


async def test_an_import_is_judged_whole_with_what_is_bound(few: None) -> None:
    async with RunningBroker(in_process_settings()) as running:
        hub = declared(running.broker)
        with pytest.raises(PreconditionFailed, match=REFUSED):
            imported(hub, SLOW)
        assert bound(hub) == []
        imported(hub, SLOW[:2])
        imported(hub, SLOW[:2])
        with pytest.raises(PreconditionFailed, match=REFUSED):
            imported(hub, SLOW[2:5])
        assert bound(hub) == SLOW[:2]


async def test_an_import_of_what_is_bound_changes_nothing_even_if_it_is_slow(
    request: pytest.FixtureRequest,
) -> None:
    async with RunningBroker(in_process_settings()) as running:
        hub = declared(running.broker)
        imported(hub, SLOW)
        request.getfixturevalue("few")
        imported(hub, SLOW)
        assert bound(hub) == SLOW
