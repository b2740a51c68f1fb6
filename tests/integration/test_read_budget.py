"""The read budget of a tick limits publishes that need a new plan each, and bindings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pamqp.commands import Basic, Exchange, Queue
from pamqp.header import ContentHeader

from leveret.broker.runtime import scheduler
from leveret.broker.vhost import VirtualHost
from leveret.launch import ThreadedBroker, in_process_settings
from leveret.queues.classic.classic_queue import ClassicQueue
from tests.support import wire
from tests.support.polling import wait_until
from tests.support.rawclient import RawChannel, RawClient

COUNT = 60


class PlanCounts:
    """The number of plans, bindings and settlements in each tick that had any."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._current = self.total = 0
        self.by_tick: list[int] = []
        run_tick = scheduler.LoopScheduler.run_tick

        def run_and_count(this: scheduler.LoopScheduler) -> None:
            run_tick(this)
            if self._current:
                self.by_tick.append(self._current)
            self._current = 0

        monkeypatch.setattr(VirtualHost, "plan", self._counted(VirtualHost.plan))
        monkeypatch.setattr(VirtualHost, "bind", self._counted(VirtualHost.bind))
        monkeypatch.setattr(ClassicQueue, "settle", self._counted(ClassicQueue.settle))
        monkeypatch.setattr(scheduler.LoopScheduler, "run_tick", run_and_count)
        monkeypatch.setattr(scheduler, "READ_BUDGET_SECONDS", 0)  # used up at once

    def _counted(self, method: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object) -> object:
            self._current += 1
            self.total += 1
            return method(*arguments)

        return counted


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> PlanCounts:
    return PlanCounts(monkeypatch)


@pytest.fixture
def channel(counts: PlanCounts, tmp_path: Path) -> Iterator[RawChannel]:
    settings = in_process_settings(data_dir=tmp_path)
    with ThreadedBroker(settings) as broker, RawClient(*broker.amqp_address) as client:
        yield client.handshake("/").channel()


def message(exchange: str, number: int, **properties: object) -> bytes:
    body = b"%d" % number
    head = ContentHeader(0, len(body), Basic.Properties(**properties))  # type: ignore[arg-type]
    return wire.publish(1, exchange, "q") + wire.encode(1, head) + wire.body(1, body)


def consumed(channel: RawChannel, count: int) -> list[bytes]:
    channel.consume("q", no_ack=True)
    return [delivery.body for delivery in channel.deliveries(count)]


def test_publishes_to_a_headers_exchange_are_limited_per_tick(
    channel: RawChannel, counts: PlanCounts
) -> None:
    channel.declare("q")
    channel.bind("q", "amq.headers", "", arguments={"a": 1})
    channel.client.send_bytes(
        b"".join(message("amq.headers", n, headers={"a": 1}) for n in range(COUNT))
    )
    assert consumed(channel, COUNT) == [b"%d" % n for n in range(COUNT)]
    assert counts.total == COUNT + 1 and max(counts.by_tick) <= 2


def test_messages_with_expiration_among_others_are_limited_per_tick(
    channel: RawChannel, counts: PlanCounts
) -> None:
    channel.declare("q")
    kinds: list[dict[str, object]] = [{}, {}, {"expiration": "3600000"}, {"expiration": "3600000"}]
    channel.client.send_bytes(b"".join(message("", n, **kinds[n % 4]) for n in range(COUNT)))
    assert consumed(channel, COUNT) == [b"%d" % n for n in range(COUNT)]
    assert max(counts.by_tick) <= 2


def test_acks_of_many_deliveries_are_limited_per_tick(
    channel: RawChannel, counts: PlanCounts
) -> None:
    """Each of them may settle thousands of deliveries, so time is checked after each."""
    channel.declare("q")
    channel.client.send_bytes(b"".join(message("", n) for n in range(COUNT)))
    channel.consume("q")
    tags = [delivery.tag for delivery in channel.deliveries(COUNT)]
    before, counts.by_tick = counts.total, []
    acks = (wire.encode(1, Basic.Ack(tag, multiple=True)) for tag in tags[1::2])
    channel.client.send_bytes(b"".join(acks))
    wait_until(lambda: counts.total - before == COUNT // 2)
    channel.wait_ready("q", 0)
    assert max(counts.by_tick) <= 2


def test_publishes_deferred_by_a_durable_declare_are_limited_per_tick(
    channel: RawChannel, counts: PlanCounts
) -> None:
    channel.declare("q")
    channel.bind("q", "amq.headers", "", arguments={"a": 1})
    publishes = b"".join(message("amq.headers", n, headers={"a": 1}) for n in range(COUNT))
    declare = wire.encode(1, Queue.Declare(queue="lasts", durable=True))
    channel.client.send_bytes(declare + publishes)
    channel.expect(Queue.DeclareOk)
    assert consumed(channel, COUNT) == [b"%d" % n for n in range(COUNT)]
    assert max(counts.by_tick) <= 2


def test_publishes_whose_cached_plan_became_invalid_are_limited_per_tick(
    channel: RawChannel, counts: PlanCounts
) -> None:
    channel.declare("q")
    channel.exchange("x", "fanout")
    channel.bind("q", "x", "")
    channel.client.send_bytes(b"".join(message("x", n, headers={"a": 1}) for n in range(3)))
    channel.call(Exchange.Delete(exchange="x"))
    channel.exchange("x", "headers")
    channel.bind("q", "x", "", arguments={"a": 1})
    before = counts.total
    channel.client.send_bytes(b"".join(message("x", n, headers={"a": 1}) for n in range(3, COUNT)))
    assert consumed(channel, COUNT) == [b"%d" % n for n in range(COUNT)]
    assert counts.total == before + COUNT - 3 and max(counts.by_tick) <= 2


def test_bindings_are_limited_per_tick(channel: RawChannel, counts: PlanCounts) -> None:
    channel.declare("q")
    binds = [Queue.Bind(queue="q", exchange="amq.topic", routing_key=str(n)) for n in range(COUNT)]
    channel.send(*binds)
    for _ in binds:
        channel.expect(Queue.BindOk)
    assert counts.total == COUNT and max(counts.by_tick) <= 2


def test_deferred_publishes_are_handled_when_the_client_disconnects():
    """They need a plan each since a binding was added, and the peer is gone by then."""
    with ThreadedBroker() as broker, RawClient(*broker.amqp_address) as other:
        admin = other.handshake("/").channel()
        admin.declare("all")
        admin.exchange("source", "fanout")
        admin.exchange("other", "headers")
        admin.bind("all", "source")
        with RawClient(*broker.amqp_address) as client:
            channel = client.handshake("/").channel()
            publish = (
                wire.publish(1, "source", "k") + wire.content_header(1, 1) + wire.body(1, b"x")
            )
            client.send_bytes(publish * 3)
            channel.qos(1)
            admin.call(Exchange.Bind(0, "other", "source", "", False, {}))
            client.send_bytes(publish * 150)
            client.drop()
        admin.wait_ready("all", 153)
