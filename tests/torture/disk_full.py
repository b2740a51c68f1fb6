"""R-12: the disk fills up, with the disk alarm and without it, and is freed again.

With messages, publishers are blocked or nacked. With history alone they never stay blocked: it is
trimmed for new messages.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.support.polling import wait_until_async
from tests.torture.checker import Ledger
from tests.torture.crashes import problems_of
from tests.torture.load import Acker, Load, LoadSpec
from tests.torture.mounts import MIB, small_disk, write_ballast
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess, slowness
from tests.torture.publisher import Publisher

QUEUE = "filling"
BODY_SIZE = 64 * 1024
BLOCKED_SECONDS, UNBLOCKED_SECONDS = 1.0, 2.0
"""On an idle machine."""


async def fill_disk(
    directory: Path, cycles: int, seed: int, progress: Progress = silent
) -> Outcome:
    """Each cycle fills one disk with the alarm on and one with the alarm off."""
    problems: list[str] = []
    late: list[str] = []
    figures = []
    for done in range(cycles):
        kind = ("tmpfs", "ext4")[(done + seed) % 2]
        other = ("ext4", "tmpfs")[(done + seed) % 2]
        with small_disk(directory / f"a{done}", kind, 300 * MIB) as disk:
            figures.append(await _with_alarm(disk, problems, late))
        with small_disk(directory / f"b{done}", other, 80 * MIB) as disk:
            figures.append(await _without_alarm(disk, problems, late, done % 2 == 1))
        with small_disk(directory / f"c{done}", kind, 120 * MIB) as disk:
            figures.append(await _with_history(disk, problems))
        progress(done + 1, cycles)
    text = (
        f"{cycles} disks filled with the alarm on, {cycles} off, and {cycles} with history; "
        + "; ".join(figures[:3])
    )
    return Outcome("R-12", "full disk", text, tuple(problems), tuple(late))


async def _with_alarm(disk: Path, problems: list[str], late: list[str]) -> str:
    """Publishers are blocked before the disk is full, and unblocked when space is freed."""
    # What arrives before the next check of the disk, and its checkpoint, must fit below the limit.
    limit, ballast = 100 * MIB, disk / "ballast"
    write_ballast(ballast, 100 * MIB)
    broker, ledger = BrokerProcess(disk / "data", "--set", f"disk_free_limit={limit}"), Ledger()
    publisher = Publisher(ledger, QUEUE, 1, 4096)
    await broker.start()
    pid = broker.pid
    await publisher.start(broker.address)
    flood = asyncio.create_task(publisher.flood(publisher.client.blocked.is_set))
    blocked = await _seconds_from(lambda: _free(disk) < limit, publisher.client.blocked)
    await flood
    if _free(disk) == 0:
        problems.append("the disk was full before publishers were blocked")
    before = len(ledger.seen)
    load = Load(LoadSpec(queues=(QUEUE,)), ledger)
    await asyncio.wait_for(load.drain(broker.address), 60)
    drained = len(ledger.seen) - before
    ballast.unlink()
    unblocked = await _seconds_from(lambda: True, publisher.client.unblocked)
    await publisher.send_many(200)
    await load.drain(broker.address)
    if broker.pid != pid or await broker.stop() != 0:
        problems.append("the broker did not survive")
    problems += problems_of(ledger.verdict())
    if publisher.nacked:
        problems.append(f"{publisher.nacked} nacked although the alarm was on")
    slow = await slowness()
    if blocked > BLOCKED_SECONDS * slow or unblocked > UNBLOCKED_SECONDS * slow:
        late.append(f"blocked after {blocked:.2f} s, unblocked after {unblocked:.2f} s")
    return (
        f"alarm on: blocked after {blocked:.2f} s, {drained} drained meanwhile, "
        f"unblocked after {unblocked:.2f} s"
    )


async def _without_alarm(
    disk: Path, problems: list[str], late: list[str], kill_when_full: bool
) -> str:
    """Messages are nacked on a full disk; none confirmed is lost, also if killed while full."""
    ballast = disk / "ballast"
    write_ballast(ballast, 40 * MIB)
    broker, ledger = BrokerProcess(disk / "data", "--set", "disk_free_limit=0"), Ledger()
    publisher = Publisher(ledger, QUEUE, 1, 4096)
    await broker.start()
    await publisher.start(broker.address)
    await asyncio.wait_for(publisher.flood(lambda: publisher.nacked > 0), 60)
    await asyncio.sleep(0.5)
    if kill_when_full:
        await broker.kill()
        await broker.start()
        await publisher.start(broker.address)
    ballast.unlink()
    began = time.monotonic()
    if not kill_when_full:
        await asyncio.wait_for(publisher.client.unblocked.wait(), 30)
    fresh = Publisher(ledger, QUEUE, 2, 4096)
    await fresh.start(broker.address)
    await fresh.send_many(1)
    works_again = time.monotonic() - began
    while fresh.confirmed < 200:
        await fresh.send_many(50)
    await publisher.until(lambda: not publisher.open)
    await broker.kill()
    await broker.start()
    await Load(LoadSpec(queues=(QUEUE,)), ledger).drain(broker.address)
    await broker.stop()
    problems += problems_of(ledger.verdict())
    if works_again > UNBLOCKED_SECONDS * await slowness():
        late.append(f"took {works_again:.2f} s to work again")
    return f"alarm off: {publisher.nacked} nacked, works again after {works_again:.2f} s"


async def _with_history(disk: Path, problems: list[str]) -> str:
    """Three times the size of the disk passes through a queue that stays nearly empty."""
    limit, traffic = 48 * MIB, 3 * shutil.disk_usage(disk).total
    broker, ledger = BrokerProcess(disk / "data", "--set", f"disk_free_limit={limit}"), Ledger()
    publisher, consumer = Publisher(ledger, QUEUE, 1, BODY_SIZE), Acker(ledger, QUEUE, 1)
    await broker.start()
    await publisher.start(broker.address)
    await consumer.start(broker.address, 1000)
    blocked_seconds, most_unconfirmed = 0.0, 200
    while publisher.confirmed * BODY_SIZE < traffic:
        before, began = publisher.confirmed, time.monotonic()
        try:
            await publisher.send_many(100, most_unconfirmed)
        except TimeoutError:
            sent = publisher.confirmed * BODY_SIZE // MIB
            problems.append(f"publishers stay blocked after {sent} MiB, with empty queues")
            break
        if publisher.confirmed == before:
            break
        if publisher.client.blocked.is_set():
            publisher.client.blocked.clear()
            blocked_seconds += time.monotonic() - began
    with suppress(AssertionError):  # the verdict says what is missing
        await wait_until_async(lambda: len(ledger.seen) >= publisher.confirmed)
    await broker.stop()
    problems += problems_of(ledger.verdict())
    if publisher.nacked:
        problems.append(f"{publisher.nacked} nacked although history could be trimmed")
    return f"history: {publisher.confirmed} confirmed, publishers blocked {blocked_seconds:.1f} s"


def _free(disk: Path) -> int:
    return shutil.disk_usage(disk).free


async def _seconds_from(start: Callable[[], bool], event: asyncio.Event) -> float:
    await wait_until_async(lambda: start() or event.is_set(), 60)
    began = time.monotonic()
    await asyncio.wait_for(event.wait(), 60)
    return time.monotonic() - began
