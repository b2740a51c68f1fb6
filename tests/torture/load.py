"""Publishers and consumers that keep a ledger while the broker runs."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from pamqp import commands

from tests.torture.checker import Ledger, make_body
from tests.torture.client import PROPERTIES, Client, ConnectionGone


@dataclass(frozen=True, slots=True)
class LoadSpec:
    queues: tuple[str, ...] = ("torture-a", "torture-b")
    publishers: int = 4
    body_size: int = 1024
    window: int = 300
    prefetch: int = 200
    ack_every: int = 50
    consumed: tuple[str, ...] | None = None
    """Queues with a consumer; None means all."""


class Load:
    """Publisher i sends to queue i modulo the queues; each queue in `consumed` has a consumer."""

    def __init__(self, spec: LoadSpec, ledger: Ledger) -> None:
        self.spec = spec
        self.ledger = ledger

    async def declare(self, address: tuple[str, int]) -> None:
        client = await Client.connect(address)
        for queue in self.spec.queues:
            await client.declare(queue)
        client.close()

    async def run(self, address: tuple[str, int], until: asyncio.Event) -> None:
        """Publish and consume until the event is set or the broker is gone."""
        spec = self.spec
        jobs = [
            self._publish(address, number, spec.queues[number % len(spec.queues)], until)
            for number in range(spec.publishers)
        ]
        consumed = spec.queues if spec.consumed is None else spec.consumed
        jobs += [self._consume(address, queue, until) for queue in consumed]
        await asyncio.gather(*jobs)

    async def _publish(
        self, address: tuple[str, int], number: int, queue: str, until: asyncio.Event
    ) -> None:
        open_sequences: dict[int, int] = {}
        lowest = 1
        room = asyncio.Event()
        room.set()

        def confirmed(tag: int, multiple: bool, accepted: bool) -> None:
            nonlocal lowest
            tags = range(lowest, tag + 1) if multiple else (tag,)
            for confirmed_tag in tags:
                sequence = open_sequences.pop(confirmed_tag, None)
                if sequence is not None and accepted:
                    self.ledger.was_confirmed(queue, number, sequence)
            if multiple:
                lowest = tag + 1
            if len(open_sequences) < self.spec.window:
                room.set()

        with contextlib.suppress(ConnectionGone, ConnectionError, TimeoutError):
            client = await Client.connect(address, on_confirm=confirmed)
            await client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
            tag = 0
            while not until.is_set() and not client.gone.is_set():
                bodies = []
                for _ in range(20):
                    tag += 1
                    sequence = self.ledger.will_send(queue, number)
                    open_sequences[tag] = sequence
                    bodies.append(make_body(number, sequence, self.spec.body_size))
                client.publish_all("", queue, bodies, PROPERTIES["persistent"])
                await client.drain()
                await asyncio.sleep(0)
                while len(open_sequences) >= self.spec.window and not client.gone.is_set():
                    room.clear()
                    await _first(room, client.gone)
            while open_sequences and not client.gone.is_set():
                room.clear()
                await _first(room, client.gone, seconds=0.5)
            client.close()

    async def _consume(self, address: tuple[str, int], queue: str, until: asyncio.Event) -> None:
        with contextlib.suppress(ConnectionGone, ConnectionError, TimeoutError):
            consumer = Acker(self.ledger, queue, self.spec.ack_every)
            await consumer.start(address, self.spec.prefetch)
            await _first(until, consumer.client.gone)
            consumer.client.close()

    async def drain(self, address: tuple[str, int], quiet_seconds: float = 0.5) -> None:
        """Consume until the queues are empty."""
        for queue in self.spec.queues:
            consumer = Acker(self.ledger, queue, 1)
            await consumer.start(address, 1000)
            watcher = await Client.connect(address)
            while True:
                if await watcher.count(queue) == 0 and not consumer.is_busy(quiet_seconds):
                    break
                await asyncio.sleep(0.05)
            await consumer.sync()
            consumer.client.close()
            watcher.close()


class Acker:
    """A consumer that enters deliveries in the ledger and acks `every` messages at once."""

    def __init__(self, ledger: Ledger, queue: str, every: int) -> None:
        self._ledger = ledger
        self._queue = queue
        self._every = every
        self._since_ack = 0
        self._last = 0.0
        self._acked: list[bytes] = []
        self._open: list[bytes] = []
        self.client: Client

    async def start(self, address: tuple[str, int], prefetch: int) -> None:
        self.client = await Client.connect(address, on_delivery=self._delivered)
        await self.client.consume(self._queue, prefetch)

    def _delivered(self, tag: int, redelivered: bool, body: bytes) -> None:
        self._ledger.was_delivered(self._queue, body, redelivered)
        self._last = asyncio.get_running_loop().time()
        self._open.append(body)
        self._since_ack += 1
        if self._since_ack >= self._every:
            self._since_ack = 0
            with contextlib.suppress(ConnectionGone):
                self.client.ack(tag, True)
            self._acked += self._open
            self._open = []

    def is_busy(self, quiet_seconds: float) -> bool:
        return asyncio.get_running_loop().time() - self._last < quiet_seconds

    async def sync(self) -> None:
        """Make a synchronous call; its answer means that the acks before it are durable."""
        acked, self._acked = self._acked, []
        await self.client.sync()
        for body in acked:
            self._ledger.was_settled(self._queue, body)


async def _first(*events: asyncio.Event, seconds: float | None = None) -> None:
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
