"""What one client asks for at once, does not read, or leaves unacked: others have their turn."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import Any

import pytest
from pamqp.commands import Basic, Connection, Exchange, Queue, Tx

from amqp_server.session import CLOSE_GRACE_SECONDS
from amqp_server.wire import METHODS_AT_ONCE
from leveret.testing import LeveretBroker
from tests.support import wire
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


def test_many_methods_at_once_let_others_have_their_turn(broker, channel):
    session = next(iter(broker.running.amqp.sessions))
    queues = broker.running.broker.vhosts["/"].queues
    blob = b"".join(wire.queue_declare(1, f"q{number}") for number in range(250))

    def receive() -> int:
        session.receive(blob)
        return len(queues)

    assert 1 <= broker.call(receive) <= METHODS_AT_ONCE
    names = [channel.expect(Queue.DeclareOk).queue for _ in range(250)]
    assert names == [f"q{number}" for number in range(250)]
    channel.client.send(0, Connection.Close(200, "", 0, 0))  # it is read again
    channel.client.expect(Connection.CloseOk)


class Flood:
    """More than is looked at in one turn of the loop."""

    count = 20_000
    bodies = tuple(number.to_bytes(4, "big") for number in range(count))

    def __init__(self, broker):
        self.queue = broker.running.broker.vhosts["/"].queues["flood"]
        [self.session] = broker.running.amqp.sessions

    def receive(self) -> None:
        before = wire.publish(1, "", "flood") + wire.content_header(1, 4)
        blob = b"".join(before + wire.body(1, body) for body in self.bodies)
        for start in range(0, len(blob), 99_991):
            self.session.receive(blob[start : start + 99_991])
        assert self.queue.ready_count < self.count
        assert self.session.wire.has_more and self.session.listening.is_paused
        assert self.session.kept >= self.session.wire.buffered > 0


@pytest.fixture
def flood(broker, channel):
    channel.declare("flood")
    return Flood(broker)


def test_much_in_one_turn_of_the_loop_lets_others_in_and_keeps_its_order(broker, channel, flood):
    broker.call(flood.receive)
    channel.consume("flood", no_ack=True)
    assert tuple(one.body for one in channel.deliveries(flood.count)) == flood.bodies
    assert not flood.session.listening.is_paused


def test_who_says_goodbye_behind_much_is_heard_to_the_end(broker, flood):
    """TLS brings the end with the read that what was set aside came in."""

    def receive_and_end() -> Any:
        flood.receive()
        flood.session.line.eof_received()
        flood.session.line.connection_lost(None)
        return flood.queue.ready_count

    assert broker.call(receive_and_end) == flood.count


def test_who_is_closed_while_it_waits_for_its_turn_can_answer(broker, channel, flood):
    def receive_and_close() -> None:
        flood.receive()
        flood.session.close("an operator says so")

    broker.call(receive_and_close)
    channel.client.expect(Connection.Close)
    channel.client.send(0, Connection.CloseOk())
    channel.client.expect_end(timeout=CLOSE_GRACE_SECONDS / 2)
    assert not flood.session.wire.has_more and not flood.session.wire.buffered


def test_what_was_put_off_is_taken_up_in_portions_and_in_order(broker, channel):
    session = next(iter(broker.running.amqp.sessions))
    held, done = session.channels[1], list[int]()

    def go_on() -> int:
        held.inbox = deque(partial(done.append, number) for number in range(250))
        held.go_on(lambda: done.append(-1))
        return len(done)

    assert broker.call(go_on) == METHODS_AT_ONCE + 1
    channel.qos(1)  # waits behind them, or comes later
    assert done == [*range(-1, 250)]


def test_who_sends_much_and_goes_is_heard_to_the_end(broker, channel):
    blob = b"".join(wire.queue_declare(1, f"q{number}", flags=16) for number in range(950))
    channel.client.send_bytes(blob)
    channel.client.drop()
    queues = broker.running.broker.vhosts["/"].queues
    deadline = time.monotonic() + 60
    while len(queues) < 950:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_who_goes_in_the_middle_of_what_it_sent_is_let_go(broker, channel, caplog):
    session = next(iter(broker.running.amqp.sessions))
    blob = b"".join(wire.queue_declare(1, f"q{number}") for number in range(250))

    def receive_and_lose() -> None:
        session.receive(blob)
        session.line.connection_lost(None)

    broker.call(receive_and_lose)
    with RawClient(*broker.amqp_address) as other:
        other.handshake("/").channel().declare("alive")
    assert 2 <= len(broker.running.broker.vhosts["/"].queues) <= METHODS_AT_ONCE + 1
    assert not [one for one in caplog.records if one.levelname == "ERROR"]
    channel.client.drop()


def test_answers_to_gets_wait_for_a_client_that_does_not_read(broker, channel):
    channel.declare("big")
    channel.fill("big", [bytes([number % 256]) * 64 * KIB for number in range(COUNT)])
    queue = broker.running.broker.vhosts["/"].queues["big"]
    session = next(iter(broker.running.amqp.sessions))
    channel.send(*[Basic.Get(0, "big", True)] * COUNT)
    deadline = time.monotonic() + 60
    while not broker.call(lambda: session.is_choked):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert broker.call(lambda: queue.ready_count) > COUNT / 2
    for number in range(COUNT):
        got = channel.client.content(Basic.GetOk, channel.number)
        assert got.body[:1] == bytes([number % 256])
    assert channel.ready("big") == 0


def test_multiple_acks_take_what_is_there_and_no_more(channel):
    """Single ones between them, a poll without acks, and a transaction that is rolled back."""
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


def test_multiple_ack_passes_over_what_was_settled_one_by_one(broker, channel):
    session = next(iter(broker.running.amqp.sessions))
    broker.call(lambda: setattr(session.channels[1], "last_tag", 10**15))  # after some years
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
    stations = broker.running.broker.stations
    assert 60 * KIB < broker.call(lambda: stations.remembered_bytes) <= 64 * KIB
    channel.publish("recent", "", bytes(100 * KIB))
    channel.declare("later")
    channel.bind("later", "recent")
    channel.wait_ready("later", 1)
    channel.call(Exchange.Delete(0, "recent"))
    assert broker.call(lambda: stations.remembered_bytes) == 0
