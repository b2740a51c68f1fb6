"""A broker inside one's own process: with asyncio, and on a thread for synchronous code."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import aio_pika
import pika
import pytest
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker

import leveret
from leveret import in_process_settings, launch
from leveret.launch import LaunchError, RunningBroker


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


class EndsItsOwnWay(leveret.ThreadedBroker):
    """A broker that does something before it stops."""

    def __init__(self, first: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self._first = first

    def _make(self) -> RunningBroker:
        running = super()._make()
        stop = running.stop

        async def stop_at_last() -> None:
            try:
                await self._first()
            finally:
                await stop()

        running.stop = stop_at_last  # type: ignore[method-assign]
        return running


def test_one_that_does_not_stop_is_not_taken_for_stopped(monkeypatch) -> None:
    monkeypatch.setattr(launch, "STOP_SECONDS", 0.01)
    may_stop = threading.Event()
    broker = EndsItsOwnWay(lambda: asyncio.to_thread(may_stop.wait, 60))
    with pytest.raises(RuntimeError, match="has not stopped"), broker:
        pass
    may_stop.set()
    assert broker._thread is not None
    broker._thread.join()


def test_an_error_on_the_way_out_is_told() -> None:
    async def fail() -> None:
        raise OSError("no way out")

    with pytest.raises(OSError, match="no way out"), EndsItsOwnWay(fail):
        pass
    with pytest.raises(ValueError, match="first"), EndsItsOwnWay(fail):
        raise ValueError("first")


def test_one_that_was_stopped_from_inside_has_ended() -> None:
    with leveret.ThreadedBroker() as broker:
        assert broker.running is not None and broker._thread is not None
        broker.call(broker.running.stop_requested.set)
        broker._thread.join()


@pytest.mark.parametrize("is_asked", [True, False])
async def test_somebody_listens_for_http_until_the_data_is_whole(tmp_path, is_asked) -> None:
    """`leveret stop` asks until nobody listens, and copies of the data are made after it."""
    settings = leveret.in_process_settings(http_enabled=True, memory=False, data_dir=tmp_path)
    running = leveret.Broker(settings)
    await running.start()
    if is_asked:
        await running.http_ready()
    address, stop, heard = running.http_address, running.broker.stop, []
    assert address is not None

    async def stop_when_somebody_has_asked() -> None:
        heard.append(_is_heard(address))
        await stop()

    running.broker.stop = stop_when_somebody_has_asked  # type: ignore[method-assign]
    await running.stop()
    assert heard == [True]
    assert not _is_heard(address)


def _is_heard(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=30).close()
    except ConnectionRefusedError:
        return False
    return True
