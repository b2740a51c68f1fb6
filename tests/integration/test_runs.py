"""Messages and acks that arrive together are handled in runs: nobody can tell from outside."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pamqp.commands import Basic, Queue
from pamqp.header import ContentHeader

from leveret.launch import ThreadedBroker, in_process_settings
from leveret.model.history import EventKind
from tests.support import wire
from tests.support.rawclient import RawChannel, RawClient

COUNT = 120
EVENTS = f"SELECT kind, queue_id, ids FROM events WHERE kind<>{EventKind.SNAPSHOT:d} ORDER BY id"
QUEUES: dict[str, dict[str, Any]] = {
    "plain": {"durable": True},
    "brief": {"durable": True, "arguments": {"x-message-ttl": 3_600_000}},
    "short": {"durable": True, "arguments": {"x-max-length": 7, "x-overflow": "reject-publish"}},
    "fleeting": {},
}
KINDS: list[dict[str, Any]] = [
    {},
    {"delivery_mode": 2},
    {"delivery_mode": 2},
    {"delivery_mode": 2, "expiration": "3600000"},
]


def traffic(seed: int) -> list[bytes]:
    """Publishes, mostly several of the same kind in a row."""
    chance = random.Random(seed)
    made: list[bytes] = []
    while len(made) < COUNT:
        exchange = chance.choice(["all", "", "", ""])
        key = chance.choice([*QUEUES, "nowhere"])
        for _ in range(chance.randrange(1, 9)):
            properties: dict[str, Any] = chance.choice(KINDS)
            body = str(len(made)).encode() * chance.choice([1, 1, 30])
            head = ContentHeader(0, len(body), Basic.Properties(**properties))
            made.append(wire.publish(1, exchange, key) + wire.encode(1, head) + wire.body(1, body))
    return made


def play(directory: Path, pieces: list[bytes], together: bool) -> object:
    """Everything a client sees, and everything the history says."""
    settings = in_process_settings(data_dir=directory)
    with ThreadedBroker(settings) as broker:
        client = RawClient(*broker.amqp_address)
        with client:
            client.handshake("/")
            channel = client.channel()
            channel.exchange("all", "fanout")
            for queue, options in QUEUES.items():
                channel.declare(queue, **options)
                channel.bind(queue, "all")
            channel.confirm_select()
            seen: list[object] = [_publish(client, channel, pieces, together)]
            seen += [
                _consume(client.channel(number), queue, together)
                for number, queue in enumerate(QUEUES, 2)
            ]
    return seen, _history(directory)


def _publish(client: RawClient, channel: RawChannel, pieces: list[bytes], together: bool) -> object:
    verdicts: dict[int, str] = {}
    for data in [b"".join(pieces)] if together else pieces:
        client.send_bytes(data)
        expected = len(pieces) if together else len(verdicts) + 1
        while len(verdicts) < expected:
            answer = client.next_on(channel.number).decode()
            assert isinstance(answer, Basic.Ack | Basic.Nack)
            first = 1 if answer.multiple else answer.delivery_tag
            for number in range(first, answer.delivery_tag + 1):
                verdicts.setdefault(number, answer.name)
    return sorted(verdicts.items())


def _consume(channel: RawChannel, queue: str, together: bool) -> object:
    count = channel.ready(queue)
    channel.consume(queue)
    deliveries = channel.deliveries(count)
    acks = [wire.encode(channel.number, Basic.Ack(one.tag)) for one in deliveries]
    for data in [b"".join(acks)] if together else acks:
        channel.client.send_bytes(data)
    channel.wait_ready(queue, 0)
    return queue, [one.body for one in deliveries]


def _history(directory: Path) -> object:
    """Per kind and queue the ids it names, whatever batches they came in."""
    found: dict[tuple[int, int], list[int]] = {}
    with sqlite3.connect(directory / "leveret.db") as database:
        for kind, queue, ids in database.execute(EVENTS):
            numbers = found.setdefault((kind, queue), [])
            numbers += [int.from_bytes(ids[i : i + 8], "little") for i in range(0, len(ids), 8)]
    database.close()
    return found


@pytest.mark.parametrize("seed", range(3))
def test_together_or_one_by_one_is_the_same(tmp_path: Path, seed: int) -> None:
    pieces = traffic(seed)
    whole = play(tmp_path / "together", pieces, together=True)
    assert whole == play(tmp_path / "apart", pieces, together=False)


def test_what_waits_behind_an_error_is_not_published(tmp_path: Path) -> None:
    """The declaration holds the channel until it is on disk; all the rest waits behind it."""
    with (
        ThreadedBroker(in_process_settings(data_dir=tmp_path)) as broker,
        RawClient(*broker.amqp_address) as client,
    ):
        client.handshake("/")
        channel = client.channel()
        late = wire.publish(1, "", "q") + wire.encode(1, ContentHeader(0, 0))
        lost = wire.publish(1, "missing", "") + wire.encode(1, ContentHeader(0, 0))
        declare = wire.encode(1, Queue.Declare(queue="q", durable=True))
        client.send_bytes(declare + lost + late + late)
        channel.expect(Queue.DeclareOk)
        channel.expect_close(404)
        assert client.channel(2).ready("q") == 0
