"""The roles of runs on NATS and Redis: as those for AMQP, but in the protocol of a client."""

import contextlib
import time
from dataclasses import dataclass, field

from benchmarks.connection import Address
from benchmarks.peers.client import Client, Reader, Shape, Writer, raw, receive
from benchmarks.roles import STALL_SECONDS, parts_to_send, receive_or_stall, send_confirmed
from benchmarks.workers import DeliveryCounts, Report, RunError

_WARM_UP = 100


@dataclass(slots=True)
class PeerPublisher:
    """Publishes for `seconds` and up to `count` messages (0: no bound), `window` unconfirmed."""

    client: Client
    address: Address
    name: str
    seconds: float = 0.0
    count: int = 0
    window: int = 1000
    part: int = 100
    body_size: int = 100
    _writer: Writer = field(init=False, repr=False)
    _parts: tuple[memoryview, ...] = field(init=False, repr=False)

    def prepare(self) -> None:
        self._writer = self.client.writer(self.address, self.name)
        self._parts = self.client.blob(self.name, self.body_size).parts(self.part)

    def work(self, counts: DeliveryCounts) -> Report:
        started = time.monotonic()
        sock = raw(self._writer.sock)
        parts = parts_to_send(self._parts, self.seconds, self.count // self.part)
        sent = send_confirmed(sock, parts, self._writer.confirms, self.window, self.part)
        finished = time.monotonic()
        sock.close()
        return Report(sent, started, finished)


@dataclass(slots=True)
class PeerSerialPublisher:
    """Publishes one message at a time and waits for its confirm."""

    client: Client
    address: Address
    name: str
    seconds: float
    body_size: int = 100
    _writer: Writer = field(init=False, repr=False)
    _parts: tuple[memoryview, ...] = field(init=False, repr=False)

    def prepare(self) -> None:
        self._writer = self.client.writer(self.address, self.name)
        self._parts = self.client.blob(self.name, self.body_size).parts(1)

    def work(self, counts: DeliveryCounts) -> Report:
        times: list[float] = []
        sock, confirms, parts = raw(self._writer.sock), self._writer.confirms, self._parts
        started = now = time.monotonic()
        while now - started < self.seconds:
            sent_at = now
            sock.sendall(parts[len(times) % len(parts)])
            while confirms.feed(receive_or_stall(sock, 1)) <= len(times):
                pass
            now = time.monotonic()
            times.append(now - sent_at)
        sock.close()
        return Report(len(times), started, now, tuple(times[_WARM_UP:]))


@dataclass(slots=True)
class PeerConsumer:
    """Receives from a queue or a log until all consumers together have what was published."""

    client: Client
    address: Address
    name: str
    slot: int
    shape: Shape
    body_size: int = 100
    _reader: Reader = field(init=False, repr=False)

    def prepare(self) -> None:
        self._reader = self.client.reader(self.address, self.name, self.shape, self.body_size)

    def work(self, counts: DeliveryCounts) -> Report:
        reader, started = self._reader, time.monotonic()
        sock, last, before = raw(reader.sock), started, 0
        reader.begin()
        while not counts.is_complete:
            with contextlib.suppress(BlockingIOError):
                reader.feed(receive(sock))
            if reader.count > before:
                last, before = time.monotonic(), reader.count
                counts.put(self.slot, before)
            elif time.monotonic() - last > STALL_SECONDS:
                raise RunError(
                    f"{counts.expected:,} expected, stalled after {before:,} in this process"
                )
        reader.finish()
        return Report(reader.count, started, last)
