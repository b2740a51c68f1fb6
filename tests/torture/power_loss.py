"""R-02: the power fails under load, in four ways; and the control that proves the test can fail."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.torture.checker import Ledger, Verdict
from tests.torture.crashes import problems_of
from tests.torture.load import Load, LoadSpec
from tests.torture.mounts import unmount
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess, end_leftovers
from tests.torture.waiting import until, until_reaches
from tests.torture.writeback_fs import Mode

SPEC = LoadSpec(queues=("kept", "taken"), publishers=2, window=200, consumed=("taken",))


class WriteBackDisk:
    """The file system's process, seen from outside."""

    def __init__(self, place: Path, process: asyncio.subprocess.Process) -> None:
        self.place = place
        self._process = process

    def mark(self, number: int) -> None:
        """Note in the record how far we are."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"mark {number}\n".encode())

    async def fail(self, mode: Mode, seed: int) -> int:
        """Cut the power; how many writes were not synced."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"fail {mode.value} {seed}\n".encode())
        answer = await asyncio.wait_for(self._process.stdout.readline(), 60)
        return int(answer.split()[1])


@asynccontextmanager
async def write_back_disk(place: Path, record: Path | None = None) -> AsyncIterator[WriteBackDisk]:
    """`record`: a file that gets everything that happens, for `crash_states`."""
    os.makedirs(place)
    options = (str(record),) if record else ()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.torture.writeback_fs", str(place), *options,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        await until(lambda: os.path.ismount(place) or process.returncode is not None)
        if process.returncode is not None:
            raise RuntimeError("FUSE does not work here: is /dev/fuse there, are we root?")
        yield WriteBackDisk(place, process)
    finally:
        end_leftovers()
        unmount(place)
        await process.communicate()  # without a mount it ends by itself, its record written


async def cut_the_power(
    directory: Path, cycles: int, seed: int, progress: Progress = silent
) -> Outcome:
    """So many power failures in each mode, one mode after the other, then the control."""
    chance = random.Random(seed)
    total = cycles * len(Mode) + 1
    modes = list(Mode) * cycles
    verdict, unsynced = await _failures(
        directory / "disk", modes, chance, {}, lambda done: progress(done, total)
    )
    control = await _control(directory / "control", chance)
    progress(total, total)
    problems = problems_of(verdict)
    if not control.lost:
        problems.append("the control with synchronous=NORMAL lost nothing: the test proves nothing")
    figures = (
        f"{cycles} power failures in each of {len(Mode)} modes, {unsynced} writes unsynced when "
        f"they came; {verdict}; control with synchronous=NORMAL: lost {control.lost} of "
        f"{control.confirmed}"
    )
    return Outcome("R-02", "power loss on a write-back file system", figures, tuple(problems))


async def _control(directory: Path, chance: random.Random, tries: int = 5) -> Verdict:
    """With weaker syncs. A broker that was idle for a moment has synced all, and loses nothing."""
    weaker = {"LEVERET_TEST_SYNCHRONOUS": "NORMAL"}
    verdict, _ = await _failures(directory / str(tries), [Mode.DROP], chance, weaker)
    if verdict.lost or tries == 1:
        return verdict
    return await _control(directory, chance, tries - 1)


async def _failures(
    directory: Path,
    modes: list[Mode],
    chance: random.Random,
    env: dict[str, str],
    failed: Callable[[int], None] = lambda done: None,
) -> tuple[Verdict, int]:
    ledger, unsynced = Ledger(), 0
    load = Load(SPEC, ledger)
    async with write_back_disk(directory) as disk:
        broker = BrokerProcess(disk.place / "data", env=env)
        for cycle, mode in enumerate(modes):
            await broker.start()
            if cycle == 0:
                await load.declare(broker.address)
            enough = asyncio.Event()
            running = asyncio.create_task(load.run(broker.address, enough))
            target = len(ledger.confirmed) + chance.randint(50, 2_000)
            await until_reaches(lambda: len(ledger.confirmed), target)
            await asyncio.sleep(chance.uniform(0, 0.02))
            await broker.kill()
            enough.set()
            await running
            unsynced += await disk.fail(mode, chance.randrange(1 << 30))
            failed(cycle + 1)
        await broker.start()
        await load.declare(broker.address)  # the control may have lost even the queues
        await load.drain(broker.address)
        await broker.stop()
    return ledger.verdict(), unsynced
