"""A delivery that nobody acks for too long costs the client its channel.

Time stands still unless a test moves it.
"""

from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from amqp_server.patience import Patience
from leveret.broker.policies import Policy


@pytest.fixture
def connection(broker):
    opened = pika.BlockingConnection(pika.URLParameters(broker.url))
    yield opened
    opened.close()


def wait_for_close(channel, seconds=30):
    for _ in range(int(seconds / 0.05)):
        channel.connection.process_data_events(0.05)
        if channel.is_closed:
            return channel._closing_reason
    raise AssertionError("the channel is still open")


def deliveries(connection, queue, arguments=None):
    channel = connection.channel()
    seen = []
    channel.basic_consume(queue, lambda c, m, p, b: seen.append(m), arguments=arguments)
    return channel, seen


def delivered(connection, seen):
    """The next delivery."""
    for _ in range(3000):
        if seen:
            return seen.pop()
        connection.process_data_events(0.01)
    raise AssertionError("nothing came")


@pytest.mark.parametrize("where", ["queue", "consumer"])
def test_late_ack_closes_the_channel_and_requeues(connection, clock, where):
    asked = {"x-consumer-timeout": 10_000}
    channel = connection.channel()
    queue = channel.queue_declare("", arguments=asked if where == "queue" else {}).method.queue
    channel.basic_publish("", queue, b"x")
    other, seen = deliveries(connection, queue, asked if where == "consumer" else None)
    delivered(connection, seen)
    clock.advance(9)
    other.queue_declare(queue, passive=True)
    clock.advance(2)
    closed = wait_for_close(other)
    assert closed.reply_code == 406
    assert closed.reply_text.startswith(
        "PRECONDITION_FAILED - delivery acknowledgement on channel 2 timed out. "
        "Timeout value used: 10000 ms."
    )
    method, _, body = connection.channel().basic_get(queue, auto_ack=True)
    assert (body, method.redelivered) == (b"x", True)


def test_polled_messages_count_too(connection, clock):
    channel = connection.channel()
    queue = channel.queue_declare("", arguments={"x-consumer-timeout": 10_000}).method.queue
    channel.basic_publish("", queue, b"x")
    channel.basic_get(queue)
    clock.advance(11)
    assert wait_for_close(channel).reply_code == 406


def test_acked_in_time_nothing_happens(connection, clock):
    channel = connection.channel()
    queue = channel.queue_declare("", arguments={"x-consumer-timeout": 10_000}).method.queue
    other, seen = deliveries(connection, queue)
    for _ in range(6):
        channel.basic_publish("", queue, b"x")
        method = delivered(connection, seen)
        clock.advance(4)
        other.basic_ack(method.delivery_tag)
        other.queue_declare(queue, passive=True)  # by now the ack has been read


def test_a_wrong_timeout_is_refused(connection):
    channel = connection.channel()
    queue = channel.queue_declare("").method.queue
    with pytest.raises(ChannelClosedByBroker, match="invalid arg 'x-consumer-timeout'"):
        channel.basic_consume(queue, print, arguments={"x-consumer-timeout": "soon"})
    with pytest.raises(ChannelClosedByBroker, match="invalid arg 'x-consumer-timeout'"):
        connection.channel().queue_declare("", arguments={"x-consumer-timeout": -1})


class _Session:
    def __init__(self):
        self.closed = []

    def run(self, number, call):
        self.closed.append(number)


class _Channel:
    """As much of a channel as patience looks at."""

    def __init__(self, hub, queue):
        self.vhost, self.session, self.number = hub.vhost, _Session(), 1
        self.consumers, self.unacked, self.last_tag = {}, {}, 0
        self.queue = queue

    def deliver(self):
        self.last_tag += 1
        self.unacked[self.last_tag] = (None, self.queue, None)


async def test_by_policy_and_counted_from_its_own_delivery(hub):
    channel: Any = _Channel(hub, hub.queue("q"))
    patience = Patience()
    channel.deliver()
    patience.look([channel], 0.0)
    hub.broker.policies.put(Policy("/", "p", "q", {"consumer-timeout": 10_000}))
    for second in range(1, 11):
        patience.look([channel], float(second))
        if second == 5:
            channel.unacked.clear()
        channel.deliver()
    assert channel.session.closed == []
    for second in range(11, 18):
        patience.look([channel], float(second))
        assert channel.session.closed == ([] if second < 16 else [1] * (second - 15)), second
