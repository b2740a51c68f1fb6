"""R-17: thousands of durable queues with bindings: the cost of an idle queue.

They are declared without waiting for each answer, bound to one topic exchange, counted after a
restart and listed by page, and messages are published that match one of all their bindings.
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
from tests.torture.process import BrokerProcess, slowness
from tests.torture.security.object_counts import ObjectCounts, count_objects
from tests.torture.security.raw import descriptors

BINDINGS = 5
EXCHANGE, FEW_EXCHANGE = "many", "few"
MAX_KIB_EACH = 20.0
AT_ONCE = 250
FEW_BINDINGS, PUBLISHES, ROUNDS = 5, 5_000, 3
TOLERANCE = 5
DECLARE_LIMIT, RESTART_LIMIT, PAGE_LIMIT, PUBLISH_RATIO = 20.0, 5.0, 0.3, 2.0
LEAK_QUEUES = 1_000
"""Queues above which their cost is larger than fluctuations of the process."""
_FRESH = itertools.count()


@dataclass(frozen=True, slots=True)
class Cost:
    """Resources that the broker uses now."""

    memory: float
    files: int
    threads: int
    objects: ObjectCounts

    @staticmethod
    async def of(broker: BrokerProcess, report: Path) -> Cost:
        memory, objects = broker.memory("VmRSS"), await count_objects(broker, report)
        return Cost(memory, descriptors(broker.pid), threads(broker.pid), objects)

    def is_more_than(self, before: Cost) -> bool:
        """Whether anything but memory has grown."""
        return (
            self.files > before.files + TOLERANCE
            or self.threads > before.threads + TOLERANCE
            or self.objects.differs(before.objects, TOLERANCE)
        )


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


async def hold_many_queues(
    directory: Path, queues: int, _seed: int, progress: Progress = silent
) -> Outcome:
    measured = queues >= LEAK_QUEUES
    http = {"LEVERET_HTTP_ENABLED": "true" if measured else "false"}
    broker, report = BrokerProcess(directory, "--http-port", "0", env=http), directory / "objects"
    broker.program = ("-m", "tests.torture.security.object_counts", str(report))
    await broker.start()
    slow, page, warm = 1.0, 0.0, min(AT_ONCE, queues // 2)
    if measured:
        await _page(broker, 1)  # imports the API
        slow = await slowness()
    began = time.monotonic()
    await _declare(broker, 0, warm, silent)
    before = await Cost.of(broker, report)
    await _declare(broker, warm, queues, progress)
    declaring = time.monotonic() - began
    after = await Cost.of(broker, report)
    few, many = await _publish_costs(broker)
    if measured:
        page = max([await _page(broker, queues) for _ in range(5)])
    await broker.stop()
    await broker.start()
    starting = broker.start_seconds
    problems = await _check(broker, queues)
    await broker.stop()
    each = (after.memory - before.memory) * 1024 / (queues - warm)
    if each > MAX_KIB_EACH and measured:
        problems.append(f"{each:.1f} KiB per queue")
    if after.is_more_than(before):
        problems.append(f"descriptors, threads, tasks or timers: {before} became {after}")
    late = [
        f"{name}: {value:.2f}, at most {limit:.2f}"
        for name, value, limit in (
            ("declaring", declaring, DECLARE_LIMIT * slow),
            ("restart", starting, RESTART_LIMIT * slow),
            ("a page of the list", page, PAGE_LIMIT * slow),
            ("CPU time of a topic publish, relative to 25 bindings", many / few, PUBLISH_RATIO),
        )
        if value > limit
    ]
    figures = (
        f"{queues} durable queues with {BINDINGS} bindings each: declared in {declaring:.1f} s, "
        f"{each:.1f} KiB each, {after.files - before.files:+d} descriptors, "
        f"{after.threads - before.threads:+d} threads, "
        f"{after.objects.difference(before.objects)}; restart {starting:.1f} s; a page of the "
        f"list at most {page * 1000:.0f} ms; a publish that matches one of {queues * BINDINGS} "
        f"bindings takes {many * 1e6:.0f} us of CPU time, {many / few:.2f} times as much as with "
        f"25 (machine {slow:.1f} times slower than idle)"
    )
    return Outcome("R-17", "idle queues", figures, tuple(problems), tuple(late))


def _name(number: int) -> str:
    return f"many-{number}"


def _keys(number: int) -> list[str]:
    return [f"k{kind}.{number}.*" for kind in range(BINDINGS - 1)] + [f"last.{number}.#"]


async def _declare(broker: BrokerProcess, first: int, last: int, progress: Progress) -> None:
    """Declare all queues without waiting for each answer."""
    client = await Client.connect(broker.address)
    await client.call(_topics(EXCHANGE), commands.Exchange.DeclareOk)
    for start in range(first, last, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, last))
        data = b"".join(
            frame.marshal(method, 1) for number in numbers for method in _methods(number)
        )
        client.write(data)
        await client.drain()
        await client.declare(_name(numbers[-1]))  # answered after all before it
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
    """CPU seconds of a publish through few bindings and through all of them.

    Both go to the same few queues, in turn, so only the matching differs. The minimum of some
    rounds is disturbed least by other load.
    """
    client = await Client.connect(broker.address)
    await client.call(_topics(FEW_EXCHANGE), commands.Exchange.DeclareOk)
    for number in range(FEW_BINDINGS):
        for key in _keys(number):
            bind = commands.Queue.Bind(queue=_name(number), exchange=FEW_EXCHANGE, routing_key=key)
            await client.call(bind, commands.Queue.BindOk)
    rounds = [
        (
            await _publish_cost(broker, client, FEW_EXCHANGE),
            await _publish_cost(broker, client, EXCHANGE),
        )
        for _ in range(ROUNDS)
    ]
    client.close()
    few, many = zip(*rounds, strict=True)
    return min(few), min(many)


async def _publish_cost(broker: BrokerProcess, client: Client, exchange: str) -> float:
    """Publish with new keys, each of which matches one binding."""
    used = broker.processor_seconds()
    for number in range(PUBLISHES):
        key = f"last.{number % FEW_BINDINGS}.{next(_FRESH)}"
        client.publish(exchange, key, b"x", PROPERTIES["transient"])
    await client.sync()
    used = broker.processor_seconds() - used
    for number in range(FEW_BINDINGS):
        await client.call(commands.Queue.Purge(queue=_name(number)), commands.Queue.PurgeOk)
    return used / PUBLISHES


async def _page(broker: BrokerProcess, queues: int) -> float:
    """Seconds for a page in the middle of the sorted list of queues."""
    middle = max(1, queues // 200)
    async with httpx.AsyncClient(
        base_url=f"http://{broker.http}", auth=("guest", "guest"), timeout=600, verify=False
    ) as api:
        began = time.monotonic()
        answer = await api.get(f"/api/queues?page={middle}&page_size=100&sort=messages")
        answer.raise_for_status()
        return time.monotonic() - began


async def _check(broker: BrokerProcess, queues: int) -> list[str]:
    """Check that all queues, and all bindings of some, exist after a restart."""
    problems = []
    client = await Client.connect(broker.address)
    for number in range(queues):
        await client.count(_name(number))  # raises if it does not exist
    checked = range(0, queues, max(1, queues // 50))
    for number in checked:
        for key in _keys(number):
            word = key.replace("*", "new").replace("#", "new.word")
            client.publish(EXCHANGE, word, b"x", PROPERTIES["persistent"])
    await client.sync()
    for number in checked:
        ready = await client.count(_name(number))
        if ready != BINDINGS:
            problems.append(f"queue {number} got {ready} messages through {BINDINGS} bindings")
    client.close()
    return problems
