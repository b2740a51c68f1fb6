"""R-15: publishers that never stop, and nobody consumes: memory stays below its watermark.

Four confirming publishers with messages of 16 KiB, four processes that publish as many and wait for
nothing, a connection that only consumes elsewhere. They flood until the memory alarm blocks them,
are watched while they are blocked (heartbeats go on both ways), and those that confirm are let go
by draining the queues; then it starts again. When the watermark was crossed is what the system says
of the process, not what the broker thinks.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pamqp import commands

from tests.torture.checker import Ledger
from tests.torture.client import Client, ConnectionGone
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.publisher import Publisher
from tests.torture.waiting import until

MIB = 1024 * 1024
PUBLISHERS = 4
NEVER_WAIT = 4
BODY = 16 * 1024
MODES = ("disk", "memory")
WINDOW = 200
PATIENCE = 300.0
BLOCK_LIMIT, UNBLOCK_LIMIT = 1.0, 2.0
PEAK_SHARE = 1.25
LOOK_SECONDS = 0.01
BEGINS_BELOW = 0.75
"""Memory may stay with a process: at the start of a later round it may be near the mark."""
BEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


@dataclass(slots=True)
class Seen:
    """What the rounds came to."""

    rounds: int = 0
    sent: int = 0
    unasked: int = 0
    confirmed: int = 0
    lost: int = 0
    beats: int = 0
    blocking: list[float] = field(default_factory=list)
    unblocking: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


async def flood_memory(
    directory: Path,
    seconds: float,
    _seed: int,
    progress: Progress = silent,
    watermark: int = 256 * MIB,
    heartbeat: int = 2,
    modes: tuple[str, ...] = MODES,
    intervals: int = 3,
) -> Outcome:
    """In each mode as many rounds as fit into its share of the time; one at least."""
    seen, peaks, began = Seen(), {}, time.monotonic()
    for number, mode in enumerate(modes):
        broker = BrokerProcess(directory, *(("--memory",) if mode == "memory" else ()))
        broker.settings = (
            f"memory_high_watermark={watermark}",
            f"queue_window_bytes={watermark}",  # a queue does not turn to the disk before
            f"heartbeat={heartbeat}",
        )
        await broker.start()
        rounds, share = seen.rounds, (number + 1) / len(modes)
        while seen.rounds == rounds or time.monotonic() - began < seconds * share:
            await _Round(broker, seen, heartbeat, watermark / MIB).run(intervals)
            progress(min(int(time.monotonic() - began), int(seconds)), int(seconds))
        peaks[mode] = broker.memory()
        await broker.stop()
    return _judged(seen, peaks, watermark / MIB)


def _judged(seen: Seen, peaks: dict[str, float], watermark: float) -> Outcome:
    late, peak = [], max(peaks.values())
    if peak > watermark * PEAK_SHARE:
        seen.problems.append(f"{peak:.0f} MB resident with a watermark of {watermark:.0f} MB")
    if max(seen.blocking, default=0) > BLOCK_LIMIT:
        late.append(f"the last was told {max(seen.blocking):.2f} s after the watermark")
    if max(seen.unblocking, default=0) > UNBLOCK_LIMIT:
        late.append(f"unblocked {max(seen.unblocking):.2f} s after the queues were empty")
    held = " and ".join(f"{most:.0f} MB ({mode})" for mode, most in peaks.items())
    figures = (
        f"{seen.rounds} floods by {PUBLISHERS} publishers of 16 KiB messages: {seen.sent} sent, "
        f"{seen.confirmed} confirmed, {seen.lost} lost; {seen.unasked} more by {NEVER_WAIT} that "
        f"never wait; at most {held}, watermark {watermark:.0f} MB; all publishers blocked within "
        f"{max(seen.blocking, default=0):.2f} s of its crossing, no consumer; {seen.beats} "
        f"heartbeats meanwhile; unblocked {max(seen.unblocking, default=0):.2f} s after the drain"
    )
    return Outcome("R-15", "publishers that never stop", figures, tuple(seen.problems), tuple(late))


class _Beating(Client):
    """A client that counts the broker's heartbeats."""

    beats = 0

    def _frame(self, kind: int, data: bytes) -> None:
        self.beats += kind == 8
        super()._frame(kind, data)


class _Flooder(Publisher):
    """A publisher whose connection has a heartbeat."""

    client: _Beating

    def __init__(self, ledger: Ledger, number: int) -> None:
        self.queue = f"flood-{number}"
        super().__init__(ledger, self.queue, number, BODY)

    async def begin(self, address: tuple[str, int], heartbeat: int) -> None:
        self.client = await _Beating.connect(address, on_confirm=self._decided, heartbeat=heartbeat)
        await self.client.declare(self.queue)
        await self.client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)


class _Round:
    def __init__(self, broker: BrokerProcess, seen: Seen, heartbeat: int, watermark: float) -> None:
        self._broker = broker
        self._seen = seen
        self._heartbeat = heartbeat
        self._watermark = watermark
        self._ledger = Ledger()
        self._crew: dict[str, asyncio.subprocess.Process] = {}

    async def run(self, intervals: int) -> None:
        broker, seen, heartbeat = self._broker, self._seen, self._heartbeat
        flooders = [_Flooder(self._ledger, number) for number in range(PUBLISHERS)]
        for flooder in flooders:
            await flooder.begin(broker.address, heartbeat)
        idle = await _Beating.connect(broker.address, heartbeat=heartbeat)
        await idle.declare("nothing")
        await idle.consume("nothing", 10)
        clients = [idle, *(flooder.client for flooder in flooders)]
        pulse = asyncio.create_task(_beat(clients, heartbeat / 2))
        await self._flood(flooders, idle)
        await _watch_blocked(flooders, idle, seen, 2 * intervals)
        await self._dismiss(idle)
        await _drain(broker, flooders, self._ledger, seen)
        if idle.blocked.is_set() or _ended(idle):
            seen.problems.append("a connection that only consumes was blocked or closed")
        pulse.cancel()
        for client in clients:
            client.close()
        seen.rounds += 1
        _count(self._ledger, seen)

    async def _flood(self, flooders: list[_Flooder], idle: _Beating) -> None:
        """Until all are blocked that would wait for it."""
        full, over = asyncio.Event(), threading.Event()
        crossing = asyncio.create_task(asyncio.to_thread(self._crossing, over))
        for queue in (f"unasked-{number}" for number in range(NEVER_WAIT)):
            await idle.declare(queue)
            self._crew[queue] = await _process(self._broker, queue)
        floods = [asyncio.create_task(one.flood(full.is_set, WINDOW)) for one in flooders]
        try:
            told = await _wait_blocked(flooders)
        finally:
            over.set()
        crossed = await crossing
        since = min(told) if crossed is None else min(*told, crossed)
        self._seen.blocking.append(max(told) - since)
        full.set()
        await asyncio.gather(*floods)

    async def _dismiss(self, idle: _Beating) -> None:
        """Those that never wait go, and what they have brought."""
        said = await asyncio.gather(*(one.communicate(b"") for one in self._crew.values()))
        self._seen.unasked += sum(int(out) for out, _ in said)
        for queue in self._crew:
            await idle.call(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)

    def _crossing(self, over: threading.Event) -> float | None:
        """When the process took more than the watermark; on a thread, and None if nobody knows."""
        if self._broker.memory("VmRSS") > BEGINS_BELOW * self._watermark:
            return None
        while not over.wait(LOOK_SECONDS):
            if self._broker.memory("VmRSS") > self._watermark:
                return time.monotonic()
        return None


async def _process(broker: BrokerProcess, queue: str) -> asyncio.subprocess.Process:
    host, port = broker.address
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.torture.security.flooder", "publish", host, str(port), queue,
        str(BODY), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def _beat(clients: list[_Beating], every: float) -> None:
    while True:
        for client in clients:
            with suppress(ConnectionGone):
                client.write(BEAT)
        await asyncio.sleep(every)


async def _wait_blocked(flooders: list[_Flooder]) -> list[float]:
    """When each was told."""
    told: list[float] = []

    async def note(flooder: _Flooder) -> None:
        await flooder.client.blocked.wait()
        told.append(time.monotonic())

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*map(note, flooders))
    return told


async def _watch_blocked(flooders: list[_Flooder], idle: _Beating, seen: Seen, beats: int) -> None:
    """Until so many have come on each; three intervals would end one that is not heard, unless it
    is blocked."""
    clients = [idle, *(flooder.client for flooder in flooders)]
    before = [client.beats for client in clients]

    def enough() -> bool:
        pairs = zip(clients, before, strict=True)
        return all(one.beats - start >= beats or _ended(one) for one, start in pairs)

    await until(enough, PATIENCE)
    seen.beats += sum(client.beats for client in clients) - sum(before)
    seen.problems += [f"closed while blocked: {one.closed_with}" for one in clients if _ended(one)]


def _ended(client: Client) -> bool:
    return client.gone.is_set() or client.closed_with is not None


async def _drain(
    broker: BrokerProcess, flooders: list[_Flooder], ledger: Ledger, seen: Seen
) -> None:
    """Take everything out; publishers must be let go, and all they sent must come."""
    drains = [await _Drain.begin(broker, flooder, ledger) for flooder in flooders]
    held = [flooder.confirmed for flooder in flooders]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(one.until(count) for one, count in zip(drains, held, strict=True)))
        emptied = time.monotonic()
        for flooder in flooders:
            await flooder.client.unblocked.wait()
        seen.unblocking.append(time.monotonic() - emptied)
        for flooder, drain in zip(flooders, drains, strict=True):
            await flooder.until(lambda of=flooder: not of.open, PATIENCE)  # type: ignore[misc]
            await drain.until(flooder.confirmed)
    for drain in drains:
        await drain.end()


class _Drain:
    """A consumer of one queue that writes what it gets into the ledger and acks it."""

    def __init__(self, queue: str, ledger: Ledger) -> None:
        self._queue = queue
        self._ledger = ledger
        self._client: Client
        self.got = 0

    @classmethod
    async def begin(cls, broker: BrokerProcess, flooder: _Flooder, ledger: Ledger) -> _Drain:
        drain = cls(flooder.queue, ledger)
        drain._client = await Client.connect(broker.address, on_delivery=drain._take)
        await drain._client.consume(flooder.queue, 100)
        return drain

    def _take(self, tag: int, redelivered: bool, body: bytes) -> None:
        self.got += 1
        self._ledger.was_delivered(self._queue, body, redelivered)
        self._client.ack(tag, False)

    async def until(self, count: int) -> None:
        await until(lambda: self.got >= count, PATIENCE)

    async def end(self) -> None:
        await self._client.sync()
        self._client.close()


def _count(ledger: Ledger, seen: Seen) -> None:
    verdict = ledger.verdict()
    seen.sent += verdict.sent
    seen.confirmed += verdict.confirmed
    seen.lost += verdict.lost
    if not verdict.is_clean or verdict.confirmed != verdict.sent:
        seen.problems.append(str(verdict))
