"""R-01: after SIGKILL under load and a restart no confirmed message is lost."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from tests.support.polling import wait_until_async
from tests.torture import kill_points
from tests.torture.checker import Ledger, Verdict
from tests.torture.load import Load, LoadSpec
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import LEVERET, TRIMMING_HISTORY, BrokerProcess

START_LIMIT = 3.0
"""Seconds of CPU time, which do not depend on the load of the machine."""
MIN_CONFIRMS, MAX_CONFIRMS = 1_000, 10_000
"""Messages confirmed between a start and the kill."""
AIMED_EVERY = 5
"""One kill in this many is aimed at a commit or a checkpoint."""
SETTINGS = (
    (),
    ("history=off", "queue_window=50"),
    ("history=metadata", "queue_window=1000", "queue_window_bytes=64KiB"),
    ("history_max_bytes=1MiB", "history_max_age=1s"),
)
"""Used in turn on the same data: small windows read more from disk, a shorter history is trimmed
more, and the last one trims all the time."""


async def kill_under_load(
    directory: Path, cycles: int, seed: int, progress: Progress = silent, confirms: int = 0
) -> Outcome:
    """Kill after a random number of confirms, `cycles` times; then drain the queues and judge.

    With `confirms`, about that many are spread over the kills, and at least as many are confirmed.
    """
    max_confirms = 2 * confirms // cycles - MIN_CONFIRMS if confirms else MAX_CONFIRMS
    rng = random.Random(seed)
    ledger = Ledger()
    broker = BrokerProcess(directory)
    load = Load(LoadSpec(), ledger)
    slowest = processor = 0.0
    ended_by_itself, problems = 0, list[str]()
    for done in range(cycles):
        broker.settings = SETTINGS[done % len(SETTINGS)]
        broker.program = TRIMMING_HISTORY if broker.settings is SETTINGS[-1] else LEVERET
        is_aimed = done % AIMED_EVERY == AIMED_EVERY // 2
        if is_aimed:
            broker.program = kill_points.program_for(done // AIMED_EVERY, rng)
        await broker.start()
        slowest = max(slowest, broker.start_seconds)
        processor = max(processor, broker.start_processor_seconds)
        if done == 0:
            await load.declare(broker.address)
        enough = asyncio.Event()
        running = asyncio.create_task(load.run(broker.address, enough))
        target = len(ledger.confirmed) + rng.randint(MIN_CONFIRMS, max_confirms)
        if is_aimed:
            target += 2 * MAX_CONFIRMS  # enough for the broker to reach the point by itself
        if done == cycles - 1:
            target = max(target, confirms)
        await _until_confirmed(ledger, target, broker)
        await asyncio.sleep(rng.uniform(0, 0.02))
        ended_by_itself += broker.has_ended
        if broker.has_ended and not is_aimed:
            problems.append(f"the broker ended by itself: {broker.log_tail()[-300:]}")
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
    late = [f"a start took {processor:.1f} s of CPU time"] if processor > START_LIMIT else []
    figures = (
        f"{cycles} kills, {ended_by_itself} aimed, {verdict}; slowest start {slowest:.1f} s, "
        f"{processor:.1f} s of CPU time"
    )
    return Outcome("R-01", "kill -9 under load", figures, tuple(problems), tuple(late))


async def _until_confirmed(ledger: Ledger, target: int, broker: BrokerProcess) -> None:
    await wait_until_async(lambda: broker.has_ended or len(ledger.confirmed) >= target, 180)


def problems_of(verdict: Verdict) -> list[str]:
    problems = [] if verdict.is_clean else [str(verdict)]
    if verdict.returned_acked:
        problems.append(f"{verdict.returned_acked} acked and synced messages were redelivered")
    return problems
