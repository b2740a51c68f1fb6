"""Clients of the long soak: publishers, consumers, a polling client, short connections.

All run in one event loop and share one `Observations`. Clients disconnect and reconnect by
themselves; a client ends when its broker is killed (`BrokerRun.ended`) or has nothing left to do.
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
DEAD_LETTER_QUEUE, LOG = "dead-letters", "records"
STRICT, LOSSY, DEAD_LETTERING, DEAD_LETTERED, LOGGED, IN_MEMORY = (
    "strict",
    "lossy",
    "dead-lettering",
    "dead-lettered",
    "logged",
    "in-memory",
)
GONE = (ConnectionGone, ConnectionError, TimeoutError)


@dataclass(frozen=True, slots=True)
class PublisherPlan:
    """One publisher: where it publishes, and the queues that get its messages."""

    number: int
    exchange: str
    key: str
    queues: tuple[str, ...]
    properties: bytes = PERSISTENT
    burst: int = 10
    pause: float = 0.2


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    """How a queue is consumed: seconds per message, shares that are requeued or rejected."""

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
class Observations:
    """What all clients saw, over all runs of the broker."""

    ledgers: dict[str, Ledger] = field(
        default_factory=lambda: {
            kind: Ledger()
            for kind in (STRICT, LOSSY, DEAD_LETTERING, DEAD_LETTERED, LOGGED, IN_MEMORY)
        }
    )
    nacked: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def confirmed(self) -> int:
        return sum(len(ledger.confirmed) for ledger in self.ledgers.values())


@dataclass(slots=True)
class BrokerRun:
    """One run of the broker, from its start to its end."""

    address: tuple[str, int]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    publishers_stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when publishers must stop."""
    consumers_paused: bool = False
    """While true, consumers do not settle messages."""


@asynccontextmanager
async def _connection(
    kind: type[Client],
    observations: Observations,
    broker_run: BrokerRun,
    description: str,
    on_confirm: OnConfirm | None = None,
    on_delivery: OnDelivery | None = None,
) -> AsyncIterator[Client]:
    """A connection that is dropped at the end; it is a problem if the broker closes it."""
    client = await kind.connect(broker_run.address, on_confirm, on_delivery)
    observations.connections += 1
    try:
        yield client
    finally:
        if client.closed_with is not None:
            observations.problems.append(f"{description} was closed: {client.closed_with}")
        client.close()


def _ended(client: Client, broker_run: BrokerRun) -> bool:
    return broker_run.ended.is_set() or client.gone.is_set() or client.closed_with is not None


async def publish(
    plan: PublisherPlan,
    kinds: dict[str, str],
    observations: Observations,
    broker_run: BrokerRun,
    seed: int,
) -> None:
    rng = random.Random(f"{seed} publisher {plan.number}")
    ledgers = [(observations.ledgers[kinds[queue]], queue) for queue in plan.queues]
    if kinds[plan.queues[0]] == DEAD_LETTERING:
        ledgers.append((observations.ledgers[DEAD_LETTERED], DEAD_LETTER_QUEUE))
    while not (broker_run.ended.is_set() or broker_run.publishers_stopped.is_set()):
        with suppress(*GONE):
            await _publish_for_a_while(
                plan, ledgers, observations, broker_run, rng.randint(20, 200)
            )
        await asyncio.sleep(0.05)


async def _publish_for_a_while(
    plan: PublisherPlan,
    ledgers: list[tuple[Ledger, str]],
    observations: Observations,
    broker_run: BrokerRun,
    bursts: int,
) -> None:
    unconfirmed: dict[int, int] = {}
    tag = 0

    def decided(upto: int, multiple: bool, accepted: bool) -> None:
        tags = [open_tag for open_tag in unconfirmed if open_tag <= upto] if multiple else [upto]
        for open_tag in tags:
            sequence = unconfirmed.pop(open_tag)
            observations.nacked[plan.queues[0]] += not accepted
            for ledger, queue in ledgers:
                if accepted and queue != DEAD_LETTER_QUEUE:
                    ledger.was_confirmed(queue, plan.number, sequence)

    async with _connection(
        Client, observations, broker_run, f"publisher {plan.number}", decided
    ) as client:
        await client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
        while bursts and not (broker_run.publishers_stopped.is_set() or _ended(client, broker_run)):
            if len(unconfirmed) < WINDOW:
                bursts -= 1
                bodies = []
                for _ in range(plan.burst):
                    tag += 1
                    sequences = {ledger.will_send(queue, plan.number) for ledger, queue in ledgers}
                    (unconfirmed[tag],) = sequences
                    bodies.append(make_body(plan.number, unconfirmed[tag], 200))
                client.publish_all(plan.exchange, plan.key, bodies, plan.properties)
            await asyncio.sleep(plan.pause)
        while unconfirmed and not _ended(client, broker_run):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class _Polling(Client):
    """A client that treats the messages of basic.get like deliveries."""

    def _method(self, data: bytes) -> None:
        if data[7:11] == b"\x00\x3c\x00\x47":  # get-ok
            self._delivery = (int.from_bytes(data[11:19], "big"), data[19] == 1)
        elif data[7:11] != b"\x00\x3c\x00\x48":  # not get-empty
            super()._method(data)


async def consume(
    plan: ConsumerPlan, observations: Observations, broker_run: BrokerRun, seed: int
) -> None:
    """Consume for a few seconds at a time, again and again."""
    rng = random.Random(f"{seed} {plan.queue}")
    while not broker_run.ended.is_set():
        with suppress(*GONE):
            await _consume_for_a_while(plan, observations, broker_run, rng)
        await asyncio.sleep(0.05)


async def _consume_for_a_while(
    plan: ConsumerPlan, observations: Observations, broker_run: BrokerRun, rng: random.Random
) -> None:
    waiting: list[int] = []
    ledger = observations.ledgers[plan.ledger]

    def delivered(tag: int, redelivered: bool, body: bytes) -> None:
        ledger.was_delivered(plan.queue, body, redelivered)
        waiting.append(tag)

    description = f"consumer of {plan.queue}"
    async with _connection(
        _Polling, observations, broker_run, description, None, delivered
    ) as client:
        if not plan.gets:
            await client.consume(plan.queue, plan.prefetch, plan.no_ack, plan.arguments)
        clock = asyncio.get_running_loop().time
        leaves = clock() + rng.uniform(3, 15)
        while not _ended(client, broker_run) and (broker_run.consumers_paused or clock() < leaves):
            if not broker_run.consumers_paused:
                if plan.gets:
                    await _get(client, plan.queue, waiting.__len__)
                await _settle(client, plan, waiting, rng)
            await asyncio.sleep(0.02)
        # The answer means that unsettled messages are requeued, before this consumer reconnects.
        await client.call(commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)


async def _get(client: Client, queue: str, count: Callable[[], int]) -> None:
    for _ in range(20):
        before = count()
        client.send(commands.Basic.Get(queue=queue))
        await client.sync()
        if count() == before:
            break


async def _settle(
    client: Client, plan: ConsumerPlan, waiting: list[int], rng: random.Random
) -> None:
    tags, waiting[:] = waiting[:], []
    if plan.no_ack:
        return
    for tag in tags:
        if plan.pause:
            await asyncio.sleep(plan.pause)
        luck = rng.random()
        if luck < plan.requeued:
            client.send(commands.Basic.Nack(tag, False, True))
        elif luck < plan.requeued + plan.rejected:
            client.send(commands.Basic.Reject(tag, False))
        else:
            client.ack(tag, False)


async def open_and_close_connections(observations: Observations, broker_run: BrokerRun) -> None:
    """Open connections with an exclusive queue, and drop them."""
    while not (broker_run.ended.is_set() or broker_run.publishers_stopped.is_set()):
        with suppress(*GONE):
            async with _connection(
                Client, observations, broker_run, "a short connection"
            ) as client:
                declare = commands.Queue.Declare(exclusive=True)
                declared = await client.call(declare, commands.Queue.DeclareOk)
                await client.consume(declared.queue, 10)
                client.publish_all("", declared.queue, [b"x" * 100] * 5, TRANSIENT)
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
