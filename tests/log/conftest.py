"""A broker with a data directory, and pika clients that all run in the test's thread.

`home` runs the broker in a thread of its own; it can be stopped and restarted on the same data.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from leveret.launch import ThreadedBroker, in_process_settings

WITHIN = 60.0
STREAM = {"x-queue-type": "stream"}


class Home:
    """A data directory and the broker that uses it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._running: ThreadedBroker | None = None
        self._clients: list[pika.BlockingConnection] = []

    def start(self) -> None:
        settings = in_process_settings(data_dir=self.data_dir)
        self._running = ThreadedBroker(settings)
        self._running.__enter__()

    def stop(self) -> None:
        for client in self._clients:
            close(client)
        self._clients.clear()
        if self._running is not None:
            self._running.__exit__(None, None, None)
            self._running = None

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def url(self) -> str:
        assert self._running is not None
        return self._running.url

    @property
    def hub(self) -> Any:
        """The broker object: read from it here, and change it only on its own thread."""
        assert self._running is not None and self._running.running is not None
        return self._running.running.broker

    def connect(self) -> pika.BlockingConnection:
        self._clients.append(pika.BlockingConnection(pika.URLParameters(self.url)))
        return self._clients[-1]


class Reader:
    """A consumer with its own connection; `records` holds what it received."""

    _numbers = itertools.count(1)

    def __init__(
        self,
        home: Home,
        queue: str,
        *,
        prefetch: int = 100,
        acks: bool = True,
        on_record: Callable[[Any, bytes], None] = lambda method, body: None,
        **arguments: Any,
    ) -> None:
        self.connection = home.connect()
        self.channel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.records: list[tuple[Any, Any, bytes]] = []
        self.acks = acks
        self._on_record_hook = on_record
        self.is_dead = False
        with_dashes = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.tag = self.channel.basic_consume(
            queue,
            self._on_record,
            arguments=with_dashes,
            consumer_tag=f"reader-{next(self._numbers)}",
        )

    def _on_record(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.records.append((method, properties, body))
        self._on_record_hook(method, body)
        if self.acks:
            channel.basic_ack(method.delivery_tag)

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self.records]

    @property
    def offsets(self) -> list[int]:
        return [int(properties.headers["x-stream-offset"]) for _, properties, _ in self.records]

    @property
    def places(self) -> list[tuple[int, int]]:
        """(partition, offset) of each record, in order."""
        headers = [properties.headers for _, properties, _ in self.records]
        return [(int(h["x-partition"]), int(h["x-stream-offset"])) for h in headers]

    def pump(self, seconds: float = 0.02) -> None:
        self.connection.process_data_events(time_limit=seconds)

    def read(self, count: int) -> Reader:
        """Wait until it has received `count` records."""
        wait_for(lambda: len(self.records) >= count, self)
        return self

    def quiet(self, seconds: float = 0.2) -> Reader:
        """Receive whatever arrives within `seconds`."""
        self.pump(seconds)
        return self

    def die(self) -> None:
        """Close the socket without a connection.close, like a killed process."""
        self.is_dead = True
        self.connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        close(self.connection)


def close(connection: pika.BlockingConnection) -> None:
    """Close a connection, even if the broker or the socket is gone."""
    with contextlib.suppress(pika.exceptions.AMQPError, OSError, AssertionError):
        connection.close()


def wait_for(condition: Callable[[], bool], *readers: Reader) -> None:
    deadline = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < deadline, [reader.bodies[-3:] for reader in readers]
        for reader in readers:
            if not reader.is_dead:
                reader.pump()
        if not readers:
            time.sleep(0.01)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "data")
    home.start()
    yield home
    home.stop()


@pytest.fixture
def readers(home: Home) -> Iterator[Callable[..., Reader]]:
    made: list[Reader] = []

    def make(queue: str, **options: Any) -> Reader:
        made.append(Reader(home, queue, **options))
        return made[-1]

    yield make
    for reader in made:
        reader.close()


@pytest.fixture
def connection(home: Home) -> Iterator[pika.BlockingConnection]:
    connection = home.connect()
    yield connection
    close(connection)


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> Any:
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def declare(channel: Any, name: str, **arguments: Any) -> None:
    given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments={**STREAM, **given})


def publish(
    channel: Any, exchange: str, bodies: list[bytes], key: str = "", **headers: Any
) -> None:
    given = {key.replace("_", "-"): value for key, value in headers.items()}
    for body in bodies:
        channel.basic_publish(
            exchange, key, body, pika.BasicProperties(headers=given or None), mandatory=True
        )


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]
