"""R-15: publishers that never stop, without consumers: memory stays below its watermark.

Four publishers with confirms and messages of 16 KiB, four processes that publish without waiting,
and a connection that only consumes from another queue. They publish until the memory alarm blocks
them, and stay blocked for a while (heartbeats continue both ways). Then draining the queues
unblocks the publishers with confirms, and the next round starts. The time at which the watermark is
crossed is taken from the operating system, not from the broker.
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

from tests.support.polling import wait_until_async
from tests.torture.checker import Ledger
from tests.torture.client import Client, ConnectionGone
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.publisher import Publisher

MIB = 1024 * 1024
PUBLISHERS = 4
UNCONFIRMED_PUBLISHERS = 4
BODY = 16 * 1024
MODES = ("disk", "memory")
WINDOW = 200
DEADLINE_SECONDS = 300.0
BLOCK_LIMIT, UNBLOCK_LIMIT = 1.0, 2.0
PEAK_SHARE = 1.25
POLL_SECONDS = 0.01
START_BELOW = 0.75
"""A process may keep memory, so a later round may start close to the watermark."""
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


@dataclass(slots=True)
class Results:
    """The results of all rounds."""

    rounds: int = 0
    sent: int = 0
    unconfirmed_sent: int = 0
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
    """Run as many rounds in each mode as fit into its share of the time, at least one."""
    results, peaks, began = Results(), {}, time.monotonic()
    for number, mode in enumerate(modes):
        broker = BrokerProcess(directory, *(("--memory",) if mode == "memory" else ()))
        broker.settings = (
            f"memory_high_watermark={watermark}",
            f"queue_window_bytes={watermark}",  # queues page to disk only above it
            f"heartbeat={heartbeat}",
        )
        await broker.start()
        rounds, share = results.rounds, (number + 1) / len(modes)
        while results.rounds == rounds or time.monotonic() - began < seconds * share:
            await _FloodRound(broker, results, heartbeat, watermark / MIB).run(intervals)
            progress(min(int(time.monotonic() - began), int(seconds)), int(seconds))
        peaks[mode] = broker.memory()
        await broker.stop()
    return _judge(results, peaks, watermark / MIB)


def _judge(results: Results, peaks: dict[str, float], watermark: float) -> Outcome:
    late, peak = [], max(peaks.values())
    if peak > watermark * PEAK_SHARE:
        results.problems.append(f"{peak:.0f} MB resident with a watermark of {watermark:.0f} MB")
    if max(results.blocking, default=0) > BLOCK_LIMIT:
        late.append(
            f"the last publisher was blocked {max(results.blocking):.2f} s after the watermark"
        )
    if max(results.unblocking, default=0) > UNBLOCK_LIMIT:
        late.append(f"unblocked {max(results.unblocking):.2f} s after the queues were empty")
    peak_text = " and ".join(f"{peak:.0f} MB ({mode})" for mode, peak in peaks.items())
    figures = (
        f"{results.rounds} floods by {PUBLISHERS} publishers of 16 KiB messages: "
        f"{results.sent} sent, {results.confirmed} confirmed, {results.lost} lost; "
        f"{results.unconfirmed_sent} more by {UNCONFIRMED_PUBLISHERS} that never wait; "
        f"at most {peak_text}, watermark {watermark:.0f} MB; all publishers, no consumer, blocked "
        f"within {max(results.blocking, default=0):.2f} s of crossing it; {results.beats} "
        "heartbeats meanwhile; unblocked "
        f"{max(results.unblocking, default=0):.2f} s after the drain"
    )
    return Outcome(
        "R-15", "publishers that never stop", figures, tuple(results.problems), tuple(late)
    )


class _HeartbeatClient(Client):
    """A client that counts heartbeats of the broker."""

    beats = 0

    def _frame(self, kind: int, data: bytes) -> None:
        self.beats += kind == 8
        super()._frame(kind, data)


class _Flooder(Publisher):
    """A publisher with heartbeats."""

    client: _HeartbeatClient

    def __init__(self, ledger: Ledger, number: int) -> None:
        self.queue = f"flood-{number}"
        super().__init__(ledger, self.queue, number, BODY)

    async def begin(self, address: tuple[str, int], heartbeat: int) -> None:
        self.client = await _HeartbeatClient.connect(
            address, on_confirm=self._decided, heartbeat=heartbeat
        )
        await self.client.declare(self.queue)
        await self.client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)


class _FloodRound:
    def __init__(
        self, broker: BrokerProcess, results: Results, heartbeat: int, watermark: float
    ) -> None:
        self._broker = broker
        self._results = results
        self._heartbeat = heartbeat
        self._watermark = watermark
        self._ledger = Ledger()
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def run(self, intervals: int) -> None:
        broker, results, heartbeat = self._broker, self._results, self._heartbeat
        flooders = [_Flooder(self._ledger, number) for number in range(PUBLISHERS)]
        for flooder in flooders:
            await flooder.begin(broker.address, heartbeat)
        idle = await _HeartbeatClient.connect(broker.address, heartbeat=heartbeat)
        await idle.declare("nothing")
        await idle.consume("nothing", 10)
        clients = [idle, *(flooder.client for flooder in flooders)]
        heartbeats = asyncio.create_task(_send_heartbeats(clients, heartbeat / 2))
        await self._flood(flooders, idle)
        await _watch_blocked(flooders, idle, results, 2 * intervals)
        await self._end_processes(idle)
        await _drain(broker, flooders, self._ledger, results)
        if idle.blocked.is_set() or _ended(idle):
            results.problems.append("a connection that only consumes was blocked or closed")
        heartbeats.cancel()
        for client in clients:
            client.close()
        results.rounds += 1
        _count(self._ledger, results)

    async def _flood(self, flooders: list[_Flooder], idle: _HeartbeatClient) -> None:
        """Publish until all publishers with confirms are blocked."""
        full, over = asyncio.Event(), threading.Event()
        crossing = asyncio.create_task(asyncio.to_thread(self._watermark_crossed_at, over))
        for queue in (f"unasked-{number}" for number in range(UNCONFIRMED_PUBLISHERS)):
            await idle.declare(queue)
            self._processes[queue] = await _process(self._broker, queue)
        floods = [asyncio.create_task(program.flood(full.is_set, WINDOW)) for program in flooders]
        try:
            blocked_at = await _wait_blocked(flooders)
        finally:
            over.set()
        crossed = await crossing
        since = min(blocked_at) if crossed is None else min(*blocked_at, crossed)
        self._results.blocking.append(max(blocked_at) - since)
        full.set()
        await asyncio.gather(*floods)

    async def _end_processes(self, idle: _HeartbeatClient) -> None:
        """End the processes that never wait, and delete their queues."""
        outputs = await asyncio.gather(
            *(program.communicate(b"") for program in self._processes.values())
        )
        self._results.unconfirmed_sent += sum(int(out) for out, _ in outputs)
        for queue in self._processes:
            await idle.call(commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)

    def _watermark_crossed_at(self, over: threading.Event) -> float | None:
        """When the process exceeded the watermark, or None if unknown; runs on a thread."""
        if self._broker.memory("VmRSS") > START_BELOW * self._watermark:
            return None
        while not over.wait(POLL_SECONDS):
            if self._broker.memory("VmRSS") > self._watermark:
                return time.monotonic()
        return None


async def _process(broker: BrokerProcess, queue: str) -> asyncio.subprocess.Process:
    host, port = broker.address
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.torture.security.flooder", "publish", host, str(port), queue,
        str(BODY), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def _send_heartbeats(clients: list[_HeartbeatClient], every: float) -> None:
    while True:
        for client in clients:
            with suppress(ConnectionGone):
                client.write(HEARTBEAT)
        await asyncio.sleep(every)


async def _wait_blocked(flooders: list[_Flooder]) -> list[float]:
    """The time at which each publisher was blocked."""
    blocked_at: list[float] = []

    async def wait_blocked(flooder: _Flooder) -> None:
        await flooder.client.blocked.wait()
        blocked_at.append(time.monotonic())

    async with asyncio.timeout(DEADLINE_SECONDS):
        await asyncio.gather(*map(wait_blocked, flooders))
    return blocked_at


async def _watch_blocked(
    flooders: list[_Flooder], idle: _HeartbeatClient, results: Results, beats: int
) -> None:
    """Wait for this many heartbeats on each connection. Without heartbeats of the client the broker
    would close it after three intervals, unless it is blocked."""
    clients = [idle, *(flooder.client for flooder in flooders)]
    before = [client.beats for client in clients]

    def has_enough_heartbeats() -> bool:
        pairs = zip(clients, before, strict=True)
        return all(client.beats - start >= beats or _ended(client) for client, start in pairs)

    await wait_until_async(has_enough_heartbeats, DEADLINE_SECONDS)
    results.beats += sum(client.beats for client in clients) - sum(before)
    results.problems += [
        f"closed while blocked: {client.closed_with}" for client in clients if _ended(client)
    ]


def _ended(client: Client) -> bool:
    return client.gone.is_set() or client.closed_with is not None


async def _drain(
    broker: BrokerProcess, flooders: list[_Flooder], ledger: Ledger, results: Results
) -> None:
    """Drain the queues; publishers must be unblocked, and all they sent must arrive."""
    drains = [await _DrainingConsumer.begin(broker, flooder, ledger) for flooder in flooders]
    expected_counts = [flooder.confirmed for flooder in flooders]
    async with asyncio.timeout(DEADLINE_SECONDS):
        await asyncio.gather(
            *(drain.until(count) for drain, count in zip(drains, expected_counts, strict=True))
        )
        emptied = time.monotonic()
        for flooder in flooders:
            await flooder.client.unblocked.wait()
        results.unblocking.append(time.monotonic() - emptied)
        for flooder, drain in zip(flooders, drains, strict=True):
            await flooder.until(lambda of=flooder: not of.open, DEADLINE_SECONDS)  # type: ignore[misc]
            await drain.until(flooder.confirmed)
    for drain in drains:
        await drain.end()


class _DrainingConsumer:
    """A consumer of one queue that enters messages in the ledger and acks them."""

    def __init__(self, queue: str, ledger: Ledger) -> None:
        self._queue = queue
        self._ledger = ledger
        self._client: Client
        self.received = 0

    @classmethod
    async def begin(
        cls, broker: BrokerProcess, flooder: _Flooder, ledger: Ledger
    ) -> _DrainingConsumer:
        drain = cls(flooder.queue, ledger)
        drain._client = await Client.connect(broker.address, on_delivery=drain._take)
        await drain._client.consume(flooder.queue, 100)
        return drain

    def _take(self, tag: int, redelivered: bool, body: bytes) -> None:
        self.received += 1
        self._ledger.was_delivered(self._queue, body, redelivered)
        self._client.ack(tag, False)

    async def until(self, count: int) -> None:
        await wait_until_async(lambda: self.received >= count, DEADLINE_SECONDS)

    async def end(self) -> None:
        await self._client.sync()
        self._client.close()


def _count(ledger: Ledger, results: Results) -> None:
    verdict = ledger.verdict()
    results.sent += verdict.sent
    results.confirmed += verdict.confirmed
    results.lost += verdict.lost
    if not verdict.is_clean or verdict.confirmed != verdict.sent:
        results.problems.append(str(verdict))
