"""R-01 and R-07: SIGKILL under load, restart, and nothing confirmed is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.torture.checker import Ledger, Verdict
from tests.torture.load import Load, LoadSpec
from tests.torture.process import BrokerProcess

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CrashReport:
    verdict: Verdict
    cycles: int
    slowest_start: float


async def kill_under_load(
    data_dir: Path,
    cycles: int,
    confirmed: int,
    seed: int,
    progress: Progress = lambda text: None,
) -> CrashReport:
    """At least so many kills and so many confirmed messages, then drain and judge."""
    chance = random.Random(seed)
    ledger, load = Ledger(), None
    broker = BrokerProcess(data_dir)
    load = Load(LoadSpec(), ledger)
    done, slowest = 0, 0.0
    while done < cycles or (len(ledger.confirmed) < confirmed and done < cycles * 4):
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
        progress(f"cycle {done}: {ledger.verdict()}")
    await broker.start()
    await load.drain(broker.address)
    await broker.stop()
    return CrashReport(ledger.verdict(), done, max(slowest, broker.start_seconds))
