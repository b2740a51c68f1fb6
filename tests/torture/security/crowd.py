"""R-16: thousands of idle connections. R-18: connections that come and go. R-30: strangers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
from pamqp import commands, frame

from tests.torture.client import PROPERTIES, Client
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.health import notes
from tests.torture.security.raw import (
    HEADER,
    Raw,
    descriptors,
    log_in_seconds,
    percentile,
    start_ok,
)

AT_ONCE = 100
KIB_EACH = 30
IDLE_SHARE = 5.0
PAIR_RATIO = 1.5
SLACK = 5
MOST_MORE = 0.02
GIVEN_BACK = 1.2
GIVING_BACK = {
    "as it comes": {},
    "with the API in use": {"LEVERET_HTTP_ENABLED": "true", "LEVERET_HTTP_PORT": "0"},
}
SAMPLES_SECONDS = 30.0
UNAUTHENTICATED = 1_000
DOUBT_SECONDS = 0.2
LOST_TASKS = ("Task was destroyed", "never retrieved", "was never awaited")
LEAK_SHOWS = 5_000
"""Connections after which a leak would stand out against what the allocator does."""


async def stay_idle(
    directory: Path,
    connections: int,
    _seed: int,
    progress: Progress = silent,
    watch: float = 10,
    tries: int = 1_000,
) -> Outcome:
    """Open them all, watch what they cost, close them, and open as many again."""
    notes_file = directory.with_name("objects")
    broker = BrokerProcess(directory, "--memory")
    broker.program = ("-m", "tests.torture.security.weigh", str(notes_file))
    await broker.start()
    files = descriptors(broker.pid)
    few = await _open(broker, 10, silent)
    alone = await _pair_seconds(broker, tries)
    await _drop(broker, few, files - SLACK)  # warm up
    objects = int(await notes(broker, notes_file))
    before = broker.memory("VmRSS")
    crowd = await _open(broker, connections, progress)
    each = (broker.memory("VmRSS") - before) * 1024 / connections
    used, began = broker.processor_seconds(), time.monotonic()
    await asyncio.sleep(watch)
    share = 100 * (broker.processor_seconds() - used) / (time.monotonic() - began)
    first_peak = broker.memory("VmRSS")
    beside = await _pair_seconds(broker, tries)
    await _drop(broker, crowd, files)
    left = descriptors(broker.pid) - files
    more = await _more_objects(broker, notes_file, objects)
    crowd = await _open(broker, connections, silent)
    growth = broker.memory("VmRSS") - first_peak
    await _drop(broker, crowd, files)
    await broker.stop()
    other = directory.with_name("other")
    others = [await give_back(other, connections, way) for way in GIVING_BACK]
    problems = [problem for one in others for problem in one.problems]
    if each > KIB_EACH:
        problems.append(f"{each:.1f} KiB for each connection")
    if abs(left) > SLACK:
        problems.append(f"{left} descriptors left open")
    if more > MOST_MORE:
        problems.append(f"{more:.1%} more objects after they have gone")
    if growth > 5 + first_peak * 0.1:
        problems.append(f"{growth:.1f} MB more the second time")
    late = [f"idle processor share {share:.1f} %"] if share > IDLE_SHARE else []
    if beside > PAIR_RATIO * alone:
        late.append(f"a pair's p99 is {beside / alone:.1f} times what it is beside 10")
    figures = (
        f"{connections} connections with a channel: {each:.1f} KiB each, {share:.1f} % of a core "
        f"idle, {growth:+.1f} MB when opened again; {left:+d} descriptors and {more:+.1%} of "
        f"objects after they have gone; a pair's p99 {beside * 1000:.1f} ms beside them, "
        f"{alone * 1000:.1f} ms beside 10; " + "; ".join(one.figures for one in others)
    )
    return Outcome("R-16", "idle connections", figures, tuple(problems), tuple(late))


async def give_back(directory: Path, connections: int, way: str) -> Outcome:
    """What a crowd that has gone leaves of its memory."""
    broker = BrokerProcess(directory, "--memory", env=GIVING_BACK[way])
    await broker.start()
    if ":" in broker.http:
        await _ask(f"http://{broker.http}")
    files = descriptors(broker.pid)
    await _drop(broker, await _open(broker, 10, silent), files - SLACK)  # warm up
    before = broker.memory("VmRSS")
    crowd = await _open(broker, connections, silent)
    with_them = broker.memory("VmRSS")
    await _drop(broker, crowd, files)
    after = await _memory_after(broker, before, SAMPLES_SECONDS)
    await broker.stop()
    problems = [f"{after:.1f} MB of {before:.1f} afterwards"] if after > GIVEN_BACK * before else []
    figures = f"{way} {before:.1f} MB before, {with_them:.1f} with them, {after:.1f} after"
    return Outcome("R-16", "memory given back", figures, tuple(problems))


async def _ask(url: str) -> None:
    """What a dashboard asks for, so that the API is there as in ordinary use."""
    async with httpx.AsyncClient(base_url=url, auth=("guest", "guest"), timeout=60) as client:
        for path in ("/api/overview", "/api/connections?page=1", "/metrics"):
            (await client.get(path)).raise_for_status()


async def _more_objects(broker: BrokerProcess, file: Path, before: int) -> float:
    """The share of objects that stays; samples of counters hold some for a few seconds."""
    deadline = time.monotonic() + SAMPLES_SECONDS
    while True:
        more = int(await notes(broker, file)) / before - 1
        if more <= MOST_MORE or time.monotonic() > deadline:
            return more
        await asyncio.sleep(0.5)


async def _memory_after(broker: BrokerProcess, before: float, watch: float) -> float:
    """When the broker has tidied up after a crowd, as far as it was one."""
    deadline = time.monotonic() + 2 * watch
    while time.monotonic() < deadline:
        if broker.memory("VmRSS") <= GIVEN_BACK * before:
            break
        await asyncio.sleep(0.2)
    return broker.memory("VmRSS")


async def _pair_seconds(broker: BrokerProcess, tries: int) -> float:
    """The p99 of the time from a publish to its delivery, one at a time."""
    came = asyncio.Event()
    client = await Client.connect(broker.address, on_delivery=lambda *_: came.set())
    declare = commands.Queue.Declare(queue="", exclusive=True)
    queue = (await client.call(declare, commands.Queue.DeclareOk)).queue
    await client.consume(queue, 0, no_ack=True)
    seconds = []
    for _ in range(tries):
        came.clear()
        began = time.monotonic()
        client.publish("", queue, b"x", PROPERTIES["transient"])
        await came.wait()
        seconds.append(time.monotonic() - began)
    client.close()
    return percentile(seconds, 0.99)


async def _open(broker: BrokerProcess, count: int, progress: Progress) -> list[Raw]:
    crowd: list[Raw] = []
    for _ in range(0, count, AT_ONCE):
        size = min(AT_ONCE, count - len(crowd))
        crowd += await asyncio.gather(*(_one(broker) for _ in range(size)))
        progress(len(crowd), count)
    return crowd


async def _one(broker: BrokerProcess) -> Raw:
    raw = await Raw.connect(broker.address)
    if not await raw.log_in():
        raise RuntimeError("a connection was refused")
    return raw


async def _drop(broker: BrokerProcess, crowd: list[Raw], files: int) -> None:
    for one in crowd:
        one.drop()
    for _ in range(1200):
        if descriptors(broker.pid) <= files + SLACK:
            return
        await asyncio.sleep(0.05)


async def churn(
    directory: Path, connections: int, _seed: int, progress: Progress = silent
) -> Outcome:
    """Connect, open, declare an exclusive queue, go; memory and descriptors must not grow."""
    broker = BrokerProcess(directory, "--memory")
    await broker.start()
    warm = max(connections // 5, 50)
    await _churn(broker, warm, silent)
    before, files = broker.memory("VmRSS"), descriptors(broker.pid)
    began = time.monotonic()
    await _churn(broker, connections, progress)
    rate = connections / (time.monotonic() - began)
    await _drop(broker, [], files)
    growth, left = broker.memory("VmRSS") - before, descriptors(broker.pid) - files
    await broker.stop()  # it looks for tracebacks in the log
    problems = [f"the log says: {words}" for words in LOST_TASKS if words in broker.said()]
    if growth > (5 if connections >= LEAK_SHOWS else 20):
        problems.append(f"{growth:.1f} MB more after {connections} connections")
    if abs(left) > SLACK:
        problems.append(f"{left} descriptors left open")
    figures = f"{connections} connections, {rate:.0f}/s: {growth:+.1f} MB, {left:+d} descriptors"
    return Outcome("R-18", "connections that come and go", figures, tuple(problems))


async def _churn(broker: BrokerProcess, count: int, progress: Progress) -> None:
    done = 0

    async def worker(share: int) -> None:
        nonlocal done
        for _ in range(share):
            one = await _one(broker)
            one.send(frame.marshal(commands.Queue.Declare(queue="", exclusive=True), 1))
            await one.next()
            one.send(frame.marshal(commands.Connection.Close(200, "", 0, 0), 0))
            await one.next()
            one.drop()
            done += 1
            if done % 100 == 0:
                progress(done, count)

    await asyncio.gather(*(worker(count // 10) for _ in range(10)))


STALLS = (b"", HEADER[:5], HEADER, HEADER + start_ok()[:20])
"""Nothing, half a header, no start-ok, half of one."""


async def keep_silent(
    directory: Path, strangers: int, _seed: int, progress: Progress = silent, seconds: float = 10
) -> Outcome:
    """Twice as many as may be, that do not log in: dropped in time, and others get in meanwhile."""
    most = min(UNAUTHENTICATED, strangers // 2)
    broker = BrokerProcess(directory, "--memory")
    broker.settings = (
        f"handshake_timeout={seconds}",
        f"unauthenticated_max={most}",
        "unauthenticated_max_per_address=256",
    )
    await broker.start()
    before = broker.memory("VmRSS")
    quiet = await log_in_seconds(broker.address)
    stays, canary = await _stall(broker, strangers, seconds, progress)
    stays = [stay for stay in stays if stay.seconds > seconds / 2]
    kept, at_once = [stay.seconds for stay in stays], _most_at_once(stays)
    memory = broker.memory() - before
    await broker.stop()
    problems, late = [], []
    if at_once > most:
        problems.append(f"{at_once} strangers were kept at once")
    if memory > 64 / 1024 * most + 10:
        problems.append(f"{memory:.0f} MB for strangers")
    if canary == float("inf"):
        problems.append("nobody else could log in")
    elif canary > 1 + 3 * quiet:
        late.append(f"a canary took {canary:.2f} s to log in")
    if kept and (max(kept) > seconds + 1.5 or min(kept) < seconds - 1):
        late.append(f"dropped after {min(kept):.1f} to {max(kept):.1f} s")
    figures = (
        f"{strangers} strangers from 8 addresses: {len(kept)} kept for "
        f"{percentile(kept, 0.5):.1f} s, {at_once} of them at a time, the rest cut off at once, "
        f"{memory:.1f} MB; a canary logs in in {canary * 1000:.0f} ms ({quiet * 1000:.0f} ms alone)"
    )
    return Outcome("R-30", "strangers", figures, tuple(problems), tuple(late))


@dataclass(frozen=True, slots=True)
class Stay:
    began: float
    seconds: float


async def _stall(
    broker: BrokerProcess, strangers: int, seconds: float, progress: Progress
) -> tuple[list[Stay], float]:
    """How long each was kept, and how long a canary took meanwhile."""
    crowd: list[Raw] = []
    waiting: list[asyncio.Task[Stay]] = []
    for number in range(strangers):
        local = (f"127.0.1.{number % 8 + 1}", 0)
        one = await Raw.connect(broker.address, local_addr=local)
        one.send(STALLS[number % len(STALLS)])
        crowd.append(one)
        waiting.append(asyncio.create_task(_stay(one, time.monotonic())))
        progress(number + 1, strangers)
    await asyncio.sleep(seconds / 4)
    canary = await log_in_seconds(broker.address, local_addr=("127.0.2.1", 0))
    stays = list(await asyncio.gather(*waiting))
    for one in crowd:
        one.drop()
    return stays, canary


async def _stay(one: Raw, began: float) -> Stay:
    await one.ends()
    return Stay(began, time.monotonic() - began)


def _most_at_once(stays: list[Stay]) -> int:
    """A moment's doubt about when exactly each began and ended is theirs."""
    moments = [(stay.began + DOUBT_SECONDS, 1) for stay in stays]
    moments += [(stay.began + stay.seconds - DOUBT_SECONDS, -1) for stay in stays]
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most
