"""Passwords: stored as Argon2id, checked on threads, cached for a minute."""

from __future__ import annotations

import asyncio
import base64
import os
import platform
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import pytest_asyncio
from argon2.low_level import Type, hash_secret
from pamqp import commands

import leveret
from leveret.broker import Broker, User
from leveret.broker.access import passwords
from leveret.broker.access.authentication import CACHE_SECONDS, THREADS, Refusal, Refused
from leveret.broker.access.login_rate_limit import LoginRateLimit
from leveret.model.clock import ManualClock
from leveret.model.definitions import PermissionDefinition
from tests.support.polling import wait_until_async
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
    """The passwords that threads have checked."""
    checked: list[str] = []
    real = passwords.verify

    def verify(hashed: str, password: str) -> bool:
        checked.append(password)
        return real(hashed, password)

    monkeypatch.setattr(passwords, "verify", verify)
    return checked


async def _add(broker: Broker, name: str, password: str) -> User:
    hashed = await broker.authenticator.hash_password(password)
    return broker.users.put_user(name, hashed, ("management",), passwords.ARGON2ID)


async def _why(broker: Broker, name: str, password: str, host: str = HOME) -> Refusal | None:
    answer = await broker.authenticator.check(name, password, host)
    return answer.why if isinstance(answer, Refused) else None


async def test_right_password_is_accepted_and_cached(
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


async def test_concurrent_logins_with_one_password_are_hashed_once(
    broker: Broker, hashings: list[str]
) -> None:
    await _add(broker, "ann", "secret")
    answers = await asyncio.gather(*(_why(broker, "ann", "secret") for _ in range(100)))
    assert set(answers) == {None}
    assert hashings == ["secret"]


def test_cache_lasts_a_minute_and_there_are_two_threads(
    broker: Broker,
) -> None:
    assert CACHE_SECONDS <= 60
    pool = broker.authenticator._pool()
    assert isinstance(pool, ThreadPoolExecutor) and pool._max_workers == THREADS == 2


async def test_new_password_takes_effect_at_once(broker: Broker) -> None:
    await _add(broker, "ann", "secret")
    assert await _why(broker, "ann", "secret") is None
    await _add(broker, "ann", "other")
    assert await _why(broker, "ann", "secret") is Refusal.WRONG_CREDENTIALS
    assert await _why(broker, "ann", "other") is None


async def test_deleted_users_password_is_refused_even_for_a_new_user_of_that_name(
    broker: Broker,
) -> None:
    await _add(broker, "ann", "secret")
    assert await _why(broker, "ann", "secret") is None
    broker.delete_user("ann")
    assert await _why(broker, "ann", "secret") is Refusal.WRONG_CREDENTIALS
    await _add(broker, "ann", "hers")
    assert await _why(broker, "ann", "secret") is Refusal.WRONG_CREDENTIALS


async def test_password_changed_during_the_check_is_refused(broker: Broker) -> None:
    await _add(broker, "ann", "secret")
    asked = asyncio.create_task(_why(broker, "ann", "secret"))
    await asyncio.sleep(0)
    broker.users.put_user("ann", "", ("management",))
    assert await asked is Refusal.WRONG_CREDENTIALS


@pytest.mark.parametrize("name", ["ann", "nobody", "old"])
async def test_every_wrong_password_costs_the_same(
    broker: Broker, hashings: list[str], name: str
) -> None:
    """An existing user, an unknown one and a RabbitMQ hash each take one Argon2id computation."""
    await _add(broker, "ann", "secret")
    broker.users.put_user("old", passwords.hash_password("secret"), ())
    assert await _why(broker, name, "guess") is Refusal.WRONG_CREDENTIALS
    assert hashings == ["guess"]


@pytest.mark.parametrize("name", ["ann", "empty", "guest"])
async def test_empty_password_is_refused(broker: Broker, name: str) -> None:
    await _add(broker, "ann", "secret")
    broker.users.put_user("empty", passwords.hash_argon2id(""), (), passwords.ARGON2ID)
    assert await _why(broker, name, "") is Refusal.WRONG_CREDENTIALS


async def test_too_long_password_is_refused(broker: Broker, hashings: list[str]) -> None:
    await _add(broker, "ann", "secret")
    assert (
        await _why(broker, "ann", "x" * (passwords.MAX_PASSWORD_LENGTH + 1))
        is Refusal.WRONG_CREDENTIALS
    )
    assert hashings == [""]


def _costly(password: str, passes: int) -> str:
    """Return a hash with other costs, as another program makes it."""
    raw = hash_secret(password.encode(), b"x" * 16, passes, 64, 1, 32, Type.ID)
    return base64.b64encode(raw).decode()


async def test_unknown_users_take_as_long_as_imported_hashes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each unknown name is checked at one of the three costs of existing hashes."""
    asked: list[bytes] = []
    monkeypatch.setattr(
        passwords, "verify", lambda hashed, _: asked.append(passwords.costs(hashed))
    )
    broker.users.put_user("three", _costly("secret", 3), (), passwords.ARGON2ID)
    broker.users.put_user("five", _costly("secret", 5), (), passwords.ARGON2ID)
    broker.authenticator.rate_limit = LoginRateLimit(broker.clock.monotonic, 0, 0)
    taken: dict[int, bytes] = {}
    for number in range(200):
        for password in ("guess", "", "x" * (passwords.MAX_PASSWORD_LENGTH + 1)):
            asked.clear()
            assert await _why(broker, f"nobody {number}", password) is Refusal.WRONG_CREDENTIALS
            (cost,) = asked
            assert taken.setdefault(number, cost) == cost  # for any password
    assert set(taken.values()) == {passwords.OUR_COSTS, b"m=64,t=3,p=1", b"m=64,t=5,p=1"}


@pytest.mark.parametrize("password", ["guess", "", "x" * (passwords.MAX_PASSWORD_LENGTH + 1)])
async def test_imported_hash_takes_as_long_for_any_password(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    asked: list[bytes] = []
    monkeypatch.setattr(
        passwords, "verify", lambda hashed, _: asked.append(passwords.costs(hashed))
    )
    broker.users.put_user("three", _costly("secret", 3), (), passwords.ARGON2ID)
    assert await _why(broker, "three", password) is Refusal.WRONG_CREDENTIALS
    assert asked == [b"m=64,t=3,p=1"]


async def test_hash_with_other_costs_is_upgraded_at_login(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.broker.access.authentication.CONVERT_SECONDS", 0)
    users = broker.users
    before = users.put_user("three", _costly("secret", 3), (), passwords.ARGON2ID)
    assert await _why(broker, "three", "secret") is None
    await wait_until_async(
        lambda: passwords.costs(users.by_name["three"].password_hash) == passwords.OUR_COSTS
    )
    assert users.by_name["three"].password_id == before.password_id  # sessions stay valid
    assert await _why(broker, "three", "secret") is None
    assert await _why(broker, "three", "guess") is Refusal.WRONG_CREDENTIALS


async def test_concurrent_attempts_are_counted(broker: Broker, hashings: list[str]) -> None:
    limit = broker.settings.login_tries_per_source
    await _add(broker, "ann", "secret")
    answers = await asyncio.gather(*(_why(broker, "ann", f"guess {n}") for n in range(200)))
    assert answers.count(Refusal.WRONG_CREDENTIALS) == len(hashings) == limit
    unchecked = answers.count(Refusal.RATE_LIMITED), answers.count(Refusal.QUEUE_FULL)
    assert sum(unchecked) == 200 - limit and all(unchecked)
    assert await _why(broker, "ann", "secret", "127.0.0.2") is None


async def test_cached_password_counts_as_a_successful_login(
    broker: Broker, hashings: list[str]
) -> None:
    """A user's second machine logs in from the cache; guesses from elsewhere lock out neither."""
    await _add(broker, "ann", "secret")
    for host in ("10.0.0.1", "10.0.0.2"):
        assert await _why(broker, "ann", "secret", host) is None
    assert hashings == ["secret"]
    for number in range(broker.settings.login_tries_per_user):
        broker.authenticator.rate_limit.charge(f"10.1.0.{number}", "ann")
    for host in ("10.0.0.1", "10.0.0.2"):
        assert await _why(broker, "ann", "secret", host) is None
    assert await _why(broker, "ann", "secret", "10.0.0.3") is Refusal.RATE_LIMITED


async def test_guest_may_log_in_from_loopback_only(broker: Broker) -> None:
    for host in (HOME, "127.8.9.10", "::1", "::ffff:127.0.0.1"):
        assert await _why(broker, "guest", "guest", host) is None
    for host in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1", "128.0.0.1"):
        assert await _why(broker, "guest", "guest", host) is Refusal.LOOPBACK_ONLY


async def test_remote_guest_may_be_allowed() -> None:
    settings = leveret.in_process_settings(allow_remote_guest=True)
    async with leveret.Broker(settings) as running:
        assert await _why(running.broker, "guest", "guest", "10.1.2.3") is None


async def _code(address: tuple[str, int], source: str, *login: str) -> object:
    """Return the code with which a client from this source is closed, or None if it is accepted."""
    raw = await Raw.connect(address, local_addr=(source, 0))
    raw.send(HEADER)
    await raw.next()
    raw.send(start_ok(*login))
    method = await raw.next()
    raw.drop()
    assert isinstance(method, commands.Connection.Tune | commands.Connection.Close)
    return getattr(method, "reply_code", None)


def _address_of_this_machine() -> str:
    """Return an address at which other machines reach this one. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        return str(probe.getsockname()[0])


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


async def test_client_address_decides_not_the_listening_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "leveret.broker.access.authentication.is_loopback", lambda host: host != "127.0.0.2"
    )
    async with leveret.Broker(leveret.in_process_settings()) as running:
        assert await _code(running.amqp_address, HOME) is None
        assert await _code(running.amqp_address, "127.0.0.2") == 403


async def test_rabbitmq_hash_is_upgraded_at_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.broker.access.authentication.CONVERT_SECONDS", 0)
    settings = leveret.in_process_settings(data_dir=tmp_path)
    async with leveret.Broker(settings) as running:
        users = running.broker.users
        old = users.put_user("old", passwords.hash_password("secret"), ("management",))
        users.set_permission(PermissionDefinition("old", "/", ".*", ".*", ".*"))
        assert await _why(running.broker, "old", "secret") is None
        await wait_until_async(lambda: users.by_name["old"].hashing == passwords.ARGON2ID)
        assert users.by_name["old"].password_id == old.password_id  # sessions stay valid
        assert await _why(running.broker, "old", "secret") is None
    async with leveret.Broker(settings) as again:
        assert again.broker.users.by_name["old"].hashing == passwords.ARGON2ID
        assert await _why(again.broker, "old", "secret") is None
        assert await _why(again.broker, "old", "guess") is Refusal.WRONG_CREDENTIALS


async def test_setting_keeps_rabbitmqs_hashes_and_converts_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that every user that exists or logs in can be exported to RabbitMQ."""
    monkeypatch.setattr("leveret.broker.access.authentication.CONVERT_SECONDS", 0)
    settings = leveret.in_process_settings(data_dir=tmp_path, password_hashing="rabbitmq")
    async with leveret.Broker(settings) as running:
        users, authenticator = running.broker.users, running.broker.authenticator
        hashed, hashing = await authenticator.hash_new_password("new one")
        assert hashing == passwords.SHA256
        users.put_user("new", hashed, (), hashing)
        users.put_user("old", passwords.hash_argon2id("old one"), (), passwords.ARGON2ID)
        assert await _why(running.broker, "new", "new one") is None
        assert await _why(running.broker, "old", "old one") is None
        await wait_until_async(lambda: users.by_name["old"].hashing == passwords.SHA256)
        assert await _why(running.broker, "old", "guess") is Refusal.WRONG_CREDENTIALS
    async with leveret.Broker(settings) as again:
        kept = {user.hashing for user in again.broker.users.by_name.values()}
        assert kept == {passwords.SHA256}
        assert await _why(again.broker, "old", "old one") is None


async def test_default_users_hash_is_upgraded_without_a_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.broker.access.authentication.CONVERT_SECONDS", 0)
    settings = leveret.in_process_settings(data_dir=tmp_path, default_password="a long one")
    async with leveret.Broker(settings) as running:
        users = running.broker.users
        await wait_until_async(lambda: users.by_name["guest"].hashing == passwords.ARGON2ID)
    async with leveret.Broker(settings) as again:
        assert again.broker.users.by_name["guest"].hashing == passwords.ARGON2ID
        assert await _why(again.broker, "guest", "a long one") is None


async def test_rabbitmq_hash_of_a_too_long_password_stays(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.broker.access.authentication.CONVERT_SECONDS", 0)
    longest, longer = "x" * passwords.MAX_PASSWORD_LENGTH, "x" * (passwords.MAX_PASSWORD_LENGTH + 1)
    settings = leveret.in_process_settings(data_dir=tmp_path)
    async with leveret.Broker(settings, clock) as running:
        users = running.broker.users
        for name, password in (("longer", longer), ("longest", longest)):
            users.put_user(name, passwords.hash_password(password), ())
            assert await _why(running.broker, name, password) is None
        await wait_until_async(lambda: users.by_name["longest"].hashing == passwords.ARGON2ID)
        clock.advance(CACHE_SECONDS)
        for name, password in (("longer", longer), ("longest", longest)):
            assert await _why(running.broker, name, password) is None


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's mallopt")
def test_memory_of_a_hash_is_returned_to_the_system() -> None:
    """Runs in a separate process, because the allocator's settings affect the whole process."""
    program = """
import pathlib
from concurrent.futures import ThreadPoolExecutor
from leveret.broker.access import passwords
def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096
with ThreadPoolExecutor(2, initializer=passwords.prepare_thread) as threads:
    __import__("argon2.low_level")
    before = resident()
    made = list(threads.map(passwords.hash_argon2id, "ab"))
    assert not any(threads.map(passwords.verify, made * 4, ["x"] * 8))
    print(resident() - before)
"""
    grown = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, timeout=120
    ).stdout
    assert int(grown) < passwords.MEMORY_KIB * 1024 // 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has thread priorities")
def test_hashing_threads_have_lower_priority() -> None:
    def nice() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    with ThreadPoolExecutor(1, initializer=passwords.prepare_thread) as threads:
        assert threads.submit(nice).result() == min(nice() + passwords.NICENESS, 19)
