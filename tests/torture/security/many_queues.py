"""R-17: thousands of durable queues with bindings: what one costs while nothing happens with it.

They are declared without waiting for each answer, bound to one topic exchange, counted after a
restart and listed by page, and messages are published that fit one of all their bindings.
"""

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
from tests.torture.security.raw import descriptors, percentile
from tests.torture.security.weigh import Weight, weigh
from tests.torture.waiting import slowness

BINDINGS = 5
EXCHANGE = "many"
KIB_EACH = 20.0
AT_ONCE = 250
TRIES = 200
SLACK = 5
DECLARE_LIMIT, RESTART_LIMIT, PAGE_LIMIT, PUBLISH_RATIO = 20.0, 5.0, 0.3, 2.0
SHOWS = 1_000
"""Queues beyond which what one costs stands out against what the process itself takes."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of the broker as it stands."""

    memory: float
    files: int
    threads: int
    weight: Weight

    @staticmethod
    async def of(broker: BrokerProcess, notes: Path) -> Cost:
        memory, weight = broker.memory("VmRSS"), await weigh(broker, notes)
        return Cost(memory, descriptors(broker.pid), threads(broker.pid), weight)

    def is_more_than(self, before: Cost) -> bool:
        """In anything but memory, of which each queue takes some."""
        return (
            self.files > before.files + SLACK
            or self.threads > before.threads + SLACK
            or self.weight.grew(before.weight, SLACK)
        )


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


async def keep_queues(
    directory: Path, queues: int, _seed: int, progress: Progress = silent
) -> Outcome:
    measured = queues >= SHOWS
    http = {"LEVERET_HTTP_ENABLED": "true" if measured else "false"}
    broker, notes = BrokerProcess(directory, "--http-port", "0", env=http), directory / "objects"
    broker.program = ("-m", "tests.torture.security.weigh", str(notes))
    await broker.start()
    slow, tries, page = 1.0, 10, 0.0
    if measured:
        await _page(broker, 1)  # the API is imported for this
        slow, tries = await slowness(), TRIES
    await _declare(broker, 0, 5, silent)
    await _publish_seconds(broker, 5, tries)  # warm up
    before = await Cost.of(broker, notes)
    few = await _publish_seconds(broker, 5, tries)
    began = time.monotonic()
    await _declare(broker, 5, queues, progress)
    declaring = time.monotonic() - began
    after = await Cost.of(broker, notes)
    many = await _publish_seconds(broker, queues, tries)
    if measured:
        page = max([await _page(broker, queues) for _ in range(5)])
    await broker.stop()
    await broker.start()
    starting = broker.start_seconds
    problems = await _check(broker, queues)
    await broker.stop()
    each = (after.memory - before.memory) * 1024 / (queues - 5)
    if each > KIB_EACH and measured:
        problems.append(f"{each:.1f} KiB for each queue")
    if after.is_more_than(before):
        problems.append(f"descriptors, threads, tasks or timers: {before} became {after}")
    late = [
        f"{what}: {value:.2f}, at most {limit:.2f}"
        for what, value, limit in (
            ("declaring", declaring, DECLARE_LIMIT * slow),
            ("restart", starting, RESTART_LIMIT * slow),
            ("a page of the list", page, PAGE_LIMIT * slow),
            ("a topic publish beside one with few bindings", many / few, PUBLISH_RATIO),
        )
        if value > limit
    ]
    figures = (
        f"{queues} durable queues with {BINDINGS} bindings each: declared in {declaring:.1f} s, "
        f"{each:.1f} KiB each, {after.files - before.files:+d} descriptors, "
        f"{after.threads - before.threads:+d} threads, "
        f"{after.weight.more_than(before.weight)}; restart {starting:.1f} s; a page of the "
        f"list at most {page * 1000:.0f} ms; a publish that fits one of {queues * BINDINGS} "
        f"bindings takes {many / few:.2f} times as long as with 25 (machine {slow:.1f} times "
        "slower than quiet)"
    )
    return Outcome("R-17", "idle queues", figures, tuple(problems), tuple(late))


def _name(number: int) -> str:
    return f"many-{number}"


def _keys(number: int) -> list[str]:
    return [f"k{kind}.{number}.*" for kind in range(BINDINGS - 1)] + [f"last.{number}.#"]


async def _declare(broker: BrokerProcess, first: int, last: int, progress: Progress) -> None:
    """All of them, without waiting for single answers."""
    client = await Client.connect(broker.address)
    declare = commands.Exchange.Declare(exchange=EXCHANGE, exchange_type="topic", durable=True)
    await client.call(declare, commands.Exchange.DeclareOk)
    for start in range(first, last, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, last))
        octets = b"".join(frame.marshal(method, 1) for one in numbers for method in _methods(one))
        client.write(octets)
        await client.drain()
        await client.declare(_name(numbers[-1]))  # answered when those before it are done
        progress(numbers[-1] + 1, last)
    client.close()


def _methods(number: int) -> list[commands.Queue.Declare | commands.Queue.Bind]:
    name = _name(number)
    return [
        commands.Queue.Declare(queue=name, durable=True, nowait=True),
        *(
            commands.Queue.Bind(queue=name, exchange=EXCHANGE, routing_key=key, nowait=True)
            for key in _keys(number)
        ),
    ]


async def _publish_seconds(broker: BrokerProcess, queues: int, tries: int) -> float:
    """The median time from a publish with a key never seen before to its confirm."""
    confirmed = asyncio.Event()
    client = await Client.connect(broker.address, on_confirm=lambda *_: confirmed.set())
    await client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    seconds = []
    for number in range(tries):
        confirmed.clear()
        began = time.monotonic()
        key = f"last.{number % queues}.{queues}.{number}"
        client.publish(EXCHANGE, key, b"x", PROPERTIES["transient"])
        await confirmed.wait()
        seconds.append(time.monotonic() - began)
    for number in range(min(tries, queues)):
        await client.call(commands.Queue.Purge(queue=_name(number)), commands.Queue.PurgeOk)
    client.close()
    return percentile(seconds, 0.5)


async def _page(broker: BrokerProcess, queues: int) -> float:
    """Seconds for one page of the list of queues, sorted, in the middle."""
    middle = max(1, queues // 200)
    async with httpx.AsyncClient(
        base_url=f"http://{broker.http}", auth=("guest", "guest"), timeout=600, verify=False
    ) as api:
        began = time.monotonic()
        answer = await api.get(f"/api/queues?page={middle}&page_size=100&sort=messages")
        answer.raise_for_status()
        return time.monotonic() - began


async def _check(broker: BrokerProcess, queues: int) -> list[str]:
    """After a restart every queue is there, and so is every binding of some."""
    problems = []
    client = await Client.connect(broker.address)
    for number in range(queues):
        await client.count(_name(number))  # raises when it is not there
    checked = range(0, queues, max(1, queues // 50))
    for number in checked:
        for key in _keys(number):
            word = key.replace("*", "new").replace("#", "new.word")
            client.publish(EXCHANGE, word, b"x", PROPERTIES["persistent"])
    await client.sync()
    for number in checked:
        got = await client.count(_name(number))
        if got != BINDINGS:
            problems.append(f"queue {number} got {got} messages through {BINDINGS} bindings")
    client.close()
    return problems
