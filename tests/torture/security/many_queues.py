"""R-17: thousands of durable queues with bindings: what one costs while nothing happens with it.

They are declared without waiting for each answer, bound to one topic exchange, counted after a
restart and listed by page, and messages are published that fit one of all their bindings.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
from pamqp import commands, frame

from tests.torture.client import PROPERTIES, Client
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.raw import descriptors
from tests.torture.security.weigh import Weight, weigh
from tests.torture.waiting import slowness

BINDINGS = 5
EXCHANGE, WITH_FEW = "many", "few"
KIB_EACH = 20.0
AT_ONCE = 250
FEW, PUBLISHES, ROUNDS = 5, 5_000, 3
SLACK = 5
DECLARE_LIMIT, RESTART_LIMIT, PAGE_LIMIT, PUBLISH_RATIO = 20.0, 5.0, 0.3, 2.0
SHOWS = 1_000
"""Queues beyond which what one costs stands out against what the process itself takes."""
_FRESH = itertools.count()


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
    slow, page, warm = 1.0, 0.0, min(AT_ONCE, queues // 2)
    if measured:
        await _page(broker, 1)  # the API is imported for this
        slow = await slowness()
    began = time.monotonic()
    await _declare(broker, 0, warm, silent)
    before = await Cost.of(broker, notes)
    await _declare(broker, warm, queues, progress)
    declaring = time.monotonic() - began
    after = await Cost.of(broker, notes)
    few, many = await _publish_costs(broker)
    if measured:
        page = max([await _page(broker, queues) for _ in range(5)])
    await broker.stop()
    await broker.start()
    starting = broker.start_seconds
    problems = await _check(broker, queues)
    await broker.stop()
    each = (after.memory - before.memory) * 1024 / (queues - warm)
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
            ("processor time of a topic publish by that with 25", many / few, PUBLISH_RATIO),
        )
        if value > limit
    ]
    figures = (
        f"{queues} durable queues with {BINDINGS} bindings each: declared in {declaring:.1f} s, "
        f"{each:.1f} KiB each, {after.files - before.files:+d} descriptors, "
        f"{after.threads - before.threads:+d} threads, "
        f"{after.weight.more_than(before.weight)}; restart {starting:.1f} s; a page of the "
        f"list at most {page * 1000:.0f} ms; a publish that fits one of {queues * BINDINGS} "
        f"bindings takes {many * 1e6:.0f} us of processor, {many / few:.2f} times as much as with "
        f"25 (machine {slow:.1f} times slower than quiet)"
    )
    return Outcome("R-17", "idle queues", figures, tuple(problems), tuple(late))


def _name(number: int) -> str:
    return f"many-{number}"


def _keys(number: int) -> list[str]:
    return [f"k{kind}.{number}.*" for kind in range(BINDINGS - 1)] + [f"last.{number}.#"]


async def _declare(broker: BrokerProcess, first: int, last: int, progress: Progress) -> None:
    """All of them, without waiting for single answers."""
    client = await Client.connect(broker.address)
    await client.call(_topics(EXCHANGE), commands.Exchange.DeclareOk)
    for start in range(first, last, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, last))
        octets = b"".join(frame.marshal(method, 1) for one in numbers for method in _methods(one))
        client.write(octets)
        await client.drain()
        await client.declare(_name(numbers[-1]))  # answered when those before it are done
        progress(numbers[-1] + 1, last)
    client.close()


def _topics(name: str) -> commands.Exchange.Declare:
    return commands.Exchange.Declare(exchange=name, exchange_type="topic", durable=True)


def _methods(number: int) -> list[commands.Queue.Declare | commands.Queue.Bind]:
    name = _name(number)
    return [
        commands.Queue.Declare(queue=name, durable=True, nowait=True),
        *(
            commands.Queue.Bind(queue=name, exchange=EXCHANGE, routing_key=key, nowait=True)
            for key in _keys(number)
        ),
    ]


async def _publish_costs(broker: BrokerProcess) -> tuple[float, float]:
    """Seconds of processor for a publish through few bindings and through all of them.

    Both to the same few queues, in turns: it is the matching that differs. The least of some rounds
    is what the rest of the machine has disturbed least.
    """
    client = await Client.connect(broker.address)
    await client.call(_topics(WITH_FEW), commands.Exchange.DeclareOk)
    for number in range(FEW):
        for key in _keys(number):
            bind = commands.Queue.Bind(queue=_name(number), exchange=WITH_FEW, routing_key=key)
            await client.call(bind, commands.Queue.BindOk)
    rounds = [
        (
            await _publish_cost(broker, client, WITH_FEW),
            await _publish_cost(broker, client, EXCHANGE),
        )
        for _ in range(ROUNDS)
    ]
    client.close()
    few, many = zip(*rounds, strict=True)
    return min(few), min(many)


async def _publish_cost(broker: BrokerProcess, client: Client, exchange: str) -> float:
    """With keys never seen before, each of which fits one binding."""
    used = broker.processor_seconds()
    for number in range(PUBLISHES):
        key = f"last.{number % FEW}.{next(_FRESH)}"
        client.publish(exchange, key, b"x", PROPERTIES["transient"])
    await client.sync()
    used = broker.processor_seconds() - used
    for number in range(FEW):
        await client.call(commands.Queue.Purge(queue=_name(number)), commands.Queue.PurgeOk)
    return used / PUBLISHES


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
