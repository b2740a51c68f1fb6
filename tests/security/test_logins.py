"""Passwords: kept as Argon2id, checked on threads, remembered for a minute and no longer."""

from __future__ import annotations

import asyncio
import base64
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import pytest_asyncio
from argon2.low_level import Type, hash_secret
from pamqp import commands

import leveret
from leveret.broker import Broker, User
from leveret.broker.access import passwords
from leveret.broker.access.logins import CACHE_SECONDS, THREADS, Refusal, Refused
from leveret.broker.access.throttle import Throttle
from leveret.model.clock import ManualClock
from leveret.model.store import PermissionDefinition
from tests.torture.security.raw import HEADER, Raw, start_ok

HOME = "127.0.0.1"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture
async def broker(clock: ManualClock) -> AsyncIterator[Broker]:
    async with leveret.Broker(leveret.in_process_settings(), clock) as running:
        yield running.broker


@pytest.fixture
def hashings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The passwords that threads were asked about."""
    asked: list[str] = []
    real = passwords.verify

    def verify(hashed: str, password: str) -> bool:
        asked.append(password)
        return real(hashed, password)

    monkeypatch.setattr(passwords, "verify", verify)
    return asked


async def _add(broker: Broker, name: str, password: str) -> User:
    hashed = await broker.access.logins.hash(password)
    return broker.users.put_user(name, hashed, ("management",), passwords.ARGON2ID)


async def _why(broker: Broker, name: str, password: str, host: str = HOME) -> Refusal | None:
    answer = await broker.access.logins.check(name, password, host)
    return answer.why if isinstance(answer, Refused) else None


async def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_right_password_lets_in_and_is_remembered(
    broker: Broker, clock: ManualClock, hashings: list[str]
) -> None:
    user = await _add(broker, "ann", "secret")
    assert base64.b64decode(user.password_hash).startswith(b"$argon2id$v=19$m=19456,t=2,p=1$")
    for _ in range(5):
        assert await _why(broker, "ann", "secret") is None
    assert hashings == ["secret"]
    clock.advance(CACHE_SECONDS)
    assert await _why(broker, "ann", "secret") is None
    assert hashings == ["secret", "secret"]


async def test_same_password_at_the_same_time_is_hashed_once(
    broker: Broker, hashings: list[str]
) -> None:
    await _add(broker, "ann", "secret")
    answers = await asyncio.gather(*(_why(broker, "ann", "secret") for _ in range(100)))
    assert set(answers) == {None}
    assert hashings == ["secret"]


def test_passwords_are_remembered_for_a_minute_at_most_and_hashed_on_two_threads(
    broker: Broker,
) -> None:
    assert CACHE_SECONDS <= 60
    pool = broker.access.logins._pool()
    assert isinstance(pool, ThreadPoolExecutor) and pool._max_workers == THREADS == 2


async def test_new_password_counts_at_once(broker: Broker) -> None:
    await _add(broker, "ann", "secret")
    assert await _why(broker, "ann", "secret") is None
    await _add(broker, "ann", "other")
    assert await _why(broker, "ann", "secret") is Refusal.WRONG
    assert await _why(broker, "ann", "other") is None


async def test_deleted_user_is_out_at_once_and_so_is_the_next_of_that_name(broker: Broker) -> None:
    await _add(broker, "ann", "secret")
    assert await _why(broker, "ann", "secret") is None
    broker.delete_user("ann")
    assert await _why(broker, "ann", "secret") is Refusal.WRONG
    await _add(broker, "ann", "hers")
    assert await _why(broker, "ann", "secret") is Refusal.WRONG


async def test_password_that_changes_while_it_is_checked_does_not_let_in(broker: Broker) -> None:
    await _add(broker, "ann", "secret")
    asked = asyncio.create_task(_why(broker, "ann", "secret"))
    await asyncio.sleep(0)
    broker.users.put_user("ann", "", ("management",))
    assert await asked is Refusal.WRONG


@pytest.mark.parametrize("name", ["ann", "nobody", "old"])
async def test_every_wrong_password_costs_the_same(
    broker: Broker, hashings: list[str], name: str
) -> None:
    """Known, unknown or with a hash of RabbitMQ's: each is one Argon2id computation."""
    await _add(broker, "ann", "secret")
    broker.users.put_user("old", passwords.hash_password("secret"), ())
    assert await _why(broker, name, "guess") is Refusal.WRONG
    assert hashings == ["guess"]


@pytest.mark.parametrize("name", ["ann", "empty", "guest"])
async def test_blank_password_is_refused(broker: Broker, name: str) -> None:
    await _add(broker, "ann", "secret")
    broker.users.put_user("empty", passwords.make(""), (), passwords.ARGON2ID)
    assert await _why(broker, name, "") is Refusal.WRONG


async def test_endless_password_is_refused(broker: Broker, hashings: list[str]) -> None:
    await _add(broker, "ann", "secret")
    assert await _why(broker, "ann", "x" * (passwords.LONGEST + 1)) is Refusal.WRONG
    assert hashings == [""]


def _costly(password: str, passes: int) -> str:
    """A hash as another program made it."""
    raw = hash_secret(password.encode(), b"x" * 16, passes, 64, 1, 32, Type.ID)
    return base64.b64encode(raw).decode()


async def test_unknown_users_take_as_long_as_those_with_imported_hashes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the three costs that known users' hashes have, unknown names have some each."""
    asked: list[bytes] = []
    monkeypatch.setattr(
        passwords, "verify", lambda hashed, _: asked.append(passwords.costs(hashed))
    )
    broker.users.put_user("three", _costly("secret", 3), (), passwords.ARGON2ID)
    broker.users.put_user("five", _costly("secret", 5), (), passwords.ARGON2ID)
    broker.access.logins.throttle = Throttle(broker.clock.monotonic, 0, 0)
    taken: dict[int, bytes] = {}
    for number in range(200):
        for password in ("guess", "", "x" * (passwords.LONGEST + 1)):
            asked.clear()
            assert await _why(broker, f"nobody {number}", password) is Refusal.WRONG
            (cost,) = asked
            assert taken.setdefault(number, cost) == cost  # whatever the password
    assert set(taken.values()) == {passwords.OURS, b"m=64,t=3,p=1", b"m=64,t=5,p=1"}


@pytest.mark.parametrize("password", ["guess", "", "x" * (passwords.LONGEST + 1)])
async def test_user_with_an_imported_hash_always_takes_as_long(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    asked: list[bytes] = []
    monkeypatch.setattr(
        passwords, "verify", lambda hashed, _: asked.append(passwords.costs(hashed))
    )
    broker.users.put_user("three", _costly("secret", 3), (), passwords.ARGON2ID)
    assert await _why(broker, "three", password) is Refusal.WRONG
    assert asked == [b"m=64,t=3,p=1"]


async def test_hash_of_other_costs_is_made_anew_at_the_next_login(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.broker.access.logins.UPGRADE_SECONDS", 0)
    users = broker.users
    before = users.put_user("three", _costly("secret", 3), (), passwords.ARGON2ID)
    assert await _why(broker, "three", "secret") is None
    await _until(lambda: passwords.costs(users.by_name["three"].password_hash) == passwords.OURS)
    assert users.by_name["three"].password_id == before.password_id  # sessions go on
    assert await _why(broker, "three", "secret") is None
    assert await _why(broker, "three", "guess") is Refusal.WRONG


async def test_tries_made_at_once_are_counted(broker: Broker, hashings: list[str]) -> None:
    most = broker.settings.login_tries_per_source
    await _add(broker, "ann", "secret")
    answers = await asyncio.gather(*(_why(broker, "ann", f"guess {n}") for n in range(200)))
    assert answers.count(Refusal.WRONG) == len(hashings) == most
    unjudged = answers.count(Refusal.TOO_MANY), answers.count(Refusal.CROWDED)
    assert sum(unjudged) == 200 - most and all(unjudged)
    assert await _why(broker, "ann", "secret", "127.0.0.2") is None


async def test_remembered_password_is_a_proof_too(broker: Broker, hashings: list[str]) -> None:
    """Two machines of one user: the second's password is known from the first. Guesses from
    elsewhere lock out neither."""
    await _add(broker, "ann", "secret")
    for host in ("10.0.0.1", "10.0.0.2"):
        assert await _why(broker, "ann", "secret", host) is None
    assert hashings == ["secret"]
    for number in range(broker.settings.login_tries_per_user):
        broker.access.logins.throttle.charge(f"10.1.0.{number}", "ann")
    for host in ("10.0.0.1", "10.0.0.2"):
        assert await _why(broker, "ann", "secret", host) is None
    assert await _why(broker, "ann", "secret", "10.0.0.3") is Refusal.TOO_MANY


async def test_guest_is_for_this_machine_only(broker: Broker) -> None:
    for host in (HOME, "127.8.9.10", "::1", "::ffff:127.0.0.1"):
        assert await _why(broker, "guest", "guest", host) is None
    for host in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1", "128.0.0.1"):
        assert await _why(broker, "guest", "guest", host) is Refusal.NOT_FROM_HERE


async def test_guest_from_elsewhere_if_allowed() -> None:
    settings = leveret.in_process_settings(allow_remote_guest=True)
    async with leveret.Broker(settings) as running:
        assert await _why(running.broker, "guest", "guest", "10.1.2.3") is None


async def _code(address: tuple[str, int], source: str, *login: str) -> object:
    """What a client from there is closed with; None when it is let in."""
    raw = await Raw.connect(address, local_addr=(source, 0))
    raw.send(HEADER)
    await raw.next()
    raw.send(start_ok(*login))
    said = await raw.next()
    raw.drop()
    assert isinstance(said, commands.Connection.Tune | commands.Connection.Close)
    return getattr(said, "reply_code", None)


def _address_of_this_machine() -> str:
    """One that others reach it at. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        return str(asking.getsockname()[0])


async def test_guest_from_another_address_is_refused_over_amqp() -> None:
    elsewhere = _address_of_this_machine()
    async with leveret.Broker(leveret.in_process_settings(host="0.0.0.0")) as running:
        port = running.amqp_address[1]
        await _add(running.broker, "ann", "secret")
        await _add(running.broker, "empty", "")
        assert await _code((HOME, port), HOME) is None
        assert await _code((elsewhere, port), elsewhere) == 403
        assert await _code((elsewhere, port), elsewhere, "ann", "secret") is None
        for name in ("ann", "empty", "guest"):
            assert await _code((elsewhere, port), elsewhere, name, "") == 403


async def test_address_that_counts_is_where_the_client_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the one that it has connected to."""
    monkeypatch.setattr(
        "leveret.broker.access.logins.is_loopback", lambda host: host != "127.0.0.2"
    )
    async with leveret.Broker(leveret.in_process_settings()) as running:
        assert await _code(running.amqp_address, HOME) is None
        assert await _code(running.amqp_address, "127.0.0.2") == 403


async def test_hash_of_rabbitmq_is_made_anew_at_the_next_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.broker.access.logins.UPGRADE_SECONDS", 0)
    settings = leveret.in_process_settings(data_dir=tmp_path)
    async with leveret.Broker(settings) as running:
        users = running.broker.users
        old = users.put_user("old", passwords.hash_password("secret"), ("management",))
        users.set_permission(PermissionDefinition("old", "/", ".*", ".*", ".*"))
        assert await _why(running.broker, "old", "secret") is None
        await _until(lambda: users.by_name["old"].hashing == passwords.ARGON2ID)
        assert users.by_name["old"].password_id == old.password_id  # sessions go on
        assert await _why(running.broker, "old", "secret") is None
    async with leveret.Broker(settings) as again:
        assert again.broker.users.by_name["old"].hashing == passwords.ARGON2ID
        assert await _why(again.broker, "old", "secret") is None
        assert await _why(again.broker, "old", "guess") is Refusal.WRONG


async def test_first_user_is_kept_as_argon2id_before_anybody_logs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.broker.access.logins.UPGRADE_SECONDS", 0)
    settings = leveret.in_process_settings(data_dir=tmp_path, default_password="a long one")
    async with leveret.Broker(settings) as running:
        users = running.broker.users
        await _until(lambda: users.by_name["guest"].hashing == passwords.ARGON2ID)
    async with leveret.Broker(settings) as again:
        assert again.broker.users.by_name["guest"].hashing == passwords.ARGON2ID
        assert await _why(again.broker, "guest", "a long one") is None


async def test_hash_of_rabbitmq_stays_where_ours_would_not_take_the_password(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.broker.access.logins.UPGRADE_SECONDS", 0)
    longest, longer = "x" * passwords.LONGEST, "x" * (passwords.LONGEST + 1)
    settings = leveret.in_process_settings(data_dir=tmp_path)
    async with leveret.Broker(settings, clock) as running:
        users = running.broker.users
        for name, password in (("longer", longer), ("longest", longest)):
            users.put_user(name, passwords.hash_password(password), ())
            assert await _why(running.broker, name, password) is None
        await _until(lambda: users.by_name["longest"].hashing == passwords.ARGON2ID)
        clock.advance(CACHE_SECONDS)
        for name, password in (("longer", longer), ("longest", longest)):
            assert await _why(running.broker, name, password) is None


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others need no telling")
def test_memory_of_a_hash_goes_back_to_the_system() -> None:
    """In a process of its own: how memory is kept counts for all of one."""
    program = """
import pathlib
from concurrent.futures import ThreadPoolExecutor
from leveret.broker.access import passwords
def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096
with ThreadPoolExecutor(2, initializer=passwords.prepare_thread) as threads:
    __import__("argon2.low_level")
    before = resident()
    made = list(threads.map(passwords.make, "ab"))
    assert not any(threads.map(passwords.verify, made * 4, ["x"] * 8))
    print(resident() - before)
"""
    grown = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, timeout=120
    ).stdout
    assert int(grown) < passwords.MEMORY_KIB * 1024 // 2


@pytest.mark.skipif(sys.platform != "linux", reason="only there threads have priorities")
def test_the_loop_goes_before_threads_that_hash() -> None:
    def nice() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    with ThreadPoolExecutor(1, initializer=passwords.prepare_thread) as threads:
        assert threads.submit(nice).result() == min(nice() + passwords.STEPS_BACK, 19)
