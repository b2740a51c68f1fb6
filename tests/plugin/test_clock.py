"""Jumping in time: what falls due happens in its order, and living clients stay."""

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


def test_a_message_expires_at_its_time_and_not_before(channel, leveret_broker, leveret_clock):
    channel.queue_declare("q", arguments={"x-message-ttl": HOUR * 1000})
    channel.basic_publish("", "q", b"x")
    leveret_clock.advance(HOUR - 0.001)
    leveret_broker.wait_depth("q", 1, timeout=0)
    leveret_clock.advance(0.001)
    leveret_broker.wait_depth("q", 0, timeout=0)


def test_each_stop_on_the_way_has_its_own_time(channel, leveret_broker, leveret_clock):
    channel.queue_declare("end")
    channel.queue_declare("second", arguments=dead_letters_to("end", **{"x-message-ttl": 20_000}))
    channel.queue_declare("first", arguments=dead_letters_to("second", **{"x-message-ttl": 10_000}))
    channel.basic_publish("", "first", b"x")
    leveret_clock.advance(30)
    leveret_broker.wait_depth("end", 1, timeout=0)


def test_delayed_messages_come_when_they_are_due(channel, leveret_broker, leveret_clock):
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


def test_an_unused_queue_goes(channel, leveret_broker, leveret_clock):
    channel.queue_declare("q", arguments={"x-expires": 60_000})
    leveret_clock.advance(61)
    with pytest.raises(AssertionError, match="not declared"):
        leveret_broker.wait_depth("q", 0, timeout=0)


def test_a_late_ack_costs_the_channel(channel, leveret_broker, leveret_clock):
    channel.queue_declare("q", arguments={"x-consumer-timeout": 60_000})
    channel.basic_publish("", "q", b"x")
    channel.basic_get("q")
    leveret_clock.advance(59)
    leveret_broker.wait_depth("q", 0, unacked=1, timeout=0)
    leveret_clock.advance(2)
    leveret_broker.wait_depth("q", 1, unacked=0, timeout=0)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="timed out"):
        channel.queue_declare("q", passive=True)


def test_living_clients_stay_for_a_year(connection, channel, leveret_clock):
    leveret_clock.advance(365 * 24 * HOUR)
    connection.process_data_events(0)
    channel.queue_declare("q")


def test_silent_clients_are_cut_off(connection, leveret_clock):
    leveret_clock.freeze()
    leveret_clock.advance(100, heartbeats=False)
    connection.channel()
    leveret_clock.advance(151, heartbeats=False)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connection.process_data_events(LONG)


def test_whoever_agreed_on_no_heartbeat_may_be_silent(leveret_broker, leveret_clock):
    parameters = pika.URLParameters(leveret_broker.url + "?heartbeat=0")
    connection = pika.BlockingConnection(parameters)
    leveret_clock.advance(HOUR, heartbeats=False)
    connection.channel()
    connection.close()


class TestAlone:
    def test_runs_by_itself(self):
        clock = LeveretClock()
        before = clock.monotonic()
        while clock.monotonic() == before:
            pass

    def test_stands_still_and_moves_only_when_told(self):
        clock = LeveretClock()
        clock.freeze()
        before = (clock.wall_ms(), clock.monotonic())
        assert (clock.wall_ms(), clock.monotonic()) == before
        clock.advance(1.5)
        assert clock.wall_ms() == before[0] + 1500
        assert clock.monotonic() == pytest.approx(before[1] + 1.5)

    def test_goes_on_from_where_it_stood(self):
        clock = LeveretClock()
        clock.unfreeze()
        clock.freeze()
        clock.advance(100)
        stood = clock.monotonic()
        clock.unfreeze()
        assert stood <= clock.monotonic() < stood + LONG

    def test_does_not_go_back(self):
        clock = LeveretClock()
        with pytest.raises(ValueError, match="does not go back"):
            clock.advance(-1)
        now = clock.wall_ms()
        clock.not_before(now + HOUR * 1000)
        assert clock.wall_ms() >= now + HOUR * 1000
