"""R-19: the delay of the event loop under a mixed load."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.mixed_load import Counts, export, load, send_requests
from tests.torture.security.raw import percentile

IDLE_SECONDS = 5
P99_MS, MAX_MS = 20.0, 200.0
MIN_REQUESTS_PER_SECOND = 99


async def measure_loop_lag(
    directory: Path,
    seconds: int,
    _seed: int,
    progress: Progress = silent,
    idle: float = IDLE_SECONDS,
) -> Outcome:
    """A flood, short connections, logs and users, and 100 HTTP requests per second.

    Then again, for a shorter time, to find calls that could block the loop.
    """
    lags_file = directory.with_name("lags")
    broker = InstrumentedBroker(directory, lags_file)
    await broker.start()
    counts = Counts()
    await send_requests(broker, time.monotonic() + 0.1, Counts())  # imports the API
    await lags(broker, lags_file)  # delays of the start do not count
    await asyncio.sleep(idle)
    alone = percentile(await lags(broker, lags_file), 0.99) * 1000
    await load(broker, seconds, counts, progress)
    late_by = await lags(broker, lags_file)
    await broker.stop()
    p99, max_lag = percentile(late_by, 0.99) * 1000, max(late_by, default=0) * 1000
    late = []
    if p99 > P99_MS:
        late.append(f"lag p99 {p99:.1f} ms")
    if max_lag > MAX_MS:
        late.append(f"lag up to {max_lag:.0f} ms")
    if counts.requests < MIN_REQUESTS_PER_SECOND * seconds:
        late.append(f"{counts.requests / seconds:.0f} requests/s answered")
    problems = [f"no {name}" for name in counts.names_of_zeros()]
    calls = await _blocking_calls(directory.with_name("watched"), seconds / 10)
    problems += [f"blocks the loop: {call}" for call in calls]
    slow = await _slow_callbacks(directory.with_name("slow"), seconds / 10)
    problems += [f"debug mode: {callback}" for callback in slow]
    figures = (
        f"{seconds} s of {counts.published / seconds:.0f} msg/s, "
        f"{counts.connections / seconds:.0f} connections/s, "
        f"{counts.requests / seconds:.0f} requests/s, {counts.logs} logs and "
        f"{counts.users} users created and deleted: lag p50 "
        f"{percentile(late_by, 0.5) * 1000:.1f} ms, p99 {p99:.1f} ms, max {max_lag:.0f} ms "
        f"(p99 {alone:.1f} ms without load); "
        f"{len(calls)} calls that could block the loop; in debug mode {len(slow)} callbacks "
        "of more than 100 ms of CPU time"
    )
    return Outcome(
        "R-19", "delay of the event loop under load", figures, tuple(problems), tuple(late)
    )


class InstrumentedBroker(BrokerProcess):
    def __init__(self, directory: Path, report: Path, module: str = "lag_probe") -> None:
        super().__init__(directory, "--http-port", "0", env={"LEVERET_HTTP_ENABLED": "true"})
        self.program = ("-m", f"tests.torture.security.{module}", str(report))


async def lags(broker: BrokerProcess, path: Path) -> list[float]:
    return [float(lag) for lag in (await read_report(broker, path)).split()]


async def read_report(broker: BrokerProcess, path: Path) -> str:
    """What the broker recorded since the last report."""
    _delete(path)
    os.kill(broker.pid, signal.SIGUSR1)
    for _ in range(600):
        text = _read(path)
        if text is not None:
            return text
        await asyncio.sleep(0.05)
    raise RuntimeError("the broker wrote no report")


def _delete(path: Path) -> None:
    path.unlink(missing_ok=True)


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


MAY_BLOCK = {
    "os.statvfs in leveret/broker/runtime/process.py:free_disk_bytes": "no disk is read",
    "os.statvfs in leveret/broker/runtime/disk_space.py:measure_usage": "no disk is read",
    "os.stat in leveret/broker/runtime/disk_space.py:_file_size": "its inode is in memory",
    # FastAPI looks up the source file of an endpoint's function when it is first called. The
    # module was imported a moment ago, so the inode is in memory.
    "os.stat in leveret/http_admin/middleware/security.py:_handle": "once per endpoint",
    "os.stat in leveret/http_admin/middleware/security.py:_call_app": "once per endpoint",
    # Recently written records are in the page cache; all others are read on a thread.
    "os.open in leveret/queues/log/files/segment.py:__init__": "once per segment being written",
    "os.pread in leveret/queues/log/files/segment.py:read": "at most 256 KiB of the page cache",
}
"""Allowed calls by function, and why they do not take long."""
SHORT_LOCKS = ("threading.Lock.acquire of concurrent/futures/",)
"""Locks of thread pools, which are held only to append to a list."""


async def _blocking_calls(directory: Path, seconds: float) -> list[str]:
    """Calls on the loop's thread that could wait for a disk, a process or a clock."""
    lines = await _lines_under_load(directory, "blocking_calls", seconds)
    return [line for line in lines if is_blocking_call(line)]


def is_blocking_call(line: str) -> bool:
    _, _, call = line.partition(" ")
    return call not in MAY_BLOCK and not call.startswith(SHORT_LOCKS)


async def _slow_callbacks(directory: Path, seconds: float) -> list[str]:
    return await _lines_under_load(directory, "slow_callbacks", seconds)


async def _lines_under_load(directory: Path, module: str, seconds: float) -> list[str]:
    """What this instrument reports of a broker under load, without its start."""
    path = directory.with_name(module)
    broker = InstrumentedBroker(directory, path, module)
    await broker.start()
    await send_requests(broker, time.monotonic() + 0.1, Counts())  # imports the API
    await read_report(broker, path)
    await load(broker, seconds, Counts(), silent)
    await export(broker)
    lines = (await read_report(broker, path)).splitlines()
    await broker.stop()
    return lines
