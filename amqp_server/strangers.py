"""Connections that have not logged in: how many there may be, in all and from one address.

A stranger costs a socket and some memory and has proved nothing. Whoever comes when there are too
many is cut off at once; log lines about it are at most one a second.
"""

from __future__ import annotations

from collections import Counter

from leveret.broker.access.throttle import source_of
from leveret.config import Settings


class Strangers:
    def __init__(self, settings: Settings) -> None:
        self._most = settings.unauthenticated_max
        self._most_from_one = settings.unauthenticated_max_per_address
        self._by_source: Counter[str] = Counter()
        self._all = 0
        self.turned_away = 0

    def __repr__(self) -> str:
        return f"<Strangers {self._all} from {len(self._by_source)} turned_away={self.turned_away}>"

    def __len__(self) -> int:
        return self._all

    def maybe_refuse(self, host: str) -> str | None:
        """Why one more from here is too many; None when it is not."""
        if self._all >= self._most:
            return f"{self._all} connections have not logged in yet"
        source = source_of(host)
        if self._by_source[source] >= self._most_from_one:
            return f"{self._most_from_one} connections from {source} have not logged in yet"
        return None

    def come(self, host: str) -> None:
        self._by_source[source_of(host)] += 1
        self._all += 1

    def go(self, host: str) -> None:
        """It has logged in, or gone away."""
        source = source_of(host)
        self._by_source[source] -= 1
        if self._by_source[source] <= 0:
            del self._by_source[source]
        self._all -= 1
