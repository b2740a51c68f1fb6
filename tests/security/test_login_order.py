"""Log-ins beside guesses and new passwords, on threads that work when a test says so."""

from __future__ import annotations

import asyncio
import base64
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from typing import Any

import httpx
import pytest
import pytest_asyncio

import leveret
from leveret.broker import Broker, User
from leveret.broker.access import lines, passwords
from leveret.broker.access.logins import REFUSED_AT_ONCE, Logins, Refusal, Refused
from leveret.model.clock import ManualClock
from tests.torture.security.raw import HEADER, Raw, start_ok

HASH = passwords.nobodys("")
HOME, ELSEWHERE = "10.0.0.1", "10.9.9.9"


class Threads(Executor):
    def __init__(self) -> None:
        self.jobs: deque[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()
        self.asked: list[str] = []

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        job: Future[Any] = Future()
        self.jobs.append((job, call, arguments))
        self.asked.append(arguments[-1])
        return job

    async def work(self) -> None:
        """Until there is nothing to do."""
        while self.jobs:
            await self.work_once()

    async def work_once(self) -> None:
        job, call, arguments = self.jobs.popleft()
        job.set_result(call(*arguments))
        for _ in range(5):
            await asyncio.sleep(0)


@pytest_asyncio.fixture
async def running() -> AsyncIterator[leveret.Broker]:
    settings = leveret.in_process_settings(http_enabled=True)
    async with leveret.Broker(settings, ManualClock()) as running:
        yield running


@pytest.fixture
def broker(running: leveret.Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    monkeypatch.setattr(passwords, "verify", lambda _, password: password.startswith("right"))
    monkeypatch.setattr(passwords, "make", lambda password: f"hash of {password}")
    for name in ("ann", "bob"):
        running.broker.users.put_user(name, HASH, (), passwords.ARGON2ID)
    return running.broker


@pytest.fixture
def threads(broker: Broker) -> Threads:
    broker.access.logins._threads = threads = Threads()
    return threads


@pytest.fixture
def logins(broker: Broker, threads: Threads) -> Logins:
    return broker.access.logins


class Asked:
    """A log-in and what came of it."""

    def __init__(self, logins: Logins, name: str, password: str, host: str) -> None:
        self.answer: User | Refused | None = None
        self.is_here = True
        logins.begin(name, password, host, self._told, lambda: self.is_here)

    def _told(self, answer: User | Refused) -> None:
        self.answer = answer

    @property
    def why(self) -> Refusal | None:
        return self.answer.why if isinstance(self.answer, Refused) else None

    @property
    def is_in(self) -> bool:
        return isinstance(self.answer, User)


def _crowd(logins: Logins, count: int) -> list[Asked]:
    """One guess each, from as many networks for as many names."""
    return [
        Asked(logins, f"name {n}", f"guess {n}", f"10.{1 + n // 200}.{n % 200}.1")
        for n in range(count)
    ]


async def test_who_logged_in_from_there_before_is_next_whatever_waits(
    logins: Logins, threads: Threads
) -> None:
    logins.throttle.welcome(HOME, "ann")
    crowd = _crowd(logins, 400)
    ann = Asked(logins, "ann", "right", HOME)
    await threads.work_once()
    assert threads.asked[2] == "right"
    await threads.work_once()
    await threads.work_once()
    assert ann.is_in
    await threads.work()
    answers = [one.why for one in crowd]
    assert answers.count(Refusal.WRONG) == len(threads.asked) - 1
    assert answers.count(Refusal.WRONG) + answers.count(Refusal.CROWDED) == 400


async def test_newcomer_is_next_when_the_crowd_stands_in_line(
    logins: Logins, threads: Threads
) -> None:
    _crowd(logins, 400)
    Asked(logins, "ann", "right", ELSEWHERE)
    for _ in range(3):
        await threads.work_once()
    assert "right" in threads.asked


async def test_newcomer_does_not_wait_for_those_who_guess_again(
    logins: Logins, threads: Threads
) -> None:
    _crowd(logins, 50)
    await threads.work()
    for _ in range(3):
        for number in range(50):
            Asked(logins, "name", f"again {number}", f"10.1.{number}.1")
    Asked(logins, "ann", "right", ELSEWHERE)
    await threads.work_once()
    assert threads.asked[52] == "right"


async def test_more_than_there_are_places_for_are_refused_unjudged(
    logins: Logins, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MOST_STRANGERS", 10)
    crowd = _crowd(logins, 30)
    refused = [one for one in crowd if one.why is Refusal.CROWDED]
    assert len(refused) == 30 - 10 - 2  # two are being judged
    assert all(isinstance(one.answer, Refused) and one.answer.retry_seconds for one in refused)
    await threads.work()
    assert len(threads.asked) == 12
    assert len(logins.throttle) == 2 * 12  # a source and an account each: who was refused has none


async def test_guessers_lose_their_places_and_those_who_come_back_keep_theirs(
    logins: Logins, threads: Threads, broker: Broker
) -> None:
    for number in range(200):
        broker.users.put_user(f"name {number}", HASH, (), passwords.ARGON2ID)
        Asked(logins, f"name {number}", f"right {number}", f"10.100.{number}.1")
    await threads.work()
    assert len(threads.asked) == 200
    _crowd(logins, 200)
    await threads.work()
    # It takes some to see what they are, and some while the others are sent away in portions.
    most = 2 * lines.LOOKED_BACK + lines.MOST_BESIDE_GUESSERS
    assert lines.MOST_BESIDE_GUESSERS < len(threads.asked) - 200 < most


async def test_who_has_left_is_not_judged_and_gives_their_place_away(
    logins: Logins, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MOST_STRANGERS", 10)
    crowd = _crowd(logins, 12)
    for one in crowd[5:]:
        one.is_here = False
    last = Asked(logins, "ann", "right", ELSEWHERE)
    assert [one.why for one in crowd] == [None] * 5 + [Refusal.GONE] * 7
    crowd[4].is_here = False
    await threads.work()
    assert last.is_in and crowd[4].why is Refusal.GONE
    assert sorted(threads.asked) == ["guess 0", "guess 1", "guess 2", "guess 3", "right"]


async def test_same_password_from_elsewhere_needs_no_second_look(
    logins: Logins, threads: Threads
) -> None:
    _crowd(logins, 1)
    asked = [Asked(logins, "ann", "right", f"10.{number}.0.1") for number in range(100, 150)]
    await threads.work()
    assert all(one.is_in for one in asked)
    assert threads.asked.count("right") <= 2  # one for each thread
    assert logins.throttle.is_welcome("10.149.0.1", "ann")


async def test_guesser_beyond_its_limit_does_not_learn_what_another_source_knows(
    logins: Logins, threads: Threads
) -> None:
    _crowd(logins, 2)
    guesser = Asked(logins, "ann", "right", "10.200.0.1")
    for number in range(30):
        logins.throttle.charge("10.200.0.1", f"name {number}")
    ann = Asked(logins, "ann", "right", HOME)
    await threads.work()
    assert ann.is_in and guesser.why is Refusal.TOO_MANY


async def test_many_that_may_not_be_tried_are_refused_in_portions(
    logins: Logins, threads: Threads
) -> None:
    crowd = [Asked(logins, "ann", f"guess {n}", f"10.{n}.0.1") for n in range(200)]
    for number in range(100):
        logins.throttle.charge(f"10.250.0.{number}", "ann")
    threads.jobs.popleft()
    logins._running -= 1
    logins._pump()
    assert sum(one.why is Refusal.TOO_MANY for one in crowd) == REFUSED_AT_ONCE
    await threads.work()
    await _until(lambda: sum(one.why is Refusal.TOO_MANY for one in crowd) == 198)
    assert len(threads.asked) == 2


async def test_new_passwords_leave_a_thread_to_log_ins(logins: Logins, threads: Threads) -> None:
    made = [asyncio.create_task(logins.hash(f"new {n}", "admin")) for n in range(100)]
    other = asyncio.create_task(logins.hash("theirs", "another"))
    await asyncio.sleep(0)
    assert threads.asked == ["new 0"]
    ann = Asked(logins, "ann", "right", ELSEWHERE)
    assert threads.asked == ["new 0", "right"]
    for _ in range(3):
        await threads.work_once()
    assert threads.asked == ["new 0", "right", "new 1", "theirs"]  # not after all of the many
    await threads.work()
    assert ann.is_in
    assert [await one for one in made] == [f"hash of new {number}" for number in range(100)]
    assert await other == "hash of theirs"


async def test_guesses_do_not_keep_new_passwords_waiting(logins: Logins, threads: Threads) -> None:
    _crowd(logins, 100)
    made = asyncio.create_task(logins.hash("new", "admin"))
    await asyncio.sleep(0)
    await threads.work_once()
    assert threads.asked[2] == "new"
    await threads.work()
    assert await made == "hash of new"


async def test_new_password_that_nobody_waits_for_is_not_made(
    logins: Logins, threads: Threads
) -> None:
    first, second = (asyncio.create_task(logins.hash(one, "admin")) for one in ("one", "two"))
    await asyncio.sleep(0)
    second.cancel()
    await threads.work()
    assert await first == "hash of one" and threads.asked == ["one"]


async def test_stop_ends_the_wait_for_new_passwords(logins: Logins, threads: Threads) -> None:
    _, second = (asyncio.create_task(logins.hash(one, "admin")) for one in ("one", "two"))
    await asyncio.sleep(0)
    logins.stop()
    with pytest.raises(asyncio.CancelledError):
        await second


async def test_client_without_a_place_is_cut_off_and_not_told_of_a_wrong_password(
    running: leveret.Broker, logins: Logins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients come again after that; after a refusal many give up."""
    monkeypatch.setattr(lines, "MOST_STRANGERS", 0)
    raw = await Raw.connect(running.amqp_address)
    raw.send(HEADER)
    assert await raw.next() is not None
    raw.send(start_ok("nobody", "guess"))
    assert await raw.next() is None
    raw.drop()


# Over HTTP ---------------------------------------------------------------------------------------


async def _ask(running: leveret.Broker, password: str) -> asyncio.StreamWriter:
    await running.http_ready()
    host, port = running.http_url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    proof = base64.b64encode(f"nobody:{password}".encode()).decode()
    head = f"GET /api/whoami HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Basic {proof}\r\n"
    writer.write(head.encode() + b"\r\n")
    return writer


async def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_request_whose_sender_has_left_is_not_judged(
    running: leveret.Broker, logins: Logins, threads: Threads
) -> None:
    writers = []
    for number in range(4):
        writers.append(await _ask(running, f"guess {number}"))
        await _until(lambda: len(logins._checks) == len(writers))
    (_, _, is_here) = list(logins._checks.values())[2].waiting[0]
    writers[2].transport.abort()
    await _until(lambda: not is_here())
    await threads.work()
    await _until(lambda: not logins._checks)
    assert threads.asked == ["guess 0", "guess 1", "guess 3"]
    for writer in writers:
        writer.transport.abort()


async def test_request_without_a_place_is_told_when_to_come_again(
    running: leveret.Broker, logins: Logins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MOST_STRANGERS", 0)
    await running.http_ready()
    async with httpx.AsyncClient(base_url=running.http_url, verify=False) as web:
        answer = await web.get("/api/whoami", auth=("nobody", "guess"))
    assert answer.status_code == 429 and answer.headers["retry-after"] == "5"
    assert answer.json()["reason"] == "too many log-ins at a time, wait 5 s"
