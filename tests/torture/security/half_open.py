"""R-22: a client vanishes: its network is gone, and no packet announces it.

Its unacked messages must be redelivered with the flag and its exclusive queue deleted, after two to
three and a half heartbeat intervals. Without heartbeats TCP itself must notice within a minute.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from pamqp import commands

from tests.support.polling import wait_until_async
from tests.torture.client import PROPERTIES, Client, ConnectionGone
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.links import Cable, Link, Relay

TITLE = "clients that vanish"
UNACKED = 5
MIN_INTERVALS, MAX_INTERVALS = 2.0, 3.5
KEEPALIVE_LIMIT = 60.0
DEADLINE_SECONDS = 120.0


async def cut_network(
    directory: Path, cycles: int, _seed: int, progress: Progress = silent, heartbeat: int = 5
) -> Outcome:
    """Cut network devices; one more is cut under clients without heartbeats."""
    cable, other = Cable(0), Cable(1)
    try:
        await cable.create()
        await other.create()
        broker = BrokerProcess(directory, "--memory")
        broker.settings = (f"host={cable.host}", "allow_remote_guest=true")
        await broker.start()
        without_heartbeat = asyncio.create_task(_without_heartbeat(broker, other))
        seconds = await _cut_repeatedly(broker, cable, cycles, heartbeat, progress)
        idle, busy = await without_heartbeat
        await broker.stop()
    finally:
        await cable.remove()
        await other.remove()
    late = _late(seconds, heartbeat)
    if max(idle, busy) > KEEPALIVE_LIMIT:
        late.append(f"without heartbeats closed after {max(idle, busy):.1f} s")
    figures = (
        f"{cycles} clients cut off at heartbeat {heartbeat} s: closed after {min(seconds):.1f} to "
        f"{max(seconds):.1f} s, {cycles * UNACKED} messages redelivered with the flag, no "
        "exclusive queue left; without heartbeats after "
        f"{idle:.1f} s (idle) and {busy:.1f} s (being sent to)"
    )
    return Outcome("R-22", TITLE, figures, (), tuple(late))


async def cut_relay(
    directory: Path, cycles: int, _seed: int, progress: Progress = silent, heartbeat: int = 1
) -> Outcome:
    """The same on loopback, where only heartbeats can notice."""
    relay = Relay()
    broker = BrokerProcess(directory, "--memory")
    await broker.start()
    try:
        seconds = await _cut_repeatedly(broker, relay, cycles, heartbeat, progress)
    finally:
        await relay.remove()
    await broker.stop()
    figures = f"{cycles} clients cut off at heartbeat {heartbeat} s: closed, messages requeued"
    return Outcome("R-22", TITLE, figures, (), tuple(_late(seconds, heartbeat)))


def _late(seconds: list[float], heartbeat: int) -> list[str]:
    wrong = [
        closed_after
        for closed_after in seconds
        if not MIN_INTERVALS <= closed_after / heartbeat <= MAX_INTERVALS
    ]
    return [
        f"closed after {closed_after:.1f} s at heartbeat {heartbeat} s" for closed_after in wrong
    ]


async def _cut_repeatedly(
    broker: BrokerProcess, link: Link, cycles: int, heartbeat: int, progress: Progress
) -> list[float]:
    seconds = []
    for cycle in range(cycles):
        cut_client = await _CutClient.connect(broker, link, f"beating-{cycle}", heartbeat)
        await cut_client.consume_some()
        await cut_client.declare_exclusive_queue()
        await link.cut()
        seconds.append(await cut_client.wait_until_requeued())
        cut_client.client.close()
        await link.repair()
        progress(cycle + 1, cycles)
    return seconds


async def _without_heartbeat(broker: BrokerProcess, link: Link) -> tuple[float, float]:
    idle = await _CutClient.connect(broker, link, "idle", 0)
    busy = await _CutClient.connect(broker, link, "busy", 0)
    for cut_client in (idle, busy):
        await cut_client.consume_some()
        await cut_client.declare_exclusive_queue()
    await link.cut()
    await busy.send_one()
    first, second = await asyncio.gather(idle.wait_until_requeued(), busy.wait_until_requeued())
    for cut_client in (idle, busy):
        cut_client.client.close()
    return first, second


class _CutClient:
    """A consumer whose link is cut, and a witness with its own link."""

    def __init__(self, broker: BrokerProcess, queue: str) -> None:
        self._broker = broker
        self._queue = queue
        self._taken = 0
        self._redelivered_flags: list[bool] = []
        self._sent = UNACKED
        self._began = 0.0
        self.client: Client
        self._witness: Client

    @classmethod
    async def connect(
        cls, broker: BrokerProcess, link: Link, queue: str, heartbeat: int
    ) -> _CutClient:
        cut_client = cls(broker, queue)
        cut_client._witness = await Client.connect(
            broker.address, on_delivery=cut_client._note_redelivery
        )
        await cut_client._witness.declare(queue)
        ready = await link.connect(broker.address)
        cut_client.client = await Client.connect(
            broker.address, on_delivery=cut_client._count_delivery, heartbeat=heartbeat, sock=ready
        )
        return cut_client

    def _count_delivery(self, *_delivery: object) -> None:
        self._taken += 1

    def _note_redelivery(self, _tag: int, redelivered: bool, _body: bytes) -> None:
        self._redelivered_flags.append(redelivered)

    async def consume_some(self) -> None:
        await self.client.consume(self._queue, 2 * UNACKED)
        for _ in range(UNACKED):
            self._publish()
        await wait_until_async(lambda: self._taken == UNACKED, DEADLINE_SECONDS)

    async def declare_exclusive_queue(self) -> None:
        declare = commands.Queue.Declare(queue=f"{self._queue}-own", exclusive=True)
        await self.client.call(declare, commands.Queue.DeclareOk)
        self._began = time.monotonic()

    async def send_one(self) -> None:
        """Publish a message that is delivered to the cut link."""
        self._publish()
        self._sent += 1
        await self._witness.sync()

    def _publish(self) -> None:
        self._witness.publish("", self._queue, b"x", PROPERTIES["transient"])

    async def wait_until_requeued(self) -> float:
        """Seconds from its last frame until its messages are delivered to the witness."""
        await self._witness.consume(self._queue, 0)
        await wait_until_async(lambda: len(self._redelivered_flags) >= self._sent, DEADLINE_SECONDS)
        seconds = time.monotonic() - self._began
        if self._redelivered_flags != [True] * self._sent:
            raise AssertionError(f"redelivered flags: {self._redelivered_flags}")
        await self._check_exclusive_queue_deleted()
        self._witness.close()
        return seconds

    async def _check_exclusive_queue_deleted(self) -> None:
        checker = await Client.connect(self._broker.address)
        try:
            await checker.count(f"{self._queue}-own")
        except ConnectionGone:
            if checker.closed_with is None or checker.closed_with[0] != 404:
                raise AssertionError(f"its exclusive queue: {checker.closed_with}") from None
        else:
            raise AssertionError("its exclusive queue still exists")
        finally:
            checker.close()
