"""The loops of latency runs: one message at a time, every one of them timed.

Message sizes are fixed here as well, so a message has arrived when its octets have. Times are
taken with CLOCK_MONOTONIC, which publisher and consumer share.
"""

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from pamqp import commands
from pamqp import frame as codec
from pamqp.header import ContentHeader

from benchmarks.connection import Address, Connection, RefusedError
from benchmarks.counting import ConfirmLedger, Shape, maybe_shape
from benchmarks.crew import Report, RunError, Tally
from benchmarks.frames import CHANNEL, FRAME_HEAD, STAMP, delivery_mode, publish
from benchmarks.roles import STALL, receive_or_stall

_REPLY_TO = "amq.rabbitmq.reply-to"
_WARM_UP = 100


@dataclass(slots=True)
class PacedPublisher:
    """Publishes at a fixed rate, each body beginning with the time it was due or sent.

    A message counts from the moment it was due if the one before it blocked past that moment:
    a broker that stalls cannot hide the messages it kept waiting outside its door.
    """

    address: Address
    queue: str
    rate: float
    seconds: float
    body_size: int = 100
    _connection: Connection = field(init=False, repr=False)

    def prepare(self) -> None:
        self._connection = Connection(self.address)

    def work(self, tally: Tally) -> Report:
        message = bytearray(
            publish("", self.queue, delivery_mode(persistent=False), bytes(self.body_size))
        )
        stamp_at = len(message) - 1 - self.body_size
        sock, count = self._connection.go_hot(), int(self.rate * self.seconds)
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
class StampReader:
    """Consumes with automatic ack and notes how old each message is."""

    address: Address
    queue: str
    slot: int = 0
    _connection: Connection = field(init=False, repr=False)

    def prepare(self) -> None:
        self._connection = Connection(self.address)
        _consume(self._connection, self.queue)

    def work(self, tally: Tally) -> Report:
        ages: list[float] = []
        started = time.monotonic()
        pending = bytearray(self._connection.take_pending())
        sock, last = self._connection.go_hot(), time.monotonic()
        shape: Shape | None = None
        while not tally.is_complete:
            try:
                pending += _received(sock)
                last = time.monotonic()
            except BlockingIOError:
                if time.monotonic() - last > STALL:
                    raise RunError(f"stalled after {len(ages):,} deliveries") from None
                continue
            shape = shape or maybe_shape(pending)
            while shape and len(pending) >= shape.size:
                (stamp,) = STAMP.unpack_from(pending, shape.body_at)
                ages.append(last - stamp / 1e9)
                del pending[: shape.size]
            tally.put(self.slot, len(ages))
        self._connection.close()
        return Report(len(ages), started, last, tuple(ages[_WARM_UP:]))


@dataclass(slots=True)
class LonePublisher:
    """Publishes one persistent message, waits for its confirm, and again."""

    address: Address
    queue: str
    seconds: float
    body_size: int = 100
    _connection: Connection = field(init=False, repr=False)

    def prepare(self) -> None:
        self._connection = Connection(self.address)
        self._connection.call(commands.Confirm.Select())

    def work(self, tally: Tally) -> Report:
        message = publish("", self.queue, delivery_mode(persistent=True), bytes(self.body_size))
        times: list[float] = []
        sock, ledger = self._connection.go_hot(), ConfirmLedger()
        started = now = time.monotonic()
        while now - started < self.seconds:
            sent_at = now
            sock.sendall(message)
            while ledger.feed(receive_or_stall(sock, 1)) <= len(times):
                pass
            now = time.monotonic()
            times.append(now - sent_at)
        self._connection.close()
        return Report(len(times), started, now, tuple(times[_WARM_UP:]))


@dataclass(slots=True)
class Requester:
    """Sends a request, waits for the reply (direct reply-to), and again."""

    address: Address
    queue: str
    seconds: float
    body_size: int = 100
    _connection: Connection = field(init=False, repr=False)

    def prepare(self) -> None:
        self._connection = Connection(self.address)
        _consume(self._connection, _REPLY_TO)

    def work(self, tally: Tally) -> Report:
        request = publish("", self.queue, _properties(_REPLY_TO), bytes(self.body_size))
        times: list[float] = []
        sock = self._connection.go_hot()
        replies = _deliveries(sock, self._connection.take_pending(), tally)
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
    """Answers every request of one requester, whose address the first request names."""

    address: Address
    queue: str
    body_size: int = 100
    _connection: Connection = field(init=False, repr=False)

    def prepare(self) -> None:
        self._connection = Connection(self.address)
        _consume(self._connection, self.queue)

    def work(self, tally: Tally) -> Report:
        started, count, reply = time.monotonic(), 0, b""
        sock = self._connection.go_hot()
        for request in _deliveries(sock, self._connection.take_pending(), tally):
            if not reply:
                reply = publish("", _reply_to(request), _properties(), bytes(self.body_size))
            sock.sendall(reply)
            count += 1
        self._connection.close()
        return Report(count, started, time.monotonic())


def _consume(connection: Connection, queue: str) -> None:
    connection.call(commands.Basic.Consume(queue=queue, consumer_tag="bench", no_ack=True))


def _received(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 16)
    if not data:
        raise RefusedError("the broker closed the connection")
    return data


def _deliveries(sock: socket.socket, pending: bytes, tally: Tally) -> Iterator[bytes]:
    """Deliveries one by one, until the parent has put an end to the run."""
    shape: Shape | None = None
    last = time.monotonic()
    while True:
        shape = shape or maybe_shape(pending)
        if shape and len(pending) >= shape.size:
            delivery, pending = pending[: shape.size], pending[shape.size :]
            yield delivery
            continue
        try:
            pending += _received(sock)
            last = time.monotonic()
        except BlockingIOError:
            if tally.expected >= 0:
                return
            if time.monotonic() - last > STALL:
                raise RunError("no message") from None


def _properties(reply_to: str | None = None) -> bytes:
    header = ContentHeader(properties=commands.Basic.Properties(delivery_mode=1, reply_to=reply_to))
    return codec.marshal(header, CHANNEL)[FRAME_HEAD.size + 12 : -1]


def _reply_to(delivery: bytes) -> str:
    used, _, _ = codec.unmarshal(delivery)
    _, _, header = codec.unmarshal(delivery[used:])
    if not isinstance(header, ContentHeader) or not header.properties.reply_to:
        raise RunError("a request came without reply-to")
    return str(header.properties.reply_to)
