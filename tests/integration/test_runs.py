"""Publishes and acks that arrive in one read are handled as runs, with the same effect."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pamqp.commands import Basic, Channel, Queue, Tx
from pamqp.header import ContentHeader

from leveret.launch import ThreadedBroker, in_process_settings
from leveret.model.history import EventKind
from tests.support import wire
from tests.support.rawclient import Content, RawChannel, RawClient

COUNT = 120
EVENTS = f"SELECT kind, queue_id, ids FROM events WHERE kind<>{EventKind.SNAPSHOT:d} ORDER BY id"
QUEUES: dict[str, dict[str, Any]] = {
    "durable": {"durable": True},
    "ttl": {"durable": True, "arguments": {"x-message-ttl": 3_600_000}},
    "max-length": {
        "durable": True,
        "arguments": {"x-max-length": 7, "x-overflow": "reject-publish"},
    },
    "transient": {},
}
KINDS: list[dict[str, Any]] = [
    {},
    {"delivery_mode": 2},
    {"delivery_mode": 2},
    {"delivery_mode": 2, "expiration": "3600000"},
]


def traffic(seed: int) -> list[bytes]:
    """Encoded publishes, mostly several of the same kind in a row."""
    rng = random.Random(seed)
    publishes: list[bytes] = []
    while len(publishes) < COUNT:
        exchange = rng.choice(["all", "", "", ""])
        key = rng.choice([*QUEUES, "nowhere"])
        for _ in range(rng.randrange(1, 9)):
            properties: dict[str, Any] = rng.choice(KINDS)
            body = str(len(publishes)).encode() * rng.choice([1, 1, 30])
            head = ContentHeader(0, len(body), Basic.Properties(**properties))
            method = wire.publish(1, exchange, key)
            publishes.append(method + wire.encode(1, head) + wire.body(1, body))
    return publishes


def run_broker(
    directory: Path, pieces: list[bytes], together: bool, transactional: bool = False
) -> object:
    """Return everything that a client receives, and the recorded history."""
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
            publish = _publish_in_a_transaction if transactional else _publish
            received: list[object] = [publish(client, channel, pieces, together)]
            received += [
                _consume(client.channel(number), queue, together)
                for number, queue in enumerate(QUEUES, 2)
            ]
    return received, _history(directory)


def _publish(client: RawClient, channel: RawChannel, pieces: list[bytes], together: bool) -> object:
    channel.confirm_select()
    confirms: dict[int, str] = {}
    for data in [b"".join(pieces)] if together else pieces:
        client.send_bytes(data)
        expected = len(pieces) if together else len(confirms) + 1
        while len(confirms) < expected:
            confirm = client.next_on(channel.number).decode()
            assert isinstance(confirm, Basic.Ack | Basic.Nack)
            first = 1 if confirm.multiple else confirm.delivery_tag
            for number in range(first, confirm.delivery_tag + 1):
                confirms.setdefault(number, confirm.name)
    return sorted(confirms.items())


def _publish_in_a_transaction(
    client: RawClient, channel: RawChannel, pieces: list[bytes], together: bool
) -> object:
    channel.call(Tx.Select())
    for data in [b"".join(pieces)] if together else pieces:
        client.send_bytes(data)
        channel.call(Channel.Flow(active=True))  # so the next piece is a read of its own
    other = client.channel(9)
    before = [other.ready(queue) for queue in QUEUES]
    channel.call(Tx.Commit())
    return before, [other.ready(queue) for queue in QUEUES]


def _consume(channel: RawChannel, queue: str, together: bool) -> object:
    count = channel.ready(queue)
    channel.consume(queue)
    deliveries = channel.deliveries(count)
    acks = [wire.encode(channel.number, Basic.Ack(delivery.tag)) for delivery in deliveries]
    for data in [b"".join(acks)] if together else acks:
        channel.client.send_bytes(data)
    channel.wait_ready(queue, 0)
    return queue, [delivery.body for delivery in deliveries]


def _history(directory: Path) -> dict[tuple[int, int], list[int]]:
    """Message ids by event kind and queue, whatever batches they were in."""
    events: dict[tuple[int, int], list[int]] = {}
    with sqlite3.connect(directory / "leveret.db") as database:
        for kind, queue, ids in database.execute(EVENTS):
            numbers = events.setdefault((kind, queue), [])
            numbers += [int.from_bytes(ids[i : i + 8], "little") for i in range(0, len(ids), 8)]
    database.close()
    return events


@pytest.mark.parametrize("seed", range(3))
def test_runs_have_the_same_effect_as_single_publishes(tmp_path: Path, seed: int) -> None:
    pieces = traffic(seed)
    in_runs = run_broker(tmp_path / "together", pieces, together=True)
    assert in_runs == run_broker(tmp_path / "apart", pieces, together=False)


@pytest.mark.parametrize("seed", range(2))
def test_runs_of_a_transaction_have_the_same_effect_as_single_publishes(
    tmp_path: Path, seed: int
) -> None:
    pieces = traffic(seed)
    in_runs = run_broker(tmp_path / "together", pieces, together=True, transactional=True)
    apart = run_broker(tmp_path / "apart", pieces, together=False, transactional=True)
    assert in_runs == apart


class Settler:
    """Settles deliveries of one channel at random, and knows what must be left in the queue."""

    def __init__(self, deliveries: list[Content]) -> None:
        self.unsettled = {delivery.tag: delivery.body for delivery in deliveries}
        self.gone: set[bytes] = set()

    def frame(self, rng: random.Random, number: int) -> bytes:
        tag, multiple = rng.choice([*self.unsettled]), rng.random() < 0.3
        outcome = rng.choice(["ack", "ack", "ack", "drop", "requeue"])
        tags = [each for each in self.unsettled if each == tag or (multiple and each < tag)]
        bodies = {self.unsettled.pop(each) for each in tags}
        if outcome != "requeue":
            self.gone |= bodies
        if outcome == "ack":
            return wire.encode(number, Basic.Ack(tag, multiple))
        return wire.encode(number, Basic.Nack(tag, multiple, outcome == "requeue"))

    def frames(self, rng: random.Random, number: int, count: int) -> list[bytes]:
        count = min(count, len(self.unsettled))
        return [self.frame(rng, number) for _ in range(count) if self.unsettled]


def settle_at_random(directory: Path, seed: int, together: bool) -> object:
    """Two consumers take messages in turn and settle them; return everything that is observed."""
    rng = random.Random(seed)
    with (
        ThreadedBroker(in_process_settings(data_dir=directory)) as broker,
        RawClient(*broker.amqp_address) as client,
    ):
        client.handshake("/")
        channel, consumers = client.channel(), [client.channel(2), client.channel(3)]
        channel.declare("q", durable=True)
        head = wire.encode(1, ContentHeader(0, 3, Basic.Properties(delivery_mode=2)))
        bodies = [b"%03d" % number for number in range(COUNT)]
        pieces = [wire.publish(1, "", "q") + head + wire.body(1, body) for body in bodies]
        _send(client, channel, pieces, together)
        channel.wait_ready("q", COUNT)
        prefetches = [rng.randrange(5, 60) for _ in consumers]
        for consumer, prefetch in zip(consumers, prefetches, strict=True):
            consumer.qos(prefetch)
            consumer.call(Tx.Select())
        for consumer in consumers:
            consumer.consume("q", tag="c")
        received = [each.deliveries(n) for each, n in zip(consumers, prefetches, strict=True)]
        settlers = [Settler(deliveries) for deliveries in received]
        for consumer in consumers:
            consumer.cancel("c")
        for consumer, deliveries in zip(consumers, received, strict=True):
            _send(client, consumer, Settler(deliveries).frames(rng, consumer.number, 9), together)
            consumer.call(Tx.Rollback())
        for consumer, settler in zip(consumers, settlers, strict=True):
            _send(client, consumer, settler.frames(rng, consumer.number, 30), together)
            consumer.call(Tx.Commit())
        consumers[0].call(Basic.Recover(requeue=True))
        consumers[1].call(Channel.Close(200, "", 0, 0))
        seen = [[(each.tag, each.body) for each in deliveries] for deliveries in received]
        delivered = {body for deliveries in seen for _, body in deliveries}
        gone = set[bytes]().union(*(settler.gone for settler in settlers))
        left = [body for body in bodies if body not in gone]
        channel.wait_ready("q", len(left))
        for body in left:
            content = channel.get_one("q")
            assert (content.body, content.redelivered) == (body, body in delivered)
    return seen, {key: sorted(ids) for key, ids in _history(directory).items()}


def _send(client: RawClient, channel: RawChannel, frames: list[bytes], together: bool) -> None:
    for data in [b"".join(frames)] if together else frames:
        client.send_bytes(data)
        if not together:
            channel.call(Channel.Flow(active=True))  # so the next frame is a read of its own


@pytest.mark.parametrize("seed", range(5))
def test_settling_runs_has_the_same_effect_as_settling_single_messages(
    tmp_path: Path, seed: int
) -> None:
    in_runs = settle_at_random(tmp_path / "together", seed, together=True)
    assert in_runs == settle_at_random(tmp_path / "apart", seed, together=False)


def test_publishes_after_a_channel_error_are_discarded(tmp_path: Path) -> None:
    """The channel waits until the declaration is on disk, and the publishes wait behind it."""
    with (
        ThreadedBroker(in_process_settings(data_dir=tmp_path)) as broker,
        RawClient(*broker.amqp_address) as client,
    ):
        client.handshake("/")
        channel = client.channel()
        valid = wire.publish(1, "", "q") + wire.encode(1, ContentHeader(0, 0))
        invalid = wire.publish(1, "missing", "") + wire.encode(1, ContentHeader(0, 0))
        declare = wire.encode(1, Queue.Declare(queue="q", durable=True))
        client.send_bytes(declare + invalid + valid + valid)
        channel.expect(Queue.DeclareOk)
        channel.expect_close(404)
        assert client.channel(2).ready("q") == 0
