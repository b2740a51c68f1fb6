"""The order of logins, guesses and new passwords, with threads that the tests drive."""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from typing import Any

import httpx
import pytest
import pytest_asyncio

import leveret
from leveret.broker import Broker, User
from leveret.broker.access import login_queue, passwords
from leveret.broker.access.authentication import (
    MAX_REFUSED_PER_CALL,
    Authenticator,
    Refusal,
    Refused,
)
from leveret.model.clock import ManualClock
from tests.support.polling import wait_until_async
from tests.torture.security.raw import HEADER, Raw, start_ok

HASH = passwords.decoy_hash("")
HOME, ELSEWHERE = "10.0.0.1", "10.9.9.9"


class Threads(Executor):
    def __init__(self) -> None:
        self.jobs: deque[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()
        self.submitted: list[str] = []

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        job: Future[Any] = Future()
        self.jobs.append((job, call, arguments))
        self.submitted.append(arguments[-1])
        return job

    async def work(self) -> None:
        """Run jobs until there are none."""
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
    monkeypatch.setattr(passwords, "hash_argon2id", lambda password: f"hash of {password}")
    for name in ("ann", "bob"):
        running.broker.users.put_user(name, HASH, (), passwords.ARGON2ID)
    return running.broker


@pytest.fixture
def threads(broker: Broker) -> Threads:
    broker.authenticator._threads = threads = Threads()
    return threads


@pytest.fixture
def authenticator(broker: Broker, threads: Threads) -> Authenticator:
    return broker.authenticator


class Login:
    """A login and its result."""

    def __init__(self, authenticator: Authenticator, name: str, password: str, host: str) -> None:
        self.answer: User | Refused | None = None
        self.is_connected = True
        authenticator.authenticate(name, password, host, self._on_result, lambda: self.is_connected)

    def _on_result(self, answer: User | Refused) -> None:
        self.answer = answer

    @property
    def why(self) -> Refusal | None:
        return self.answer.why if isinstance(self.answer, Refused) else None

    @property
    def is_in(self) -> bool:
        return isinstance(self.answer, User)


def _guesses(authenticator: Authenticator, count: int) -> list[Login]:
    """Return that many guesses, each from another network and for another name."""
    return [
        Login(authenticator, f"name {n}", f"guess {n}", f"10.{1 + n // 200}.{n % 200}.1")
        for n in range(count)
    ]


async def test_known_user_is_next_regardless_of_the_queue(
    authenticator: Authenticator, threads: Threads
) -> None:
    authenticator.rate_limit.record_success(HOME, "ann")
    guesses = _guesses(authenticator, 400)
    ann = Login(authenticator, "ann", "right", HOME)
    await threads.work_once()
    assert threads.submitted[2] == "right"
    await threads.work_once()
    await threads.work_once()
    assert ann.is_in
    await threads.work()
    answers = [one.why for one in guesses]
    assert answers.count(Refusal.WRONG_CREDENTIALS) == len(threads.submitted) - 1
    assert answers.count(Refusal.WRONG_CREDENTIALS) + answers.count(Refusal.QUEUE_FULL) == 400


async def test_new_client_is_next_after_a_burst(
    authenticator: Authenticator, threads: Threads
) -> None:
    _guesses(authenticator, 400)
    Login(authenticator, "ann", "right", ELSEWHERE)
    for _ in range(3):
        await threads.work_once()
    assert "right" in threads.submitted


async def test_new_client_does_not_wait_for_repeated_guesses(
    authenticator: Authenticator, threads: Threads
) -> None:
    _guesses(authenticator, 50)
    await threads.work()
    for _ in range(3):
        for number in range(50):
            Login(authenticator, "name", f"again {number}", f"10.1.{number}.1")
    Login(authenticator, "ann", "right", ELSEWHERE)
    await threads.work_once()
    assert threads.submitted[52] == "right"


async def test_logins_beyond_the_limit_are_refused_unchecked(
    authenticator: Authenticator, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_queue, "MAX_UNKNOWN_CLIENTS", 10)
    guesses = _guesses(authenticator, 30)
    refused = [one for one in guesses if one.why is Refusal.QUEUE_FULL]
    assert len(refused) == 30 - 10 - 2  # two are being checked
    assert all(isinstance(one.answer, Refused) and one.answer.retry_seconds for one in refused)
    await threads.work()
    assert len(threads.submitted) == 12
    # Each checked login has an entry for its source and one for its account.
    assert len(authenticator.rate_limit) == 2 * 12


async def test_queue_shrinks_for_guesses_but_not_after_a_restart(
    authenticator: Authenticator, threads: Threads, broker: Broker
) -> None:
    for number in range(200):
        broker.users.put_user(f"name {number}", HASH, (), passwords.ARGON2ID)
        Login(authenticator, f"name {number}", f"right {number}", f"10.100.{number}.1")
    await threads.work()
    assert len(threads.submitted) == 200
    _guesses(authenticator, 200)
    await threads.work()
    # Some are checked before the attack is recognised, and some while others are refused in slices.
    maximum = 2 * login_queue.RESULTS_REMEMBERED + login_queue.MAX_UNDER_ATTACK
    assert login_queue.MAX_UNDER_ATTACK < len(threads.submitted) - 200 < maximum


async def test_disconnected_client_is_not_checked_and_frees_its_place(
    authenticator: Authenticator, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_queue, "MAX_UNKNOWN_CLIENTS", 10)
    guesses = _guesses(authenticator, 12)
    for one in guesses[5:]:
        one.is_connected = False
    last = Login(authenticator, "ann", "right", ELSEWHERE)
    assert [one.why for one in guesses] == [None] * 5 + [Refusal.CLIENT_GONE] * 7
    guesses[4].is_connected = False
    await threads.work()
    assert last.is_in and guesses[4].why is Refusal.CLIENT_GONE
    assert sorted(threads.submitted) == ["guess 0", "guess 1", "guess 2", "guess 3", "right"]


async def test_same_password_from_another_source_is_not_checked_again(
    authenticator: Authenticator, threads: Threads
) -> None:
    _guesses(authenticator, 1)
    asked = [Login(authenticator, "ann", "right", f"10.{number}.0.1") for number in range(100, 150)]
    await threads.work()
    assert all(one.is_in for one in asked)
    assert threads.submitted.count("right") <= 2  # one for each thread
    assert authenticator.rate_limit.has_logged_in("10.149.0.1", "ann")


async def test_rate_limited_source_gets_no_answer_from_another_sources_check(
    authenticator: Authenticator, threads: Threads
) -> None:
    _guesses(authenticator, 2)
    guesser = Login(authenticator, "ann", "right", "10.200.0.1")
    for number in range(30):
        authenticator.rate_limit.charge("10.200.0.1", f"name {number}")
    ann = Login(authenticator, "ann", "right", HOME)
    await threads.work()
    assert ann.is_in and guesser.why is Refusal.RATE_LIMITED


async def test_rate_limited_jobs_are_refused_in_slices(
    authenticator: Authenticator, threads: Threads
) -> None:
    guesses = [Login(authenticator, "ann", f"guess {n}", f"10.{n}.0.1") for n in range(200)]
    for number in range(100):
        authenticator.rate_limit.charge(f"10.250.0.{number}", "ann")
    threads.jobs.popleft()
    authenticator._running -= 1
    authenticator._start_jobs()
    assert sum(one.why is Refusal.RATE_LIMITED for one in guesses) == MAX_REFUSED_PER_CALL
    await threads.work()
    await wait_until_async(lambda: sum(one.why is Refusal.RATE_LIMITED for one in guesses) == 198)
    assert len(threads.submitted) == 2


async def test_new_hashes_leave_a_thread_for_logins(
    authenticator: Authenticator, threads: Threads
) -> None:
    made = [
        asyncio.create_task(authenticator.hash_password(f"new {n}", "admin")) for n in range(100)
    ]
    other = asyncio.create_task(authenticator.hash_password("theirs", "another"))
    await asyncio.sleep(0)
    assert threads.submitted == ["new 0"]
    ann = Login(authenticator, "ann", "right", ELSEWHERE)
    assert threads.submitted == ["new 0", "right"]
    for _ in range(3):
        await threads.work_once()
    assert threads.submitted == ["new 0", "right", "new 1", "theirs"]  # not after all of admin's
    await threads.work()
    assert ann.is_in
    assert [await one for one in made] == [f"hash of new {number}" for number in range(100)]
    assert await other == "hash of theirs"


async def test_guesses_do_not_delay_new_hashes(
    authenticator: Authenticator, threads: Threads
) -> None:
    _guesses(authenticator, 100)
    made = asyncio.create_task(authenticator.hash_password("new", "admin"))
    await asyncio.sleep(0)
    await threads.work_once()
    assert threads.submitted[2] == "new"
    await threads.work()
    assert await made == "hash of new"


async def test_cancelled_new_hash_is_not_computed(
    authenticator: Authenticator, threads: Threads
) -> None:
    first, second = (
        asyncio.create_task(authenticator.hash_password(one, "admin")) for one in ("one", "two")
    )
    await asyncio.sleep(0)
    second.cancel()
    await threads.work()
    assert await first == "hash of one" and threads.submitted == ["one"]


async def test_stop_cancels_new_hashes(authenticator: Authenticator, threads: Threads) -> None:
    _, second = (
        asyncio.create_task(authenticator.hash_password(one, "admin")) for one in ("one", "two")
    )
    await asyncio.sleep(0)
    authenticator.stop()
    with pytest.raises(asyncio.CancelledError):
        await second


async def test_full_queue_closes_the_connection_without_a_wrong_password_error(
    running: leveret.Broker, authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients reconnect after that; after a refused password many give up."""
    monkeypatch.setattr(login_queue, "MAX_UNKNOWN_CLIENTS", 0)
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


async def test_login_of_a_disconnected_http_client_is_not_checked(
    running: leveret.Broker, authenticator: Authenticator, threads: Threads
) -> None:
    writers = []
    for number in range(4):
        writers.append(await _ask(running, f"guess {number}"))
        await wait_until_async(lambda: len(authenticator._checks) == len(writers))
    (_, _, is_connected) = list(authenticator._checks.values())[2].waiting[0]
    writers[2].transport.abort()
    await wait_until_async(lambda: not is_connected())
    await threads.work()
    await wait_until_async(lambda: not authenticator._checks)
    assert threads.submitted == ["guess 0", "guess 1", "guess 3"]
    for writer in writers:
        writer.transport.abort()


async def test_full_queue_answers_http_with_retry_after(
    running: leveret.Broker, authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_queue, "MAX_UNKNOWN_CLIENTS", 0)
    await running.http_ready()
    async with httpx.AsyncClient(base_url=running.http_url, verify=False) as web:
        answer = await web.get("/api/whoami", auth=("nobody", "guess"))
    assert answer.status_code == 429 and answer.headers["retry-after"] == "5"
    assert answer.json()["reason"] == "too many concurrent logins, wait 5 s"
