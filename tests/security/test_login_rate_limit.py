"""Rate limits on failed logins, and the bounds of their tables."""

from __future__ import annotations

import pytest

from leveret.broker.access import login_rate_limit
from leveret.broker.access.login_rate_limit import (
    MAX_SOURCES,
    WINDOW_SECONDS,
    LoginRateLimit,
    is_loopback,
    network_of,
    source_of,
)
from leveret.model.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limits(clock: ManualClock) -> LoginRateLimit:
    return LoginRateLimit(clock.monotonic, 3, 5)


def test_source_is_limited_per_minute(limits: LoginRateLimit, clock: ManualClock) -> None:
    for number in range(3):
        assert limits.seconds_until_allowed("1.1.1.1", f"user-{number}") == 0
        limits.charge("1.1.1.1", f"user-{number}")
        clock.advance(10)
    assert limits.seconds_until_allowed("1.1.1.1", "another") == WINDOW_SECONDS - 30
    assert limits.seconds_until_allowed("2.2.2.2", "another") == 0
    clock.advance(WINDOW_SECONDS - 30)
    assert limits.seconds_until_allowed("1.1.1.1", "another") == 0


def test_account_is_limited_over_all_sources(limits: LoginRateLimit) -> None:
    for number in range(5):
        limits.charge(f"1.1.1.{number}", "ann")
    assert limits.seconds_until_allowed("1.1.1.99", "ann") == WINDOW_SECONDS
    assert limits.seconds_until_allowed("1.1.1.99", "bob") == 0


def test_owner_is_not_locked_out_by_guesses_from_elsewhere(limits: LoginRateLimit) -> None:
    limits.record_success("9.9.9.9", "ann")
    for number in range(5):
        limits.charge(f"1.1.1.{number}", "ann")
    assert limits.seconds_until_allowed("9.9.9.9", "ann") == 0
    limits.forget("ann")
    assert limits.seconds_until_allowed("9.9.9.9", "ann") > 0


def test_misconfigured_client_does_not_lock_out_neighbours(limits: LoginRateLimit) -> None:
    limits.record_success("9.9.9.9", "ann")
    for _ in range(3):
        limits.charge("9.9.9.9", "misconfigured")
    assert limits.seconds_until_allowed("9.9.9.9", "misconfigured") > 0
    assert limits.seconds_until_allowed("9.9.9.9", "ann") == 0
    for _ in range(3):
        limits.charge("9.9.9.9", "ann")
    assert limits.seconds_until_allowed("9.9.9.9", "ann") > 0


def test_right_password_is_refunded(limits: LoginRateLimit) -> None:
    for _ in range(10):
        limits.refund(limits.charge("1.1.1.1", "ann"))
    assert limits.seconds_until_allowed("1.1.1.1", "ann") == 0
    assert len(limits) == 0


def test_many_sources_do_not_reset_a_guesser(limits: LoginRateLimit) -> None:
    """A full table drops its oldest entry, not all of them."""
    for number in range(MAX_SOURCES):
        limits.charge(f"source-{number}", f"name-{number}")
    for _ in range(3):
        limits.charge("1.1.1.1", "ann")
    for number in range(100):
        limits.charge(f"more-{number}", f"more-{number}")
    assert limits.seconds_until_allowed("1.1.1.1", "ann") > 0
    assert len(limits) <= MAX_SOURCES


def test_successes_are_bounded(limits: LoginRateLimit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_rate_limit, "MAX_SUCCESSES", 2)
    for name in ("a", "b", "c"):
        limits.record_success("1.1.1.1", name)
    for number in range(5):
        limits.charge(f"x{number}", "a")
        limits.charge(f"x{number}", "c")
    assert limits.seconds_until_allowed("1.1.1.1", "a") > 0
    assert limits.seconds_until_allowed("1.1.1.1", "c") == 0


def test_zero_means_no_limit(clock: ManualClock) -> None:
    limits = LoginRateLimit(clock.monotonic, 0, 0)
    for _ in range(1000):
        limits.charge("1.1.1.1", "ann")
    assert limits.seconds_until_allowed("1.1.1.1", "ann") == 0


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("not:an:address", "not:an:address"),
    ],
)
def test_source_of(host: str, source: str) -> None:
    assert source_of(host) == source


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.7", "10.0.0"),
        ("::ffff:10.0.0.7", "10.0.0"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::/48"),
        ("", ""),
        ("somewhere", "somewhere"),
        ("not:an:address", "not:an:address"),
    ],
)
def test_network_of(host: str, network: str) -> None:
    assert network_of(source_of(host)) == network


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("", False),
        ("10.0.0.1", False),
        ("127.0.0.1.example.com", False),
        ("::1234:5678", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("localhost", False),
    ],
)
def test_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
