"""R-39: guessed passwords: how many are checked, who has to wait, and what response times reveal.

Meanwhile other users log in with passwords that the broker has to hash, because it runs without its
cache of passwords. Then users log in from another machine, which is a network namespace.
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
from tests.torture.security.links import Cable
from tests.torture.security.loop_lag import InstrumentedBroker, lags
from tests.torture.security.raw import HEADER, Raw, percentile, start_ok

PER_SOURCE, PER_ACCOUNT = 30, 100
SOURCES, SOURCES_PER_ACCOUNT, NEW_PASSWORDS = 400, 150, 100
AT_ONCE = 30
LOGINS = 5
MAX_TRIES = 50
LOG_BYTES = 1 << 24
TIMED, ROUNDS = 150, 4
GUESSING_ADDRESS, KNOWN_ADDRESS = "127.0.3.2", "127.0.4.1"
MAX_LOGIN_SECONDS, MAX_LAG, MAX_GAP = 1.0, 0.05, 0.05
_WITHOUT_CACHE = (
    "import leveret.broker.access.authentication as authentication;"
    "authentication.CACHE_SECONDS = 0;"
    "from tests.torture.security.lag_probe import main; main()"
)
REMOTE_LOGINS = (
    (("guest", "guest"), 403, "this user may log in from this machine only"),
    (("known", "right"), None, ""),
    (("known", ""), 403, "wrong user name or password"),
    (("guest", ""), 403, "wrong user name or password"),
)
"""User and password, the code of the close, and the reason in the log."""
_WRONG = re.compile(r"(\S+):\d+ -> \S+: login of '(.+)' refused .*: wrong user name or password")


@dataclass(slots=True)
class _Results:
    """The results of one run."""

    accepted: int = 0
    known: dict[str, list[float]] = field(default_factory=dict)
    """Login times of users who had logged in from their address before."""
    new: dict[str, list[float]] = field(default_factory=dict)
    amid_seconds: float = 0.0
    """Login time of a user who connects among the guessers, from a new address."""
    seconds: float = 0.0
    processor: float = 0.0
    from_one: int = 0
    of_account: int = 0
    """Guesses that were checked."""
    gaps: dict[str, float] = field(default_factory=dict)
    remote_problems: list[str] = field(default_factory=list)
    """Wrong answers to logins from another machine."""
    own_lag: list[float] = field(default_factory=list)
    lag: list[float] = field(default_factory=list)


async def guess_passwords(
    directory: Path, tries: int, seed: int, progress: Progress = silent
) -> Outcome:
    """Guess from one source, from many sources, and for one account; set many passwords."""
    report = directory.with_name("lags")
    broker = InstrumentedBroker(directory, report)
    broker.program = ("-c", _WITHOUT_CACHE, str(report))
    await broker.start()
    results = _Results()
    await _add_users(broker)
    await _log_in(broker, "known", KNOWN_ADDRESS)
    await lags(broker, report)
    await asyncio.sleep(1)
    results.own_lag = await lags(broker, report)
    used = broker.processor_seconds()
    await _from_one_source(broker, tries, results, progress)
    await _from_many_sources(broker, results)
    await _for_one_account(broker, results)
    results.processor = broker.processor_seconds() - used
    results.lag = await lags(broker, report)
    await _new_passwords(broker, results)
    judged = _WRONG.findall(broker.log_tail(LOG_BYTES))
    results.from_one = sum(source == GUESSING_ADDRESS for source, _ in judged)
    results.of_account = sum(user == "target" for _, user in judged)
    await broker.stop()
    results.remote_problems = await _from_remote_machine(directory)
    results.gaps = await _gaps(directory.with_name("gap"), random.Random(seed))
    return _judge(results, tries)


def _judge(results: _Results, tries: int) -> Outcome:
    problems = [f"{results.accepted} wrong passwords accepted"] if results.accepted else []
    problems += results.remote_problems
    minutes = 1 + int(results.seconds // 60)
    if not PER_SOURCE <= results.from_one <= PER_SOURCE * minutes:
        problems.append(
            f"{results.from_one} tries from one source checked in {results.seconds:.0f} s"
        )
    if results.of_account != PER_ACCOUNT:
        problems.append(f"{results.of_account} tries for one account checked")
    late = [
        f"{user_kind} took {max(times):.1f} s to log in during {activity}"
        for user_kind, all_times in (("a known user", results.known), ("a new user", results.new))
        for activity, times in all_times.items()
        if max(times) > MAX_LOGIN_SECONDS
    ]
    if math.isinf(results.amid_seconds):
        problems.append(f"a user among {SOURCES} guessers could not log in")
    elif results.amid_seconds > MAX_LOGIN_SECONDS:
        late.append(f"a user among {SOURCES} guessers took {results.amid_seconds:.1f} s to log in")
    late += [
        f"unknown users and wrong passwords differ by {gap * 100:.0f} % in time over {front}"
        for front, gap in results.gaps.items()
        if gap > MAX_GAP
    ]
    own_p99, p99, max_lag = (
        percentile(results.own_lag, 0.99),
        percentile(results.lag, 0.99),
        max(results.lag),
    )
    if max_lag > MAX_LAG + own_p99:
        late.append(f"the loop was {max_lag * 1000:.0f} ms late")
    figures = (
        f"{tries} wrong passwords from one source in {results.seconds:.0f} s: {results.from_one} "
        f"checked; {SOURCES_PER_ACCOUNT} for one account from as many sources: "
        f"{results.of_account} checked; with one each from {SOURCES} more sources "
        f"{results.processor:.1f} s of CPU time, delay of the loop {p99 * 1000:.0f} ms (p99), "
        f"{max_lag * 1000:.0f} ms at most; "
        f"other users, without a cached password, log in within {_longest(results)}; a user among "
        f"the {SOURCES} sources after {results.amid_seconds:.1f} s; from another machine guest and "
        "empty passwords are refused with 403; unknown users and wrong passwords differ by "
        + ", ".join(
            f"{gap * 100:.0f} % in time over {front}" for front, gap in results.gaps.items()
        )
    )
    return Outcome("R-39", "guessed passwords", figures, tuple(problems), tuple(late))


def _longest(results: _Results) -> str:
    return ", ".join(
        f"{max(times) * 1000:.0f} ms ({max(results.new[activity]) * 1000:.0f} from new addresses) "
        f"during {activity}"
        for activity, times in results.known.items()
    )


# Guessing ----------------------------------------------------------------------------------------


async def _from_one_source(
    broker: BrokerProcess, tries: int, results: _Results, progress: Progress
) -> None:
    """Send a sixth of the guesses at once, the others one by one."""
    began, at_once = time.monotonic(), tries // 6

    async def guess_all() -> None:
        waiting = (_guess(broker, f"guess {number}") for number in range(at_once))
        results.accepted += sum(await asyncio.gather(*waiting))
        for number in range(at_once, tries):
            results.accepted += await _guess(broker, f"guess {number}")
            progress(number + 1, tries)

    await _log_in_during(broker, "one source", results, guess_all())
    results.seconds = time.monotonic() - began


async def _from_many_sources(broker: BrokerProcess, results: _Results) -> None:
    """One guess from each network for each user. Other users log in while all wait."""
    users = [(f"user {n}", f"127.{10 + n // 200}.{n % 200}.9") for n in range(SOURCES)]
    offers = [asyncio.create_task(_send_login(broker, "guess", *user)) for user in users[::2]]
    amid_seconds = asyncio.create_task(_log_in_with_retries(broker, "amid", "127.9.9.9"))
    offers += [asyncio.create_task(_send_login(broker, "guess", *user)) for user in users[1::2]]
    waiting = await asyncio.gather(*offers)

    async def read_all() -> None:
        results.accepted += sum(await asyncio.gather(*map(_is_accepted, waiting)))

    await _log_in_during(broker, f"{SOURCES} sources", results, read_all())
    results.amid_seconds = await amid_seconds


async def _for_one_account(broker: BrokerProcess, results: _Results) -> None:
    """Guess in portions: more at once would exceed the limit of connections."""
    sources = [f"127.20.{number}.9" for number in range(SOURCES_PER_ACCOUNT)]
    for start in range(0, SOURCES_PER_ACCOUNT, AT_ONCE):
        portion = sources[start : start + AT_ONCE]
        guesses = (_guess(broker, f"for {source}", "target", source) for source in portion)
        results.accepted += sum(await asyncio.gather(*guesses))


async def _new_passwords(broker: BrokerProcess, results: _Results) -> None:
    async def set_all() -> None:
        async with _api(broker, 600) as api:
            bodies = ({"password": f"new {n}", "tags": ""} for n in range(NEW_PASSWORDS))
            puts = (api.put(f"/api/users/made-{n}", json=body) for n, body in enumerate(bodies))
            for answer in await asyncio.gather(*puts):
                answer.raise_for_status()

    await _log_in_during(broker, f"{NEW_PASSWORDS} new passwords", results, set_all())


async def _log_in_during(
    broker: BrokerProcess, activity: str, results: _Results, work: Coroutine[None, None, None]
) -> None:
    """Log in during the work, from a known address and from new ones."""
    working = asyncio.create_task(work)
    step = 10 * len(results.new)
    results.known[activity], results.new[activity] = [], []
    for number in range(LOGINS):
        known, new = await asyncio.gather(
            _log_in(broker, "known", KNOWN_ADDRESS),
            _log_in_with_retries(
                broker, f"other-{step + number}", f"127.0.{100 + step + number}.1"
            ),
        )
        results.known[activity].append(known)
        results.new[activity].append(new)
    await working


async def _guess(
    broker: BrokerProcess, password: str, user: str = "guest", source: str = GUESSING_ADDRESS
) -> bool:
    return await _is_accepted(await _send_login(broker, password, user, source))


async def _send_login(broker: BrokerProcess, password: str, user: str, source: str) -> Raw:
    raw = await Raw.connect(broker.address, local_addr=(source, 0))
    raw.send(HEADER)
    await raw.next()
    raw.send(start_ok(user, password))
    return raw


async def _is_accepted(raw: Raw) -> bool:
    """Whether the login was accepted."""
    try:
        return isinstance(await raw.next(), commands.Connection.Tune)
    finally:
        raw.drop()


async def _log_in(broker: BrokerProcess, user: str, source: str) -> float:
    """Seconds of a login; infinite if it is refused."""
    began = time.monotonic()
    raw = await Raw.connect(broker.address, local_addr=(source, 0))
    try:
        return time.monotonic() - began if await raw.log_in(user, "right") else float("inf")
    finally:
        raw.drop()


async def _log_in_with_retries(broker: BrokerProcess, user: str, source: str) -> float:
    """Seconds of a login by a client that reconnects after it is closed."""
    began, tries = time.monotonic(), 0
    while math.isinf(await _log_in(broker, user, source)):
        await asyncio.sleep(0.1)
        tries += 1
        if tries > MAX_TRIES:
            return math.inf
    return time.monotonic() - began


# From another machine ----------------------------------------------------------------------------


async def _from_remote_machine(directory: Path) -> list[str]:
    """Log in as existing users; return the problems."""
    cable = Cable(0)
    try:
        await cable.create()
        broker = BrokerProcess(directory)
        broker.settings = (f"host={cable.host}",)
        await broker.start()
        results = [await _try_remote_login(cable, broker, *case) for case in REMOTE_LOGINS]
        await broker.stop()
    finally:
        await cable.remove()
    return [problem for problem in results if problem]


async def _try_remote_login(
    cable: Cable, broker: BrokerProcess, login: tuple[str, str], code: int | None, reason: str
) -> str:
    """The problem with the answer, or an empty string."""
    began = len(broker.log_tail(LOG_BYTES))
    reader, writer = await asyncio.open_connection(sock=await cable.connect(broker.address))
    raw = Raw(reader, writer)
    raw.send(HEADER)
    await raw.next()
    raw.send(start_ok(*login))
    method = await raw.next()
    raw.drop()
    log = broker.log_tail(LOG_BYTES)[began:]
    is_accepted = isinstance(method, commands.Connection.Tune)
    if (
        is_accepted != (code is None)
        or getattr(method, "reply_code", None) != code
        or reason not in log
    ):
        return f"{login} from another machine was answered with {method and dict(method)}: {log}"
    return ""


async def _add_users(broker: BrokerProcess) -> None:
    names = ["known", "target", "amid", *(f"other-{number}" for number in range(100))]
    hashed = await asyncio.to_thread(passwords.hash_argon2id, "right")
    every = {"vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    password_fields = {"password_hash": hashed, "hashing_algorithm": passwords.ARGON2ID, "tags": ""}
    body = {
        "users": [{"name": name, **password_fields} for name in names],
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


async def _gaps(directory: Path, rng: random.Random) -> dict[str, float]:
    """The relative difference of response times for known and unknown users."""
    broker = BrokerProcess(directory, "--http-port", "0", env={"LEVERET_HTTP_ENABLED": "true"})
    broker.settings = ("login_tries_per_source=0", "login_tries_per_user=0")
    await broker.start()
    async with _api(broker, 60) as api:

        async def ask(password: str, user: str) -> None:
            await api.get("/api/whoami", auth=(user, password))

        async def begin(password: str, user: str) -> None:
            await _guess(broker, password, user)

        gaps = {"AMQP": await _gap(begin, rng), "HTTP": await _gap(ask, rng)}
    await broker.stop()
    return gaps


async def _gap(guess: Callable[[str, str], Awaitable[None]], rng: random.Random) -> float:
    """Guess in random order, so that periodic load of the machine affects both equally.

    Repeat while they differ: a difference by chance disappears, a real one stays.
    """
    times: dict[str, list[float]] = {"guest": [], "nobody": []}
    await guess("warm", "guest")
    gap = 1.0
    for again in range(ROUNDS):
        users = [*times] * TIMED
        rng.shuffle(users)
        for number, user in enumerate(users):
            began = time.monotonic()
            await guess(f"guess {again} {number}", user)
            times[user].append(time.monotonic() - began)
        known, unknown = (statistics.median(results) for results in times.values())
        gap = abs(known - unknown) / max(known, unknown)
        if gap <= MAX_GAP:
            break
    return gap
