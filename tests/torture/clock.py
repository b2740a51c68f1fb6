"""R-21: the system clock is set by hours and days, in a running broker and between two runs.

The broker runs under libfaketime, which moves its wall clock and not its monotonic clock. Meanwhile
messages expire and delays end; each must happen once and on time by the monotonic clock. Messages
without a TTL stay, and a connection that sends its heartbeats is never closed.
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

from tests.support.polling import wait_until_async
from tests.torture.client import PROPERTIES, Client
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess, slowness

HOURS = (1, -1, 24, -24)
TTL_MS, DELAY_MS = 2_000, 1_500
PER_RUN = 5
EARLY_SECONDS, LATE_SECONDS = 0.1, 1.0
WITHOUT_TTL, EXPIRING, DEAD_LETTER_QUEUE, DELAYED = (
    "without-ttl",
    "expiring",
    "dead-letters",
    "delayed",
)
_NUMBER = struct.Struct(">Q")
_HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


def library() -> Path:
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not libraries:
        raise RuntimeError("libfaketime is missing: tools/system-part faketime")
    return libraries[0]


class FakeClock:
    """The file from which libfaketime reads the offset of the clock."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / "clock"
        self.set(0)

    def set(self, seconds: int) -> None:
        self.file.write_text(f"{seconds:+d}\n", encoding="ascii")


@dataclass(slots=True)
class Arrivals:
    """When each number was sent and when it arrived, by the monotonic clock."""

    sent: dict[int, float] = field(default_factory=dict)
    arrivals: Counter[tuple[str, int]] = field(default_factory=Counter)
    early: int = 0
    latest: float = 0.0
    ready_at: float = math.inf

    def arrived(self, queue: str, number: int, due_ms: int, again: bool) -> None:
        """Count an arrival; redeliveries of messages that a kill left unacked are ignored."""
        if again and (queue, number) in self.arrivals:
            return
        now = time.monotonic()
        due = self.sent[number] + due_ms / 1000
        self.arrivals[queue, number] += 1
        self.early += now < due - EARLY_SECONDS
        # What was due while the broker was down arrives when it is up again.
        self.latest = max(self.latest, now - max(due, self.ready_at))


class Run:
    """One run of the broker, with consumers and a publisher that send heartbeats."""

    def __init__(self, broker: BrokerProcess, observed: Arrivals) -> None:
        self._broker, self._books = broker, observed
        self._clients: list[Client] = []
        self._beat: asyncio.Task[None] | None = None
        self.closes = 0

    async def start(self) -> None:
        await self._broker.start()
        self.publisher = await self._connect()
        await _declare(self.publisher)
        for queue, due_ms in ((DEAD_LETTER_QUEUE, TTL_MS), (DELAYED, DELAY_MS)):
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
        self._books.ready_at = math.inf  # without consumers nothing is late
        if self._beat is not None:
            self._beat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beat
        for listener in self._clients[1:]:
            close = commands.Channel.Close(200, "", 0, 0)
            await listener.call(close, commands.Channel.CloseOk)
        # The answer means that the queue and everything before it are on disk.
        await self.publisher.declare(f"mark-{time.monotonic()}")
        await (self._broker.kill() if kill else self._broker.stop())
        for client in self._clients:
            client.close()


async def set_clock(
    directory: Path, cycles: int, seed: int, progress: Progress = silent
) -> Outcome:
    rng, observed = random.Random(seed), Arrivals()
    clock, offset = FakeClock(directory), 0
    broker = BrokerProcess(directory / "data", env=_environment(clock.file))
    closes = number = 0
    for start in range(0, cycles, PER_RUN):
        run = Run(broker, observed)
        await run.start()
        for done in range(start, min(start + PER_RUN, cycles)):
            number += 1
            observed.sent[number] = time.monotonic()
            _publish(run.publisher, number)
            offset += rng.choice(HOURS) * 3600
            clock.set(offset)
            await asyncio.sleep(rng.uniform(0.2, 1.5))
            progress(done + 1, cycles)
        await run.end(kill=rng.random() < 0.5)
        closes += run.closes
        offset += rng.choice(HOURS) * 3600
        clock.set(offset)
    run = Run(broker, observed)
    await run.start()
    with contextlib.suppress(AssertionError):
        await wait_until_async(lambda: len(observed.arrivals) >= 2 * number, 60)
    without_ttl = await run.publisher.count(WITHOUT_TTL)
    await run.end(kill=False)
    return await _judge(observed, number, without_ttl, closes + run.closes)


async def _judge(observed: Arrivals, number: int, without_ttl: int, closes: int) -> Outcome:
    lost = 2 * number - len(observed.arrivals)
    doubled = sum(count > 1 for count in observed.arrivals.values())
    problems = [
        text
        for text, is_wrong in (
            (f"{lost} lost", lost),
            (f"{doubled} twice", doubled),
            (f"{observed.early} too early", observed.early),
            (f"{number - without_ttl} without a TTL lost", number != without_ttl),
            (f"{closes} connections closed", closes),
        )
        if is_wrong
    ]
    allowed = LATE_SECONDS * await slowness()
    late = (f"up to {observed.latest:.1f} s late",) if observed.latest > allowed else ()
    figures = (
        f"the clock set {number} times, {len(observed.arrivals)} of {2 * number} messages expired "
        f"or were released, {without_ttl} without a TTL kept"
    )
    return Outcome("R-21", "clock jumps", figures, tuple(problems), late)


def _environment(clock: Path) -> dict[str, str]:
    return {
        "LD_PRELOAD": str(library()),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",  # reading the file each time would be slow
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


async def _declare(client: Client) -> None:
    to_dead_letter_queue = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": DEAD_LETTER_QUEUE,
    }
    for queue in (WITHOUT_TTL, DEAD_LETTER_QUEUE, DELAYED):
        await client.declare(queue)
    await client.declare(EXPIRING, arguments={**to_dead_letter_queue, "x-message-ttl": TTL_MS})
    delayed = commands.Exchange.Declare(
        exchange=DELAYED,
        exchange_type="x-delayed-message",
        durable=True,
        arguments={"x-delayed-type": "fanout"},
    )
    await client.call(delayed, commands.Exchange.DeclareOk)
    bind = commands.Queue.Bind(queue=DELAYED, exchange=DELAYED, routing_key="")
    await client.call(bind, commands.Queue.BindOk)


def _publish(client: Client, number: int) -> None:
    body = _NUMBER.pack(number)
    for queue in (WITHOUT_TTL, EXPIRING):
        client.publish("", queue, body, PROPERTIES["persistent"])
    properties = commands.Basic.Properties(delivery_mode=2, headers={"x-delay": DELAY_MS})
    client.publish(DELAYED, "", body, ContentHeader(0, 8, properties).marshal()[12:])
