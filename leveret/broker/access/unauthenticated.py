"""Limits on connections that have not logged in, in total and per address.

An unauthenticated connection costs a socket and some memory. When the total limit is reached, a
new connection from an address with fewer of them takes the place of the oldest one from the
address with the most; otherwise the new connection is rejected. So many connections from a few
addresses only keep out their neighbours.

AMQP and HTTP have separate counts, so one front cannot block the other. A connection counts from
the moment it is accepted, so a TLS handshake counts while it runs. Runs on the event loop.
"""

from __future__ import annotations

import logging
from typing import Protocol

from leveret.broker.access.login_rate_limit import source_of
from leveret.broker.access.rate_limited_log import CallLater, RateLimitedLog
from leveret.config import Settings


class UnauthenticatedConnection(Protocol):
    def drop(self) -> None:
        """Close the connection because another one gets its place."""


class UnauthenticatedLimits:
    def __init__(self, settings: Settings, log: logging.Logger, *call_later: CallLater) -> None:
        self._max = settings.unauthenticated_max
        self._max_per_address = settings.unauthenticated_max_per_address
        self._log = log
        self._connections = _ConnectionsByAddress()
        self._rejections = RateLimitedLog(self._write, *call_later)

    @property
    def rejected(self) -> int:
        return self._rejections.count

    def __repr__(self) -> str:
        return f"<UnauthenticatedLimits {len(self)} rejected={self.rejected}>"

    def __len__(self) -> int:
        return self._connections.total

    def admit(
        self, host: str, connection: UnauthenticatedConnection, no_room: str | None = None
    ) -> bool:
        """Count a new connection; False if the caller must close it.

        `no_room` says which other limit is exceeded, if any; then a place must be taken over.
        """
        source = source_of(host)
        count = self._connections.count(source)
        if count >= self._max_per_address:
            return self._reject(host, f"{count} connections from {source} have not logged in yet")
        if no_room is None and len(self) >= self._max:
            no_room = f"{len(self)} connections have not logged in yet"
        if no_room is not None and not self._evict_one(source, no_room):
            return self._reject(host, no_room)
        self._connections.add(source, connection)
        return True

    def _evict_one(self, source: str, why: str) -> bool:
        """Drop a connection of the busiest address, unless `source` would then be as busy."""
        if self._connections.count(source) + 1 >= self._connections.busiest:
            return False
        busiest_source, oldest = self._connections.oldest_of_busiest_address()
        self._connections.remove(busiest_source, oldest)
        self._reject(busiest_source, why)
        oldest.drop()
        return True

    def _reject(self, host: str, why: str) -> bool:
        self._rejections.add(host, why)
        return False

    def _write(self, host: str, why: str, count: int) -> None:
        facts = {"event": "connection refused", "peer": host, "why": why, "count": count}
        self._log.warning(
            "connection from %s refused: %s (%d so far)", host, why, count, extra={"facts": facts}
        )

    def remove(self, host: str, connection: UnauthenticatedConnection) -> None:
        """Stop counting a connection that has logged in or closed; no-op if it was evicted."""
        self._connections.remove(source_of(host), connection)


class _ConnectionsByAddress:
    """Connections by source, oldest first, and sources by their number of connections.

    Counts change by one, so the maximum is updated without searching.
    """

    def __init__(self) -> None:
        self._by_source: dict[str, dict[UnauthenticatedConnection, None]] = {}
        self._sources_by_count: dict[int, dict[str, None]] = {}
        self.total = 0
        self.busiest = 0
        """The number of connections of the busiest source."""

    def count(self, source: str) -> int:
        return len(self._by_source.get(source, ()))

    def oldest_of_busiest_address(self) -> tuple[str, UnauthenticatedConnection]:
        source = next(iter(self._sources_by_count[self.busiest]))
        return source, next(iter(self._by_source[source]))

    def add(self, source: str, connection: UnauthenticatedConnection) -> None:
        connections = self._by_source.setdefault(source, {})
        connections[connection] = None
        self.total += 1
        self._recount(source, len(connections) - 1, len(connections))

    def remove(self, source: str, connection: UnauthenticatedConnection) -> None:
        connections = self._by_source.get(source, {})
        if connection not in connections:
            return
        del connections[connection]
        self.total -= 1
        self._recount(source, len(connections) + 1, len(connections))
        if not connections:
            del self._by_source[source]

    def _recount(self, source: str, before: int, after: int) -> None:
        if before:
            del self._sources_by_count[before][source]
            if not self._sources_by_count[before]:
                del self._sources_by_count[before]
        if after:
            self._sources_by_count.setdefault(after, {})[source] = None
        if after > self.busiest or self.busiest not in self._sources_by_count:
            self.busiest = after
