"""Jumps in time: deadlines are met in order, and clients with heartbeats stay connected."""

from __future__ import annotations

import pika
import pytest

from leveret.testing import LeveretClock

HOUR = 3_600
LONG = 30.0


@pytest.fixture
def connection(leveret_url):
    connection = pika.BlockingConnection(pika.URLParameters(leveret_url + "?heartbeat=60"))
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def channel(connection, leveret_clock):
    leveret_clock.freeze()
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def dead_letters_to(target, **arguments):
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target, **arguments}


def test_message_expires_exactly_at_its_ttl(channel, leveret_broker, leveret_clock):
    channel.queue_declare("q", arguments={"x-message-ttl": HOUR * 1000})
    channel.basic_publish("", "q", b"x")
    leveret_clock.advance(HOUR - 0.001)
    leveret_broker.wait_depth("q", 1, timeout=0)
    leveret_clock.advance(0.001)
    leveret_broker.wait_depth("q", 0, timeout=0)


def test_chained_ttls_are_met_in_order(channel, leveret_broker, leveret_clock):
    channel.queue_declare("end")
    channel.queue_declare("second", arguments=dead_letters_to("end", **{"x-message-ttl": 20_000}))
    channel.queue_declare("first", arguments=dead_letters_to("second", **{"x-message-ttl": 10_000}))
    channel.basic_publish("", "first", b"x")
    leveret_clock.advance(30)
    leveret_broker.wait_depth("end", 1, timeout=0)


def test_delayed_messages_are_delivered_when_due(channel, leveret_broker, leveret_clock):
    channel.exchange_declare("later", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    channel.queue_declare("q")
    channel.queue_bind("q", "later")
    for seconds in (HOUR, 60):
        properties = pika.BasicProperties(headers={"x-delay": seconds * 1000})
        channel.basic_publish("later", "", str(seconds).encode(), properties)
    leveret_clock.advance(60)
    leveret_broker.wait_depth("q", 1)
    leveret_clock.advance(HOUR)
    leveret_broker.wait_depth("q", 2)
    assert [channel.basic_get("q", auto_ack=True)[2] for _ in range(2)] == [b"60", b"3600"]


def test_unused_queue_expires(channel, leveret_broker, leveret_clock):
    channel.queue_declare("q", arguments={"x-expires": 60_000})
    leveret_clock.advance(61)
    with pytest.raises(AssertionError, match="not declared"):
        leveret_broker.wait_depth("q", 0, timeout=0)


def test_late_ack_closes_the_channel(channel, leveret_broker, leveret_clock):
    channel.queue_declare("q", arguments={"x-consumer-timeout": 60_000})
    channel.basic_publish("", "q", b"x")
    channel.basic_get("q")
    leveret_clock.advance(59)
    leveret_broker.wait_depth("q", 0, unacked=1, timeout=0)
    leveret_clock.advance(2)
    leveret_broker.wait_depth("q", 1, unacked=0, timeout=0)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="timed out"):
        channel.queue_declare("q", passive=True)


def test_clients_with_heartbeats_stay_connected_for_a_year(connection, channel, leveret_clock):
    leveret_clock.advance(365 * 24 * HOUR)
    connection.process_data_events(0)
    assert channel.queue_declare("q").method.queue == "q"


def test_silent_clients_are_closed(connection, leveret_clock):
    leveret_clock.freeze()
    leveret_clock.advance(100, heartbeats=False)
    connection.channel()
    leveret_clock.advance(151, heartbeats=False)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connection.process_data_events(LONG)


def test_clients_without_heartbeat_may_be_silent(leveret_broker, leveret_clock):
    parameters = pika.URLParameters(leveret_broker.url + "?heartbeat=0")
    connection = pika.BlockingConnection(parameters)
    leveret_clock.advance(HOUR, heartbeats=False)
    assert connection.channel().is_open
    connection.close()


class TestClock:
    def test_runs_in_real_time(self):
        clock = LeveretClock()
        before = clock.monotonic()
        while clock.monotonic() == before:
            pass
        assert clock.monotonic() > before

    def test_frozen_clock_moves_only_by_advance(self):
        clock = LeveretClock()
        clock.freeze()
        before = (clock.wall_ms(), clock.monotonic())
        assert (clock.wall_ms(), clock.monotonic()) == before
        clock.advance(1.5)
        assert clock.wall_ms() == before[0] + 1500
        assert clock.monotonic() == pytest.approx(before[1] + 1.5)

    def test_unfrozen_clock_continues_from_where_it_stopped(self):
        clock = LeveretClock()
        clock.unfreeze()
        clock.freeze()
        clock.advance(100)
        stopped = clock.monotonic()
        clock.unfreeze()
        assert stopped <= clock.monotonic() < stopped + LONG

    def test_does_not_move_back(self):
        clock = LeveretClock()
        with pytest.raises(ValueError, match="cannot move the clock back"):
            clock.advance(-1)
        now = clock.wall_ms()
        clock.not_before(now + HOUR * 1000)
        assert clock.wall_ms() >= now + HOUR * 1000
