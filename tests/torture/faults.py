"""R-04: the Nth sync or write of the store fails; no message is confirmed and then lost.

strace makes the system call fail once, in whichever thread makes the Nth. After that the disk works
again, so that a broker which simply tried again would confirm messages, and be noticed.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.torture.checker import Ledger
from tests.torture.client import ConnectionGone
from tests.torture.crashes import problems_of
from tests.torture.load import Load, LoadSpec
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.publisher import Publisher

QUEUE = "faulty"
KINDS = (
    ("fdatasync", "EIO"),
    ("pwrite64", "EIO"),
    ("pwrite64", "ENOSPC"),
    ("fsync", "EIO"),
    ("fdatasync", "ENOSPC"),
)
MAX_WRITES = 20
"""A batch makes tens of writes and one sync, so writes are chosen in steps of this size."""


@dataclass(frozen=True, slots=True)
class Fault:
    call: str
    error: str
    nth: int

    def __str__(self) -> str:
        return f"{self.error} in {self.call} {self.nth}"

    @property
    def command(self) -> tuple[str, ...]:
        return (
            "strace", "-f", "--seccomp-bpf", "-qqq", "-o", "/dev/null",
            "-e", f"trace={self.call}",
            "-e", f"inject={self.call}:error={self.error}:when={self.nth}",
        )  # fmt: skip


def faults(count: int, rng: random.Random) -> list[Fault]:
    """Kinds take turns with growing N; half of the faults are failed syncs of the WAL."""
    chosen = []
    for number in range(count):
        call, error = KINDS[0] if number % 2 else KINDS[1 + number // 2 % (len(KINDS) - 1)]
        nth = 1 + number
        if call == "pwrite64":
            nth = 4 + number * MAX_WRITES + rng.randrange(MAX_WRITES)
        elif call == "fsync":
            nth = 1 + number // 8
        chosen.append(Fault(call, error, nth))
    return chosen


@dataclass(slots=True)
class FaultCounts:
    not_reached: int = 0
    refused_start: int = 0
    failed: int = 0
    survived: int = 0
    confirmed: int = 0
    nacked: int = 0


async def inject_faults(
    directory: Path, cycles: int, seed: int, progress: Progress = silent
) -> Outcome:
    problems: list[str] = []
    counts, sound = FaultCounts(), directory / "sound"
    await _make_data(sound)
    for number, fault in enumerate(faults(cycles, random.Random(seed))):
        data = directory / str(number)
        shutil.copytree(sound, data)
        try:
            await _run_with_fault(data, fault, counts, problems)
        except AssertionError as error:
            problems.append(f"{fault}: {error}")
        progress(number + 1, cycles)
    if not counts.failed:
        problems.append("no fault reached the store: the test proves nothing")
    figures = (
        f"{cycles} faults: {counts.failed} ended the store, {counts.survived} were survived, "
        f"{counts.refused_start} prevented the start, {counts.not_reached} were not reached; "
        f"{counts.confirmed} confirmed, {counts.nacked} nacked"
    )
    return Outcome("R-04", "injected I/O errors", figures, tuple(problems))


async def _make_data(directory: Path) -> None:
    """Create a queue first: most faults would hit the syncs that create a database."""
    broker = BrokerProcess(directory)
    await broker.start()
    await Load(LoadSpec(queues=(QUEUE,)), Ledger()).declare(broker.address)
    await broker.stop()


async def _run_with_fault(
    directory: Path, fault: Fault, counts: FaultCounts, problems: list[str]
) -> None:
    ledger = Ledger()
    broker = BrokerProcess(directory)
    broker.prefix = fault.command
    publisher = Publisher(ledger, QUEUE, 1)
    try:
        await broker.start()
    except RuntimeError:
        counts.refused_start += 1
        return
    with suppress(ConnectionGone):
        await publisher.start(broker.address)
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                await publisher.flood(lambda: publisher.nacked > 0, 200)
    log = broker.log_tail()
    if "the store has failed" in log:
        counts.failed += 1
        await _check_store_stays_failed(broker, ledger, fault, problems)
    elif "not durable" in log:
        counts.survived += 1
    else:
        counts.not_reached += 1
    await broker.kill()
    broker.prefix = ()
    await broker.start()
    load = Load(LoadSpec(queues=(QUEUE,)), ledger)
    await load.declare(broker.address)
    await load.drain(broker.address)
    await broker.stop()
    counts.confirmed += publisher.confirmed
    counts.nacked += publisher.nacked
    problems += [f"{fault}: {problem}" for problem in problems_of(ledger.verdict())]


async def _check_store_stays_failed(
    broker: BrokerProcess, ledger: Ledger, fault: Fault, problems: list[str]
) -> None:
    """Check that a new publisher is nacked or not read, but never confirmed."""
    late = Publisher(ledger, QUEUE, 2)
    with suppress(ConnectionGone, TimeoutError):
        await late.start(broker.address)
        late.send()
        await late.until(lambda: late.nacked > 0 or late.confirmed > 0, 1)
    if late.confirmed:
        problems.append(f"{fault}: confirmed after the store had failed")
