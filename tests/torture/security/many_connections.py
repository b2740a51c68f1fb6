"""R-16: thousands of idle connections. R-18: connections that are opened and closed."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from pamqp import commands, frame
from pamqp.heartbeat import Heartbeat

from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.object_counts import count_objects
from tests.torture.security.publish_latency import publish_latency_p99
from tests.torture.security.raw import Raw, descriptors

AT_ONCE = 100
MAX_KIB_EACH = 30
IDLE_SHARE = 5.0
PAIR_RATIO = 1.5
TOTAL_SECONDS = 180.0
"""From the first open to the last close."""
TOLERANCE = 5
MAX_OBJECT_GROWTH = 0.02
RETURNED_SHARE = 1.2
"""Memory after the connections are closed, relative to the memory before them."""
UNIT_FILE = Path(__file__).parents[3] / "docs" / "deploy" / "leveret.service"
API = {"LEVERET_HTTP_ENABLED": "true", "LEVERET_HTTP_PORT": "0"}
SAMPLES_SECONDS = 30.0
HEARTBEAT = 60
WATCH_SECONDS = 65.0
"""Each side sends two heartbeats in this time."""
BEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
LEAK_CONNECTIONS = 5_000
"""Connections after which a leak is larger than fluctuations of the allocator."""


async def hold_idle_connections(
    directory: Path,
    connections: int,
    _seed: int,
    progress: Progress = silent,
    watch: float = WATCH_SECONDS,
    tries: int = 1_000,
) -> Outcome:
    """Open all connections, measure their cost, close them, and open as many again."""
    notes_file = directory.with_name("objects")
    broker = BrokerProcess(directory, "--memory")
    broker.program = ("-m", "tests.torture.security.object_counts", str(notes_file))
    await broker.start()
    files = descriptors(broker.pid)
    first_ten = await _open(broker, 10, silent)
    p99_with_10 = await publish_latency_p99(broker.address, tries)
    await _drop(broker, first_ten, files - TOLERANCE)  # warm up
    counts = await count_objects(broker, notes_file)
    before, began = broker.memory("VmRSS"), time.monotonic()
    connected = await _open(broker, connections, progress)
    opening = time.monotonic() - began
    each = (broker.memory("VmRSS") - before) * 1024 / connections
    share = await _idle_share(broker, connected, watch)
    first_peak = broker.memory("VmRSS")
    p99_with_all = await publish_latency_p99(broker.address, tries)
    answers = await _count_answers(connected)
    await _drop(broker, connected, files)
    total_seconds = time.monotonic() - began
    left = descriptors(broker.pid) - files
    object_growth = await _more_objects(broker, notes_file, counts.objects)
    after = await count_objects(broker, notes_file)
    connected = await _open(broker, connections, silent)
    growth = broker.memory("VmRSS") - first_peak
    await _drop(broker, connected, files)
    await broker.stop()
    other = directory.with_name("other")
    jemalloc = allocator_settings()
    others = [
        await return_memory(other, connections, "with jemalloc", jemalloc),
        await return_memory(other, connections, "and the API in use", jemalloc | API),
        await return_memory(other, connections, "without jemalloc", {}, is_bounded=False),
    ]
    problems = [problem for returned in others for problem in returned.problems]
    if answers.connections < connections:
        problems.append(f"{connections - answers.connections} of the connections do not answer")
    if watch > HEARTBEAT and answers.fewest_beats < 2:
        problems.append(f"{answers.fewest_beats} heartbeats in {watch} s")
    if after.differs(counts, TOLERANCE):
        problems.append(f"{after.difference(counts)} after the connections closed")
    if each > MAX_KIB_EACH:
        problems.append(f"{each:.1f} KiB per connection")
    if abs(left) > TOLERANCE:
        problems.append(f"{left} descriptors left open")
    if object_growth > MAX_OBJECT_GROWTH:
        problems.append(f"{object_growth:.1%} more objects after the connections closed")
    if growth > 5 + first_peak * 0.1:
        problems.append(f"{growth:.1f} MB more when opened again")
    late = [f"idle CPU share {share:.1f} %"] if share > IDLE_SHARE else []
    if p99_with_all > PAIR_RATIO * p99_with_10:
        late.append(
            f"p99 of a publish is {p99_with_all / p99_with_10:.1f} times that with 10 connections"
        )
    if total_seconds > TOTAL_SECONDS:
        late.append(f"{total_seconds:.0f} s from the first open to the last close")
    figures = (
        f"{connections} connections with a channel: {each:.1f} KiB each, {share:.1f} % of a core "
        f"in {watch:.0f} s with heartbeats of both sides, all answer; opened in {opening:.0f} s, "
        f"all of it in {total_seconds:.0f} s; {growth:+.1f} MB when opened again; "
        f"{left:+d} descriptors, {after.difference(counts)} and {object_growth:+.1%} of "
        f"objects after the connections closed; p99 of a publish "
        f"{p99_with_all * 1000:.1f} ms with them, {p99_with_10 * 1000:.1f} ms with 10; "
        + "; ".join(returned.figures for returned in others)
    )
    return Outcome("R-16", "idle connections", figures, tuple(problems), tuple(late))


def allocator_settings() -> dict[str, str]:
    """The environment variables of the unit file, which make Python use jemalloc."""
    lines = UNIT_FILE.read_text(encoding="utf-8").splitlines()
    prefix = "Environment="
    settings = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    allocator = dict(word.split("=", 1) for setting in settings for word in shlex.split(setting))
    if set(allocator) != {"LD_PRELOAD", "MALLOC_CONF", "PYTHONMALLOC"}:
        raise RuntimeError(f"{UNIT_FILE} does not choose an allocator: {allocator}")
    if not any(Path("/usr/lib").glob(f"*/{allocator['LD_PRELOAD']}")):
        raise RuntimeError("jemalloc is missing: tools/system-part jemalloc")
    return allocator


async def return_memory(
    directory: Path, connections: int, variant: str, env: dict[str, str], is_bounded: bool = True
) -> Outcome:
    """Memory before, with and after many connections. Only jemalloc returns it to the system
    (docs/decisions/0010); without jemalloc the figure is reported but not judged."""
    broker = BrokerProcess(directory, "--memory", env=env)
    await broker.start()
    if ":" in broker.http:
        await _ask(f"http://{broker.http}")
    files = descriptors(broker.pid)
    await _drop(broker, await _open(broker, 10, silent), files - TOLERANCE)  # warm up
    before = broker.memory("VmRSS")
    connected = await _open(broker, connections, silent)
    with_them = broker.memory("VmRSS")
    await _drop(broker, connected, files)
    after = await _memory_after(broker, before, SAMPLES_SECONDS if is_bounded else 0)
    await broker.stop()
    is_kept = is_bounded and after > RETURNED_SHARE * before
    problems = [f"{after:.1f} MB of {before:.1f} afterwards"] if is_kept else []
    figures = f"{variant} {before:.1f} MB before, {with_them:.1f} with them, {after:.1f} after"
    return Outcome("R-16", "memory returned", figures, tuple(problems))


async def _ask(url: str) -> None:
    """Send the requests of a dashboard, so that the API is loaded as in ordinary use."""
    async with httpx.AsyncClient(base_url=url, auth=("guest", "guest"), timeout=60) as client:
        for path in ("/api/overview", "/api/connections?page=1", "/metrics"):
            (await client.get(path)).raise_for_status()


async def _more_objects(broker: BrokerProcess, file: Path, before: int) -> float:
    """Growth of the number of objects; samples of counters live for a few seconds."""
    deadline = time.monotonic() + SAMPLES_SECONDS
    while True:
        object_growth = (await count_objects(broker, file)).objects / before - 1
        if object_growth <= MAX_OBJECT_GROWTH or time.monotonic() > deadline:
            return object_growth
        await asyncio.sleep(0.5)


async def _memory_after(broker: BrokerProcess, before: float, watch: float) -> float:
    """Memory after the allocator has returned enough, or at the deadline."""
    deadline = time.monotonic() + 2 * watch
    while time.monotonic() < deadline:
        if broker.memory("VmRSS") <= RETURNED_SHARE * before:
            break
        await asyncio.sleep(0.2)
    return broker.memory("VmRSS")


@dataclass(frozen=True, slots=True)
class _Answers:
    """How many connections answered, and their fewest heartbeats."""

    connections: int
    fewest_beats: int


async def _idle_share(broker: BrokerProcess, connected: Sequence[Raw], watch: float) -> float:
    """Percent of a core while only heartbeats are exchanged."""
    used, began = broker.processor_seconds(), time.monotonic()
    beating = asyncio.create_task(_beat(connected))
    await asyncio.sleep(watch)
    beating.cancel()
    return 100 * (broker.processor_seconds() - used) / (time.monotonic() - began)


async def _beat(connected: Sequence[Raw]) -> None:
    """Send two heartbeats per interval, spread over the connections."""
    portion = max(1, len(connected) * 2 // HEARTBEAT)
    while True:
        for start in range(0, len(connected), portion):
            for connection in connected[start : start + portion]:
                connection.send(BEAT)
            await asyncio.sleep(1)


async def _count_answers(connected: Sequence[Raw]) -> _Answers:
    """Count connections that answer, and the fewest heartbeats on one of them."""
    beats: list[int] = []
    for start in range(0, len(connected), AT_ONCE):
        some = await asyncio.gather(
            *(_answers(connection) for connection in connected[start : start + AT_ONCE])
        )
        beats += [count for count in some if count is not None]
    return _Answers(len(beats), min(beats, default=0))


async def _answers(connection: Raw) -> int | None:
    """How many heartbeats arrived before the answer; None without an answer."""
    connection.send(frame.marshal(commands.Channel.Flow(True), 1))
    beats, method = 0, await connection.next()
    while isinstance(method, Heartbeat):
        beats, method = beats + 1, await connection.next()
    return beats if isinstance(method, commands.Channel.FlowOk) else None


async def _open(broker: BrokerProcess, count: int, progress: Progress) -> list[Raw]:
    connected: list[Raw] = []
    for _ in range(0, count, AT_ONCE):
        size = min(AT_ONCE, count - len(connected))
        connected += await asyncio.gather(*(_connect(broker) for _ in range(size)))
        progress(len(connected), count)
    return connected


async def _connect(broker: BrokerProcess) -> Raw:
    raw = await Raw.connect(broker.address)
    if not await raw.log_in():
        raise RuntimeError("a connection was refused")
    return raw


async def _drop(broker: BrokerProcess, connected: list[Raw], files: int) -> None:
    for connection in connected:
        connection.drop()
    for _ in range(1200):
        if descriptors(broker.pid) <= files + TOLERANCE:
            return
        await asyncio.sleep(0.05)


async def churn(
    directory: Path, connections: int, _seed: int, progress: Progress = silent
) -> Outcome:
    """Connect, open a channel, declare an exclusive queue, close; nothing may leak."""
    notes_file = directory.with_name("objects")
    broker = BrokerProcess(directory, "--memory")
    broker.program = ("-m", "tests.torture.security.object_counts", str(notes_file))
    await broker.start()
    warm = max(connections // 5, 50)
    await _churn(broker, warm, silent)
    counts = await count_objects(broker, notes_file)
    before, files = broker.memory("VmRSS"), descriptors(broker.pid)
    began = time.monotonic()
    await _churn(broker, connections, progress)
    rate = connections / (time.monotonic() - began)
    await _drop(broker, [], files)
    growth, left = broker.memory("VmRSS") - before, descriptors(broker.pid) - files
    after = await count_objects(broker, notes_file)
    await broker.stop()  # fails if the log contains tracebacks or lost tasks
    problems = []
    if growth > (5 if connections >= LEAK_CONNECTIONS else 20):
        problems.append(f"{growth:.1f} MB more after {connections} connections")
    if abs(left) > TOLERANCE:
        problems.append(f"{left} descriptors left open")
    if after.differs(counts, TOLERANCE):
        problems.append(f"{after.difference(counts)} after the connections closed")
    figures = (
        f"{connections} connections, {rate:.0f}/s: {growth:+.1f} MB, {left:+d} descriptors, "
        f"{after.difference(counts)}"
    )
    return Outcome("R-18", "connections that are opened and closed", figures, tuple(problems))


async def _churn(broker: BrokerProcess, count: int, progress: Progress) -> None:
    done = 0

    async def worker(share: int) -> None:
        nonlocal done
        for _ in range(share):
            connection = await _connect(broker)
            connection.send(frame.marshal(commands.Queue.Declare(queue="", exclusive=True), 1))
            await connection.next()
            connection.send(frame.marshal(commands.Connection.Close(200, "", 0, 0), 0))
            await connection.next()
            connection.drop()
            done += 1
            if done % 100 == 0:
                progress(done, count)

    await asyncio.gather(*(worker(count // 10) for _ in range(10)))
