"""The roles of throughput runs: publisher and consumer, each in its own process.

The publisher sends slices of a prebuilt blob; the consumer counts bytes. Neither allocates per
message. A consumer ends when all consumers together have received what was published; if it
receives nothing for STALL_SECONDS, it reports how many messages are missing.
"""

import select
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pamqp import commands

from benchmarks.connection import RECEIVE_SECONDS, Address, Connection, RefusedError
from benchmarks.counting import ConfirmCounter, DeliveryCounter
from benchmarks.frames import AckBlock, Blob, ack, delivery_mode, publish_blob
from benchmarks.workers import DeliveryCounts, Report, RunError

STALL_SECONDS = 20.0
_RECEIVE_BYTES = 1 << 18
_CONFIRM_BYTES = 1 << 16


class Confirms(Protocol):
    """Counts confirms in received bytes."""

    def feed(self, data: bytes) -> int:
        """Count received bytes; returns the number of confirmed publishes so far."""


@dataclass(frozen=True, slots=True)
class Stream:
    """What a publisher sends: bodies of one size, with the routing keys in turn."""

    exchange: str
    keys: tuple[str, ...]
    body_size: int = 100
    persistent: bool = False
    blob: int = 600

    def build(self) -> Blob:
        properties = delivery_mode(persistent=self.persistent)
        return publish_blob(
            self.exchange,
            self.keys,
            properties=properties,
            body_size=self.body_size,
            count=self.blob,
        )


@dataclass(slots=True)
class Publisher:
    """Publishes for `seconds`, or `count` messages, `window` unconfirmed (0: no confirms)."""

    address: Address
    stream: Stream
    seconds: float = 0.0
    count: int = 0
    window: int = 0
    part: int = 100
    _connection: Connection = field(init=False, repr=False)
    _parts: tuple[memoryview, ...] = field(init=False, repr=False)

    def prepare(self) -> None:
        self._connection = Connection(self.address)
        if self.window:
            self._connection.call(commands.Confirm.Select())
        self._parts = self.stream.build().parts(self.part)

    def work(self, counts: DeliveryCounts) -> Report:
        started = time.monotonic()
        sock = self._connection.raw_socket()
        parts = parts_to_send(self._parts, self.seconds, self.count // self.part)
        if self.window:
            sent = send_confirmed(sock, parts, ConfirmCounter(), self.window, self.part)
        else:
            sent = self._send_all(sock, parts)
        finished = time.monotonic()
        self._connection.close()
        return Report(sent, started, finished)

    def _send_all(self, sock: socket.socket, parts: Iterator[memoryview]) -> int:
        sent = 0
        for part in parts:
            sock.sendall(part)
            sent += self.part
        return sent


def parts_to_send(
    parts: Sequence[memoryview], seconds: float, limit: int = 0
) -> Iterator[memoryview]:
    """The parts of a blob in turn, for `seconds` and up to `limit` parts; 0 is no bound."""
    deadline = time.monotonic() + seconds if seconds else float("inf")
    left = limit or -1
    while left and time.monotonic() < deadline:
        for part in parts:
            yield part
            left -= 1
            if not left or time.monotonic() >= deadline:
                return


def send_confirmed(
    sock: socket.socket,
    parts: Iterator[memoryview],
    confirms: Confirms,
    window: int,
    part_messages: int,
) -> int:
    """Send parts of `part_messages` each, with up to `window` messages unconfirmed."""
    sent, confirmed = 0, 0
    room = window - part_messages
    for part in parts:
        sock.sendall(part)
        sent += part_messages
        while sent - confirmed > room:
            confirmed = confirms.feed(receive_or_stall(sock, sent - confirmed))
    while confirmed < sent:
        confirmed = confirms.feed(receive_or_stall(sock, sent - confirmed))
    return sent


def receive_or_stall(sock: socket.socket, missing: int) -> bytes:
    deadline = time.monotonic() + STALL_SECONDS
    while time.monotonic() < deadline:
        try:
            data = sock.recv(_CONFIRM_BYTES)
        except BlockingIOError:
            continue
        if not data:
            raise RefusedError("the broker closed the connection")
        return data
    raise RunError(f"nothing received for {STALL_SECONDS:.0f} s, {missing:,} missing")


@dataclass(slots=True)
class ConsumerConnection:
    """One connection of a consumer, with its counter and the last acked tag."""

    connection: Connection
    counter: DeliveryCounter
    acked: int = 0


@dataclass(slots=True)
class Consumer:
    """Consumes from `queues`, one connection each; acks every `ack_every` (0: automatic).

    If they are `shared`, all queues are consumed on one channel, and delivery tags count across
    them.
    """

    address: Address
    queues: tuple[str, ...]
    slot: int
    ack_every: int = 0
    prefetch: int = 1000
    cycle: int = 0
    late: bool = False
    shared: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    _sources: dict[int, ConsumerConnection] = field(init=False, repr=False, default_factory=dict)
    _acks: AckBlock = field(init=False, repr=False)

    def prepare(self) -> None:
        self._acks = AckBlock()
        for _ in self.queues[:1] if self.shared else self.queues:
            connection = Connection(self.address)
            if self.ack_every:
                connection.call(commands.Basic.Qos(prefetch_count=self.prefetch))
            source = ConsumerConnection(connection, DeliveryCounter(cycle=self.cycle))
            self._sources[connection.sock.fileno()] = source
        if not self.late:
            self._consume()

    def work(self, counts: DeliveryCounts) -> Report:
        started = time.monotonic()
        if self.late:
            self._consume()
        try:
            finished = self._drain(counts)
        except BaseException:
            for source in self._all():
                source.connection.sock.close()
            raise
        count = sum(source.counter.count for source in self._sources.values())
        for source in self._sources.values():
            self._finish(source)
        return Report(count, started, finished)

    def _consume(self) -> None:
        if self.shared:
            self._consume_all()
            return
        for name, source in zip(self.queues, self._sources.values(), strict=True):
            source.connection.call(
                commands.Basic.Consume(
                    queue=name,
                    consumer_tag="bench",
                    no_ack=not self.ack_every,
                    arguments=self.arguments,
                )
            )

    def _consume_all(self) -> None:
        """Only the last request waits for its reply; all tags have one length."""
        (source,) = self._sources.values()
        for number, name in enumerate(self.queues, start=1):
            consume = commands.Basic.Consume(
                queue=name, consumer_tag=f"bench{number:06}", no_ack=not self.ack_every
            )
            if number < len(self.queues):
                consume.nowait = True
                source.connection.cast(consume)
            else:
                source.connection.call(consume)

    def _drain(self, counts: DeliveryCounts) -> float:
        buffer = bytearray(_RECEIVE_BYTES)
        view = memoryview(buffer)
        total = sum(self._receive(i, memoryview(i.connection.take_pending())) for i in self._all())
        last = time.monotonic()
        for source in self._readable():
            try:
                received = source.connection.sock.recv_into(buffer) if source else 0
            except BlockingIOError:
                received = 0
            else:
                if source and not received:
                    raise RefusedError("the broker closed the connection")
            if source and received:
                total += self._receive(source, view[:received])
                last = time.monotonic()
            elif time.monotonic() - last > STALL_SECONDS:
                raise RunError(
                    f"{counts.expected:,} expected, stalled after {total:,} in this process"
                )
            counts.put(self.slot, total)
            if counts.is_complete:
                return last
        return last

    def _all(self) -> tuple[ConsumerConnection, ...]:
        return tuple(self._sources.values())

    def _readable(self) -> Iterator[ConsumerConnection | None]:
        """Connections that are readable, forever; None after RECEIVE_SECONDS without any."""
        for source in self._sources.values():
            source.connection.raw_socket()
        if len(self._sources) == 1:
            (only,) = self._sources.values()
            while True:
                yield only
        with select.epoll() as poll:
            for number in self._sources:
                poll.register(number, select.EPOLLIN)
            while True:
                for number, _ in poll.poll(RECEIVE_SECONDS):
                    yield self._sources[number]
                yield None

    def _receive(self, source: ConsumerConnection, data: memoryview) -> int:
        before = source.counter.count
        count = source.counter.feed(data)
        if self.ack_every == 1 and count > source.acked:
            for part in self._acks.parts(source.acked + 1, count):
                source.connection.sock.sendall(part)
            source.acked = count
        elif self.ack_every and count - source.acked >= self.ack_every:
            tags = range(source.acked + self.ack_every, count + 1, self.ack_every)
            source.connection.sock.sendall(b"".join(ack(tag, multiple=True) for tag in tags))
            source.acked = tags[-1]
        return count - before

    def _finish(self, source: ConsumerConnection) -> None:
        if source.counter.is_incomplete:
            raise RunError("the last delivery is incomplete")
        if self.ack_every and source.acked < source.counter.count:
            source.connection.sock.sendall(ack(source.counter.count, multiple=True))
        source.connection.close()


@dataclass(slots=True)
class LimitedConsumer:
    """Consumes exactly `count` messages of a queue that has more of them.

    It leaves as many messages unacked as its prefetch allows before the last one, so the broker
    never sends more than `count`; then it cancels and acks the rest.
    """

    address: Address
    queue: str
    count: int
    cycle: int
    prefetch: int = 1000
    ack_every: int = 100
    _connection: Connection = field(init=False, repr=False)

    def prepare(self) -> None:
        self._connection = Connection(self.address)
        self._connection.call(commands.Basic.Qos(prefetch_count=self.prefetch))

    def work(self, counts: DeliveryCounts) -> Report:
        connection, counter = self._connection, DeliveryCounter(cycle=self.cycle)
        started = time.monotonic()
        connection.call(commands.Basic.Consume(queue=self.queue, consumer_tag="bench"))
        data, acked = connection.take_pending(), 0
        sock = connection.raw_socket()
        while counter.feed(memoryview(data)) < self.count:
            due = min(counter.count - counter.count % self.ack_every, self.count - self.prefetch)
            if due > acked:
                sock.sendall(ack(due, multiple=True))
                acked = due
            data = receive_or_stall(sock, self.count - counter.count)
        finished = time.monotonic()
        if counter.count > self.count or counter.is_incomplete:
            raise RunError(f"more than the {self.count:,} messages that were asked for")
        connection.call(commands.Basic.Cancel(consumer_tag="bench"))
        connection.cast(commands.Basic.Ack(self.count, multiple=True))
        connection.close()
        return Report(counter.count, started, finished)
