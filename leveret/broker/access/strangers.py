"""Connections that have not logged in: how many there may be, in all and from one address.

A stranger costs a socket and some memory and has proved nothing. When there are as many as there
may be, whoever comes from an address with fewer takes the place of the one that has waited longest
at the address with most; anyone else is cut off at once. So a crowd from a few addresses keeps
nobody out but its neighbours.

AMQP and HTTP count their own: strangers to one keep nobody from the other. Counted from the moment
a connection is accepted, so that a TLS handshake under way counts. Runs on the loop.
"""

from __future__ import annotations

import logging
from typing import Protocol

from leveret.broker.access.tally import Later, Tally
from leveret.broker.access.throttle import source_of
from leveret.config import Settings


class Stranger(Protocol):
    def drop(self) -> None:
        """Cut it off: another needs the place."""


class Strangers:
    def __init__(self, settings: Settings, log: logging.Logger, *later: Later) -> None:
        self._most = settings.unauthenticated_max
        self._most_from_one = settings.unauthenticated_max_per_address
        self._log = log
        self._places = _Places()
        self._tally = Tally(self._tell, *later)

    @property
    def turned_away(self) -> int:
        return self._tally.count

    def __repr__(self) -> str:
        return f"<Strangers {len(self)} turned_away={self.turned_away}>"

    def __len__(self) -> int:
        return self._places.taken

    def admit(self, host: str, stranger: Stranger, no_room: str | None = None) -> bool:
        """One more has come from here; False if it must go. `no_room`: what else is full."""
        source = source_of(host)
        count = self._places.count(source)
        if count >= self._most_from_one:
            why = f"{count} connections from {source} have not logged in yet"
            return self._turn_away(host, why)
        if no_room is None and len(self) >= self._most:
            no_room = f"{len(self)} connections have not logged in yet"
        if no_room is not None and not self._make_room(source, no_room):
            return self._turn_away(host, no_room)
        self._places.take(source, stranger)
        return True

    def _make_room(self, source: str, why: str) -> bool:
        """At the cost of the address with most, unless the newcomer's would have as many."""
        if self._places.count(source) + 1 >= self._places.most:
            return False
        crowded, longest = self._places.longest_of_most()
        self._places.leave(crowded, longest)
        self._turn_away(crowded, why)
        longest.drop()
        return True

    def _turn_away(self, host: str, why: str) -> bool:
        self._tally.add(host, why)
        return False

    def _tell(self, host: str, why: str, count: int) -> None:
        facts = {"event": "connection refused", "peer": host, "why": why, "count": count}
        self._log.warning(
            "connection from %s refused: %s (%d so far)", host, why, count, extra={"facts": facts}
        )

    def go(self, host: str, stranger: Stranger) -> None:
        """It has logged in, or gone away; one that lost its place has none to give back."""
        self._places.leave(source_of(host), stranger)


class _Places:
    """Who is here, by source, longest first; sources by how many each has, so none is looked for.

    Counts change by one, so the greatest of them is found without a look at the others.
    """

    def __init__(self) -> None:
        self._by_source: dict[str, dict[Stranger, None]] = {}
        self._with: dict[int, dict[str, None]] = {}
        self.taken = 0
        self.most = 0

    def count(self, source: str) -> int:
        return len(self._by_source.get(source, ()))

    def longest_of_most(self) -> tuple[str, Stranger]:
        source = next(iter(self._with[self.most]))
        return source, next(iter(self._by_source[source]))

    def take(self, source: str, stranger: Stranger) -> None:
        here = self._by_source.setdefault(source, {})
        here[stranger] = None
        self.taken += 1
        self._recount(source, len(here) - 1, len(here))

    def leave(self, source: str, stranger: Stranger) -> None:
        here = self._by_source.get(source, {})
        if stranger not in here:
            return
        del here[stranger]
        self.taken -= 1
        self._recount(source, len(here) + 1, len(here))
        if not here:
            del self._by_source[source]

    def _recount(self, source: str, before: int, after: int) -> None:
        if before:
            del self._with[before][source]
            if not self._with[before]:
                del self._with[before]
        if after:
            self._with.setdefault(after, {})[source] = None
        if after > self.most or self.most not in self._with:
            self.most = after
