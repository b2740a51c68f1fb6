"""pika: the blocking and the asyncio adapter."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.asyncio_connection import AsyncioConnection

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def connection(url):
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        yield connection


@pytest.fixture
def channel(connection):
    return connection.channel()


@pytest.fixture
def queue(channel):
    """The name of an exclusive queue."""
    return channel.queue_declare("", exclusive=True).method.queue


def test_consume_ack_and_reject(channel, queue):
    for number in range(10):
        channel.basic_publish("", queue, str(number).encode())
    seen = []

    def on_message(channel, method, _properties, body):
        number = int(body)
        if number == 3 and not method.redelivered:
            channel.basic_nack(method.delivery_tag, requeue=True)
            return
        seen.append(number)
        if number == 5:
            channel.basic_reject(method.delivery_tag, requeue=False)
        else:
            channel.basic_ack(method.delivery_tag)
        if len(seen) == 10:
            channel.stop_consuming()

    channel.basic_qos(prefetch_count=2)
    channel.basic_consume(queue, on_message)
    channel.start_consuming()
    assert sorted(seen) == list(range(10))
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_get_and_properties(channel, queue):
    sent = pika.BasicProperties(
        content_type="application/json",
        headers={"n": 1, "s": "text", "nested": {"list": [1, "two", None, True]}},
        correlation_id="c",
        message_id="m",
        timestamp=1_700_000_000,
        type="kind",
        app_id="tests",
        priority=4,
    )
    channel.basic_publish("", queue, b"{}", sent)
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    assert (method.message_count, body) == (0, b"{}")
    assert vars(properties) == vars(sent)
    assert channel.basic_get(queue) == (None, None, None)


def test_large_body_both_ways(channel, queue):
    body = bytes(range(256)) * 12_000  # 3 MB, many frames
    channel.basic_publish("", queue, body)
    assert channel.basic_get(queue, auto_ack=True)[2] == body


def test_publishes_are_confirmed_and_unroutable_ones_returned(channel, queue):
    channel.confirm_delivery()
    for number in range(50):
        channel.basic_publish("", queue, str(number).encode(), PERSISTENT, mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("amq.topic", "unbound", b"lost", mandatory=True)
    assert caught.value.messages[0].body == b"lost"
    assert channel.queue_declare(queue, passive=True).method.message_count == 50


def test_transaction_is_committed_or_rolled_back(channel, queue):
    channel.tx_select()
    channel.basic_publish("", queue, b"kept")
    channel.tx_commit()
    channel.basic_publish("", queue, b"dropped")
    channel.tx_rollback()
    assert channel.queue_declare(queue, passive=True).method.message_count == 1


def test_error_closes_only_its_channel(connection, channel, queue):
    broken = connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        broken.queue_declare("no-such-queue", passive=True)
    assert caught.value.reply_code == 404
    assert channel.queue_declare(queue, passive=True).method.queue == queue


def test_redeclaring_a_queue_with_other_properties_is_refused(channel, name):
    queue = name()
    channel.queue_declare(queue, exclusive=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare(queue, auto_delete=True, exclusive=True)
    assert caught.value.reply_code == 406


def test_wrong_password_is_refused(url):
    parameters = pika.URLParameters(url)
    parameters.credentials = pika.PlainCredentials("guest", "wrong")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(parameters)


def test_missing_vhost_is_refused(url):
    parameters = pika.URLParameters(url)
    parameters.virtual_host = "no-such-vhost"
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="530"):
        pika.BlockingConnection(parameters)


def test_consumer_is_cancelled_when_its_queue_is_deleted(connection, channel, name):
    queue = name()
    channel.queue_declare(queue)
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(cancelled.append)
    channel.basic_consume(queue, lambda *_: None, consumer_tag="watching")
    connection.channel().queue_delete(queue)
    deadline = time.monotonic() + 30
    while not cancelled and time.monotonic() < deadline:
        connection.process_data_events(time_limit=0.1)
    assert cancelled[0].method.consumer_tag == "watching"


def test_heartbeats_keep_an_idle_connection_open(url):
    parameters = pika.URLParameters(url)
    parameters.heartbeat = 2
    with pika.BlockingConnection(parameters) as connection:
        connection.sleep(4.5)  # longer than a silent connection stays open
        assert connection.channel().is_open


def test_direct_reply_to(url, channel, queue):
    def serve():
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            for _method, properties, body in channel.consume(public, auto_ack=True):
                channel.basic_publish("", properties.reply_to, body.upper())
                break

    public = channel.queue_declare("", auto_delete=True).method.queue
    server = threading.Thread(target=serve)
    server.start()
    replies = []

    def on_reply(channel, _method, _properties, body):
        replies.append(body)
        channel.stop_consuming()

    channel.basic_consume("amq.rabbitmq.reply-to", on_reply, auto_ack=True)
    channel.basic_publish(
        "", public, b"please", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
    )
    channel.start_consuming()
    server.join()
    assert replies == [b"PLEASE"]


def test_many_channels_on_one_connection(connection, queue):
    channels = [connection.channel() for _ in range(50)]
    for number, channel in enumerate(channels):
        channel.basic_publish("", queue, str(number).encode())
        channel.queue_declare(queue, passive=True)
    bodies = {channels[0].basic_get(queue, auto_ack=True)[2] for _ in range(50)}
    assert bodies == {str(number).encode() for number in range(50)}


class AsyncioSession:
    """The callbacks of pika's asyncio adapter as awaitables."""

    def __init__(self, url):
        self.closed = asyncio.get_running_loop().create_future()
        self.opened = asyncio.get_running_loop().create_future()
        self.connection = AsyncioConnection(
            pika.URLParameters(url),
            on_open_callback=self.opened.set_result,
            on_open_error_callback=lambda _connection, error: self.opened.set_exception(error),
            on_close_callback=lambda _connection, reason: self.closed.set_result(reason),
        )

    async def call(self, function, *arguments, callback="callback", **options):
        done = asyncio.get_running_loop().create_future()
        result = function(*arguments, **{callback: done.set_result}, **options)
        return result, await asyncio.wait_for(done, 30)


@contextlib.asynccontextmanager
async def asyncio_session(url):
    session = AsyncioSession(url)
    await asyncio.wait_for(session.opened, 30)
    yield session
    session.connection.close()
    await asyncio.wait_for(session.closed, 30)


async def test_asyncio_adapter(url):
    async with asyncio_session(url) as session:
        _, channel = await session.call(session.connection.channel, callback="on_open_callback")
        _, declared = await session.call(channel.queue_declare, "", exclusive=True)
        queue = declared.method.queue
        confirmed = asyncio.Event()

        def on_confirm(frame):
            if frame.method.delivery_tag == 20:
                confirmed.set()

        await session.call(channel.confirm_delivery, on_confirm)
        for number in range(20):
            channel.basic_publish("", queue, str(number).encode())
        await asyncio.wait_for(confirmed.wait(), 30)
        received: asyncio.Queue[int] = asyncio.Queue()

        def on_message(channel, method, _properties, body):
            channel.basic_ack(method.delivery_tag)
            received.put_nowait(int(body))

        tag, _ = await session.call(channel.basic_consume, queue, on_message)
        assert [await asyncio.wait_for(received.get(), 30) for _ in range(20)] == list(range(20))
        await session.call(channel.basic_cancel, tag)
