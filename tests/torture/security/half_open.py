"""R-22: a client vanishes without a word: its network is gone, and no packet says so.

What it had not acknowledged must come back marked, its exclusive queue must go, after two to three
and a half heartbeat intervals. Without heartbeats TCP itself has to notice, within a minute.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from pamqp import commands

from tests.torture.client import PROPERTIES, Client, ConnectionGone
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.links import Cable, Link, Relay
from tests.torture.waiting import until

TITLE = "clients that vanish"
HELD = 5
SOONEST, LATEST = 2.0, 3.5
KEEPALIVE_LIMIT = 60.0
PATIENCE = 120.0


async def vanish(
    directory: Path, cycles: int, _seed: int, progress: Progress = silent, heartbeat: int = 5
) -> Outcome:
    """With real cables; one more is cut under clients without heartbeats."""
    cable, other = Cable(0), Cable(1)
    try:
        await cable.lay()
        await other.lay()
        broker = BrokerProcess(directory, "--memory")
        broker.settings = (f"host={cable.host}", "allow_remote_guest=true")
        await broker.start()
        unheard = asyncio.create_task(_without_heartbeat(broker, other))
        seconds = await _cut_often(broker, cable, cycles, heartbeat, progress)
        idle, busy = await unheard
        await broker.stop()
    finally:
        await cable.remove()
        await other.remove()
    late = _late(seconds, heartbeat)
    if max(idle, busy) > KEEPALIVE_LIMIT:
        late.append(f"without heartbeats noticed after {max(idle, busy):.1f} s")
    figures = (
        f"{cycles} clients cut off at heartbeat {heartbeat} s: closed after {min(seconds):.1f} to "
        f"{max(seconds):.1f} s, {cycles * HELD} messages back and marked, no exclusive queue left; "
        f"without heartbeats after {idle:.1f} s (idle) and {busy:.1f} s (being sent to)"
    )
    return Outcome("R-22", TITLE, figures, (), tuple(late))


async def vanish_behind_a_relay(
    directory: Path, cycles: int, _seed: int, progress: Progress = silent, heartbeat: int = 1
) -> Outcome:
    """The same on loopback, where only heartbeats can tell."""
    relay = Relay()
    broker = BrokerProcess(directory, "--memory")
    await broker.start()
    try:
        seconds = await _cut_often(broker, relay, cycles, heartbeat, progress)
    finally:
        await relay.remove()
    await broker.stop()
    figures = f"{cycles} clients cut off at heartbeat {heartbeat} s: closed and forgotten"
    return Outcome("R-22", TITLE, figures, (), tuple(_late(seconds, heartbeat)))


def _late(seconds: list[float], heartbeat: int) -> list[str]:
    wrong = [one for one in seconds if not SOONEST <= one / heartbeat <= LATEST]
    return [f"closed after {one:.1f} s at heartbeat {heartbeat} s" for one in wrong]


async def _cut_often(
    broker: BrokerProcess, link: Link, cycles: int, heartbeat: int, progress: Progress
) -> list[float]:
    seconds = []
    for cycle in range(cycles):
        victim = await _Victim.connect(broker, link, f"beating-{cycle}", heartbeat)
        await victim.take_some()
        await victim.declare_own()
        await link.cut()
        seconds.append(await victim.until_forgotten())
        victim.client.close()
        await link.mend()
        progress(cycle + 1, cycles)
    return seconds


async def _without_heartbeat(broker: BrokerProcess, link: Link) -> tuple[float, float]:
    idle = await _Victim.connect(broker, link, "idle", 0)
    busy = await _Victim.connect(broker, link, "busy", 0)
    for victim in (idle, busy):
        await victim.take_some()
        await victim.declare_own()
    await link.cut()
    await busy.send_one()
    first, second = await asyncio.gather(idle.until_forgotten(), busy.until_forgotten())
    for victim in (idle, busy):
        victim.client.close()
    return first, second


class _Victim:
    """A consumer that will vanish, and a witness with a way of its own."""

    def __init__(self, broker: BrokerProcess, queue: str) -> None:
        self._broker = broker
        self._queue = queue
        self._taken = 0
        self._back: list[bool] = []
        self._sent = HELD
        self._began = 0.0
        self.client: Client
        self._witness: Client

    @classmethod
    async def connect(
        cls, broker: BrokerProcess, link: Link, queue: str, heartbeat: int
    ) -> _Victim:
        victim = cls(broker, queue)
        victim._witness = await Client.connect(broker.address, on_delivery=victim._gave_back)
        await victim._witness.declare(queue)
        ready = await link.connect(broker.address)
        victim.client = await Client.connect(
            broker.address, on_delivery=victim._took, heartbeat=heartbeat, sock=ready
        )
        return victim

    def _took(self, *_delivery: object) -> None:
        self._taken += 1

    def _gave_back(self, _tag: int, redelivered: bool, _body: bytes) -> None:
        self._back.append(redelivered)

    async def take_some(self) -> None:
        await self.client.consume(self._queue, 2 * HELD)
        for _ in range(HELD):
            self._publish()
        await until(lambda: self._taken == HELD, PATIENCE)

    async def declare_own(self) -> None:
        declare = commands.Queue.Declare(queue=f"{self._queue}-own", exclusive=True)
        await self.client.call(declare, commands.Queue.DeclareOk)
        self._began = time.monotonic()

    async def send_one(self) -> None:
        """It will be delivered into the void."""
        self._publish()
        self._sent += 1
        await self._witness.sync()

    def _publish(self) -> None:
        self._witness.publish("", self._queue, b"x", PROPERTIES["transient"])

    async def until_forgotten(self) -> float:
        """Seconds from its last word until what it held is handed to another."""
        await self._witness.consume(self._queue, 0)
        await until(lambda: len(self._back) >= self._sent, PATIENCE)
        seconds = time.monotonic() - self._began
        if self._back != [True] * self._sent:
            raise AssertionError(f"came back as {self._back}")
        await self._own_is_gone()
        self._witness.close()
        return seconds

    async def _own_is_gone(self) -> None:
        looker = await Client.connect(self._broker.address)
        try:
            await looker.count(f"{self._queue}-own")
        except ConnectionGone:
            if looker.closed_with is None or looker.closed_with[0] != 404:
                raise AssertionError(f"its own queue: {looker.closed_with}") from None
        else:
            raise AssertionError("its own queue is still there")
        finally:
            looker.close()
