"""Clients of the long soak: publishers, takers, one who gets, and connections that come and go.

All live in one loop and write into one `Books`. A client leaves and comes back by itself; it ends
when its broker was killed (`Life.over`) or when it has nothing left to do.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from pamqp import commands

from tests.torture.checker import Ledger, make_body
from tests.torture.client import PROPERTIES, Client, ConnectionGone, OnConfirm, OnDelivery

PERSISTENT, TRANSIENT = PROPERTIES["persistent"], PROPERTIES["transient"]
_PAIR = b"\x04kindS\x00\x00\x00\x04soak"
WITH_HEADER = b"\x30\x00" + len(_PAIR).to_bytes(4, "big") + _PAIR + b"\x02"
WINDOW = 200
GRAVE, LOG = "grave", "records"
STRICT, LOSSY, DYING, DEAD, LOGGED, FLYING = "strict", "lossy", "dying", "dead", "logged", "flying"
GONE = (ConnectionGone, ConnectionError, TimeoutError)


@dataclass(frozen=True, slots=True)
class Flow:
    """One publisher: where it sends, and in which queues that comes out."""

    number: int
    exchange: str
    key: str
    queues: tuple[str, ...]
    properties: bytes = PERSISTENT
    burst: int = 10
    pause: float = 0.2


@dataclass(frozen=True, slots=True)
class Habit:
    """How a queue is consumed: seconds for each message, shares that go back or are rejected."""

    queue: str
    ledger: str
    prefetch: int = 50
    pause: float = 0.0
    requeued: float = 0.0
    rejected: float = 0.0
    no_ack: bool = False
    gets: bool = False
    arguments: Any = None


@dataclass(slots=True)
class Books:
    """What all clients saw, over all lives of the broker."""

    ledgers: dict[str, Ledger] = field(
        default_factory=lambda: {
            kind: Ledger() for kind in (STRICT, LOSSY, DYING, DEAD, LOGGED, FLYING)
        }
    )
    nacked: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def confirmed(self) -> int:
        return sum(len(ledger.confirmed) for ledger in self.ledgers.values())


@dataclass(slots=True)
class Life:
    """One life of the broker, from its start to its end."""

    address: tuple[str, int]
    over: asyncio.Event = field(default_factory=asyncio.Event)
    still: asyncio.Event = field(default_factory=asyncio.Event)
    """Publishers send no more."""
    held: bool = False
    """Takers keep what they have."""


@asynccontextmanager
async def _connection(
    kind: type[Client],
    books: Books,
    life: Life,
    who: str,
    on_confirm: OnConfirm | None = None,
    on_delivery: OnDelivery | None = None,
) -> AsyncIterator[Client]:
    """Dropped at the end; that the broker closes it is always wrong."""
    client = await kind.connect(life.address, on_confirm, on_delivery)
    books.connections += 1
    try:
        yield client
    finally:
        if client.closed_with is not None:
            books.problems.append(f"{who} was closed: {client.closed_with}")
        client.close()


def _ended(client: Client, life: Life) -> bool:
    return life.over.is_set() or client.gone.is_set() or client.closed_with is not None


async def publish(flow: Flow, kinds: dict[str, str], books: Books, life: Life, seed: int) -> None:
    chance = random.Random(f"{seed} publisher {flow.number}")
    ledgers = [(books.ledgers[kinds[queue]], queue) for queue in flow.queues]
    if kinds[flow.queues[0]] == DYING:
        ledgers.append((books.ledgers[DEAD], GRAVE))
    while not (life.over.is_set() or life.still.is_set()):
        with suppress(*GONE):
            await _publish_for_a_while(flow, ledgers, books, life, chance.randint(20, 200))
        await asyncio.sleep(0.05)


async def _publish_for_a_while(
    flow: Flow, ledgers: list[tuple[Ledger, str]], books: Books, life: Life, bursts: int
) -> None:
    unconfirmed: dict[int, int] = {}
    tag = 0

    def decided(upto: int, multiple: bool, accepted: bool) -> None:
        tags = [one for one in unconfirmed if one <= upto] if multiple else [upto]
        for one in tags:
            sequence = unconfirmed.pop(one)
            books.nacked[flow.queues[0]] += not accepted
            for ledger, queue in ledgers:
                if accepted and queue != GRAVE:
                    ledger.was_confirmed(queue, flow.number, sequence)

    async with _connection(Client, books, life, f"publisher {flow.number}", decided) as client:
        await client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
        while bursts and not (life.still.is_set() or _ended(client, life)):
            if len(unconfirmed) < WINDOW:
                bursts -= 1
                bodies = []
                for _ in range(flow.burst):
                    tag += 1
                    sequences = {ledger.will_send(queue, flow.number) for ledger, queue in ledgers}
                    (unconfirmed[tag],) = sequences
                    bodies.append(make_body(flow.number, unconfirmed[tag], 200))
                client.publish_all(flow.exchange, flow.key, bodies, flow.properties)
            await asyncio.sleep(flow.pause)
        while unconfirmed and not _ended(client, life):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class _Polling(Client):
    """A client whose gets are delivered like anything else."""

    def _method(self, data: bytes) -> None:
        if data[7:11] == b"\x00\x3c\x00\x47":  # get-ok
            self._delivery = (int.from_bytes(data[11:19], "big"), data[19] == 1)
        elif data[7:11] != b"\x00\x3c\x00\x48":  # not get-empty
            super()._method(data)


async def take(habit: Habit, books: Books, life: Life, seed: int) -> None:
    """Visits of a few seconds, one after the other."""
    chance = random.Random(f"{seed} {habit.queue}")
    while not life.over.is_set():
        with suppress(*GONE):
            await _visit(habit, books, life, chance)
        await asyncio.sleep(0.05)


async def _visit(habit: Habit, books: Books, life: Life, chance: random.Random) -> None:
    waiting: list[int] = []
    ledger = books.ledgers[habit.ledger]

    def delivered(tag: int, redelivered: bool, body: bytes) -> None:
        ledger.was_delivered(habit.queue, body, redelivered)
        waiting.append(tag)

    who = f"taker of {habit.queue}"
    async with _connection(_Polling, books, life, who, None, delivered) as client:
        if not habit.gets:
            await client.consume(habit.queue, habit.prefetch, habit.no_ack, habit.arguments)
        clock = asyncio.get_running_loop().time
        leaves = clock() + chance.uniform(3, 15)
        while not _ended(client, life) and (life.held or clock() < leaves):
            if not life.held:
                if habit.gets:
                    await _get(client, habit.queue, waiting.__len__)
                await _settle(client, habit, waiting, chance)
            await asyncio.sleep(0.02)
        # Its answer means that what was not settled is back: the next visit must not overtake it.
        await client.call(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)


async def _get(client: Client, queue: str, count: Callable[[], int]) -> None:
    for _ in range(20):
        before = count()
        client.send(commands.Basic.Get(queue=queue))
        await client.sync()
        if count() == before:
            break


async def _settle(client: Client, habit: Habit, waiting: list[int], chance: random.Random) -> None:
    tags, waiting[:] = waiting[:], []
    if habit.no_ack:
        return
    for tag in tags:
        if habit.pause:
            await asyncio.sleep(habit.pause)
        luck = chance.random()
        if luck < habit.requeued:
            client.send(commands.Basic.Nack(tag, False, True))
        elif luck < habit.requeued + habit.rejected:
            client.send(commands.Basic.Reject(tag, False))
        else:
            client.ack(tag, False)


async def come_and_go(books: Books, life: Life) -> None:
    """Connections with a queue of their own, that end without a word."""
    while not (life.over.is_set() or life.still.is_set()):
        with suppress(*GONE):
            async with _connection(Client, books, life, "a short connection") as client:
                declare = commands.Queue.Declare(exclusive=True)
                made = await client.call(declare, commands.Queue.DeclareOk)
                await client.consume(made.queue, 10)
                client.publish_all("", made.queue, [b"x" * 100] * 5, TRANSIENT)
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
