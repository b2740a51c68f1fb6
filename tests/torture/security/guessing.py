"""R-39: guessed passwords. What is judged of them, who waits for it, and what times tell.

Others log in meanwhile, each log-in with a password that the broker has to hash: it runs here with
a memory of passwords that forgets at once. Then somebody comes from another machine, which is a
network namespace.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from pamqp import commands

from leveret.broker.access import passwords
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.health import Probed, lags
from tests.torture.security.links import Cable
from tests.torture.security.raw import HEADER, Raw, percentile, start_ok

PER_SOURCE, PER_ACCOUNT = 30, 100
CROWD, FROM_EVERYWHERE, NEW_PASSWORDS = 400, 150, 100
AT_ONCE = 30
OTHERS = 5
MOST_TRIES = 50
LOG_OCTETS = 1 << 24
TIMED, ROUNDS = 150, 4
GUESSER, NEIGHBOUR = "127.0.3.2", "127.0.4.1"
SECONDS, LAG, GAP = 1.0, 0.05, 0.05
_FORGETS = (
    "import leveret.broker.access.logins as logins; logins.CACHE_SECONDS = 0;"
    "from tests.torture.security.probe import main; main()"
)
FROM_ELSEWHERE = (
    (("guest", "guest"), 403, "this user may log in from this machine only"),
    (("known", "right"), None, ""),
    (("known", ""), 403, "wrong user name or password"),
    (("guest", ""), 403, "wrong user name or password"),
)
"""Who comes with what password, what it is closed with, and what the log says of it."""
_WRONG = re.compile(r"(\S+):\d+ -> \S+: login of '(.+)' refused .*: wrong user name or password")


@dataclass(slots=True)
class _Seen:
    """What one run saw."""

    let_in: int = 0
    known: dict[str, list[float]] = field(default_factory=dict)
    """Seconds that users took to log in who had done so from there before."""
    new: dict[str, list[float]] = field(default_factory=dict)
    amid: float = 0.0
    """Of one who comes together with the crowd, from an address that is as new as the others'."""
    seconds: float = 0.0
    processor: float = 0.0
    from_one: int = 0
    of_one: int = 0
    """Tries that were judged."""
    gaps: dict[str, float] = field(default_factory=dict)
    elsewhere: list[str] = field(default_factory=list)
    """What was wrong with the answers to those who came from another machine."""
    own_lag: list[float] = field(default_factory=list)
    lag: list[float] = field(default_factory=list)


async def guess_passwords(
    directory: Path, tries: int, seed: int, progress: Progress = silent
) -> Outcome:
    """From one source, from many, for one account; and many new passwords at once."""
    notes = directory.with_name("lags")
    broker = Probed(directory, notes)
    broker.program = ("-c", _FORGETS, str(notes))
    await broker.start()
    seen = _Seen()
    await _add_users(broker)
    await _log_in(broker, "known", NEIGHBOUR)
    await lags(broker, notes)
    await asyncio.sleep(1)
    seen.own_lag = await lags(broker, notes)
    used = broker.processor_seconds()
    await _from_one(broker, tries, seen, progress)
    await _from_many(broker, seen)
    await _for_one(broker, seen)
    seen.processor = broker.processor_seconds() - used
    seen.lag = await lags(broker, notes)
    await _new_passwords(broker, seen)
    judged = _WRONG.findall(broker.said(LOG_OCTETS))
    seen.from_one = sum(source == GUESSER for source, _ in judged)
    seen.of_one = sum(user == "target" for _, user in judged)
    await broker.stop()
    seen.elsewhere = await _from_elsewhere(directory)
    seen.gaps = await _gaps(directory.with_name("gap"), random.Random(seed))
    return _judge(seen, tries)


def _judge(seen: _Seen, tries: int) -> Outcome:
    problems = [f"{seen.let_in} wrong passwords let in"] if seen.let_in else []
    problems += seen.elsewhere
    minutes = 1 + int(seen.seconds // 60)
    if not PER_SOURCE <= seen.from_one <= PER_SOURCE * minutes:
        problems.append(f"{seen.from_one} tries of one source judged in {seen.seconds:.0f} s")
    if seen.of_one != PER_ACCOUNT:
        problems.append(f"{seen.of_one} tries of one account judged")
    late = [
        f"{who} took {max(times):.1f} s to log in beside {beside}"
        for who, all_times in (("a known user", seen.known), ("a new one", seen.new))
        for beside, times in all_times.items()
        if max(times) > SECONDS
    ]
    if math.isinf(seen.amid):
        problems.append(f"one who came among {CROWD} guessers was not let in")
    elif seen.amid > SECONDS:
        late.append(f"one who came among {CROWD} guessers took {seen.amid:.1f} s to log in")
    late += [
        f"unknown users and wrong passwords differ by {gap * 100:.0f} % in time over {front}"
        for front, gap in seen.gaps.items()
        if gap > GAP
    ]
    own, p99, most = percentile(seen.own_lag, 0.99), percentile(seen.lag, 0.99), max(seen.lag)
    if most > LAG + own:
        late.append(f"the loop was {most * 1000:.0f} ms late")
    figures = (
        f"{tries} wrong passwords from one source in {seen.seconds:.0f} s: {seen.from_one} judged; "
        f"{FROM_EVERYWHERE} for one account from as many sources: {seen.of_one} judged; with one "
        f"each from {CROWD} more {seen.processor:.1f} s processor, loop late by "
        f"{p99 * 1000:.0f} ms (p99), {most * 1000:.0f} ms at most; others, none of them "
        f"remembered, log in within {_longest(seen)}; one who came among the {CROWD} was in after "
        f"{seen.amid:.1f} s; from another machine guest and blank passwords are refused with 403; "
        "unknown user or wrong password: "
        + ", ".join(f"{gap * 100:.0f} % apart over {front}" for front, gap in seen.gaps.items())
    )
    return Outcome("R-39", "guessed passwords", figures, tuple(problems), tuple(late))


def _longest(seen: _Seen) -> str:
    return ", ".join(
        f"{max(times) * 1000:.0f} ms ({max(seen.new[beside]) * 1000:.0f} from new addresses) "
        f"beside {beside}"
        for beside, times in seen.known.items()
    )


# Guessing ----------------------------------------------------------------------------------------


async def _from_one(broker: BrokerProcess, tries: int, seen: _Seen, progress: Progress) -> None:
    """A sixth of them at once, the others one after the other."""
    began, at_once = time.monotonic(), tries // 6

    async def guess_all() -> None:
        waiting = (_guess(broker, f"guess {number}") for number in range(at_once))
        seen.let_in += sum(await asyncio.gather(*waiting))
        for number in range(at_once, tries):
            seen.let_in += await _guess(broker, f"guess {number}")
            progress(number + 1, tries)

    await _beside(broker, "one source", seen, guess_all())
    seen.seconds = time.monotonic() - began


async def _from_many(broker: BrokerProcess, seen: _Seen) -> None:
    """One guess each, from as many networks, for as many users. Others come when all wait."""
    crowd = [(f"user {n}", f"127.{10 + n // 200}.{n % 200}.9") for n in range(CROWD)]
    coming = [asyncio.create_task(_offer(broker, "guess", *one)) for one in crowd[::2]]
    amid = asyncio.create_task(_come_again(broker, "amid", "127.9.9.9"))
    coming += [asyncio.create_task(_offer(broker, "guess", *one)) for one in crowd[1::2]]
    waiting = await asyncio.gather(*coming)

    async def hear_all() -> None:
        seen.let_in += sum(await asyncio.gather(*map(_hear, waiting)))

    await _beside(broker, f"{CROWD} sources", seen, hear_all())
    seen.amid = await amid


async def _for_one(broker: BrokerProcess, seen: _Seen) -> None:
    """In portions: of more at once some find no place, and are not judged for that reason."""
    sources = [f"127.20.{number}.9" for number in range(FROM_EVERYWHERE)]
    for start in range(0, FROM_EVERYWHERE, AT_ONCE):
        portion = sources[start : start + AT_ONCE]
        guesses = (_guess(broker, f"for {source}", "target", source) for source in portion)
        seen.let_in += sum(await asyncio.gather(*guesses))


async def _new_passwords(broker: BrokerProcess, seen: _Seen) -> None:
    async def set_all() -> None:
        async with _api(broker, 600) as api:
            bodies = ({"password": f"new {n}", "tags": ""} for n in range(NEW_PASSWORDS))
            puts = (api.put(f"/api/users/made-{n}", json=body) for n, body in enumerate(bodies))
            for answer in await asyncio.gather(*puts):
                answer.raise_for_status()

    await _beside(broker, f"{NEW_PASSWORDS} new passwords", seen, set_all())


async def _beside(
    broker: BrokerProcess, what: str, seen: _Seen, work: Coroutine[None, None, None]
) -> None:
    """Log in while this goes on: where it was done before, and where nobody has."""
    working = asyncio.create_task(work)
    step = 10 * len(seen.new)
    seen.known[what], seen.new[what] = [], []
    for number in range(OTHERS):
        known, new = await asyncio.gather(
            _log_in(broker, "known", NEIGHBOUR),
            _come_again(broker, f"other-{step + number}", f"127.0.{100 + step + number}.1"),
        )
        seen.known[what].append(known)
        seen.new[what].append(new)
    await working


async def _guess(
    broker: BrokerProcess, password: str, user: str = "guest", source: str = GUESSER
) -> bool:
    return await _hear(await _offer(broker, password, user, source))


async def _offer(broker: BrokerProcess, password: str, user: str, source: str) -> Raw:
    raw = await Raw.connect(broker.address, local_addr=(source, 0))
    raw.send(HEADER)
    await raw.next()
    raw.send(start_ok(user, password))
    return raw


async def _hear(raw: Raw) -> bool:
    """Was it let in?"""
    try:
        return isinstance(await raw.next(), commands.Connection.Tune)
    finally:
        raw.drop()


async def _log_in(broker: BrokerProcess, user: str, source: str) -> float:
    """Seconds; infinite when it is refused."""
    began = time.monotonic()
    raw = await Raw.connect(broker.address, local_addr=(source, 0))
    try:
        return time.monotonic() - began if await raw.log_in(user, "right") else float("inf")
    finally:
        raw.drop()


async def _come_again(broker: BrokerProcess, user: str, source: str) -> float:
    """The same, of a client that comes again, as they do, when it is cut off."""
    began, tries = time.monotonic(), 0
    while math.isinf(await _log_in(broker, user, source)):
        await asyncio.sleep(0.1)
        tries += 1
        if tries > MOST_TRIES:
            return math.inf
    return time.monotonic() - began


# From another machine ----------------------------------------------------------------------------


async def _from_elsewhere(directory: Path) -> list[str]:
    """With the users that are there already."""
    cable = Cable(0)
    try:
        await cable.lay()
        broker = BrokerProcess(directory)
        broker.settings = (f"host={cable.host}",)
        await broker.start()
        found = [await _come_over(cable, broker, *one) for one in FROM_ELSEWHERE]
        await broker.stop()
    finally:
        await cable.remove()
    return [problem for problem in found if problem]


async def _come_over(
    cable: Cable, broker: BrokerProcess, login: tuple[str, str], code: int | None, why: str
) -> str:
    """What is wrong with the answer."""
    began = len(broker.said(LOG_OCTETS))
    reader, writer = await asyncio.open_connection(sock=await cable.connect(broker.address))
    raw = Raw(reader, writer)
    raw.send(HEADER)
    await raw.next()
    raw.send(start_ok(*login))
    said = await raw.next()
    raw.drop()
    log = broker.said(LOG_OCTETS)[began:]
    is_let_in = isinstance(said, commands.Connection.Tune)
    if is_let_in != (code is None) or getattr(said, "reply_code", None) != code or why not in log:
        return f"{login} from another machine was answered with {said and dict(said)}: {log}"
    return ""


async def _add_users(broker: BrokerProcess) -> None:
    names = ["known", "target", "amid", *(f"other-{number}" for number in range(100))]
    hashed = await asyncio.to_thread(passwords.make, "right")
    every = {"vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    about = {"password_hash": hashed, "hashing_algorithm": passwords.ARGON2ID, "tags": ""}
    body = {
        "users": [{"name": name, **about} for name in names],
        "permissions": [{"user": name, **every} for name in names],
    }
    async with _api(broker, 60) as api:
        (await api.post("/api/definitions", json=body)).raise_for_status()


def _api(broker: BrokerProcess, seconds: float) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"http://{broker.http}", auth=("guest", "guest"), timeout=seconds,
        limits=httpx.Limits(max_connections=NEW_PASSWORDS),
    )  # fmt: skip


# Times -------------------------------------------------------------------------------------------


async def _gaps(directory: Path, chance: random.Random) -> dict[str, float]:
    """How far apart, as a share, the answers to known and unknown names are in time."""
    broker = BrokerProcess(directory, "--http-port", "0", env={"LEVERET_HTTP_ENABLED": "true"})
    broker.settings = ("login_tries_per_source=0", "login_tries_per_user=0")
    await broker.start()
    async with _api(broker, 60) as api:

        async def ask(password: str, user: str) -> None:
            await api.get("/api/whoami", auth=(user, password))

        async def begin(password: str, user: str) -> None:
            await _guess(broker, password, user)

        gaps = {"AMQP": await _gap(begin, chance), "HTTP": await _gap(ask, chance)}
    await broker.stop()
    return gaps


async def _gap(guess: Callable[[str, str], Awaitable[None]], chance: random.Random) -> float:
    """Asked in random order: what the machine does in a rhythm of its own must meet both alike.

    And asked more often while they seem apart: chance goes away with that, a gap does not.
    """
    times: dict[str, list[float]] = {"guest": [], "nobody": []}
    await guess("warm", "guest")
    gap = 1.0
    for again in range(ROUNDS):
        users = [*times] * TIMED
        chance.shuffle(users)
        for number, user in enumerate(users):
            began = time.monotonic()
            await guess(f"guess {again} {number}", user)
            times[user].append(time.monotonic() - began)
        known, unknown = (statistics.median(seen) for seen in times.values())
        gap = abs(known - unknown) / max(known, unknown)
        if gap <= GAP:
            break
    return gap
