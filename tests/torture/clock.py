"""R-21: the system clock is set by hours and days, in a running broker and between two runs.

The broker runs under libfaketime, which moves its wall clock and leaves the monotonic ones alone.
Meanwhile messages expire and delays end; each must do so when it should by a clock nobody sets, and
once. What has no lifetime stays, and a connection that keeps its heartbeats is never closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from pamqp import commands
from pamqp.header import ContentHeader

from tests.torture.client import PROPERTIES, Client
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.waiting import slowness, until

HOURS = (1, -1, 24, -24)
LIFE_MS, DELAY_MS = 2_000, 1_500
PER_RUN = 5
EARLY_SECONDS, LATE_SECONDS = 0.1, 1.0
KEPT, MORTAL, GRAVE, LATER = "kept", "mortal", "grave", "later"
_NUMBER = struct.Struct(">Q")
_HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


def library() -> Path:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        raise RuntimeError("libfaketime is missing: tools/system-part faketime")
    return found[0]


class Hands:
    """The file in which libfaketime reads how far the clock is off."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / "clock"
        self.set(0)

    def set(self, seconds: int) -> None:
        self.file.write_text(f"{seconds:+d}\n", encoding="ascii")


@dataclass(slots=True)
class Books:
    """When each number was sent, and when it came, by a clock nobody sets."""

    sent: dict[int, float] = field(default_factory=dict)
    came: Counter[tuple[str, int]] = field(default_factory=Counter)
    early: int = 0
    latest: float = 0.0
    ready_at: float = math.inf

    def arrived(self, where: str, number: int, due_ms: int, again: bool) -> None:
        """What a kill left unacknowledged comes again, and says so."""
        if again and (where, number) in self.came:
            return
        now = time.monotonic()
        due = self.sent[number] + due_ms / 1000
        self.came[where, number] += 1
        self.early += now < due - EARLY_SECONDS
        # What was due while the broker was down comes when it is up again.
        self.latest = max(self.latest, now - max(due, self.ready_at))


class Run:
    """One life of the broker, with somebody who listens and somebody who only keeps alive."""

    def __init__(self, broker: BrokerProcess, books: Books) -> None:
        self._broker, self._books = broker, books
        self._clients: list[Client] = []
        self._beat: asyncio.Task[None] | None = None
        self.closes = 0

    async def start(self) -> None:
        await self._broker.start()
        self.publisher = await self._connect()
        await _declare(self.publisher)
        for queue, due_ms in ((GRAVE, LIFE_MS), (LATER, DELAY_MS)):
            listener = await self._connect(queue, due_ms)
            await listener.consume(queue, 0)
        self._books.ready_at = time.monotonic()
        self._beat = asyncio.create_task(self._keep_alive())

    async def _connect(self, queue: str = "", due_ms: int = 0) -> Client:
        def delivered(tag: int, again: bool, body: bytes) -> None:
            self._books.arrived(queue, _NUMBER.unpack(body)[0], due_ms, again)
            client.ack(tag, False)

        client = await Client.connect(
            self._broker.address, on_delivery=delivered if queue else None, heartbeat=2
        )
        self._clients.append(client)
        return client

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            for client in self._clients:
                if not client.gone.is_set():
                    client.write(_HEARTBEAT)

    async def end(self, kill: bool) -> None:
        self.closes = sum(client.gone.is_set() for client in self._clients)
        self._books.ready_at = math.inf  # until somebody listens again nothing can come too late
        if self._beat is not None:
            self._beat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beat
        for listener in self._clients[1:]:
            close = commands.Channel.Close(200, "", 0, 0)
            await listener.call(close, commands.Channel.CloseOk)
        # A new queue is there when it is on disk, and with it all that was sent and taken before.
        await self.publisher.declare(f"mark-{time.monotonic()}")
        await (self._broker.kill() if kill else self._broker.stop())
        for client in self._clients:
            client.close()


async def set_the_clock(
    directory: Path, cycles: int, seed: int, progress: Progress = silent
) -> Outcome:
    chance, books = random.Random(seed), Books()
    clock, offset = Hands(directory), 0
    broker = BrokerProcess(directory / "data", env=_environment(clock.file))
    closes = number = 0
    for start in range(0, cycles, PER_RUN):
        run = Run(broker, books)
        await run.start()
        for done in range(start, min(start + PER_RUN, cycles)):
            number += 1
            books.sent[number] = time.monotonic()
            _publish(run.publisher, number)
            offset += chance.choice(HOURS) * 3600
            clock.set(offset)
            await asyncio.sleep(chance.uniform(0.2, 1.5))
            progress(done + 1, cycles)
        await run.end(kill=chance.random() < 0.5)
        closes += run.closes
        offset += chance.choice(HOURS) * 3600
        clock.set(offset)
    run = Run(broker, books)
    await run.start()
    with contextlib.suppress(TimeoutError):
        await until(lambda: len(books.came) >= 2 * number, 60)
    kept = await run.publisher.count(KEPT)
    await run.end(kill=False)
    return await _judge(books, number, kept, closes + run.closes)


async def _judge(books: Books, number: int, kept: int, closes: int) -> Outcome:
    lost = 2 * number - len(books.came)
    doubled = sum(count > 1 for count in books.came.values())
    problems = [
        text
        for text, is_wrong in (
            (f"{lost} lost", lost),
            (f"{doubled} twice", doubled),
            (f"{books.early} too early", books.early),
            (f"{number - kept} without a lifetime lost", number != kept),
            (f"{closes} connections closed", closes),
        )
        if is_wrong
    ]
    allowed = LATE_SECONDS * await slowness()
    late = (f"up to {books.latest:.1f} s late",) if books.latest > allowed else ()
    figures = f"the clock set {number} times, {len(books.came)} ends of {2 * number}, {kept} kept"
    return Outcome("R-21", "clock jumps", figures, tuple(problems), late)


def _environment(clock: Path) -> dict[str, str]:
    return {
        "LD_PRELOAD": str(library()),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",  # asking the file each time would slow all down
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


async def _declare(client: Client) -> None:
    to_grave = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": GRAVE}
    for queue in (KEPT, GRAVE, LATER):
        await client.declare(queue)
    await client.declare(MORTAL, arguments={**to_grave, "x-message-ttl": LIFE_MS})
    delayed = commands.Exchange.Declare(
        exchange=LATER,
        exchange_type="x-delayed-message",
        durable=True,
        arguments={"x-delayed-type": "fanout"},
    )
    await client.call(delayed, commands.Exchange.DeclareOk)
    bind = commands.Queue.Bind(queue=LATER, exchange=LATER, routing_key="")
    await client.call(bind, commands.Queue.BindOk)


def _publish(client: Client, number: int) -> None:
    body = _NUMBER.pack(number)
    for queue in (KEPT, MORTAL):
        client.publish("", queue, body, PROPERTIES["persistent"])
    properties = commands.Basic.Properties(delivery_mode=2, headers={"x-delay": DELAY_MS})
    client.publish(LATER, "", body, ContentHeader(0, 8, properties).marshal()[12:])
