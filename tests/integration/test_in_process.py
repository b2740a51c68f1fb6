"""A broker in the process of its user: with asyncio, and on a thread for synchronous code."""

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


def publish(url: str, queue: str, body: bytes) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True)
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
    connection.close()


def get(url: str, queue: str) -> bytes | None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    _, _, body = connection.channel().basic_get(queue, auto_ack=True)
    connection.close()
    return body if body is None else bytes(body)


async def test_asyncio_broker() -> None:
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


def test_threaded_broker() -> None:
    with leveret.ThreadedBroker() as broker:
        publish(broker.url, "q", b"here")
        assert get(broker.url, "q") == b"here"
    with pytest.raises(AMQPConnectionError):
        get(broker.url, "q")


def test_two_brokers_in_a_process_are_independent() -> None:
    with leveret.ThreadedBroker() as first, leveret.ThreadedBroker() as second:
        assert first.url != second.url
        for broker, body in ((first, b"first"), (second, b"second")):
            publish(broker.url, "q", body)
        assert (get(first.url, "q"), get(second.url, "q")) == (b"first", b"second")


@pytest.mark.parametrize("path_type", [str, Path])
def test_data_directory_is_used_again(tmp_path: Path, path_type: type) -> None:
    settings = in_process_settings(data_dir=path_type(tmp_path / "data"))
    with leveret.ThreadedBroker(settings) as broker:
        publish(broker.url, "q", b"kept")
    with leveret.ThreadedBroker(settings) as broker:
        assert get(broker.url, "q") == b"kept"


def test_stop_closes_connections_with_320() -> None:
    with leveret.ThreadedBroker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    with pytest.raises(ConnectionClosedByBroker) as caught:
        connection.process_data_events(30)
    assert caught.value.reply_code == 320


def test_failed_start_raises_in_the_caller() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = in_process_settings(amqp_port=listener.getsockname()[1])
        with pytest.raises(LaunchError, match="port is in use"), leveret.ThreadedBroker(settings):
            pass


class BrokerWithStopHook(leveret.ThreadedBroker):
    """A broker that awaits a hook before it stops."""

    def __init__(self, before_stop: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self._before_stop = before_stop

    def _make(self) -> RunningBroker:
        running = super()._make()
        stop = running.stop

        async def stop_with_hook() -> None:
            try:
                await self._before_stop()
            finally:
                await stop()

        running.stop = stop_with_hook  # type: ignore[method-assign]
        return running


def test_broker_that_does_not_stop_in_time_raises(monkeypatch) -> None:
    monkeypatch.setattr(launch, "STOP_SECONDS", 0.01)
    may_stop = threading.Event()
    broker = BrokerWithStopHook(lambda: asyncio.to_thread(may_stop.wait, 60))
    with pytest.raises(RuntimeError, match="did not stop within"), broker:
        pass
    may_stop.set()
    assert broker._thread is not None
    broker._thread.join()


def test_error_during_the_stop_is_raised() -> None:
    async def fail() -> None:
        raise OSError("cannot stop")

    with pytest.raises(OSError, match="cannot stop"), BrokerWithStopHook(fail):
        pass
    with pytest.raises(ValueError, match="first"), BrokerWithStopHook(fail):
        raise ValueError("first")


def test_broker_stopped_from_inside_exits_cleanly() -> None:
    with leveret.ThreadedBroker() as broker:
        assert broker.running is not None and broker._thread is not None
        broker.call(broker.running.stop_requested.set)
        broker._thread.join()


@pytest.mark.parametrize("is_http_ready", [True, False])
async def test_http_port_accepts_connections_until_the_store_is_closed(
    tmp_path, is_http_ready
) -> None:
    """`leveret stop` waits until the port is closed, and users then copy the data directory."""
    settings = leveret.in_process_settings(http_enabled=True, memory=False, data_dir=tmp_path)
    running = leveret.Broker(settings)
    await running.start()
    if is_http_ready:
        await running.http_ready()
    address, stop, accepted = running.http_address, running.broker.stop, []
    assert address is not None

    async def connect_and_stop() -> None:
        accepted.append(_accepts_connections(address))
        await stop()

    running.broker.stop = connect_and_stop  # type: ignore[method-assign]
    await running.stop()
    assert accepted == [True]
    assert not _accepts_connections(address)


def _accepts_connections(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=30).close()
    except ConnectionRefusedError:
        return False
    return True
