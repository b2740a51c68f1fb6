"""R-30: connections that never log in are kept until the handshake timeout and no longer.

They send nothing, half a protocol header, half a start-ok, or a byte of either per second. Twice as
many connections as allowed come from eight addresses and, at a second broker, more than allowed
from one address. A connection that is kept stays until the timeout; only a canary, which logs in
again and again, may take its place. Then some connections guess a password and send more bytes
behind it than the broker buffers: they are closed without an answer.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pamqp import commands

from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.raw import HEADER, Raw, login_seconds, percentile, start_ok

UNAUTHENTICATED, FROM_ONE = 1_000, 256
BUFFERED_KIB = 64
SENDING_SECONDS = 1.0
CANARY_LIMIT = 1.0
MEMORY_MB, HASHING_MB = 10, 40
TIMING_TOLERANCE = 0.2
LONG_SECONDS = 30.0
CANARY_SECONDS = 0.25
NEARLY_ALL = 0.98
EIGHT_ADDRESSES = tuple(f"127.0.1.{number}" for number in range(1, 9))
ONE_ADDRESS = ("127.0.3.1",)
CANARY_ADDRESS = ("127.0.2.1", 0)
UNFINISHED = b"\x01\x00\x00\x00\x00\x1f\x40" + bytes(7_000)
"""Most of a frame of the largest size allowed before the login."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a connection sends at once, and then a byte at a time."""

    first: bytes
    slow_bytes: bytes = b""


OPENINGS = (
    Opening(b""),
    Opening(HEADER[:5]),
    Opening(HEADER),
    Opening(HEADER + start_ok()[:20]),
    Opening(b"", HEADER),
    Opening(HEADER, start_ok()),
    Opening(HEADER + UNFINISHED),
)


@dataclass(frozen=True, slots=True)
class Lifetime:
    began: float
    seconds: float


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Waves of connections, of which `max_kept` may stay for `seconds`."""

    addresses: tuple[str, ...]
    connections: int
    max_kept: int
    from_one: int
    seconds: float
    waves: int

    @property
    def settings(self) -> tuple[str, ...]:
        return (
            f"handshake_timeout={self.seconds}",
            f"unauthenticated_max={max(self.max_kept, self.from_one)}",
            f"unauthenticated_max_per_address={self.from_one}",
            "login_tries_per_source=0",
            "login_tries_per_user=0",
        )


@dataclass(slots=True)
class Results:
    quiet: float
    canaries: list[float] = field(default_factory=list)
    kept_seconds: list[float] = field(default_factory=list)
    memory: float = 0.0
    at_once: int = 0
    problems: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)

    @property
    def slowest(self) -> float:
        return max(self.canaries, default=math.inf)


async def hold_unauthenticated_connections(
    directory: Path, connections: int, _seed: int, progress: Progress = silent, seconds: float = 10
) -> Outcome:
    """The long form takes half a minute."""
    max_kept = min(UNAUTHENTICATED, connections // 2)
    from_one = min(FROM_ONE, max_kept // 4 + 6)
    waves = math.ceil(LONG_SECONDS / seconds) if max_kept == UNAUTHENTICATED else 1
    from_eight = LoadPlan(EIGHT_ADDRESSES, connections, max_kept, from_one, seconds, waves)
    from_one_address = LoadPlan(ONE_ADDRESS, from_one * 300 // 256, from_one, from_one, seconds, 1)
    results, results_from_one = await asyncio.gather(
        _run_plan(directory / "many", from_eight, progress),
        _run_plan(directory / "one", from_one_address, silent),
    )
    figures = (
        f"{waves} times {connections} unauthenticated connections from 8 addresses, silent or "
        f"sending a byte per second: {len(results.kept_seconds)} kept for "
        f"{percentile(results.kept_seconds, 0.5):.1f} s, at most {results.at_once} at a time; of "
        f"{from_one_address.connections} from one address {results_from_one.at_once}; the others "
        f"closed at once; {results.memory:.1f} MB; {len(results.canaries)} canaries logged in "
        f"meanwhile, the slowest in {results.slowest * 1000:.0f} ms "
        f"({results.quiet * 1000:.0f} ms alone)"
    )
    problems, late = (
        (*results.problems, *results_from_one.problems),
        (*results.late, *results_from_one.late),
    )
    return Outcome("R-30", "unauthenticated connections", figures, problems, late)


async def _run_plan(directory: Path, plan: LoadPlan, progress: Progress) -> Results:
    broker = BrokerProcess(directory, "--memory")
    broker.settings = plan.settings
    await broker.start()
    results = Results(await login_seconds(broker.address))
    before = broker.memory("VmRSS")
    for _ in range(plan.waves):
        await _wave(broker, plan, results, progress)
    results.memory = broker.memory() - before
    if results.memory > BUFFERED_KIB / 1024 * plan.max_kept + MEMORY_MB:
        results.problems.append(f"{results.memory:.0f} MB for unauthenticated connections")
    await _overfill(broker, plan, results)
    await broker.stop()
    if math.inf in results.canaries or not results.canaries:
        results.problems.append("a canary could not log in")
    elif results.slowest > CANARY_LIMIT:
        results.late.append(f"a canary took {results.slowest:.2f} s to log in")
    return results


async def _wave(
    broker: BrokerProcess, plan: LoadPlan, results: Results, progress: Progress
) -> None:
    done = asyncio.Event()
    canaries = asyncio.create_task(_log_in_until(broker, done))
    lifetimes = await _stall(broker, plan, progress)
    done.set()
    took = await canaries
    results.canaries += took
    judge(plan, lifetimes, len(took), results)


def judge(plan: LoadPlan, lifetimes: Sequence[Lifetime], canaries: int, results: Results) -> None:
    """Each canary may have taken the place of one connection."""
    kept = [lifetime for lifetime in lifetimes if lifetime.seconds >= plan.seconds - 1]
    between = [
        lifetime for lifetime in lifetimes if plan.seconds / 4 < lifetime.seconds < plan.seconds - 1
    ]
    at_once, longest = (
        _max_at_once(kept),
        max((lifetime.seconds for lifetime in kept), default=0),
    )
    if len(kept) < NEARLY_ALL * plan.max_kept - canaries:
        results.problems.append(
            f"only {len(kept)} of {plan.max_kept} connections were kept until the timeout"
        )
    if len(between) > canaries:
        results.problems.append(f"{len(between)} connections were closed before the timeout")
    if at_once > plan.max_kept:
        results.problems.append(f"{at_once} connections were kept at once")
    if longest > plan.seconds + 1:
        results.late.append(f"dropped after {longest:.1f} s")
    results.kept_seconds += [lifetime.seconds for lifetime in kept]
    results.at_once = max(results.at_once, at_once)


async def _log_in_until(broker: BrokerProcess, done: asyncio.Event) -> list[float]:
    took: list[float] = []
    while not done.is_set() or not took:
        took.append(await login_seconds(broker.address, local_addr=CANARY_ADDRESS))
        await asyncio.sleep(CANARY_SECONDS)
    return took


async def _stall(broker: BrokerProcess, plan: LoadPlan, progress: Progress) -> list[Lifetime]:
    """How long each connection was kept."""
    connections: list[Raw] = []
    waiting: list[asyncio.Task[Lifetime]] = []
    for number in range(plan.connections):
        local = (plan.addresses[number % len(plan.addresses)], 0)
        connection = await Raw.connect(broker.address, local_addr=local)
        connections.append(connection)
        opening = OPENINGS[number % len(OPENINGS)]
        waiting.append(
            asyncio.create_task(_measure_lifetime(connection, opening, time.monotonic()))
        )
        progress(number + 1, plan.connections)
    lifetimes = list(await asyncio.gather(*waiting))
    for connection in connections:
        connection.drop()
    return lifetimes


async def _measure_lifetime(connection: Raw, opening: Opening, began: float) -> Lifetime:
    connection.send(opening.first)
    sending = asyncio.create_task(_send_slowly(connection, opening.slow_bytes))
    await connection.wait_closed()
    sending.cancel()
    return Lifetime(began, time.monotonic() - began)


async def _send_slowly(connection: Raw, data: bytes) -> None:
    for byte in data:
        await asyncio.sleep(1)
        connection.send(bytes([byte]))


def _max_at_once(lifetimes: Sequence[Lifetime]) -> int:
    """Lifetimes are shortened by the tolerance at both ends: the exact times are not known."""
    moments = [(lifetime.began + TIMING_TOLERANCE, 1) for lifetime in lifetimes]
    moments += [
        (lifetime.began + lifetime.seconds - TIMING_TOLERANCE, -1) for lifetime in lifetimes
    ]
    highest = now = 0
    for _, change in sorted(moments):
        now += change
        highest = max(highest, now)
    return highest


async def _overfill(broker: BrokerProcess, plan: LoadPlan, results: Results) -> None:
    """Send guesses, and behind each more bytes than are buffered until it is checked."""
    broker.forget_peak()
    before, guesses = broker.memory("VmRSS"), plan.max_kept // 2
    answered = await _guess(broker, plan, guesses)
    memory = broker.memory() - before
    if answered > (1 - NEARLY_ALL) * guesses:
        results.problems.append(
            f"{answered} of {guesses} guesses followed by too many bytes were answered"
        )
    if memory > BUFFERED_KIB / 1024 * guesses + MEMORY_MB + HASHING_MB:
        results.problems.append(f"{memory:.0f} MB for {guesses} guesses followed by many bytes")


async def _guess(broker: BrokerProcess, plan: LoadPlan, guesses: int) -> int:
    """Send all guesses at once; how many were answered."""
    connections = [await _start_handshake(broker, plan, number) for number in range(guesses)]
    await _send_at_once(
        broker, connections, start_ok("guest", "wrong") + bytes(4 * BUFFERED_KIB * 1024)
    )
    answered = sum(await asyncio.gather(*map(_is_answered, connections)))
    for connection in connections:
        connection.drop()
    return answered


async def _start_handshake(broker: BrokerProcess, plan: LoadPlan, number: int) -> Raw:
    local = (plan.addresses[number % len(plan.addresses)], 0)
    connection = await Raw.connect(broker.address, local_addr=local)
    connection.send(HEADER)
    await connection.next()
    return connection


async def _send_at_once(broker: BrokerProcess, connections: Sequence[Raw], data: bytes) -> None:
    """Stop the broker meanwhile, or it would read no further than the guess."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        for connection in connections:
            connection.send(data)
        await asyncio.sleep(SENDING_SECONDS)
    finally:
        os.kill(broker.pid, signal.SIGCONT)


async def _is_answered(connection: Raw) -> bool:
    """Whether the broker sent connection.close before it closed the socket."""
    return isinstance(await connection.next(), commands.Connection.Close)
