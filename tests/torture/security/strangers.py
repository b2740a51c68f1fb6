"""R-30: connections that never log in: kept for their time and no longer, while others get in.

They say nothing, half a header, half a start-ok, or an octet a second of either; twice as many as
may be from eight addresses, and at another broker more than may be from one. Whoever is kept stays
for the time there is to log in; only a canary, which logs in all the while, may take a place. Then
some guess a password and send more behind it than is kept: they are cut off instead of answered.
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
from tests.torture.security.raw import HEADER, Raw, log_in_seconds, percentile, start_ok

UNAUTHENTICATED, FROM_ONE = 1_000, 256
BUFFERED_KIB = 64
SENDING_SECONDS = 1.0
CANARY_LIMIT = 1.0
MEMORY_MB, HASHING_MB = 10, 40
DOUBT_SECONDS = 0.2
LONG_SECONDS = 30.0
CANARY_SECONDS = 0.25
NEARLY_ALL = 0.98
EIGHT = tuple(f"127.0.1.{number}" for number in range(1, 9))
ONE = ("127.0.3.1",)
ELSEWHERE = ("127.0.2.1", 0)
UNFINISHED = b"\x01\x00\x00\x00\x00\x1f\x40" + bytes(7_000)
"""Most of a frame as large as may be before the login."""


@dataclass(frozen=True, slots=True)
class Manner:
    """What one says at once, and then an octet at a time."""

    first: bytes
    drips: bytes = b""


MANNERS = (
    Manner(b""),
    Manner(HEADER[:5]),
    Manner(HEADER),
    Manner(HEADER + start_ok()[:20]),
    Manner(b"", HEADER),
    Manner(HEADER, start_ok()),
    Manner(HEADER + UNFINISHED),
)


@dataclass(frozen=True, slots=True)
class Stay:
    began: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Siege:
    """One wave after the other of so many, of whom `most` may stay for `seconds`."""

    addresses: tuple[str, ...]
    strangers: int
    most: int
    from_one: int
    seconds: float
    waves: int

    @property
    def settings(self) -> tuple[str, ...]:
        return (
            f"handshake_timeout={self.seconds}",
            f"unauthenticated_max={max(self.most, self.from_one)}",
            f"unauthenticated_max_per_address={self.from_one}",
            "login_tries_per_source=0",
            "login_tries_per_user=0",
        )


@dataclass(slots=True)
class Seen:
    quiet: float
    canaries: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    memory: float = 0.0
    at_once: int = 0
    problems: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)

    @property
    def slowest(self) -> float:
        return max(self.canaries, default=math.inf)


async def keep_silent(
    directory: Path, strangers: int, _seed: int, progress: Progress = silent, seconds: float = 10
) -> Outcome:
    """In the long form for half a minute."""
    most = min(UNAUTHENTICATED, strangers // 2)
    from_one = min(FROM_ONE, most // 4 + 6)
    waves = math.ceil(LONG_SECONDS / seconds) if most == UNAUTHENTICATED else 1
    many = Siege(EIGHT, strangers, most, from_one, seconds, waves)
    one = Siege(ONE, from_one * 300 // 256, from_one, from_one, seconds, 1)
    seen, alone = await asyncio.gather(
        _besiege(directory / "many", many, progress), _besiege(directory / "one", one, silent)
    )
    figures = (
        f"{waves} times {strangers} strangers from 8 addresses, silent or an octet a second: "
        f"{len(seen.kept)} kept for {percentile(seen.kept, 0.5):.1f} s, at most {seen.at_once} at "
        f"a time, of {one.strangers} from one address {alone.at_once}, the rest cut off at once, "
        f"{seen.memory:.1f} MB; {len(seen.canaries)} canaries log in meanwhile, the slowest in "
        f"{seen.slowest * 1000:.0f} ms ({seen.quiet * 1000:.0f} ms alone)"
    )
    problems, late = (*seen.problems, *alone.problems), (*seen.late, *alone.late)
    return Outcome("R-30", "strangers", figures, problems, late)


async def _besiege(directory: Path, siege: Siege, progress: Progress) -> Seen:
    broker = BrokerProcess(directory, "--memory")
    broker.settings = siege.settings
    await broker.start()
    seen = Seen(await log_in_seconds(broker.address))
    before = broker.memory("VmRSS")
    for _ in range(siege.waves):
        await _wave(broker, siege, seen, progress)
    seen.memory = broker.memory() - before
    if seen.memory > BUFFERED_KIB / 1024 * siege.most + MEMORY_MB:
        seen.problems.append(f"{seen.memory:.0f} MB for strangers")
    await _fill(broker, siege, seen)
    await broker.stop()
    if math.inf in seen.canaries or not seen.canaries:
        seen.problems.append("somebody else could not log in")
    elif seen.slowest > CANARY_LIMIT:
        seen.late.append(f"a canary took {seen.slowest:.2f} s to log in")
    return seen


async def _wave(broker: BrokerProcess, siege: Siege, seen: Seen, progress: Progress) -> None:
    done = asyncio.Event()
    canaries = asyncio.create_task(_log_in_until(broker, done))
    stays = await _stall(broker, siege, progress)
    done.set()
    took = await canaries
    seen.canaries += took
    judge(siege, stays, len(took), seen)


def judge(siege: Siege, stays: Sequence[Stay], canaries: int, seen: Seen) -> None:
    """Each canary may have taken the place of one of them."""
    kept = [stay for stay in stays if stay.seconds >= siege.seconds - 1]
    between = [one for one in stays if siege.seconds / 4 < one.seconds < siege.seconds - 1]
    at_once, longest = _most_at_once(kept), max((stay.seconds for stay in kept), default=0)
    if len(kept) < NEARLY_ALL * siege.most - canaries:
        seen.problems.append(f"only {len(kept)} of {siege.most} strangers were kept for their time")
    if len(between) > canaries:
        seen.problems.append(f"{len(between)} strangers were cut off in between")
    if at_once > siege.most:
        seen.problems.append(f"{at_once} strangers were kept at once")
    if longest > siege.seconds + 1:
        seen.late.append(f"dropped after {longest:.1f} s")
    seen.kept += [stay.seconds for stay in kept]
    seen.at_once = max(seen.at_once, at_once)


async def _log_in_until(broker: BrokerProcess, done: asyncio.Event) -> list[float]:
    took: list[float] = []
    while not done.is_set() or not took:
        took.append(await log_in_seconds(broker.address, local_addr=ELSEWHERE))
        await asyncio.sleep(CANARY_SECONDS)
    return took


async def _stall(broker: BrokerProcess, siege: Siege, progress: Progress) -> list[Stay]:
    """How long each was kept."""
    crowd: list[Raw] = []
    waiting: list[asyncio.Task[Stay]] = []
    for number in range(siege.strangers):
        local = (siege.addresses[number % len(siege.addresses)], 0)
        one = await Raw.connect(broker.address, local_addr=local)
        crowd.append(one)
        manner = MANNERS[number % len(MANNERS)]
        waiting.append(asyncio.create_task(_stay(one, manner, time.monotonic())))
        progress(number + 1, siege.strangers)
    stays = list(await asyncio.gather(*waiting))
    for one in crowd:
        one.drop()
    return stays


async def _stay(one: Raw, manner: Manner, began: float) -> Stay:
    one.send(manner.first)
    dripping = asyncio.create_task(_drip(one, manner.drips))
    await one.ends()
    dripping.cancel()
    return Stay(began, time.monotonic() - began)


async def _drip(one: Raw, octets: bytes) -> None:
    for octet in octets:
        await asyncio.sleep(1)
        one.send(bytes([octet]))


def _most_at_once(stays: Sequence[Stay]) -> int:
    """A moment's doubt about when exactly each began and ended is theirs."""
    moments = [(stay.began + DOUBT_SECONDS, 1) for stay in stays]
    moments += [(stay.began + stay.seconds - DOUBT_SECONDS, -1) for stay in stays]
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


async def _fill(broker: BrokerProcess, siege: Siege, seen: Seen) -> None:
    """Guesses, and behind each more than is kept until it has been judged."""
    broker.forget_peak()
    before, guesses = broker.memory("VmRSS"), siege.most // 2
    answered = await _guess(broker, siege, guesses)
    memory = broker.memory() - before
    if answered > (1 - NEARLY_ALL) * guesses:
        seen.problems.append(f"{answered} of {guesses} guesses with too much behind were answered")
    if memory > BUFFERED_KIB / 1024 * guesses + MEMORY_MB + HASHING_MB:
        seen.problems.append(f"{memory:.0f} MB for {guesses} guesses with much behind them")


async def _guess(broker: BrokerProcess, siege: Siege, guesses: int) -> int:
    """So many at once; how many were answered."""
    crowd = [await _greeted(broker, siege, number) for number in range(guesses)]
    await _send_at_once(broker, crowd, start_ok("guest", "wrong") + bytes(4 * BUFFERED_KIB * 1024))
    answered = sum(await asyncio.gather(*map(_is_answered, crowd)))
    for one in crowd:
        one.drop()
    return answered


async def _greeted(broker: BrokerProcess, siege: Siege, number: int) -> Raw:
    local = (siege.addresses[number % len(siege.addresses)], 0)
    one = await Raw.connect(broker.address, local_addr=local)
    one.send(HEADER)
    await one.next()
    return one


async def _send_at_once(broker: BrokerProcess, crowd: Sequence[Raw], octets: bytes) -> None:
    """A broker that reads meanwhile would stop with the guess, and leave the rest to the system."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        for one in crowd:
            one.send(octets)
        await asyncio.sleep(SENDING_SECONDS)
    finally:
        os.kill(broker.pid, signal.SIGCONT)


async def _is_answered(one: Raw) -> bool:
    """And not just cut off."""
    return isinstance(await one.next(), commands.Connection.Close)
