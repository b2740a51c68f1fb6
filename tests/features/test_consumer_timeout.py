"""A delivery that is not acked in time closes its channel. Only tests advance the clock."""

from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from leveret.amqp_server.ack_timeout import AckTimeouts
from leveret.amqp_server.unacked_tags import UnackedTags
from leveret.broker.policies.policies import Policy
from leveret.model.message import Address, Message
from leveret.queues.delivery import Delivery
from leveret.queues.entry import Entry


@pytest.fixture
def connection(broker):
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    yield connection
    connection.close()


def wait_for_close(channel, seconds=30):
    for _ in range(int(seconds / 0.05)):
        channel.connection.process_data_events(0.05)
        if channel.is_closed:
            return channel._closing_reason
    raise AssertionError("the channel is still open")


def consume(connection, queue, arguments=None):
    """A channel with a consumer, and the list of its deliveries."""
    channel = connection.channel()
    deliveries = []
    channel.basic_consume(queue, lambda c, m, p, b: deliveries.append(m), arguments=arguments)
    return channel, deliveries


def next_delivery(connection, deliveries):
    for _ in range(3000):
        if deliveries:
            return deliveries.pop()
        connection.process_data_events(0.01)
    raise AssertionError("no delivery")


@pytest.mark.parametrize("owner", ["queue", "consumer"])
def test_late_ack_closes_the_channel_and_requeues(connection, clock, owner):
    timeout = {"x-consumer-timeout": 10_000}
    channel = connection.channel()
    queue = channel.queue_declare("", arguments=timeout if owner == "queue" else {}).method.queue
    channel.basic_publish("", queue, b"x")
    other, deliveries = consume(connection, queue, timeout if owner == "consumer" else None)
    next_delivery(connection, deliveries)
    clock.advance(9)
    other.queue_declare(queue, passive=True)
    clock.advance(2)
    reason = wait_for_close(other)
    assert reason.reply_code == 406
    assert reason.reply_text.startswith(
        "PRECONDITION_FAILED - delivery acknowledgement on channel 2 timed out. "
        "Timeout value used: 10000 ms."
    )
    method, _, body = connection.channel().basic_get(queue, auto_ack=True)
    assert (body, method.redelivered) == (b"x", True)


def test_basic_get_has_a_timeout_too(connection, clock):
    channel = connection.channel()
    queue = channel.queue_declare("", arguments={"x-consumer-timeout": 10_000}).method.queue
    channel.basic_publish("", queue, b"x")
    channel.basic_get(queue)
    clock.advance(11)
    assert wait_for_close(channel).reply_code == 406


def test_ack_in_time_keeps_the_channel_open(connection, clock):
    channel = connection.channel()
    queue = channel.queue_declare("", arguments={"x-consumer-timeout": 10_000}).method.queue
    other, deliveries = consume(connection, queue)
    for _ in range(6):
        channel.basic_publish("", queue, b"x")
        method = next_delivery(connection, deliveries)
        clock.advance(4)
        other.basic_ack(method.delivery_tag)
        other.queue_declare(queue, passive=True)  # the reply shows that the ack was handled


def test_invalid_timeout_is_refused(connection):
    channel = connection.channel()
    queue = channel.queue_declare("").method.queue
    with pytest.raises(ChannelClosedByBroker, match="invalid arg 'x-consumer-timeout'"):
        channel.basic_consume(queue, print, arguments={"x-consumer-timeout": "soon"})
    with pytest.raises(ChannelClosedByBroker, match="invalid arg 'x-consumer-timeout'"):
        connection.channel().queue_declare("", arguments={"x-consumer-timeout": -1})


class FakeConnection:
    def __init__(self):
        self.closed = []

    def refuse(self, number, error, method):
        self.closed.append(number)


class FakeChannel:
    """The part of a channel that `AckTimeouts` reads."""

    def __init__(self, harness, queue):
        self.vhost, self.connection, self.number = harness.vhost, FakeConnection(), 1
        self.consumers, self.unacked, self.last_tag = {}, UnackedTags(), 0
        self.queue = queue

    def deliver(self):
        self.last_tag += 1
        message = Message.build(Address.of("", "q"), b"\x00\x00", b"")
        delivery = Delivery(self.queue, None, [Entry(message)])
        delivery.first_tag = self.last_tag
        self.unacked.add(delivery, self.last_tag)


async def test_timeout_by_policy_counts_from_each_delivery(harness):
    channel: Any = FakeChannel(harness, harness.queue("q"))
    timeouts = AckTimeouts()
    channel.deliver()
    timeouts.check([channel], 0.0)
    harness.broker.policies.put(Policy("/", "p", "q", {"consumer-timeout": 10_000}))
    for second in range(1, 11):
        timeouts.check([channel], float(second))
        if second == 5:
            channel.unacked.take_all()
        channel.deliver()
    assert channel.connection.closed == []
    for second in range(11, 18):
        timeouts.check([channel], float(second))
        assert channel.connection.closed == ([] if second < 16 else [1] * (second - 15)), second


async def test_closing_one_channel_may_close_the_others(harness):
    """A client's connection.close waits for a channel; closing that one closes the connection."""
    queue = harness.queue("q", consumer_timeout=10_000)
    channels: list[Any] = [FakeChannel(harness, queue) for _ in range(2)]
    for channel in channels:
        channel.deliver()
    timeouts = AckTimeouts()
    timeouts.check(channels, 0.0)
    channels[0].connection.refuse = lambda *_: [channel.unacked.take_all() for channel in channels]
    timeouts.check(channels, 11.0)
    assert channels[1].connection.closed == []
