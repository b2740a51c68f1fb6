"""The roles of latency runs: each message is timed.

Message sizes are fixed, so a message has arrived when that many bytes have. Times are taken with
CLOCK_MONOTONIC, which publisher and consumer share.
"""

import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from pamqp import commands
from pamqp import frame as codec
from pamqp.header import ContentHeader

from benchmarks.connection import Address, Connection, RefusedError
from benchmarks.counting import ConfirmCounter, DeliveryLayout, maybe_layout
from benchmarks.frames import CHANNEL, FRAME_HEAD, STAMP, delivery_mode, publish
from benchmarks.roles import STALL_SECONDS, receive_or_stall
from benchmarks.workers import DeliveryCounts, Report, RunError

_REPLY_TO = "amq.rabbitmq.reply-to"
_WARM_UP = 100


@dataclass(slots=True)
class FixedRatePublisher:
    """Publishes at a fixed rate; each body begins with the time it was due or sent.

    If the previous send blocked past the time a message was due, its latency counts from that time:
    a broker that stalls cannot hide the messages that had to wait.
    """

    address: Address
    queue: str
    rate: float
    seconds: float
    body_size: int = 100
    exchange: str = ""
    properties: bytes = delivery_mode(persistent=False)
    _connection: Connection = field(init=False, repr=False)

    def prepare(self) -> None:
        self._connection = Connection(self.address)

    def work(self, counts: DeliveryCounts) -> Report:
        message = bytearray(
            publish(self.exchange, self.queue, self.properties, bytes(self.body_size))
        )
        stamp_at = len(message) - 1 - self.body_size
        sock, count = self._connection.raw_socket(), int(self.rate * self.seconds)
        started = time.monotonic()
        for number in range(count):
            due = started + number / self.rate
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(wait)
                due = time.monotonic()
            STAMP.pack_into(message, stamp_at, int(due * 1e9))
            sock.sendall(message)
        finished = time.monotonic()
        self._connection.close()
        return Report(count, started, finished)


@dataclass(slots=True)
class LatencyConsumer:
    """Consumes with automatic ack and records the age of each message."""

    address: Address
    queue: str
    slot: int = 0
    _connection: Connection = field(init=False, repr=False)

    def prepare(self) -> None:
        self._connection = Connection(self.address)
        _consume(self._connection, self.queue)

    def work(self, counts: DeliveryCounts) -> Report:
        ages: list[float] = []
        started = time.monotonic()
        pending = bytearray(self._connection.take_pending())
        sock, last = self._connection.raw_socket(), time.monotonic()
        layout: DeliveryLayout | None = None
        while not counts.is_complete:
            try:
                pending += _receive(sock)
                last = time.monotonic()
            except BlockingIOError:
                if time.monotonic() - last > STALL_SECONDS:
                    raise RunError(f"stalled after {len(ages):,} deliveries") from None
                continue
            layout = layout or maybe_layout(pending)
            while layout and len(pending) >= layout.size:
                (stamp,) = STAMP.unpack_from(pending, layout.body_at)
                ages.append(last - stamp / 1e9)
                del pending[: layout.size]
            counts.put(self.slot, len(ages))
        self._connection.close()
        return Report(len(ages), started, last, tuple(ages[_WARM_UP:]))


@dataclass(slots=True)
class SerialPublisher:
    """Publishes one persistent message at a time and waits for its confirm."""

    address: Address
    queue: str
    seconds: float
    body_size: int = 100
    _connection: Connection = field(init=False, repr=False)

    def prepare(self) -> None:
        self._connection = Connection(self.address)
        self._connection.call(commands.Confirm.Select())

    def work(self, counts: DeliveryCounts) -> Report:
        message = publish("", self.queue, delivery_mode(persistent=True), bytes(self.body_size))
        times: list[float] = []
        sock, confirms = self._connection.raw_socket(), ConfirmCounter()
        started = now = time.monotonic()
        while now - started < self.seconds:
            sent_at = now
            sock.sendall(message)
            while confirms.feed(receive_or_stall(sock, 1)) <= len(times):
                pass
            now = time.monotonic()
            times.append(now - sent_at)
        self._connection.close()
        return Report(len(times), started, now, tuple(times[_WARM_UP:]))


@dataclass(slots=True)
class SteadyPublisher:
    """Publishes persistent messages at a fixed rate until the parent ends the run.

    The latency of each is the time from when it was due until its confirm.
    """

    address: Address
    queue: str
    rate: float
    body_size: int = 100
    _connection: Connection = field(init=False, repr=False)

    def prepare(self) -> None:
        self._connection = Connection(self.address)
        self._connection.call(commands.Confirm.Select())

    def work(self, counts: DeliveryCounts) -> Report:
        message = publish("", self.queue, delivery_mode(persistent=True), bytes(self.body_size))
        sock, confirms, sent, times = self._connection.sock, ConfirmCounter(), 0, list[float]()
        sock.settimeout(None)
        started = last = time.monotonic()
        while counts.expected < 0 or len(times) < sent:
            now = time.monotonic()
            if counts.expected < 0 and now >= started + sent / self.rate:
                sock.sendall(message)
                sent += 1
                continue
            wait = max(started + sent / self.rate - now, 0.0)
            if select.select([sock], [], [], wait if counts.expected < 0 else STALL_SECONDS)[0]:
                last = time.monotonic()
                confirmed = confirms.feed(_receive(sock))
                times += [last - started - n / self.rate for n in range(len(times), confirmed)]
            elif now - last > STALL_SECONDS:
                raise RunError(f"no confirm for {STALL_SECONDS:.0f} s")
        self._connection.close()
        return Report(sent, started, last, tuple(times))


@dataclass(slots=True)
class Requester:
    """Sends one request at a time and waits for its reply (direct reply-to)."""

    address: Address
    queue: str
    seconds: float
    body_size: int = 100
    _connection: Connection = field(init=False, repr=False)

    def prepare(self) -> None:
        self._connection = Connection(self.address)
        _consume(self._connection, _REPLY_TO)

    def work(self, counts: DeliveryCounts) -> Report:
        request = publish("", self.queue, _properties(_REPLY_TO), bytes(self.body_size))
        times: list[float] = []
        sock = self._connection.raw_socket()
        replies = _deliveries(sock, self._connection.take_pending(), counts)
        started = now = time.monotonic()
        while now - started < self.seconds:
            sent_at = now
            sock.sendall(request)
            next(replies)
            now = time.monotonic()
            times.append(now - sent_at)
        self._connection.close()
        return Report(len(times), started, now, tuple(times[_WARM_UP:]))


@dataclass(slots=True)
class Responder:
    """Answers every request of one requester; the first request gives the reply-to address."""

    address: Address
    queue: str
    body_size: int = 100
    _connection: Connection = field(init=False, repr=False)

    def prepare(self) -> None:
        self._connection = Connection(self.address)
        _consume(self._connection, self.queue)

    def work(self, counts: DeliveryCounts) -> Report:
        started, count, reply = time.monotonic(), 0, b""
        sock = self._connection.raw_socket()
        for request in _deliveries(sock, self._connection.take_pending(), counts):
            if not reply:
                reply = publish("", _reply_to(request), _properties(), bytes(self.body_size))
            sock.sendall(reply)
            count += 1
        self._connection.close()
        return Report(count, started, time.monotonic())


def _consume(connection: Connection, queue: str) -> None:
    connection.call(commands.Basic.Consume(queue=queue, consumer_tag="bench", no_ack=True))


def _receive(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 16)
    if not data:
        raise RefusedError("the broker closed the connection")
    return data


def _deliveries(sock: socket.socket, pending: bytes, counts: DeliveryCounts) -> Iterator[bytes]:
    """Deliveries one by one, until the parent ends the run."""
    layout: DeliveryLayout | None = None
    last = time.monotonic()
    while True:
        layout = layout or maybe_layout(pending)
        if layout and len(pending) >= layout.size:
            delivery, pending = pending[: layout.size], pending[layout.size :]
            yield delivery
            continue
        try:
            pending += _receive(sock)
            last = time.monotonic()
        except BlockingIOError:
            if counts.expected >= 0:
                return
            if time.monotonic() - last > STALL_SECONDS:
                raise RunError(f"no message for {STALL_SECONDS:.0f} s") from None


def _properties(reply_to: str | None = None) -> bytes:
    header = ContentHeader(properties=commands.Basic.Properties(delivery_mode=1, reply_to=reply_to))
    return codec.marshal(header, CHANNEL)[FRAME_HEAD.size + 12 : -1]


def _reply_to(delivery: bytes) -> str:
    used, _, _ = codec.unmarshal(delivery)
    _, _, header = codec.unmarshal(delivery[used:])
    if not isinstance(header, ContentHeader) or not header.properties.reply_to:
        raise RunError("a request has no reply-to")
    return str(header.properties.reply_to)
