"""R-19: how late the loop is under everything at once. R-20: a broker that was stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import httpx
from pamqp import commands, frame
from pamqp import heartbeat as heartbeat_frame

from tests.torture.client import PROPERTIES, Client
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.raw import HEADER, Raw, percentile, start_ok, tune_and_open

_LIMIT: dict[str, object] = {"x-max-length": 10_000}
IDLE_SECONDS = 5
_BEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


async def keep_in_time(
    directory: Path,
    seconds: int,
    _seed: int,
    progress: Progress = silent,
    watch: bool = True,
    idle: float = IDLE_SECONDS,
) -> Outcome:
    """A flood, connections that come and go, and 100 HTTP requests a second.

    With `watch` once more, for a while, looking for calls that could block the loop.
    """
    lags_file = directory.with_name("lags")
    broker = _Probed(directory, lags_file)
    await broker.start()
    counted = {"published": 0, "connections": 0, "requests": 0}
    await _ask(broker, time.monotonic() + 0.1, dict(counted))  # the API is imported for this
    await _lags(broker, lags_file)  # what the start was like does not count
    await asyncio.sleep(idle)
    alone = percentile(await _lags(broker, lags_file), 0.99) * 1000
    await _load(broker, seconds, counted, progress)
    lags = await _lags(broker, lags_file)
    await broker.stop()
    p99, most = percentile(lags, 0.99) * 1000, max(lags, default=0) * 1000
    late = []
    if p99 > 20 + alone:
        late.append(f"lag p99 {p99:.1f} ms")
    if most > 200 + alone:
        late.append(f"lag up to {most:.0f} ms")
    problems = [f"no {name} at all" for name, count in counted.items() if not count]
    calls = await _blocking_calls(directory.with_name("watched"), seconds / 10) if watch else []
    problems += [f"blocks the loop: {call}" for call in calls]
    slow = await _slow_callbacks(directory.with_name("slow"), seconds / 10) if watch else []
    problems += [f"debug mode: {one}" for one in slow]
    figures = (
        f"{seconds} s of {counted['published'] / seconds:.0f} msg/s, "
        f"{counted['connections'] / seconds:.0f} connections/s and "
        f"{counted['requests'] / seconds:.0f} requests/s: lag p50 "
        f"{percentile(lags, 0.5) * 1000:.1f} ms, p99 {p99:.1f} ms, max {most:.0f} ms "
        f"(p99 {alone:.1f} ms with nothing to do: the machine's own); "
        f"{len(calls)} calls that could block it; in debug mode {len(slow)} callbacks of more than "
        "100 ms of processor time"
    )
    return Outcome("R-19", "the loop under load", figures, tuple(problems), tuple(late))


async def _load(
    broker: BrokerProcess, seconds: float, counted: dict[str, int], progress: Progress
) -> None:
    stop = time.monotonic() + seconds
    tasks = [
        asyncio.create_task(_flood(broker, stop, counted)),
        asyncio.create_task(_come_and_go(broker, stop, counted)),
        asyncio.create_task(_ask(broker, stop, counted)),
    ]
    while time.monotonic() < stop:
        await asyncio.sleep(0.5)
        progress(int(seconds - (stop - time.monotonic())), int(seconds))
    await asyncio.gather(*tasks)


class _Probed(BrokerProcess):
    def __init__(self, directory: Path, notes: Path, module: str = "probe") -> None:
        super().__init__(directory, "--http-port", "0", env={"LEVERET_HTTP_ENABLED": "true"})
        self.program = ("-m", f"tests.torture.security.{module}", str(notes))


async def _lags(broker: BrokerProcess, path: Path) -> list[float]:
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


MAY_BLOCK = (
    "leveret/broker/watermark.py:resident_bytes",  # reads /proc
    "leveret/broker/upkeep.py:_watch_disk",  # statvfs
    "http_admin/paths.py:__call__",  # stat of the built pages
    "leveret/launch.py:",  # imports the HTTP API, which the first request waits for
    "threading.Lock.acquire",  # hands work to a thread: held for an append to a list
)


async def _blocking_calls(directory: Path, seconds: float) -> list[str]:
    """Calls of the loop's thread that could wait for a disk, a process or a clock."""
    found = await _said_under_load(directory, "blocking", seconds)
    return [line for line in found if not any(allowed in line for allowed in MAY_BLOCK)]


async def _slow_callbacks(directory: Path, seconds: float) -> list[str]:
    return await _said_under_load(directory, "debugged", seconds)


async def _said_under_load(directory: Path, module: str, seconds: float) -> list[str]:
    """What a broker that is watched by this module writes down; not what it did to start."""
    path = directory.with_name(module)
    broker = _Probed(directory, path, module)
    await broker.start()
    counted = {"published": 0, "connections": 0, "requests": 0}
    if module == "debugged":
        await _ask(broker, time.monotonic() + 0.1, dict(counted))
        await notes(broker, path)
    await _load(broker, seconds, counted, silent)
    found = (await notes(broker, path)).splitlines()
    await broker.stop()
    return found


async def _flood(broker: BrokerProcess, stop: float, counted: dict[str, int]) -> None:
    """Publishers that never wait, to a queue that drops and to one whose consumer keeps up."""
    client = await Client.connect(broker.address)
    await client.declare("dropping", arguments=_LIMIT)
    await client.declare("flowing")
    client.close()
    crew = [
        await _flooder(broker, "publish", "dropping"),
        await _flooder(broker, "publish", "flowing"),
        await _flooder(broker, "consume", "flowing"),
    ]
    await asyncio.sleep(max(1.0, stop - time.monotonic()))
    said = await asyncio.gather(*(one.communicate(b"") for one in crew))
    counted["published"] += sum(int(out) for out, _ in said[:2])


async def _flooder(broker: BrokerProcess, what: str, queue: str) -> asyncio.subprocess.Process:
    host, port = broker.address
    module = "tests.torture.security.flooder"
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, what, host, str(port), queue,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def _come_and_go(broker: BrokerProcess, stop: float, counted: dict[str, int]) -> None:
    going = True
    while going:
        one = await Raw.connect(broker.address)
        counted["connections"] += await one.log_in()
        one.drop()
        await asyncio.sleep(0.02)
        going = time.monotonic() < stop


async def _ask(broker: BrokerProcess, stop: float, counted: dict[str, int]) -> None:
    paths = ("/api/overview", "/api/queues", "/api/connections?page=1", "/api/whoami")
    async with httpx.AsyncClient(
        base_url=f"http://{broker.http}", auth=("guest", "guest"), timeout=600, verify=False
    ) as api:
        going = True
        while going:
            began = time.monotonic()
            answers = await asyncio.gather(*(api.get(path) for path in paths))
            counted["requests"] += sum(answer.status_code == 200 for answer in answers)
            await asyncio.sleep(max(0.0, 0.04 - (time.monotonic() - began)))
            going = time.monotonic() < stop


async def stop_and_go_on(
    directory: Path, cycles: int, _seed: int, progress: Progress = silent, heartbeat: int = 2
) -> Outcome:
    """SIGSTOP for three heartbeats while clients go on sending; nobody is closed for it."""
    broker = BrokerProcess(directory, "--memory")
    broker.settings = (f"heartbeat={heartbeat}",)
    await broker.start()
    closed = lost = 0
    for cycle in range(cycles):
        client, idle = await Client.connect(broker.address), await _patient(broker, heartbeat)
        await client.declare("q")
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            for _ in range(3):
                client.publish("", "q", b"x", PROPERTIES["transient"])
                idle.send(_BEAT)
                await asyncio.sleep(heartbeat)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        idle.send(frame.marshal(commands.Channel.Flow(True), 1))
        answer = await idle.next()
        while isinstance(answer, heartbeat_frame.Heartbeat):
            answer = await idle.next()
        closed += not isinstance(answer, commands.Channel.FlowOk)
        lost += 3 * (cycle + 1) - await client.count("q")
        idle.drop()
        client.close()
        progress(cycle + 1, cycles)
    await broker.stop()
    problems = []
    if closed:
        problems.append(f"{closed} clients were closed for the broker's own silence")
    if lost:
        problems.append(f"{lost} messages lost")
    figures = (
        f"{cycles} stops of {3 * heartbeat} s at heartbeat {heartbeat} s: {closed} clients closed, "
        f"{lost} messages lost"
    )
    return Outcome("R-20", "stopped and continued", figures, tuple(problems))


async def _patient(broker: BrokerProcess, heartbeat: int) -> Raw:
    one = await Raw.connect(broker.address)
    one.send(HEADER)
    await one.next()
    one.send(start_ok())
    await one.next()
    one.send(tune_and_open(heartbeat) + frame.marshal(commands.Channel.Open(), 1))
    await one.next()
    await one.next()
    return one
