"""R-06: SIGKILL while messages expire, are rejected or overflow to a dead-letter queue."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pamqp import commands

from tests.support.polling import wait_until_async
from tests.torture.client import PROPERTIES, Client, ConnectionGone
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess

DEAD_LETTER_QUEUE, EXPIRING, REJECTED, OVERFLOWING = (
    "dead-letters",
    "expiring",
    "rejected",
    "overflowing",
)
_TO_DEAD_LETTER_QUEUE = {
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": DEAD_LETTER_QUEUE,
}
SOURCES: dict[str, Any] = {
    EXPIRING: {**_TO_DEAD_LETTER_QUEUE, "x-message-ttl": 150},
    REJECTED: _TO_DEAD_LETTER_QUEUE,
    OVERFLOWING: {**_TO_DEAD_LETTER_QUEUE, "x-max-length": 50},
}
_NUMBER = struct.Struct(">Q")


@dataclass(slots=True)
class Published:
    sent: int = 0
    confirmed: set[int] = field(default_factory=set)

    def next(self) -> int:
        self.sent += 1
        return self.sent


async def kill_while_dead_lettering(
    directory: Path, cycles: int, seed: int, per_cycle: int = 3_000, progress: Progress = silent
) -> Outcome:
    rng, published = random.Random(seed), Published()
    broker = BrokerProcess(directory)
    moved = lost = doubled = 0
    for done in range(cycles):
        await broker.start()
        await _declare(broker.address)
        jobs = [
            asyncio.create_task(_publish(broker.address, published, per_cycle)),
            asyncio.create_task(_reject(broker.address)),
        ]
        await wait_until_async(lambda: bool(published.confirmed))
        await asyncio.sleep(rng.uniform(0.2, 0.2 + per_cycle / 5_000))
        await broker.kill()
        await asyncio.gather(*jobs)
        await broker.start()
        places = await _take_all(broker.address)
        await broker.stop()
        received = sum(places.values(), Counter())
        moved += len(places[DEAD_LETTER_QUEUE])
        lost += len(published.confirmed - received.keys())
        doubled += sum(count > 1 for count in received.values())
        published.confirmed.clear()
        progress(done + 1, cycles)
    figures = (
        f"{cycles} kills, {published.sent} sent, {moved} dead-lettered; "
        f"lost {lost}, duplicated {doubled}"
    )
    problems = [f"{lost} lost"] if lost else []
    problems += [f"{doubled} in two queues"] if doubled else []
    if not moved:
        problems.append("nothing was dead-lettered")
    return Outcome("R-06", "kill -9 while dead-lettering", figures, tuple(problems))


async def _declare(address: tuple[str, int]) -> None:
    client = await Client.connect(address)
    await client.declare(DEAD_LETTER_QUEUE)
    for queue, arguments in SOURCES.items():
        await client.call(
            commands.Queue.Declare(0, queue, durable=True, arguments=arguments),
            commands.Queue.DeclareOk,
        )
    client.close()


async def _publish(address: tuple[str, int], published: Published, count: int) -> None:
    numbers: list[int] = []
    last = 0

    def confirmed(tag: int, multiple: bool, is_ack: bool) -> None:
        nonlocal last
        chosen = numbers[last:tag] if multiple else numbers[tag - 1 : tag]
        last = max(last, tag) if multiple else last
        if is_ack:
            published.confirmed.update(chosen)

    with contextlib.suppress(ConnectionGone, ConnectionError, TimeoutError):
        client = await Client.connect(address, on_confirm=confirmed)
        await client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
        for start in range(0, count, 100):
            for index in range(start, min(start + 100, count)):
                numbers.append(published.next())
                queue = tuple(SOURCES)[index % len(SOURCES)]
                client.publish("", queue, _NUMBER.pack(numbers[-1]), PROPERTIES["persistent"])
            await asyncio.sleep(0.005)
        await client.gone.wait()


async def _reject(address: tuple[str, int]) -> None:
    with contextlib.suppress(ConnectionGone, ConnectionError, TimeoutError):
        waiting: list[int] = []
        client = await Client.connect(
            address, on_delivery=lambda tag, _redelivered, _body: waiting.append(tag)
        )
        await client.consume(REJECTED, 50)
        while not client.gone.is_set():
            while waiting:
                client.send(commands.Basic.Reject(waiting.pop(0), False))
            await asyncio.sleep(0.002)


async def _take_all(address: tuple[str, int]) -> dict[str, Counter[int]]:
    """All messages of every queue, after the expiring queue is empty."""
    client = await Client.connect(address)
    async with asyncio.timeout(120):
        while await client.count(EXPIRING):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    client.close()
    return {queue: await _take(address, queue) for queue in (DEAD_LETTER_QUEUE, *SOURCES)}


async def _take(address: tuple[str, int], queue: str) -> Counter[int]:
    numbers: Counter[int] = Counter()

    def delivered(_tag: int, _redelivered: bool, body: bytes) -> None:
        numbers[_NUMBER.unpack(body)[0]] += 1

    client = await Client.connect(address, on_delivery=delivered)
    want = await client.count(queue)
    await client.consume(queue, 0, no_ack=True)
    await wait_until_async(lambda: numbers.total() >= want, 120)
    await client.sync()
    client.close()
    return numbers
