"""R-04: the Nth sync or write of the store fails; nothing is confirmed that is not there later.

strace makes the system call fail once, in whichever thread makes its Nth; after that the disk works
again, so a broker that simply tried once more would be caught confirming.
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
MOST_WRITES = 20
"""A batch is tens of writes and one sync: writes are swept in steps of this many."""


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


def faults(count: int, chance: random.Random) -> list[Fault]:
    """Kinds in turn, the Nth growing; half of all are failed syncs of the write-ahead log."""
    chosen = []
    for number in range(count):
        call, error = KINDS[0] if number % 2 else KINDS[1 + number // 2 % (len(KINDS) - 1)]
        nth = 1 + number
        if call == "pwrite64":
            nth = 4 + number * MOST_WRITES + chance.randrange(MOST_WRITES)
        elif call == "fsync":
            nth = 1 + number // 8
        chosen.append(Fault(call, error, nth))
    return chosen


@dataclass(slots=True)
class Tally:
    never_came: int = 0
    refused_start: int = 0
    failed: int = 0
    went_on: int = 0
    confirmed: int = 0
    nacked: int = 0


async def inject_faults(
    directory: Path, cycles: int, seed: int, progress: Progress = silent
) -> Outcome:
    problems: list[str] = []
    tally, sound = Tally(), directory / "sound"
    await _make_data(sound)
    for number, fault in enumerate(faults(cycles, random.Random(seed))):
        data = directory / str(number)
        shutil.copytree(sound, data)
        try:
            await _suffer(data, fault, tally, problems)
        except AssertionError as error:
            problems.append(f"{fault}: {error}")
        progress(number + 1, cycles)
    if not tally.failed:
        problems.append("no fault reached the store: the test proves nothing")
    figures = (
        f"{cycles} faults: {tally.failed} ended the store, {tally.went_on} were outlived, "
        f"{tally.refused_start} refused the start, {tally.never_came} never came up; "
        f"{tally.confirmed} confirmed, {tally.nacked} nacked"
    )
    return Outcome("R-04", "injected I/O errors", figures, tuple(problems))


async def _make_data(directory: Path) -> None:
    """A queue: a new database takes so many syncs that most faults would hit its making."""
    broker = BrokerProcess(directory)
    await broker.start()
    await Load(LoadSpec(queues=(QUEUE,)), Ledger()).declare(broker.address)
    await broker.stop()


async def _suffer(directory: Path, fault: Fault, tally: Tally, problems: list[str]) -> None:
    ledger = Ledger()
    broker = BrokerProcess(directory)
    broker.prefix = fault.command
    publisher = Publisher(ledger, QUEUE, 1)
    try:
        await broker.start()
    except RuntimeError:
        tally.refused_start += 1
        return
    with suppress(ConnectionGone):
        await publisher.start(broker.address)
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                await publisher.flood(lambda: publisher.nacked > 0, 200)
    log = broker.said()
    if "the store has failed" in log:
        tally.failed += 1
        await _must_refuse(broker, ledger, fault, problems)
    elif "not durable" in log:
        tally.went_on += 1
    else:
        tally.never_came += 1
    await broker.kill()
    broker.prefix = ()
    await broker.start()
    load = Load(LoadSpec(queues=(QUEUE,)), ledger)
    await load.declare(broker.address)
    await load.drain(broker.address)
    await broker.stop()
    tally.confirmed += publisher.confirmed
    tally.nacked += publisher.nacked
    problems += [f"{fault}: {problem}" for problem in problems_of(ledger.verdict())]


async def _must_refuse(
    broker: BrokerProcess, ledger: Ledger, fault: Fault, problems: list[str]
) -> None:
    """A failed store stays failed: a new publisher is nacked or not read, never confirmed."""
    late = Publisher(ledger, QUEUE, 2)
    with suppress(ConnectionGone, TimeoutError):
        await late.start(broker.address)
        late.send()
        await late.until(lambda: late.nacked > 0 or late.confirmed > 0, 1)
    if late.confirmed:
        problems.append(f"{fault}: confirmed after the store had failed")
