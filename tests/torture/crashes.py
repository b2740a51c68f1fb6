"""R-01: SIGKILL under load, restart, and nothing confirmed is lost."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from tests.torture.checker import Ledger, Verdict
from tests.torture.load import Load, LoadSpec
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess

START_LIMIT = 10.0
PER_CYCLE = 5_000


async def kill_under_load(
    directory: Path, cycles: int, seed: int, progress: Progress = silent
) -> Outcome:
    """So many kills and, within four times as many, so many confirmed messages; then judge."""
    chance = random.Random(seed)
    ledger = Ledger()
    broker = BrokerProcess(directory)
    load = Load(LoadSpec(), ledger)
    done, slowest = 0, 0.0
    wanted = cycles * PER_CYCLE
    while done < cycles or (len(ledger.confirmed) < wanted and done < cycles * 4):
        await broker.start()
        slowest = max(slowest, broker.start_seconds)
        if done == 0:
            await load.declare(broker.address)
        until = asyncio.Event()
        running = asyncio.create_task(load.run(broker.address, until))
        await asyncio.sleep(chance.uniform(0.2, 1.2))
        await broker.kill()
        until.set()
        await running
        done += 1
        progress(min(done, cycles), cycles)
    await broker.start()
    await load.drain(broker.address)
    await broker.stop()
    slowest = max(slowest, broker.start_seconds)
    verdict = ledger.verdict()
    problems = problems_of(verdict)
    if slowest > START_LIMIT:
        problems.append(f"a start took {slowest:.1f} s")
    figures = f"{done} kills, {verdict}; slowest start {slowest:.1f} s"
    return Outcome("R-01", "kill -9 under load", figures, tuple(problems))


def problems_of(verdict: Verdict) -> list[str]:
    found = [] if verdict.is_clean else [str(verdict)]
    if verdict.returned_acked:
        found.append(f"{verdict.returned_acked} acked and synced came back")
    return found
