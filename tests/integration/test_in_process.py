"""A broker inside one's own process: with asyncio, and on a thread for synchronous code."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import aio_pika
import pika
import pytest
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker

import leveret
from leveret import in_process_settings
from leveret.launch import LaunchError


def put(url: str, queue: str, body: bytes) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True)
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
    connection.close()


def take(url: str, queue: str) -> bytes | None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    _, _, body = connection.channel().basic_get(queue, auto_ack=True)
    connection.close()
    return body if body is None else bytes(body)


async def test_asyncio() -> None:
    async with leveret.Broker() as broker:
        connection = await aio_pika.connect(broker.url)
        async with connection:
            channel = await connection.channel(publisher_confirms=True)
            queue = await channel.declare_queue("q")
            await channel.default_exchange.publish(aio_pika.Message(b"here"), "q")
            message = await queue.get(timeout=30)
            await message.ack()
            assert message.body == b"here"
    with pytest.raises(OSError):
        await asyncio.open_connection(*broker.amqp_address)


def test_threaded() -> None:
    with leveret.ThreadedBroker() as broker:
        put(broker.url, "q", b"here")
        assert take(broker.url, "q") == b"here"
    with pytest.raises(AMQPConnectionError):
        take(broker.url, "q")


def test_two_at_once_know_nothing_of_each_other() -> None:
    with leveret.ThreadedBroker() as one, leveret.ThreadedBroker() as other:
        assert one.url != other.url
        for broker, body in ((one, b"one"), (other, b"other")):
            put(broker.url, "q", body)
        assert (take(one.url, "q"), take(other.url, "q")) == (b"one", b"other")


@pytest.mark.parametrize("form", [str, Path])
def test_a_directory_outlives_the_broker(tmp_path: Path, form: type) -> None:
    settings = in_process_settings(data_dir=form(tmp_path / "data"))
    with leveret.ThreadedBroker(settings) as broker:
        put(broker.url, "q", b"kept")
    with leveret.ThreadedBroker(settings) as broker:
        assert take(broker.url, "q") == b"kept"


def test_clients_are_told_that_it_ends() -> None:
    with leveret.ThreadedBroker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    with pytest.raises(ConnectionClosedByBroker) as told:
        connection.process_data_events(30)
    assert told.value.reply_code == 320


def test_a_start_that_fails_raises_where_it_was_asked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = in_process_settings(amqp_port=taken.getsockname()[1])
        with pytest.raises(LaunchError, match="is taken"), leveret.ThreadedBroker(settings):
            pass
