"""A publisher with confirms, controlled by a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from pamqp import commands

from tests.torture.checker import Ledger, make_body
from tests.torture.client import PROPERTIES, Client, ConnectionGone


class Publisher:
    """Enters sent and confirmed messages in the ledger and counts nacks."""

    def __init__(
        self, ledger: Ledger, queue: str, number: int, size: int = 1024, declare: bool = True
    ) -> None:
        self._ledger = ledger
        self._queue = queue
        self._number = number
        self._size = size
        self._declare = declare
        self._lowest = 1
        self._tag = 0
        self._changed = asyncio.Event()
        self.open: dict[int, int] = {}
        self.confirmed = 0
        self.nacked = 0
        self.client: Client

    async def start(self, address: tuple[str, int]) -> None:
        self.open.clear()
        self._lowest, self._tag = 1, 0
        self.client = await Client.connect(address, on_confirm=self._decided)
        if self._declare:
            await self.client.declare(self._queue)
        await self.client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)

    def _decided(self, tag: int, multiple: bool, accepted: bool) -> None:
        for confirmed_tag in range(self._lowest, tag + 1) if multiple else (tag,):
            sequence = self.open.pop(confirmed_tag, None)
            if sequence is None:
                continue
            if accepted:
                self.confirmed += 1
                self._ledger.was_confirmed(self._queue, self._number, sequence)
            else:
                self.nacked += 1
        if multiple:
            self._lowest = tag + 1
        self._changed.set()

    def send(self) -> None:
        self._tag += 1
        sequence = self._ledger.will_send(self._queue, self._number)
        self.open[self._tag] = sequence
        body = make_body(self._number, sequence, self._size)
        self.client.publish("", self._queue, body, PROPERTIES["persistent"])

    async def send_many(self, count: int, window: int = 1000) -> None:
        """Send messages, at most `window` unconfirmed; return when all are acked or nacked."""
        sent = 0
        while sent < count:
            await self.until(lambda: len(self.open) < window)
            burst = min(50, count - sent)
            for _ in range(burst):
                self.send()
            sent += burst
            await asyncio.sleep(0)
        await self.until(lambda: not self.open)

    async def flood(self, stop: Callable[[], bool], window: int = 500) -> None:
        """Send as fast as confirms arrive, until `stop` is true or the broker is gone."""
        while not stop() and not self.client.gone.is_set():
            if len(self.open) < window:
                for _ in range(20):
                    self.send()
                await asyncio.sleep(0)
            else:
                await self.wait(0.05)

    async def wait(self, seconds: float) -> None:
        """Wait until a message is acked or nacked, at most this long."""
        self._changed.clear()
        with suppress(TimeoutError):  # wait_for could swallow a cancellation
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                if self.client.gone.is_set():
                    raise ConnectionGone
                await self.wait(0.05)
