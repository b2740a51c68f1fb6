"""kombu with py-amqp, the client of Celery, used as Celery uses it."""

from __future__ import annotations

import socket

import pytest
from amqp.exceptions import AccessRefused
from kombu.connection import Connection
from kombu.entity import Exchange, Queue, binding
from kombu.messaging import Consumer, Producer


@pytest.fixture
def connection(url):
    with Connection(url, heartbeat=0) as connection:
        yield connection


def drain(connection, timeout=30.0):
    connection.drain_events(timeout=timeout)


def test_producer_and_consumer(connection, name):
    exchange = Exchange(name(), "direct", durable=False, auto_delete=True)
    queue = Queue(name(), exchange, routing_key="k", exclusive=True)
    received = []
    with (
        Producer(connection.channel()) as producer,
        Consumer(connection, [queue], callbacks=[lambda body, message: on_message(body, message)]),
    ):

        def on_message(body, message):
            received.append((body, message.headers.get("n")))
            message.ack()

        for number in range(5):
            producer.publish(
                {"number": number},
                exchange=exchange,
                routing_key="k",
                serializer="json",
                headers={"n": number},
                declare=[queue],
            )
        while len(received) < 5:
            drain(connection)
    assert received == [({"number": number}, number) for number in range(5)]


def test_compressed_message_is_decompressed(connection, name):
    queue = Queue(name(), exclusive=True)
    with connection.channel() as channel:
        bound = queue(channel)
        bound.declare()
        Producer(channel).publish(
            {"text": "long " * 10_000}, routing_key=queue.name, compression="gzip"
        )
        message = bound.get(no_ack=True)
        assert message.payload == {"text": "long " * 10_000}
        assert bound.get() is None


def test_simple_queue(connection, name):
    simple = connection.SimpleQueue(name(), queue_opts={"auto_delete": True}, no_ack=False)
    simple.put({"hello": "world"})
    message = simple.get(timeout=30)
    assert message.payload == {"hello": "world"}
    message.ack()
    with pytest.raises(simple.Empty):
        simple.get(timeout=0.1)
    simple.close()


def test_fanout_and_topic(connection, name):
    news, logs = Exchange(name(), "fanout", durable=False), Exchange(name(), "topic", durable=False)
    queue = Queue(
        name(), exclusive=True, bindings=[binding(news), binding(logs, routing_key="app.#")]
    )
    with connection.channel() as channel:
        bound = queue(channel)
        bound.declare()
        producer = Producer(channel)
        producer.publish("extra", exchange=news)
        producer.publish("log line", exchange=logs, routing_key="app.web.error")
        producer.publish("not ours", exchange=logs, routing_key="other")
        assert [bound.get(no_ack=True).payload for _ in range(2)] == ["extra", "log line"]
        assert bound.get() is None
        for exchange in (news, logs):
            exchange(channel).delete()


def test_prefetch_is_raised_on_a_running_consumer(connection, name):
    """Celery does this for tasks with a countdown, which its consumer holds unacked."""
    queue = Queue(name(), exclusive=True)
    unacked = []
    with connection.channel() as channel:
        # As kombu's py-amqp transport decides whether qos is per channel or per consumer.
        shared = not connection.qos_semantics_matches_spec
        consumer = Consumer(
            channel, [queue], callbacks=[lambda _body, message: unacked.append(message)]
        )
        channel.basic_qos(0, 1, shared)
        consumer.consume()
        for number in range(4):
            Producer(channel).publish(number, routing_key=queue.name)
        while not unacked:  # py-amqp also reads while it publishes
            drain(connection)
        with pytest.raises(socket.timeout):
            drain(connection, 0.2)
        assert len(unacked) == 1
        channel.basic_qos(0, 3, shared)
        while len(unacked) < 3:
            drain(connection)
        with pytest.raises(socket.timeout):
            drain(connection, 0.2)
        assert len(unacked) == 3
        for message in unacked:
            message.ack()
        while len(unacked) < 4:
            drain(connection)


def test_publishes_with_confirms_are_stored(url, name):
    queue = Queue(name(), exclusive=True)
    with Connection(url, transport_options={"confirm_publish": True}) as connection:
        channel = connection.channel()
        queue(channel).declare()
        for number in range(20):
            Producer(channel).publish(number, routing_key=queue.name, delivery_mode=2)
        assert queue(channel).queue_declare(passive=True).message_count == 20


def test_new_channel_works_after_a_channel_error(connection, name):
    queue = Queue(name(), exclusive=True)
    with pytest.raises(connection.channel_errors):
        connection.channel().queue_declare(queue="no-such-queue", passive=True)
    channel = connection.channel()
    queue(channel).declare()
    Producer(channel).publish("alive", routing_key=queue.name)
    assert queue(channel).get(no_ack=True).payload == "alive"


def test_wrong_password_is_refused(url):
    with (
        Connection(url.replace("guest:guest", "guest:wrong")) as connection,
        pytest.raises(AccessRefused),
    ):
        connection.ensure_connection(max_retries=1, interval_start=0)


def test_heartbeats_keep_the_connection_open(url):
    with Connection(url, heartbeat=2) as connection:
        connection.connect()
        assert connection.get_heartbeat_interval() == 2
        for _ in range(3):
            connection.heartbeat_check(rate=2)
            with pytest.raises(socket.timeout):
                drain(connection, 0.3)
        assert connection.connected
