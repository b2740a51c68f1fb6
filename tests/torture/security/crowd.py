"""R-16: thousands of idle connections. R-18: connections that come and go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from pamqp import commands, frame
from pamqp.heartbeat import Heartbeat

from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.pair import seconds_of_a_pair
from tests.torture.security.raw import Raw, descriptors
from tests.torture.security.weigh import weigh

AT_ONCE = 100
KIB_EACH = 30
IDLE_SHARE = 5.0
PAIR_RATIO = 1.5
LIFE_SECONDS = 180.0
"""From the first of them that opens until the last has been closed."""
SLACK = 5
MOST_MORE = 0.02
GIVEN_BACK = 1.2
GIVING_BACK = {
    "as it comes": {},
    "with the API in use": {"LEVERET_HTTP_ENABLED": "true", "LEVERET_HTTP_PORT": "0"},
}
SAMPLES_SECONDS = 30.0
HEARTBEAT = 60
WATCH_SECONDS = 65.0
"""Each side has to beat twice meanwhile."""
BEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
LEAK_SHOWS = 5_000
"""Connections after which a leak would stand out against what the allocator does."""


async def stay_idle(
    directory: Path,
    connections: int,
    _seed: int,
    progress: Progress = silent,
    watch: float = WATCH_SECONDS,
    tries: int = 1_000,
) -> Outcome:
    """Open them all, watch what they cost, close them, and open as many again."""
    notes_file = directory.with_name("objects")
    broker = BrokerProcess(directory, "--memory")
    broker.program = ("-m", "tests.torture.security.weigh", str(notes_file))
    await broker.start()
    files = descriptors(broker.pid)
    few = await _open(broker, 10, silent)
    alone = await seconds_of_a_pair(broker.address, tries)
    await _drop(broker, few, files - SLACK)  # warm up
    weight = await weigh(broker, notes_file)
    before, began = broker.memory("VmRSS"), time.monotonic()
    crowd = await _open(broker, connections, progress)
    opening = time.monotonic() - began
    each = (broker.memory("VmRSS") - before) * 1024 / connections
    share = await _idle_share(broker, crowd, watch)
    first_peak = broker.memory("VmRSS")
    beside = await seconds_of_a_pair(broker.address, tries)
    alive = await _alive(crowd)
    await _drop(broker, crowd, files)
    life = time.monotonic() - began
    left = descriptors(broker.pid) - files
    more = await _more_objects(broker, notes_file, weight.objects)
    after = await weigh(broker, notes_file)
    crowd = await _open(broker, connections, silent)
    growth = broker.memory("VmRSS") - first_peak
    await _drop(broker, crowd, files)
    await broker.stop()
    other = directory.with_name("other")
    others = [await give_back(other, connections, way) for way in GIVING_BACK]
    problems = [problem for one in others for problem in one.problems]
    if alive.connections < connections:
        problems.append(f"{connections - alive.connections} of the connections are gone")
    if watch > HEARTBEAT and alive.fewest_beats < 2:
        problems.append(f"{alive.fewest_beats} heartbeats in {watch} s")
    if after.grew(weight, SLACK):
        problems.append(f"{after.more_than(weight)} after they have gone")
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
    if life > LIFE_SECONDS:
        late.append(f"{life:.0f} s from the first connection to the last one's close")
    figures = (
        f"{connections} connections with a channel: {each:.1f} KiB each, {share:.1f} % of a core "
        f"in {watch:.0f} s in which both sides beat, all of them alive; opened in {opening:.0f} s, "
        f"opened, watched, asked and closed in {life:.0f} s; {growth:+.1f} MB when opened again; "
        f"{left:+d} descriptors, {after.more_than(weight)} and {more:+.1%} of "
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
        more = (await weigh(broker, file)).objects / before - 1
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


@dataclass(frozen=True, slots=True)
class _Alive:
    """Of a crowd, at the end."""

    connections: int
    fewest_beats: int


async def _idle_share(broker: BrokerProcess, crowd: Sequence[Raw], watch: float) -> float:
    """Percent of a core, while nothing happens but heartbeats of theirs and ours."""
    used, began = broker.processor_seconds(), time.monotonic()
    beating = asyncio.create_task(_beat(crowd))
    await asyncio.sleep(watch)
    beating.cancel()
    return 100 * (broker.processor_seconds() - used) / (time.monotonic() - began)


async def _beat(crowd: Sequence[Raw]) -> None:
    """Twice in the time agreed, as clients do, not all of them in the same moment."""
    portion = max(1, len(crowd) * 2 // HEARTBEAT)
    while True:
        for start in range(0, len(crowd), portion):
            for one in crowd[start : start + portion]:
                one.send(BEAT)
            await asyncio.sleep(1)


async def _alive(crowd: Sequence[Raw]) -> _Alive:
    """Who still answers, and how many heartbeats came on the connection with fewest."""
    beats: list[int] = []
    for start in range(0, len(crowd), AT_ONCE):
        some = await asyncio.gather(*(_answers(one) for one in crowd[start : start + AT_ONCE]))
        beats += [count for count in some if count is not None]
    return _Alive(len(beats), min(beats, default=0))


async def _answers(one: Raw) -> int | None:
    """How many heartbeats had come before it answered; None when it did not."""
    one.send(frame.marshal(commands.Channel.Flow(True), 1))
    beats, said = 0, await one.next()
    while isinstance(said, Heartbeat):
        beats, said = beats + 1, await one.next()
    return beats if isinstance(said, commands.Channel.FlowOk) else None


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
    """Connect, open, declare an exclusive queue, go; nothing of them must stay."""
    notes_file = directory.with_name("objects")
    broker = BrokerProcess(directory, "--memory")
    broker.program = ("-m", "tests.torture.security.weigh", str(notes_file))
    await broker.start()
    warm = max(connections // 5, 50)
    await _churn(broker, warm, silent)
    weight = await weigh(broker, notes_file)
    before, files = broker.memory("VmRSS"), descriptors(broker.pid)
    began = time.monotonic()
    await _churn(broker, connections, progress)
    rate = connections / (time.monotonic() - began)
    await _drop(broker, [], files)
    growth, left = broker.memory("VmRSS") - before, descriptors(broker.pid) - files
    after = await weigh(broker, notes_file)
    await broker.stop()  # it looks for tracebacks and lost tasks in the log
    problems = []
    if growth > (5 if connections >= LEAK_SHOWS else 20):
        problems.append(f"{growth:.1f} MB more after {connections} connections")
    if abs(left) > SLACK:
        problems.append(f"{left} descriptors left open")
    if after.grew(weight, SLACK):
        problems.append(f"{after.more_than(weight)} after they have gone")
    figures = (
        f"{connections} connections, {rate:.0f}/s: {growth:+.1f} MB, {left:+d} descriptors, "
        f"{after.more_than(weight)}"
    )
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
