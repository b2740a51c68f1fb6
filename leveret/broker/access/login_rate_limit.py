"""Limits on failed logins: per source, and per account over all sources.

An attempt is charged before the password is checked and refunded if it was right, so concurrent
attempts count. A user who has logged in from a source before has a separate limit there: one
client with a wrong password does not lock out its neighbours, and guessing from elsewhere does not
lock out the owner of an account. All tables are bounded and drop their oldest entry first.

A source is an IPv4 address or a /64 network of IPv6, because one machine can use all addresses of
the latter. Its network is a /24, or a /48 of IPv6, which often belongs to one owner.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache

WINDOW_SECONDS = 60.0
SUCCESS_SECONDS = 3_600.0
"""How long a successful login gives a user a separate limit at its source."""
MAX_SOURCES = 10_000
MAX_SUCCESSES = 10_000
MAX_NAME_LENGTH = 256
"""Characters of a user name that are kept as a key."""


@dataclass(frozen=True, slots=True)
class Charge:
    """One attempt, kept so that it can be refunded."""

    at: float
    keys: tuple[Hashable, ...]


@lru_cache(maxsize=1024)
def source_of(host: str) -> str:
    """Return the part of an address that identifies one machine."""
    if ":" not in host:
        return host
    import ipaddress

    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


def network_of(source: str) -> str:
    """Return the network that probably belongs to the same owner as this source."""
    if ":" not in source:
        return source.rpartition(".")[0] or source
    import ipaddress

    try:
        return str(ipaddress.IPv6Network(source).supernet(new_prefix=48))
    except ValueError:
        return source


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Whether this is a loopback address; False for anything that is not an address."""
    if host in ("127.0.0.1", "::1"):
        return True
    import ipaddress

    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


class RecentTimes:
    """Times of the last minute by key. A full table drops the key that was silent longest."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._times: OrderedDict[Hashable, deque[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._times)

    def add(self, key: Hashable, at: float) -> None:
        self._times.setdefault(key, deque()).append(at)
        self._times.move_to_end(key)
        while len(self._times) > MAX_SOURCES:
            self._times.popitem(last=False)

    def remove(self, key: Hashable, at: float) -> None:
        times = self._times.get(key)
        if times is not None and at in times:
            times.remove(at)
            if not times:
                del self._times[key]

    def get(self, key: Hashable) -> deque[float]:
        """Return the times of this key, oldest first, after dropping expired ones."""
        times = self._times.get(key)
        if times is None:
            return deque()
        now = self._now()
        while times and now - times[0] >= WINDOW_SECONDS:
            times.popleft()
        if not times:
            del self._times[key]
        return times


class LoginRateLimit:
    """`per_source` and `per_account` attempts a minute; 0 means no limit."""

    def __init__(self, now: Callable[[], float], per_source: int, per_account: int) -> None:
        self._now = now
        self._limits = (per_source or math.inf, per_account or math.inf)
        self._attempts = RecentTimes(now)
        self._successes: OrderedDict[tuple[str, str], float] = OrderedDict()

    def __repr__(self) -> str:
        return f"<LoginRateLimit entries={len(self._attempts)} successes={len(self._successes)}>"

    def __len__(self) -> int:
        return len(self._attempts)

    def seconds_until_allowed(self, source: str, name: str) -> float:
        """Return the seconds until the next attempt is allowed; 0 means now."""
        if not self._attempts:
            return 0.0
        now = self._now()
        waits = [0.0]
        for key, limit in zip(self._keys(source, name), self._limits, strict=False):
            attempts = self._attempts.get(key)
            if len(attempts) >= limit:
                waits.append(attempts[len(attempts) - int(limit)] + WINDOW_SECONDS - now)
        return max(waits)

    def charge(self, source: str, name: str) -> Charge:
        charge = Charge(self._now(), self._keys(source, name))
        for key in charge.keys:
            self._attempts.add(key, charge.at)
        return charge

    def refund(self, charge: Charge) -> None:
        for key in charge.keys:
            self._attempts.remove(key, charge.at)

    def record_success(self, source: str, name: str) -> None:
        """Record that this user has logged in from this source."""
        key = (source, name[:MAX_NAME_LENGTH])
        self._successes[key] = self._now()
        self._successes.move_to_end(key)
        if len(self._successes) > MAX_SUCCESSES:
            self._successes.popitem(last=False)

    def forget(self, name: str) -> None:
        """Drop the successes of an account whose password has changed."""
        for key in [key for key in self._successes if key[1] == name[:MAX_NAME_LENGTH]]:
            del self._successes[key]

    def has_logged_in(self, source: str, name: str) -> bool:
        """Whether this user has logged in from this source within the last hour."""
        since = self._successes.get((source, name[:MAX_NAME_LENGTH]))
        return since is not None and self._now() - since < SUCCESS_SECONDS

    def _keys(self, source: str, name: str) -> tuple[Hashable, ...]:
        name = name[:MAX_NAME_LENGTH]
        if self.has_logged_in(source, name):
            return ((source, name),)
        return (source,), ("account", name, "")
