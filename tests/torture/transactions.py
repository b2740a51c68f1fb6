"""R-05: SIGKILL during tx.commit; every transaction is recovered completely or not at all.

One of the targets is a log, so that a transaction is in two files. Every fourth transaction is so
large that its content is stored before its commit.
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

from tests.support.polling import wait_until_reached
from tests.torture.client import PROPERTIES, Client, ConnectionGone
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess

LOG = "tx-log"
TARGETS = ("tx-a", "tx-b", LOG)
WORK = "tx-work"
PUBLISHES, ACKS, WORKERS = 10, 5, 3
_NUMBER = struct.Struct(">Q")
LARGE_EVERY, LARGE_PUBLISHES, PADDING = 4, 30, bytes(120_000)
"""Two thirds of the messages go to queues: in these transactions, more than `STAGED_FROM` bytes."""


@dataclass(slots=True)
class Transactions:
    """The messages that each transaction acked, and the commits that were answered."""

    acked_by: dict[int, list[int]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    work: set[int] = field(default_factory=set)
    last: int = 0

    def next(self) -> int:
        self.last += 1
        return self.last


async def kill_during_commit(
    directory: Path, cycles: int, seed: int, progress: Progress = silent
) -> Outcome:
    rng = random.Random(seed)
    broker, transactions = BrokerProcess(directory), Transactions()
    tried = torn = lost = recovered = 0
    for done in range(cycles):
        await broker.start()
        await _prepare(broker.address, transactions, WORKERS * 300)
        jobs = [
            asyncio.create_task(_commit_on(broker.address, transactions)) for _ in range(WORKERS)
        ]
        target = len(transactions.committed) + rng.randint(1, 60)
        await wait_until_reached(lambda: len(transactions.committed), target)
        await asyncio.sleep(rng.uniform(0, 0.01))
        await broker.kill()
        await asyncio.gather(*jobs)
        await broker.start()
        received = Counter(await _take(broker.address, TARGETS))
        left = set(await _take(broker.address, (WORK,)))
        await broker.stop()
        for number, work in transactions.acked_by.items():
            state = (received[number], len(left.intersection(work)))
            is_whole, is_absent = state == (_publishes(number), 0), state == (0, len(work))
            torn += not (is_whole or is_absent)
            lost += number in transactions.committed and not is_whole
            recovered += number not in transactions.committed and is_whole
        touched = {message for work in transactions.acked_by.values() for message in work}
        lost += len(transactions.work - touched - left)
        tried += len(transactions.acked_by)
        transactions.acked_by.clear()
        transactions.work.clear()
        progress(done + 1, cycles)
    figures = (
        f"{cycles} kills, {tried} transactions, {len(transactions.committed)} answered, "
        f"{recovered} whole without an answer; torn {torn}, lost {lost}"
    )
    problems = [f"{torn} torn"] if torn else []
    problems += [f"{lost} lost"] if lost else []
    if not transactions.committed:
        problems.append("no transaction was ever answered")
    return Outcome("R-05", "kill -9 during tx.commit", figures, tuple(problems))


def _publishes(number: int) -> int:
    return PUBLISHES if number % LARGE_EVERY else LARGE_PUBLISHES


async def _prepare(address: tuple[str, int], transactions: Transactions, count: int) -> None:
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
        number = transactions.next()
        transactions.work.add(number)
        client.publish("", WORK, _NUMBER.pack(number), PROPERTIES["persistent"])
    await asyncio.wait_for(done.wait(), 60)
    client.close()


async def _commit_on(address: tuple[str, int], transactions: Transactions) -> None:
    """Consume five, publish ten, commit; repeat until the broker is gone."""
    inbox: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

    def delivered(tag: int, _redelivered: bool, body: bytes) -> None:
        inbox.put_nowait((tag, _NUMBER.unpack(body)[0]))

    with contextlib.suppress(ConnectionGone, ConnectionError, TimeoutError):
        client = await Client.connect(address, on_delivery=delivered)
        await client.call(commands.Tx.Select(), commands.Tx.SelectOk)
        ending = asyncio.ensure_future(client.gone.wait())
        ending.add_done_callback(lambda _: inbox.put_nowait((0, 0)))  # ends the wait below
        await client.consume(WORK, ACKS)
        while True:
            taken = [await inbox.get() for _ in range(ACKS) if not client.gone.is_set()]
            if client.gone.is_set():
                return
            number = transactions.next()
            transactions.acked_by[number] = [work for _, work in taken]
            count = _publishes(number)
            for index in range(count):
                target = TARGETS[index % len(TARGETS)]
                is_padded = count == LARGE_PUBLISHES and target != LOG
                body = _NUMBER.pack(number) + (PADDING if is_padded else b"")
                client.publish("", target, body, PROPERTIES["persistent"])
            client.ack(taken[-1][0], True)
            await client.call(commands.Tx.Commit(), commands.Tx.CommitOk)
            transactions.committed.add(number)


async def _take(address: tuple[str, int], queues: tuple[str, ...]) -> list[int]:
    """Consume all numbers of these queues; only the log keeps them."""
    numbers: list[int] = []

    def delivered(tag: int, _redelivered: bool, body: bytes) -> None:
        numbers.append(_NUMBER.unpack_from(body)[0])
        client.ack(tag, True)

    client = await Client.connect(address, on_delivery=delivered)
    for queue in queues:
        want = len(numbers) + await client.count(queue)
        offset = {"x-stream-offset": "first"} if queue == LOG else {}  # a queue refuses an offset
        await client.consume(queue, 1000, arguments=offset)
        await wait_until_reached(lambda: len(numbers), want)
    await client.sync()
    client.close()
    return numbers
