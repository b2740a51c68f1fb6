"""The one way in which low memory would never end: what has not come whole is in the way.

Consumers make room for messages in queues, but nobody does for those that have come in part: their
publishers are not read. When that has been all that was in the way for a while, the connection that
keeps most of it is closed, and the next one if that was not enough. Owned by the loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

PATIENCE_SECONDS = 30.0


class Keeper(Protocol):
    @property
    def kept(self) -> int:
        """Octets of what has not come whole."""

    def close(self, reason: str) -> None:
        """End it; it keeps nothing then."""


class Standstill:
    def __init__(self) -> None:
        self._since = 0.0

    def look(self, connections: Iterable[Keeper], excess: int, now: float) -> None:
        """`excess` is what has to go before publishers are read again."""
        if not excess:
            self._since = 0.0
            return
        kept = {one: one.kept for one in connections}
        if sum(kept.values()) < excess:  # room has to come from elsewhere
            self._since = 0.0
        elif not self._since:
            self._since = now
        elif now - self._since >= PATIENCE_SECONDS:
            most = max(kept, key=kept.__getitem__)
            most.close(f"memory is low, and {kept[most]} octets from here have not come whole")
