"""Exchanges where a message is held up on its way: delayed, deduplicated, or remembered.

The walk from an exchange to queues ends at such a *station*; what happens there, and how the walk
goes on, is the hub's affair. Messages that do not ask for it pass as if it were no station.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from leveret.model.errors import PreconditionFailed
from leveret.model.tables import Table

DELAYED, DELAYED_TYPE, DELAY_HEADER = "x-delayed-message", "x-delayed-type", "x-delay"
DEDUPLICATING, KEY_HEADER = "x-message-deduplication", "x-deduplication-header"
CACHE_SIZE, CACHE_TTL = "x-cache-size", "x-cache-ttl"
RECENT_HISTORY, HISTORY_LENGTH = "x-recent-history", "x-recent-history-length"
NO_STORE_HEADER = "x-recent-history-no-store"
STATIONS = (DELAYED, DEDUPLICATING, RECENT_HISTORY)
LONGEST_DELAY_MS = 315_360_000_000
LONGEST_HISTORY = 100_000


def stops_at(kind: str, headers: Table) -> bool:
    if kind == DELAYED:
        return delay_of(headers) > 0
    if kind == DEDUPLICATING:
        return headers.get(KEY_HEADER) is not None
    return kind == RECENT_HISTORY and headers.get(NO_STORE_HEADER) is not True


def delay_of(headers: Table) -> int:
    """Milliseconds a message asks to be held back; 0 when it does not."""
    delay = headers.get(DELAY_HEADER)
    if isinstance(delay, bool) or not isinstance(delay, int | float | str):
        return 0
    try:
        return max(0, min(int(delay), LONGEST_DELAY_MS))
    except (ValueError, OverflowError):
        return 0


def check_station(kind: str, arguments: Mapping[str, Any], kinds: Collection[str]) -> None:
    """Refuse arguments of a station that could never work."""
    if kind == DELAYED:
        wanted = arguments.get(DELAYED_TYPE)
        if wanted not in kinds or wanted in STATIONS:
            raise PreconditionFailed(f"invalid argument, '{DELAYED_TYPE}' must be an exchange type")
    elif kind == DEDUPLICATING:
        _check_whole(arguments, CACHE_SIZE, 1 << 31)
        _check_whole(arguments, CACHE_TTL, LONGEST_DELAY_MS)
    elif kind == RECENT_HISTORY:
        _check_whole(arguments, HISTORY_LENGTH, LONGEST_HISTORY)


def _check_whole(arguments: Mapping[str, Any], name: str, most: int) -> None:
    value = arguments.get(name, 1)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise PreconditionFailed(
            f"invalid argument, '{name}' must be a whole number from 1 to {most}, not {value!r}"
        )
