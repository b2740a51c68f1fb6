"""R-05: SIGKILL during tx.commit; every transaction is there whole or not at all.

One of the targets is a log, so that a transaction is in two files.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from pamqp import commands

from tests.torture.client import PROPERTIES, Client, ConnectionGone
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.waiting import until_reaches

LOG = "tx-log"
TARGETS = ("tx-a", "tx-b", LOG)
WORK = "tx-work"
PUBLISHES, ACKS, WORKERS = 10, 5, 3
_NUMBER = struct.Struct(">Q")


@dataclass(slots=True)
class Books:
    """Which transaction acked which work, and which commits were answered."""

    acked_by: dict[int, list[int]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    work: set[int] = field(default_factory=set)
    last: int = 0

    def next(self) -> int:
        self.last += 1
        return self.last


async def kill_in_commit(
    directory: Path, cycles: int, seed: int, progress: Progress = silent
) -> Outcome:
    chance = random.Random(seed)
    broker, books = BrokerProcess(directory), Books()
    tried = torn = lost = recovered = 0
    for done in range(cycles):
        await broker.start()
        await _prepare(broker.address, books, WORKERS * 300)
        jobs = [asyncio.create_task(_commit_on(broker.address, books)) for _ in range(WORKERS)]
        target = len(books.committed) + chance.randint(1, 60)
        await until_reaches(lambda: len(books.committed), target)
        await asyncio.sleep(chance.uniform(0, 0.01))
        await broker.kill()
        await asyncio.gather(*jobs)
        await broker.start()
        found = Counter(await _take(broker.address, TARGETS))
        left = set(await _take(broker.address, (WORK,)))
        await broker.stop()
        for number, work in books.acked_by.items():
            there = (found[number], len(left.intersection(work)))
            whole, absent = there == (PUBLISHES, 0), there == (0, len(work))
            torn += not (whole or absent)
            lost += number in books.committed and not whole
            recovered += number not in books.committed and whole
        touched = {one for work in books.acked_by.values() for one in work}
        lost += len(books.work - touched - left)
        tried += len(books.acked_by)
        books.acked_by.clear()
        books.work.clear()
        progress(done + 1, cycles)
    figures = (
        f"{cycles} kills, {tried} transactions, {len(books.committed)} answered, "
        f"{recovered} whole without an answer; torn {torn}, lost {lost}"
    )
    problems = [f"{torn} torn"] if torn else []
    problems += [f"{lost} lost"] if lost else []
    if not books.committed:
        problems.append("no transaction was ever answered")
    return Outcome("R-05", "kill -9 during tx.commit", figures, tuple(problems))


async def _prepare(address: tuple[str, int], books: Books, count: int) -> None:
    done = asyncio.Event()

    def confirmed(tag: int, _multiple: bool, _accepted: bool) -> None:
        if tag == count:
            done.set()

    client = await Client.connect(address, on_confirm=confirmed)
    for queue in (*TARGETS, WORK):
        kind = {"x-queue-type": "stream"} if queue == LOG else {}
        await client.declare(queue, arguments=kind)
    await client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    for _ in range(count):
        number = books.next()
        books.work.add(number)
        client.publish("", WORK, _NUMBER.pack(number), PROPERTIES["persistent"])
    await asyncio.wait_for(done.wait(), 60)
    client.close()


async def _commit_on(address: tuple[str, int], books: Books) -> None:
    """Take five, send ten, commit; again until the broker is gone."""
    inbox: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

    def delivered(tag: int, _redelivered: bool, body: bytes) -> None:
        inbox.put_nowait((tag, _NUMBER.unpack(body)[0]))

    with contextlib.suppress(ConnectionGone, ConnectionError, TimeoutError):
        client = await Client.connect(address, on_delivery=delivered)
        await client.call(commands.Tx.Select(), commands.Tx.SelectOk)
        ending = asyncio.ensure_future(client.gone.wait())
        ending.add_done_callback(lambda _: inbox.put_nowait((0, 0)))  # nobody waits for ever
        await client.consume(WORK, ACKS)
        while True:
            taken = [await inbox.get() for _ in range(ACKS) if not client.gone.is_set()]
            if client.gone.is_set():
                return
            number = books.next()
            books.acked_by[number] = [work for _, work in taken]
            for place in range(PUBLISHES):
                target = TARGETS[place % len(TARGETS)]
                client.publish("", target, _NUMBER.pack(number), PROPERTIES["persistent"])
            client.ack(taken[-1][0], True)
            await client.call(commands.Tx.Commit(), commands.Tx.CommitOk)
            books.committed.add(number)


async def _take(address: tuple[str, int], queues: tuple[str, ...]) -> list[int]:
    """All numbers in these queues; only the log keeps them."""
    numbers: list[int] = []

    def delivered(tag: int, _redelivered: bool, body: bytes) -> None:
        numbers.append(_NUMBER.unpack(body)[0])
        client.ack(tag, True)

    client = await Client.connect(address, on_delivery=delivered)
    for queue in queues:
        want = len(numbers) + await client.count(queue)
        await client.consume(queue, 1000, arguments={"x-stream-offset": "first"})
        await until_reaches(lambda: len(numbers), want)
    await client.sync()
    client.close()
    return numbers
