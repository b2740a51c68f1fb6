"""How often a password may be tried in vain: per source, and per account over all sources.

A try is charged before it is made and given back if it was right, so that tries made at the same
time count, too. Whoever has logged in from a source before has tries of their own there: one client
with a wrong password does not lock out its neighbours, and guessing from elsewhere does not lock
out an account's owner. All tables are bounded; the oldest entry goes first, never all of them.
A source is an address, or a /64 network of IPv6: one machine has as many addresses as it likes. Its
network is what one owner is likely to have whole: a /24, or a /48 of IPv6.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

WINDOW_SECONDS = 60.0
WELCOME_SECONDS = 3_600.0
MOST_SOURCES = 10_000
MOST_WELCOME = 10_000
LONGEST_NAME = 256


@dataclass(frozen=True, slots=True)
class Charge:
    """One try, so that it can be given back."""

    at: float
    keys: tuple[Hashable, ...]


def source_of(host: str) -> str:
    """The part of an address that stands for one machine."""
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
    """What is likely to be one owner's, and full of sources."""
    if ":" not in source:
        return source.rpartition(".")[0] or source
    import ipaddress

    try:
        return str(ipaddress.IPv6Network(source).supernet(new_prefix=48))
    except ValueError:
        return source


def is_loopback(host: str) -> bool:
    """An address of this machine itself; one that is not known is none."""
    if host in ("127.0.0.1", "::1"):
        return True
    import ipaddress

    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


class Recent:
    """What happened in the last minute, and when. A full table loses what was silent longest."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._times: OrderedDict[Hashable, deque[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._times)

    def add(self, key: Hashable, at: float) -> None:
        self._times.setdefault(key, deque()).append(at)
        self._times.move_to_end(key)
        while len(self._times) > MOST_SOURCES:
            self._times.popitem(last=False)

    def remove(self, key: Hashable, at: float) -> None:
        times = self._times.get(key)
        if times is not None and at in times:
            times.remove(at)
            if not times:
                del self._times[key]

    def of(self, key: Hashable) -> deque[float]:
        """Oldest first."""
        times = self._times.get(key)
        if times is None:
            return deque()
        now = self._now()
        while times and now - times[0] >= WINDOW_SECONDS:
            times.popleft()
        if not times:
            del self._times[key]
        return times


class Throttle:
    """`per_source` and `per_account` tries a minute; 0 is no limit."""

    def __init__(self, now: Callable[[], float], per_source: int, per_account: int) -> None:
        self._now = now
        self._limits = (per_source or math.inf, per_account or math.inf)
        self._tries = Recent(now)
        self._welcome: OrderedDict[tuple[str, str], float] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Throttle entries={len(self._tries)} welcome={len(self._welcome)}>"

    def __len__(self) -> int:
        return len(self._tries)

    def wait(self, source: str, name: str) -> float:
        """Seconds until this may be tried; 0 for now."""
        now = self._now()
        waits = [0.0]
        for key, limit in zip(self._keys(source, name), self._limits, strict=False):
            tries = self._tries.of(key)
            if len(tries) >= limit:
                waits.append(tries[len(tries) - int(limit)] + WINDOW_SECONDS - now)
        return max(waits)

    def charge(self, source: str, name: str) -> Charge:
        charge = Charge(self._now(), self._keys(source, name))
        for key in charge.keys:
            self._tries.add(key, charge.at)
        return charge

    def give_back(self, charge: Charge) -> None:
        for key in charge.keys:
            self._tries.remove(key, charge.at)

    def welcome(self, source: str, name: str) -> None:
        """Somebody has proved to be who they say."""
        key = (source, name[:LONGEST_NAME])
        self._welcome[key] = self._now()
        self._welcome.move_to_end(key)
        if len(self._welcome) > MOST_WELCOME:
            self._welcome.popitem(last=False)

    def forget(self, name: str) -> None:
        """The account's password is another now: what was proved is worth nothing."""
        for key in [key for key in self._welcome if key[1] == name[:LONGEST_NAME]]:
            del self._welcome[key]

    def is_welcome(self, source: str, name: str) -> bool:
        since = self._welcome.get((source, name[:LONGEST_NAME]))
        return since is not None and self._now() - since < WELCOME_SECONDS

    def _keys(self, source: str, name: str) -> tuple[Hashable, ...]:
        name = name[:LONGEST_NAME]
        if self.is_welcome(source, name):
            return ((source, name),)
        return (source,), ("account", name, "")
