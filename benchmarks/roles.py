"""The hot loops of throughput runs: publisher and consumer, each in a process of its own.

The publisher sends slices of a blob built once; the consumer counts bytes. Neither allocates per
message. A consumer is done when the tally of all consumers has reached what was published; one
that receives nothing for STALL seconds says how many are missing.
"""

import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pamqp import commands

from benchmarks.connection import PATIENCE, Address, Connection, RefusedError
from benchmarks.counting import ConfirmLedger, DeliveryCounter
from benchmarks.crew import Report, RunError, Tally
from benchmarks.frames import AckBlock, Blob, ack, delivery_mode, publish_blob

STALL = 20.0
_RECEIVE = 1 << 18
_CONFIRMS = 1 << 16


@dataclass(frozen=True, slots=True)
class Stream:
    """What a publisher sends: bodies of one size to the routing keys in turn."""

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
    """Publishes for `seconds`, or `count` messages if given, with `window` in flight (0: flood)."""

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

    def work(self, tally: Tally) -> Report:
        started = time.monotonic()
        sock = self._connection.go_hot()
        sent = self._confirmed(sock) if self.window else self._flood(sock)
        finished = time.monotonic()
        self._connection.close()
        return Report(sent, started, finished)

    def _turns(self) -> Iterator[memoryview]:
        """Parts of the blob in turn until the time or the count is up."""
        deadline = time.monotonic() + self.seconds if not self.count else float("inf")
        left = self.count // self.part if self.count else -1
        while left and time.monotonic() < deadline:
            for part in self._parts:
                yield part
                left -= 1
                if not left or time.monotonic() >= deadline:
                    return

    def _flood(self, sock: socket.socket) -> int:
        sent = 0
        for part in self._turns():
            sock.sendall(part)
            sent += self.part
        return sent

    def _confirmed(self, sock: socket.socket) -> int:
        ledger, sent, confirmed = ConfirmLedger(), 0, 0
        room = self.window - self.part
        for part in self._turns():
            sock.sendall(part)
            sent += self.part
            while sent - confirmed > room:
                confirmed = ledger.feed(receive_or_stall(sock, sent - confirmed))
        while confirmed < sent:
            confirmed = ledger.feed(receive_or_stall(sock, sent - confirmed))
        return sent


def receive_or_stall(sock: socket.socket, missing: int) -> bytes:
    deadline = time.monotonic() + STALL
    while time.monotonic() < deadline:
        try:
            data = sock.recv(_CONFIRMS)
        except BlockingIOError:
            continue
        if not data:
            raise RefusedError("the broker closed the connection")
        return data
    raise RunError(f"no confirm for {STALL:.0f} s, {missing:,} missing")


@dataclass(slots=True)
class Intake:
    """One connection of a consumer: its counter and what it has acknowledged."""

    connection: Connection
    counter: DeliveryCounter
    acked: int = 0


@dataclass(slots=True)
class Consumer:
    """Consumes from `queues`, a connection each, acking every `ack_every` (0: automatic)."""

    address: Address
    queues: tuple[str, ...]
    slot: int
    ack_every: int = 0
    prefetch: int = 1000
    cycle: int = 0
    late: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    _intakes: dict[int, Intake] = field(init=False, repr=False, default_factory=dict)
    _acks: AckBlock = field(init=False, repr=False)

    def prepare(self) -> None:
        self._acks = AckBlock()
        for _ in self.queues:
            connection = Connection(self.address)
            if self.ack_every:
                connection.call(commands.Basic.Qos(prefetch_count=self.prefetch))
            intake = Intake(connection, DeliveryCounter(cycle=self.cycle))
            self._intakes[connection.sock.fileno()] = intake
        if not self.late:
            self._consume()

    def work(self, tally: Tally) -> Report:
        started = time.monotonic()
        if self.late:
            self._consume()
        try:
            finished = self._drain(tally)
        except BaseException:
            for intake in self._all():
                intake.connection.sock.close()
            raise
        count = sum(intake.counter.count for intake in self._intakes.values())
        for intake in self._intakes.values():
            self._finish(intake)
        return Report(count, started, finished)

    def _consume(self) -> None:
        for name, intake in zip(self.queues, self._intakes.values(), strict=True):
            intake.connection.call(
                commands.Basic.Consume(
                    queue=name,
                    consumer_tag="bench",
                    no_ack=not self.ack_every,
                    arguments=self.arguments,
                )
            )

    def _drain(self, tally: Tally) -> float:
        buffer = bytearray(_RECEIVE)
        view = memoryview(buffer)
        total = sum(self._take(i, memoryview(i.connection.take_pending())) for i in self._all())
        last = time.monotonic()
        for intake in self._readable():
            try:
                received = intake.connection.sock.recv_into(buffer) if intake else 0
            except BlockingIOError:
                received = 0
            else:
                if intake and not received:
                    raise RefusedError("the broker closed the connection")
            if intake and received:
                total += self._take(intake, view[:received])
                last = time.monotonic()
            elif time.monotonic() - last > STALL:
                raise RunError(f"{tally.expected:,} expected, stalled after {total:,} here")
            tally.put(self.slot, total)
            if tally.is_complete:
                return last
        return last

    def _all(self) -> tuple[Intake, ...]:
        return tuple(self._intakes.values())

    def _readable(self) -> Iterator[Intake | None]:
        """Connections with something to read, for ever; None when there is none for a while."""
        for intake in self._intakes.values():
            intake.connection.go_hot()
        if len(self._intakes) == 1:
            (only,) = self._intakes.values()
            while True:
                yield only
        with select.epoll() as poll:
            for number in self._intakes:
                poll.register(number, select.EPOLLIN)
            while True:
                for number, _ in poll.poll(PATIENCE):
                    yield self._intakes[number]
                yield None

    def _take(self, intake: Intake, data: memoryview) -> int:
        before = intake.counter.count
        count = intake.counter.feed(data)
        if self.ack_every == 1 and count > intake.acked:
            for part in self._acks.parts(intake.acked + 1, count):
                intake.connection.sock.sendall(part)
            intake.acked = count
        elif self.ack_every and count - intake.acked >= self.ack_every:
            tags = range(intake.acked + self.ack_every, count + 1, self.ack_every)
            intake.connection.sock.sendall(b"".join(ack(tag, multiple=True) for tag in tags))
            intake.acked = tags[-1]
        return count - before

    def _finish(self, intake: Intake) -> None:
        if intake.counter.torn:
            raise RunError("the deliveries end inside a message")
        if self.ack_every and intake.acked < intake.counter.count:
            intake.connection.sock.sendall(ack(intake.counter.count, multiple=True))
        intake.connection.close()
