"""R-39: passwords guessed in parallel and in series; how long known and unknown names take."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from pathlib import Path

from pamqp import commands

from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.raw import HEADER, Raw, log_in_seconds, start_ok

PER_MINUTE = 30
LOG_OCTETS = 1 << 24
TIMED = 150


async def guess_passwords(
    directory: Path, tries: int, seed: int, progress: Progress = silent
) -> Outcome:
    """Wrong passwords from one source; another source logs in meanwhile."""
    broker = BrokerProcess(directory)
    await broker.start()
    await log_in_seconds(broker.address)
    began, used = time.monotonic(), broker.processor_seconds()
    parallel = [_guess(broker, f"guess {number}") for number in range(tries // 5)]
    waiting = asyncio.gather(*parallel)
    others = [await log_in_seconds(broker.address, local_addr=("127.0.3.1", 0)) for _ in range(5)]
    let_in = sum(await waiting)
    for number in range(tries // 5, tries):
        let_in += await _guess(broker, f"guess {number}")
        progress(number + 1, tries)
    seconds = time.monotonic() - began
    cost = broker.processor_seconds() - used
    judged = broker.said(LOG_OCTETS).count("wrong user name or password")
    gap = await _gap(directory.with_name("gap"), random.Random(seed))
    await broker.stop()
    problems = [f"{let_in} wrong passwords let in"] if let_in else []
    most = PER_MINUTE * (1 + int(seconds // 60)) + PER_MINUTE
    if not 0 < judged <= most:
        problems.append(f"{judged} tries were judged in {seconds:.0f} s")
    late = []
    if max(others) > 1:
        late.append(f"another source took {max(others):.1f} s to log in")
    if gap > 0.05:
        late.append(f"unknown users and wrong passwords differ by {gap * 100:.0f} % in time")
    figures = (
        f"{tries} wrong passwords in {seconds:.0f} s: {judged} judged, the rest refused unread, "
        f"{cost:.1f} s processor; another source logs in in {max(others) * 1000:.0f} ms at most; "
        f"unknown user or wrong password: {gap * 100:.0f} % apart"
    )
    return Outcome("R-39", "guessed passwords", figures, tuple(problems), tuple(late))


async def _guess(broker: BrokerProcess, password: str, user: str = "guest") -> bool:
    raw = await Raw.connect(broker.address, local_addr=("127.0.3.2", 0))
    try:
        raw.send(HEADER)
        await raw.next()
        raw.send(start_ok(user, password))
        return isinstance(await raw.next(), commands.Connection.Tune)
    finally:
        raw.drop()


async def _gap(directory: Path, chance: random.Random) -> float:
    """How far apart, as a share, the answers to known and unknown names are in time.

    Asked in random order: what the machine does in a rhythm of its own must meet both alike.
    """
    broker = BrokerProcess(directory)
    broker.settings = ("login_tries_per_source=0", "login_tries_per_user=0")
    await broker.start()
    times: dict[str, list[float]] = {"guest": [], "nobody": []}
    await _guess(broker, "warm")
    users = [*times] * TIMED
    chance.shuffle(users)
    for number, user in enumerate(users):
        began = time.monotonic()
        await _guess(broker, f"guess {number}", user)
        times[user].append(time.monotonic() - began)
    await broker.stop()
    known, unknown = (statistics.median(seen) for seen in times.values())
    return abs(known - unknown) / max(known, unknown)
