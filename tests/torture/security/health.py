"""R-19: how late the loop is under everything at once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.everything import Counted, ask, export, load
from tests.torture.security.raw import percentile

IDLE_SECONDS = 5
P99_MS, MOST_MS = 20.0, 200.0
LEAST_REQUESTS = 99


async def keep_in_time(
    directory: Path,
    seconds: int,
    _seed: int,
    progress: Progress = silent,
    idle: float = IDLE_SECONDS,
) -> Outcome:
    """A flood, connections that come and go, logs and users, and 100 HTTP requests a second.

    Then once more, for a while, looking for calls that could block the loop.
    """
    lags_file = directory.with_name("lags")
    broker = Probed(directory, lags_file)
    await broker.start()
    counted = Counted()
    await ask(broker, time.monotonic() + 0.1, Counted())  # the API is imported for this
    await lags(broker, lags_file)  # what the start was like does not count
    await asyncio.sleep(idle)
    alone = percentile(await lags(broker, lags_file), 0.99) * 1000
    await load(broker, seconds, counted, progress)
    late_by = await lags(broker, lags_file)
    await broker.stop()
    p99, most = percentile(late_by, 0.99) * 1000, max(late_by, default=0) * 1000
    late = []
    if p99 > P99_MS:
        late.append(f"lag p99 {p99:.1f} ms")
    if most > MOST_MS:
        late.append(f"lag up to {most:.0f} ms")
    if counted.requests < LEAST_REQUESTS * seconds:
        late.append(f"{counted.requests / seconds:.0f} requests/s answered")
    problems = [f"no {name} at all" for name in counted.missing()]
    calls = await _blocking_calls(directory.with_name("watched"), seconds / 10)
    problems += [f"blocks the loop: {call}" for call in calls]
    slow = await _slow_callbacks(directory.with_name("slow"), seconds / 10)
    problems += [f"debug mode: {one}" for one in slow]
    figures = (
        f"{seconds} s of {counted.published / seconds:.0f} msg/s, "
        f"{counted.connections / seconds:.0f} connections/s, "
        f"{counted.requests / seconds:.0f} requests/s, {counted.logs} logs and "
        f"{counted.users} users made and deleted: lag p50 "
        f"{percentile(late_by, 0.5) * 1000:.1f} ms, p99 {p99:.1f} ms, max {most:.0f} ms "
        f"(p99 {alone:.1f} ms with nothing to do: the machine's own); "
        f"{len(calls)} calls that could block it; in debug mode {len(slow)} callbacks of more than "
        "100 ms of processor time"
    )
    return Outcome("R-19", "the loop under load", figures, tuple(problems), tuple(late))


class Probed(BrokerProcess):
    def __init__(self, directory: Path, notes: Path, module: str = "probe") -> None:
        super().__init__(directory, "--http-port", "0", env={"LEVERET_HTTP_ENABLED": "true"})
        self.program = ("-m", f"tests.torture.security.{module}", str(notes))


async def lags(broker: BrokerProcess, path: Path) -> list[float]:
    return [float(lag) for lag in (await notes(broker, path)).split()]


async def notes(broker: BrokerProcess, path: Path) -> str:
    """What the broker has written down since it was asked last."""
    _forget(path)
    os.kill(broker.pid, signal.SIGUSR1)
    for _ in range(600):
        said = _read(path)
        if said is not None:
            return said
        await asyncio.sleep(0.05)
    raise RuntimeError("the broker has written nothing down")


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


MAY_BLOCK = {
    "io.BufferedReader.read in leveret/broker/watermark.py:resident_bytes": "reads /proc",
    "os.statvfs in leveret/broker/upkeep.py:_watch_disk": "the kernel knows, no disk is asked",
    "os.stat in http_admin/paths.py:__call__": "of the built pages, whose inodes are in memory",
    # Records of a moment ago, which are in the page cache; all others are read on a thread.
    "os.open in queues/log/segment.py:__init__": "once for each segment that is being written",
    "os.pread in queues/log/segment.py:read": "at most 256 KiB of the page cache",
}
"""Which call may be made where, and why it does not take long."""
SHORT_LOCKS = ("threading.Lock.acquire of concurrent/futures/",)
"""Of what hands work to a thread: held for an append to a list."""


async def _blocking_calls(directory: Path, seconds: float) -> list[str]:
    """Calls of the loop's thread that could wait for a disk, a process or a clock."""
    found = await _said_under_load(directory, "blocking", seconds)
    return [line for line in found if may_not_block(line)]


def may_not_block(line: str) -> bool:
    _, _, call = line.partition(" ")
    return call not in MAY_BLOCK and not call.startswith(SHORT_LOCKS)


async def _slow_callbacks(directory: Path, seconds: float) -> list[str]:
    return await _said_under_load(directory, "debugged", seconds)


async def _said_under_load(directory: Path, module: str, seconds: float) -> list[str]:
    """What a broker that is watched by this module writes down; not what it did to start."""
    path = directory.with_name(module)
    broker = Probed(directory, path, module)
    await broker.start()
    await ask(broker, time.monotonic() + 0.1, Counted())  # the API is imported for this
    await notes(broker, path)
    await load(broker, seconds, Counted(), silent)
    await export(broker)
    found = (await notes(broker, path)).splitlines()
    await broker.stop()
    return found
