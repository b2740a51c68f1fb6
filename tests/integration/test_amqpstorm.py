"""AMQPStorm: publish, consume, get, transactions and errors."""

from __future__ import annotations

import pytest
from amqpstorm.connection import Connection
from amqpstorm.exception import AMQPChannelError
from amqpstorm.message import Message


@pytest.fixture
def channel(broker):
    with Connection(
        broker.host, broker.user, broker.password, port=broker.port, virtual_host=broker.vhost
    ) as connection:
        yield connection.channel()


@pytest.fixture
def queue(channel, name):
    """The name of an exclusive queue."""
    queue = name()
    channel.queue.declare(queue, exclusive=True)
    return queue


def test_confirmed_publishes_are_consumed_in_order_and_acked(channel, queue):
    channel.confirm_deliveries()
    for number in range(20):
        message = Message.create(channel, f"{number}", {"headers": {"n": number}})
        assert message.publish(queue)
    seen = []

    def on_message(message):
        seen.append((message.body, message.properties["headers"]["n"]))
        message.ack()
        if len(seen) == 20:
            channel.stop_consuming()

    channel.basic.qos(5)
    channel.basic.consume(on_message, queue)
    channel.start_consuming()
    assert seen == [(f"{number}", number) for number in range(20)]
    assert channel.queue.declare(queue, passive=True)["message_count"] == 0


def test_get_reject_and_get_again(channel, queue):
    channel.basic.publish("once", queue)
    first = channel.basic.get(queue)
    assert first is not None and not first.redelivered
    first.reject(requeue=True)
    second = channel.basic.get(queue)
    assert second is not None and second.redelivered and second.body == "once"
    second.ack()
    assert channel.basic.get(queue) is None


def test_transaction_is_committed_or_rolled_back(channel, queue):
    channel.tx.select()
    channel.basic.publish("a", queue)
    channel.tx.rollback()
    channel.basic.publish("b", queue)
    channel.tx.commit()
    assert channel.queue.declare(queue, passive=True)["message_count"] == 1
    assert channel.basic.get(queue).body == "b"


def test_channel_error_is_raised(channel):
    with pytest.raises(AMQPChannelError) as caught:
        channel.queue.declare("no-such-queue", passive=True)
    assert caught.value.error_code == 404
