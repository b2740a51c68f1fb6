"""Connections that have not logged in: how many there may be, in all and from one address.

A stranger costs a socket and some memory and has proved nothing. Whoever comes when there are too
many is cut off at once; log lines about it are at most one a second. AMQP and HTTP count their own:
strangers to one keep nobody from the other. Counted from the moment a connection is accepted, so
that a TLS handshake under way counts.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from leveret.broker.access.throttle import source_of
from leveret.config import Settings


class Strangers:
    def __init__(self, settings: Settings, now: Callable[[], float], log: logging.Logger) -> None:
        self._most = settings.unauthenticated_max
        self._most_from_one = settings.unauthenticated_max_per_address
        self._now = now
        self._log = log
        self._told_at = float("-inf")
        self._by_source: Counter[str] = Counter()
        self._all = 0
        self.turned_away = 0

    def __repr__(self) -> str:
        return f"<Strangers {self._all} from {len(self._by_source)} turned_away={self.turned_away}>"

    def __len__(self) -> int:
        return self._all

    def admit(self, host: str, why: str | None = None) -> bool:
        """One more has come from here; False if it must go: too many, or for another reason."""
        why = why or self.maybe_refuse(host)
        if why is not None:
            self._turn_away(host, why)
            return False
        self._by_source[source_of(host)] += 1
        self._all += 1
        return True

    def maybe_refuse(self, host: str) -> str | None:
        """Why one more from here is too many; None when it is not."""
        if self._all >= self._most:
            return f"{self._all} connections have not logged in yet"
        source = source_of(host)
        if self._by_source[source] >= self._most_from_one:
            return f"{self._most_from_one} connections from {source} have not logged in yet"
        return None

    def _turn_away(self, host: str, why: str) -> None:
        self.turned_away += 1
        now = self._now()
        if now - self._told_at >= 1:
            self._told_at = now
            facts = {"event": "connection refused", "peer": host, "why": why}
            said = (host, why, self.turned_away)
            self._log.warning(
                "connection from %s refused: %s (%d so far)", *said, extra={"facts": facts}
            )

    def go(self, host: str) -> None:
        """It has logged in, or gone away."""
        source = source_of(host)
        self._by_source[source] -= 1
        if self._by_source[source] <= 0:
            del self._by_source[source]
        self._all -= 1
