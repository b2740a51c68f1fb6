"""R-01: SIGKILL under load, restart, and nothing confirmed is lost."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from tests.torture import aimed
from tests.torture.checker import Ledger, Verdict
from tests.torture.load import Load, LoadSpec
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import LEVERET, SWEEPING, BrokerProcess
from tests.torture.waiting import until

START_LIMIT = 3.0
"""Processor seconds, whatever else the machine has to do."""
LEAST, MOST = 1_000, 10_000
"""Confirmed messages between a start and the kill."""
AIM_EVERY = 5
"""Every so many kills one is aimed at a commit or a checkpoint."""
SETTINGS = (
    (),
    ("history=off", "queue_window=50"),
    ("history=metadata", "queue_window=1000", "queue_window_bytes=64KiB"),
    ("history_max_bytes=1MiB", "history_max_age=1s"),
)
"""One after the other, on the same data: short windows read ahead, less history trims more, and
the last one sweeps without pause."""


async def kill_under_load(
    directory: Path, cycles: int, seed: int, progress: Progress = silent, confirms: int = 0
) -> Outcome:
    """So many kills, each after a random number of confirms; then drain and judge.

    With `confirms`, about that many are spread over the kills, and no fewer are confirmed.
    """
    most = 2 * confirms // cycles - LEAST if confirms else MOST
    chance = random.Random(seed)
    ledger = Ledger()
    broker = BrokerProcess(directory)
    load = Load(LoadSpec(), ledger)
    slowest = processor = 0.0
    hit, problems = 0, list[str]()
    for done in range(cycles):
        broker.settings = SETTINGS[done % len(SETTINGS)]
        broker.program = SWEEPING if broker.settings is SETTINGS[-1] else LEVERET
        aims = done % AIM_EVERY == AIM_EVERY // 2
        if aims:
            broker.program = aimed.at(done // AIM_EVERY, chance)
        await broker.start()
        slowest = max(slowest, broker.start_seconds)
        processor = max(processor, broker.start_processor_seconds)
        if done == 0:
            await load.declare(broker.address)
        enough = asyncio.Event()
        running = asyncio.create_task(load.run(broker.address, enough))
        target = len(ledger.confirmed) + chance.randint(LEAST, most)
        if aims:
            target += 2 * MOST  # time enough to get there by itself
        if done == cycles - 1:
            target = max(target, confirms)
        await _until_confirmed(ledger, target, broker)
        await asyncio.sleep(chance.uniform(0, 0.02))
        hit += broker.has_ended
        if broker.has_ended and not aims:
            problems.append(f"the broker ended by itself: {broker.said()[-300:]}")
        await broker.kill()
        enough.set()
        await running
        progress(done + 1, cycles)
    broker.program = LEVERET
    await broker.start()
    await load.drain(broker.address)
    await broker.stop()
    slowest = max(slowest, broker.start_seconds)
    verdict = ledger.verdict()
    problems += problems_of(verdict)
    late = [f"a start took {processor:.1f} s of processor time"] if processor > START_LIMIT else []
    figures = (
        f"{cycles} kills, {hit} aimed, {verdict}; slowest start {slowest:.1f} s, "
        f"{processor:.1f} s of processor time"
    )
    return Outcome("R-01", "kill -9 under load", figures, tuple(problems), tuple(late))


async def _until_confirmed(ledger: Ledger, target: int, broker: BrokerProcess) -> None:
    await until(lambda: broker.has_ended or len(ledger.confirmed) >= target, 180)


def problems_of(verdict: Verdict) -> list[str]:
    found = [] if verdict.is_clean else [str(verdict)]
    if verdict.returned_acked:
        found.append(f"{verdict.returned_acked} acked and synced came back")
    return found
