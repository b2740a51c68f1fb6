"""R-02: the power fails under load in four modes, plus a control that must lose messages."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.polling import wait_until_async, wait_until_reached
from tests.torture.checker import Ledger, Verdict
from tests.torture.crashes import problems_of
from tests.torture.load import Load, LoadSpec
from tests.torture.mounts import unmount
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess, kill_leftover_brokers
from tests.torture.writeback_fs import Mode

SPEC = LoadSpec(queues=("kept", "taken"), publishers=2, window=200, consumed=("taken",))


class WriteBackDisk:
    """Controls the process of the file system."""

    def __init__(self, mountpoint: Path, process: asyncio.subprocess.Process) -> None:
        self.mountpoint = mountpoint
        self._process = process

    def mark(self, number: int) -> None:
        """Write a mark into the record."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"mark {number}\n".encode())

    async def fail(self, mode: Mode, seed: int) -> int:
        """Cut the power; return how many writes were not synced."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"fail {mode.value} {seed}\n".encode())
        answer = await asyncio.wait_for(self._process.stdout.readline(), 60)
        return int(answer.split()[1])


@asynccontextmanager
async def write_back_disk(
    mountpoint: Path, record: Path | None = None
) -> AsyncIterator[WriteBackDisk]:
    """`record` is a file that receives every operation, for `crash_states`."""
    os.makedirs(mountpoint)
    options = (str(record),) if record else ()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.torture.writeback_fs", str(mountpoint), *options,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        await wait_until_async(
            lambda: os.path.ismount(mountpoint) or process.returncode is not None
        )
        if process.returncode is not None:
            raise RuntimeError("FUSE does not work: it needs /dev/fuse and root")
        yield WriteBackDisk(mountpoint, process)
    finally:
        kill_leftover_brokers()
        unmount(mountpoint)
        await process.communicate()  # without a mount it writes its record and exits


async def fail_power(
    directory: Path, cycles: int, seed: int, progress: Progress = silent
) -> Outcome:
    """Fail `cycles` times in each mode, one mode after the other, then run the control."""
    rng = random.Random(seed)
    total = cycles * len(Mode) + 1
    modes = list(Mode) * cycles
    verdict, unsynced = await _failures(
        directory / "disk", modes, rng, {}, lambda done: progress(done, total)
    )
    control = await _control(directory / "control", rng)
    progress(total, total)
    problems = problems_of(verdict)
    if not control.lost:
        problems.append("the control with synchronous=NORMAL lost nothing: the test proves nothing")
    figures = (
        f"{cycles} power failures in each of {len(Mode)} modes, {unsynced} writes unsynced at "
        f"that time; {verdict}; control with synchronous=NORMAL: lost {control.lost} of "
        f"{control.confirmed}"
    )
    return Outcome("R-02", "power loss on a write-back file system", figures, tuple(problems))


async def _control(directory: Path, rng: random.Random, tries: int = 5) -> Verdict:
    """Run with weaker syncs, several times: a broker that was idle has synced and loses nothing."""
    weaker = {"LEVERET_TEST_SYNCHRONOUS": "NORMAL"}
    verdict, _ = await _failures(directory / str(tries), [Mode.DROP], rng, weaker)
    if verdict.lost or tries == 1:
        return verdict
    return await _control(directory, rng, tries - 1)


async def _failures(
    directory: Path,
    modes: list[Mode],
    rng: random.Random,
    env: dict[str, str],
    failed: Callable[[int], None] = lambda done: None,
) -> tuple[Verdict, int]:
    ledger, unsynced = Ledger(), 0
    load = Load(SPEC, ledger)
    async with write_back_disk(directory) as disk:
        broker = BrokerProcess(disk.mountpoint / "data", env=env)
        for cycle, mode in enumerate(modes):
            await broker.start()
            if cycle == 0:
                await load.declare(broker.address)
            enough = asyncio.Event()
            running = asyncio.create_task(load.run(broker.address, enough))
            target = len(ledger.confirmed) + rng.randint(50, 2_000)
            await wait_until_reached(lambda: len(ledger.confirmed), target)
            await asyncio.sleep(rng.uniform(0, 0.02))
            await broker.kill()
            enough.set()
            await running
            unsynced += await disk.fail(mode, rng.randrange(1 << 30))
            failed(cycle + 1)
        await broker.start()
        await load.declare(broker.address)  # the control may have lost even the queues
        await load.drain(broker.address)
        await broker.stop()
    return ledger.verdict(), unsynced
