"""Work of one client that must not delay others: the rows of the stall benchmark.

To add a row, write a frozen dataclass with two methods and list it in `catalogue.STALLS`:

- `prepare(target, share)` makes what the work needs, before anything is measured;
- `run(target, share)` is the work. It runs in a process of its own while a steady client publishes
  1,000 messages per second with confirms; the confirms that arrive meanwhile are the figures.

`share` is below 1 in a quick run: multiply counts by it. `target.request` sends an HTTP request,
`Connection(target.address)` is an AMQP connection. Repeat work that takes less than a second.
"""

import http.client
import json
import time
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from pamqp import commands

from benchmarks.brokers import HOST
from benchmarks.connection import Address, Connection
from benchmarks.counting import DeliveryCounter
from benchmarks.frames import BODY, FRAME_HEAD, ack, delivery_mode, publish
from benchmarks.roles import Publisher, Stream
from benchmarks.workers import DeliveryCounts, RunError

_TIMEOUT = 300.0
_LOGIN = b64encode(b"guest:guest").decode()
_READS = 5
_RECEIVE_BYTES = 1 << 18
_ACK_EVERY = 100


@dataclass(frozen=True, slots=True)
class Target:
    """The broker under test: its AMQP address and its HTTP port."""

    address: Address
    http_port: int

    def request(self, method: str, path: str, body: Any = None) -> bytes:
        """Send one HTTP request as the default user; an error status raises RunError."""
        connection = http.client.HTTPConnection(HOST, self.http_port, timeout=_TIMEOUT)
        try:
            content = None if body is None else json.dumps(body)
            headers = {"Authorization": f"Basic {_LOGIN}", "Content-Type": "application/json"}
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status >= 400:
            raise RunError(f"{method} {path}: {response.status} {answer[:200]!r}")
        return answer


class Work(Protocol):
    def prepare(self, target: Target, share: float) -> None: ...

    def run(self, target: Target, share: float) -> None: ...


def definitions(queues: int, bindings: int, vhost: str = "/") -> dict[str, Any]:
    """Durable queues, each bound to one topic exchange with `bindings` patterns."""
    of, exchange = {"vhost": vhost}, "bench.stall"
    names = [f"bench.stall.{number:05}" for number in range(queues)]
    common = {"durable": True, "auto_delete": False, "arguments": {}}
    return {
        "vhosts": [{"name": vhost}],
        "exchanges": [{**of, **common, "name": exchange, "type": "topic", "internal": False}],
        "queues": [{**of, **common, "name": name} for name in names],
        "bindings": [
            {
                **of,
                "source": exchange,
                "destination": name,
                "destination_type": "queue",
                "routing_key": f"site{number}.room{room}.#",
                "arguments": {},
            }
            for number, name in enumerate(names)
            for room in range(bindings)
        ],
    }


@dataclass(frozen=True, slots=True)
class Import:
    """Import definitions with `queues` queues and five bindings for each."""

    queues: int

    def prepare(self, target: Target, share: float) -> None:
        """Does nothing: the broker is empty."""

    def run(self, target: Target, share: float) -> None:
        target.request("POST", "/api/definitions", definitions(int(self.queues * share), 5))


@dataclass(frozen=True, slots=True)
class Read:
    """Read `path`, with `queues` queues and five bindings for each."""

    path: str
    queues: int

    def prepare(self, target: Target, share: float) -> None:
        target.request("POST", "/api/definitions", definitions(int(self.queues * share), 5))

    def run(self, target: Target, share: float) -> None:
        for _ in range(_READS):
            target.request("GET", self.path)


@dataclass(frozen=True, slots=True)
class ObjectMetrics:
    """Read per-object metrics of `queues` queues and `exchanges` exchanges."""

    queues: int = 20_000
    exchanges: int = 6_000

    def prepare(self, target: Target, share: float) -> None:
        document = definitions(int(self.queues * share), 0)
        document["exchanges"] += [
            {**document["exchanges"][0], "name": f"bench.exchange.{number:05}", "type": "fanout"}
            for number in range(int(self.exchanges * share))
        ]
        target.request("POST", "/api/definitions", document)
        with Connection(target.address) as connection:  # an exchange counts once it is used
            for number in range(int(self.exchanges * share)):
                name = f"bench.exchange.{number:05}"
                connection.sock.sendall(publish(name, "", delivery_mode(persistent=False), b"x"))

    def run(self, target: Target, share: float) -> None:
        for _ in range(_READS):
            target.request("GET", "/metrics/per-object")


@dataclass(frozen=True, slots=True)
class DeleteVhost:
    """Delete a virtual host with `queues` queues and five bindings for each."""

    queues: int = 5_000
    name = "bench"

    def prepare(self, target: Target, share: float) -> None:
        document = definitions(int(self.queues * share), 5, self.name)
        target.request("POST", "/api/definitions", document)

    def run(self, target: Target, share: float) -> None:
        target.request("DELETE", f"/api/vhosts/{self.name}")


@dataclass(frozen=True, slots=True)
class ReadHistory:
    """Read the messages and events of `messages` published and deleted messages."""

    messages: int = 300_000
    queue = "bench.history"

    def prepare(self, target: Target, share: float) -> None:
        with Connection(target.address) as connection:
            connection.call(commands.Queue.Declare(queue=self.queue, durable=True))
        stream = Stream("", (self.queue,), persistent=True)
        count = max(int(self.messages * share) // 100 * 100, 100)
        publisher = Publisher(target.address, stream, count=count, window=1000)
        publisher.prepare()
        publisher.work(DeliveryCounts(0))
        with Connection(target.address) as connection:
            connection.call(commands.Queue.Purge(queue=self.queue))

    def run(self, target: Target, share: float) -> None:
        for table in ("messages", "events"):
            target.request("GET", f"/api/history/export?table={table}")


@dataclass(frozen=True, slots=True)
class LargeMessages:
    """Publish `count` messages of `size` bytes, and consume them."""

    persistent: bool
    count: int = 3
    size: int = 128 * 1024 * 1024
    queue = "bench.large"

    def prepare(self, target: Target, share: float) -> None:
        with Connection(target.address) as connection:
            connection.call(commands.Queue.Declare(queue=self.queue, durable=True))

    def run(self, target: Target, share: float) -> None:
        body = bytes(max(1, int(self.size * share)))
        message = publish("", self.queue, delivery_mode(persistent=self.persistent), body)
        with Connection(target.address) as connection:
            for _ in range(self.count):
                connection.sock.sendall(message)
            while (
                connection.call(commands.Queue.Declare(queue=self.queue, passive=True))
            ).message_count < self.count:
                time.sleep(0.01)
        with Connection(target.address) as connection:
            connection.cast(commands.Basic.Consume(queue=self.queue, no_ack=True))
            _skip_bodies(connection, self.count * len(body))


@dataclass(frozen=True, slots=True)
class LargeTransactions:
    """Publish `messages` persistent messages in a transaction and commit it, a few times."""

    messages: int = 100_000
    repeats: int = 3
    queue = "bench.transaction"

    def prepare(self, target: Target, share: float) -> None:
        with Connection(target.address) as connection:
            connection.call(commands.Queue.Declare(queue=self.queue, durable=True))

    def run(self, target: Target, share: float) -> None:
        message = publish("", self.queue, delivery_mode(persistent=True), bytes(100))
        with Connection(target.address) as connection:
            connection.call(commands.Tx.Select())
            for _ in range(self.repeats):
                for _ in range(max(1, int(self.messages * share) // 1000)):
                    connection.sock.sendall(message * 1000)
                connection.call(commands.Tx.Commit())


_LOG: dict[str, Any] = {"x-queue-type": "stream"}


@dataclass(frozen=True, slots=True)
class DeclareWideLog:
    """Declare a log of many partitions, and delete it."""

    partitions: int = 1_000
    name = "bench.wide"

    def prepare(self, target: Target, share: float) -> None:
        """Does nothing: the broker is empty."""

    def run(self, target: Target, share: float) -> None:
        partitions = max(int(self.partitions * share), 20)
        _declare_log(target.address, self.name, partitions)
        with Connection(target.address) as connection:
            connection.call(commands.Queue.Delete(queue=self.name))


@dataclass(frozen=True, slots=True)
class WideLog:
    """Fill a log of many partitions, read it with a group, and reset the group."""

    partitions: int = 1_000
    records: int = 20_000
    members: int = 20
    name = "bench.wide"

    def prepare(self, target: Target, share: float) -> None:
        _declare_log(target.address, self.name, max(int(self.partitions * share), self.members))

    def run(self, target: Target, share: float) -> None:
        records = max(int(self.records * share) // 100 * 100, 100)
        keys = tuple(f"key-{number:05}" for number in range(1_000))
        stream = Stream(self.name, keys, persistent=True)
        publisher = Publisher(target.address, stream, count=records, window=1000)
        publisher.prepare()
        publisher.work(DeliveryCounts(0))
        _read_as_group(target.address, self.name, self.members, records)
        target.request("POST", f"/api/logs/%2F/{self.name}/groups/bench/reset", {"to": "first"})


def _declare_log(address: Address, name: str, partitions: int) -> None:
    arguments = {**_LOG, "x-partitions": partitions}
    with Connection(address) as connection:
        connection.call(commands.Queue.Declare(queue=name, durable=True, arguments=arguments))


def _read_as_group(address: Address, log: str, members: int, records: int) -> None:
    """Read all records with `members` members of one group, on one channel."""
    with Connection(address) as connection:
        connection.call(commands.Basic.Qos(prefetch_count=200))
        _consume(connection, log, ["bench"] * members)
        _read_deliveries(connection, DeliveryCounter(), records)
        connection.call(commands.Basic.Qos(prefetch_count=200))  # answered after the acks


def _consume(connection: Connection, log: str, groups: Iterable[str]) -> None:
    """Start one consumer in each of these groups."""
    for number, group in enumerate(groups):
        arguments: dict[str, Any] = {"x-stream-offset": "first", "x-group": group}
        tag = f"member-{number:05}"  # deliveries are counted by size, so tags have one length
        connection.cast(
            commands.Basic.Consume(queue=log, consumer_tag=tag, nowait=True, arguments=arguments)
        )


def _read_deliveries(connection: Connection, counter: DeliveryCounter, count: int) -> None:
    """Read until the counter has `count` deliveries; an ack covers at most 100 of them."""
    acked = counter.count
    data = connection.take_pending()
    while True:
        received = counter.feed(memoryview(data)) if data else counter.count
        while acked < received:
            acked = min(acked + _ACK_EVERY, received)
            connection.sock.sendall(ack(acked, multiple=True))
        if received >= count:
            return
        data = connection.sock.recv(_RECEIVE_BYTES)


@dataclass(frozen=True, slots=True)
class ManyGroups:
    """Many groups on one log join, each reads every record, and all leave."""

    groups: int = 2_000
    records: int = 20
    name = "bench.groups"

    def prepare(self, target: Target, share: float) -> None:
        with Connection(target.address) as connection:
            connection.call(commands.Queue.Declare(queue=self.name, durable=True, arguments=_LOG))

    def run(self, target: Target, share: float) -> None:
        groups = max(int(self.groups * share), 1)
        counter = DeliveryCounter()
        with Connection(target.address) as connection:
            connection.call(commands.Basic.Qos(prefetch_count=10))
            _consume(connection, self.name, (f"group-{number}" for number in range(groups)))
            connection.call(commands.Basic.Qos(prefetch_count=10))  # answered after the joins
            message = publish("", self.name, delivery_mode(persistent=True), b"x" * 100)
            for number in range(self.records):
                connection.sock.sendall(message)
                _read_deliveries(connection, counter, (number + 1) * groups)
            connection.call(commands.Basic.Qos(prefetch_count=10))  # answered after the acks
        target.request("GET", f"/api/logs/%2F/{self.name}/groups")


def _skip_bodies(connection: Connection, missing: int) -> None:
    """Read deliveries until their bodies have had this many bytes."""
    received = bytearray()
    while missing > 0:
        received += connection.sock.recv(1 << 20)
        at = 0
        while len(received) - at >= FRAME_HEAD.size:
            kind, _, size = FRAME_HEAD.unpack_from(received, at)
            if len(received) - at < size + FRAME_HEAD.size + 1:
                break
            missing -= size if kind == BODY else 0
            at += size + FRAME_HEAD.size + 1
        del received[:at]
