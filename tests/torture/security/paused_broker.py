"""R-20: a broker is stopped for three heartbeat intervals while its clients continue to send."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from pamqp import commands

from tests.torture.client import PROPERTIES, Client, ConnectionGone
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess

PAIRS, IDLE = 10, 50
INTERVAL_SECONDS = 0.01
SMALL, LARGE = 100, 64 * 1024
"""Bytes of a body. Large ones fill a socket that is not read, so that no heartbeat gets through."""
SETTLE_SECONDS = 30
_HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"


class Pair:
    """A publisher of numbers that never waits, and a consumer that acks."""

    def __init__(self, queue: str, size: int) -> None:
        self.queue = queue
        self._padding = bytes(size - 8)
        self._unconfirmed: set[int] = set()
        self.sent = 0
        self.refused = 0
        self.delivered: list[int] = []

    async def connect(self, broker: BrokerProcess, heartbeat: int) -> None:
        address = broker.address
        self.publisher = await Client.connect(address, self._confirmed, None, heartbeat)
        await self.publisher.declare(self.queue)
        await self.publisher.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
        self.consumer = await Client.connect(address, None, self._delivered, heartbeat)
        await self.consumer.consume(self.queue, prefetch=100)

    @property
    def clients(self) -> tuple[Client, Client]:
        return self.publisher, self.consumer

    @property
    def is_settled(self) -> bool:
        return not self._unconfirmed and len(self.delivered) >= self.sent - self.refused

    async def publish(self, until: asyncio.Event) -> None:
        while not until.is_set():
            await self.publisher.drain()
            self.sent += 1
            self._unconfirmed.add(self.sent)
            body = self.sent.to_bytes(8, "big") + self._padding
            self.publisher.publish("", self.queue, body, PROPERTIES["persistent"])
            await asyncio.sleep(INTERVAL_SECONDS)

    def _confirmed(self, tag: int, multiple: bool, is_ack: bool) -> None:
        done = {each for each in self._unconfirmed if each <= tag} if multiple else {tag}
        self._unconfirmed -= done
        self.refused += 0 if is_ack else len(done)

    def _delivered(self, tag: int, _redelivered: bool, body: bytes) -> None:
        self.delivered.append(int.from_bytes(body[:8], "big"))
        self.consumer.ack(tag, multiple=False)

    def problems(self) -> list[str]:
        """No connection is closed, so every message must arrive once and in order."""
        problems = []
        if missing := len(set(range(1, self.sent + 1)) - set(self.delivered)):
            problems.append(f"{missing} messages lost")
        if self.refused:
            problems.append(f"{self.refused} messages refused")
        if self.delivered != sorted(set(self.delivered)):
            problems.append("messages duplicated or out of order")
        return [f"{self.queue}: {problem}" for problem in problems]


async def pause_broker(
    directory: Path, cycles: int, _seed: int, progress: Progress = silent, heartbeat: int = 2
) -> Outcome:
    """Send SIGSTOP repeatedly, under clients that send heartbeats."""
    broker = BrokerProcess(directory)
    await broker.start()
    pairs = [Pair(f"pair-{number}", LARGE if number % 5 == 0 else SMALL) for number in range(PAIRS)]
    for pair in pairs:
        await pair.connect(broker, heartbeat)
    idle_clients = [await Client.connect(broker.address, heartbeat=heartbeat) for _ in range(IDLE)]
    clients = [client for pair in pairs for client in pair.clients] + idle_clients
    enough = asyncio.Event()
    async with asyncio.TaskGroup() as load:
        beating = load.create_task(_send_heartbeats(clients, heartbeat / 2))
        publishing = [load.create_task(_publish_until(pair, enough)) for pair in pairs]
        full_sockets = 0
        for cycle in range(cycles):
            full_sockets += await _pause(broker, pairs, 3 * heartbeat)
            await asyncio.sleep(2 * heartbeat)  # time for a wrong heartbeat timeout
            progress(cycle + 1, cycles)
        enough.set()
        await asyncio.wait(publishing)
        await _settle(pairs)
        closed = sum([not await _answers(client) for client in clients])
        beating.cancel()
    await broker.stop()
    sent = sum(pair.sent for pair in pairs)
    delivered = sum(len(pair.delivered) for pair in pairs)
    problems = [problem for pair in pairs for problem in pair.problems()]
    if closed:
        problems.append(f"{closed} clients were closed because the broker was stopped")
    if full_sockets < cycles:
        problems.append(f"a socket was full only {full_sockets} times")
    figures = (
        f"{cycles} stops of {3 * heartbeat} s at heartbeat {heartbeat} s under {len(clients)} "
        f"clients, {2 * PAIRS} of them busy, whose sockets were full {full_sockets} times: "
        f"{closed} clients closed; {sent} persistent messages sent, {delivered} delivered"
    )
    return Outcome("R-20", "broker stopped and continued", figures, tuple(problems))


async def _pause(broker: BrokerProcess, pairs: list[Pair], seconds: float) -> int:
    """Stop the broker; return how many publishers could not send any more."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
        return sum(not pair.publisher.is_idle for pair in pairs)
    finally:
        os.kill(broker.pid, signal.SIGCONT)


async def _publish_until(pair: Pair, until: asyncio.Event) -> None:
    """A closed connection is reported later, when it does not answer."""
    try:
        await pair.publish(until)
    except ConnectionGone:
        return


async def _send_heartbeats(clients: list[Client], seconds: float) -> None:
    while True:
        for client in clients:
            if not client.gone.is_set():
                client.write(_HEARTBEAT)
        await asyncio.sleep(seconds)


async def _settle(pairs: list[Pair]) -> None:
    for _ in range(SETTLE_SECONDS * 20):
        if all(pair.is_settled for pair in pairs):
            return
        await asyncio.sleep(0.05)


async def _answers(client: Client) -> bool:
    try:
        await client.call(commands.Channel.Flow(True), commands.Channel.FlowOk)
    except ConnectionGone:
        return False
    return True
