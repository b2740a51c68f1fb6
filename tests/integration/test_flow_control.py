"""A client that sends much at once, or does not read, does not delay the others."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

import pytest
from pamqp.commands import Basic, Connection, Exchange, Queue, Tx

from leveret.amqp_server.connection import CLOSE_GRACE_SECONDS
from leveret.amqp_server.wire import METHODS_AT_ONCE
from leveret.testing import LeveretBroker
from tests.support import wire
from tests.support.polling import wait_until
from tests.support.rawclient import RawClient

KIB = 1024
COUNT = 600


@pytest.fixture
def broker():
    with LeveretBroker(queue_window_bytes="64KiB") as broker:
        yield broker


@pytest.fixture
def channel(broker):
    with RawClient(*broker.amqp_address) as client:
        yield client.handshake("/").channel()


def test_methods_of_one_read_are_spread_over_several_ticks(broker, channel):
    connection = next(iter(broker.running.amqp.connections))
    queues = broker.running.broker.vhosts["/"].queues
    blob = b"".join(wire.queue_declare(1, f"q{number}") for number in range(250))

    def receive() -> int:
        connection.flow.receive(blob)
        return len(queues)

    assert 1 <= broker.call(receive) <= METHODS_AT_ONCE
    names = [channel.expect(Queue.DeclareOk).queue for _ in range(250)]
    assert names == [f"q{number}" for number in range(250)]
    channel.client.send(0, Connection.Close(200, "", 0, 0))  # the socket is read again
    channel.client.expect(Connection.CloseOk)


class Flood:
    """More messages than are handled in one tick."""

    count = 20_000
    bodies = tuple(number.to_bytes(4, "big") for number in range(count))

    def __init__(self, broker):
        self.queue = broker.running.broker.vhosts["/"].queues["flood"]
        [self.connection] = broker.running.amqp.connections

    def receive(self) -> None:
        before = wire.publish(1, "", "flood") + wire.content_header(1, 4)
        blob = b"".join(before + wire.body(1, body) for body in self.bodies)
        for start in range(0, len(blob), 99_991):
            self.connection.flow.receive(blob[start : start + 99_991])
        assert self.queue.ready_count < self.count
        assert self.connection.wire.has_more and self.connection.flow.gate.is_paused
        assert self.connection.pending_bytes >= self.connection.wire.buffered > 0


@pytest.fixture
def flood(broker, channel):
    channel.declare("flood")
    return Flood(broker)


def test_messages_spread_over_several_ticks_keep_their_order(broker, channel, flood):
    broker.call(flood.receive)
    channel.consume("flood", no_ack=True)
    assert tuple(delivery.body for delivery in channel.deliveries(flood.count)) == flood.bodies
    assert not flood.connection.flow.gate.is_paused


def test_buffered_input_is_handled_when_the_peer_disconnects(broker, flood):
    """TLS reports the end of the stream together with the data before it."""

    def receive_and_end() -> Any:
        flood.receive()
        flood.connection.transport.eof_received()
        flood.connection.transport.connection_lost(None)
        return flood.queue.ready_count

    assert broker.call(receive_and_end) == flood.count


def test_connection_closed_while_its_reader_is_queued_can_send_close_ok(broker, channel, flood):
    def receive_and_close() -> None:
        flood.receive()
        flood.connection.close("closed by an operator")

    broker.call(receive_and_close)
    channel.client.expect(Connection.Close)
    channel.client.send(0, Connection.CloseOk())
    channel.client.expect_end(timeout=CLOSE_GRACE_SECONDS / 2)
    assert not flood.connection.wire.has_more and not flood.connection.wire.buffered


def test_deferred_methods_run_in_order_over_several_ticks(broker, channel):
    connection = next(iter(broker.running.amqp.connections))
    target, done = connection.channels[1], list[int]()

    def resume() -> int:
        target._deferred = deque(partial(done.append, number) for number in range(250))
        target.resume(lambda: done.append(-1))
        return len(done)

    assert broker.call(resume) == METHODS_AT_ONCE + 1
    channel.qos(1)  # is deferred after them, or arrives later
    assert done == [*range(-1, 250)]


def test_input_of_a_client_that_disconnects_at_once_is_handled(broker, channel):
    blob = b"".join(wire.queue_declare(1, f"q{number}", flags=16) for number in range(950))
    channel.client.send_bytes(blob)
    channel.client.drop()
    queues = broker.running.broker.vhosts["/"].queues
    wait_until(lambda: len(queues) >= 950)


def test_connection_lost_while_its_reader_is_queued_is_closed(broker, channel, caplog):
    connection = next(iter(broker.running.amqp.connections))
    blob = b"".join(wire.queue_declare(1, f"q{number}") for number in range(250))

    def receive_and_lose() -> None:
        connection.flow.receive(blob)
        connection.transport.connection_lost(None)

    broker.call(receive_and_lose)
    with RawClient(*broker.amqp_address) as other:
        other.handshake("/").channel().declare("alive")
    assert 2 <= len(broker.running.broker.vhosts["/"].queues) <= METHODS_AT_ONCE + 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    channel.client.drop()


def test_basic_get_waits_for_a_client_that_does_not_read(broker, channel):
    channel.declare("big")
    channel.fill("big", [bytes([number % 256]) * 64 * KIB for number in range(COUNT)])
    queue = broker.running.broker.vhosts["/"].queues["big"]
    connection = next(iter(broker.running.amqp.connections))
    channel.send(*[Basic.Get(0, "big", True)] * COUNT)
    wait_until(lambda: broker.call(lambda: connection.flow.has_unread_output))
    assert broker.call(lambda: queue.ready_count) > COUNT / 2
    for number in range(COUNT):
        reply = channel.client.content(Basic.GetOk, channel.number)
        assert reply.body[:1] == bytes([number % 256])
    assert channel.ready("big") == 0


def test_multiple_acks_settle_exactly_the_unacked_deliveries(channel):
    """Among single acks, a basic.get without acks, and a transaction that is rolled back."""
    channel.declare("work")
    channel.fill("work", [str(number) for number in range(12)])
    for no_ack in (False, False, True, False, False, False, False, False, False, False):
        channel.get_one("work", no_ack=no_ack)
    channel.ack(4)
    channel.ack(5, multiple=True)  # 1, 2 and 5
    channel.call(Tx.Select())
    channel.ack(8, multiple=True)
    channel.ack(10)
    channel.call(Tx.Rollback())
    channel.ack(7, multiple=True)  # 6 and 7
    channel.ack(9)
    channel.call(Tx.Commit())
    channel.nack(0, multiple=True)  # 8 and 10
    channel.call(Tx.Commit())
    channel.wait_ready("work", 4)
    assert [int(body) for body in channel.drain("work")] == [7, 9, 10, 11]


def test_multiple_ack_skips_a_large_gap_of_delivery_tags(broker, channel):
    connection = next(iter(broker.running.amqp.connections))
    broker.call(
        lambda: setattr(connection.channels[1], "last_tag", 10**15)
    )  # as after years of deliveries
    channel.declare("work")
    channel.fill("work", ["a", "b", "c"])
    for _ in range(3):
        channel.get_one("work", no_ack=False)
    channel.ack(10**15 + 2, multiple=True)
    channel.nack(0, multiple=True)
    channel.wait_ready("work", 1)
    assert [int(body, 36) - 10 for body in channel.drain("work")] == [2]


def test_recent_history_is_bounded_by_size(broker, channel):
    arguments = {"x-recent-history-length": 1000}
    channel.exchange("recent", "x-recent-history", arguments=arguments)
    for number in range(10):
        channel.publish("recent", "", bytes([number]) * 20 * KIB)
    channel.declare("late")
    channel.bind("late", "recent")
    channel.wait_ready("late", 3)
    assert [body[0] for body in channel.drain("late")] == [7, 8, 9]
    plugins = broker.running.broker.plugin_exchanges
    assert 60 * KIB < broker.call(lambda: plugins.remembered_bytes) <= 64 * KIB
    channel.publish("recent", "", bytes(100 * KIB))
    channel.declare("later")
    channel.bind("later", "recent")
    channel.wait_ready("later", 1)
    channel.call(Exchange.Delete(0, "recent"))
    assert broker.call(lambda: plugins.remembered_bytes) == 0
