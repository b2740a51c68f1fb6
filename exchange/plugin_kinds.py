"""Exchange types of RabbitMQ plugins: delayed message, message deduplication, recent history.

The walk from an exchange to queues stops at such a *plugin exchange* if it intercepts the message;
the broker decides what happens there and continues the walk later. Other messages are routed as by
any exchange.
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
PLUGIN_KINDS = (DELAYED, DEDUPLICATING, RECENT_HISTORY)
MAX_DELAY_MS = 315_360_000_000
MAX_HISTORY_LENGTH = 100_000


def intercepts(kind: str, headers: Table) -> bool:
    """Whether an exchange of this type intercepts a message with these headers."""
    if kind == DELAYED:
        return delay_of(headers) > 0
    if kind == DEDUPLICATING:
        return headers.get(KEY_HEADER) is not None
    return kind == RECENT_HISTORY and headers.get(NO_STORE_HEADER) is not True


def delay_of(headers: Table) -> int:
    """The delay of a message in milliseconds; 0 if it has none."""
    delay = headers.get(DELAY_HEADER)
    if isinstance(delay, bool) or not isinstance(delay, int | float | str):
        return 0
    try:
        return max(0, min(int(delay), MAX_DELAY_MS))
    except (ValueError, OverflowError):
        return 0


def check_plugin_arguments(kind: str, arguments: Mapping[str, Any], kinds: Collection[str]) -> None:
    """Refuse invalid arguments of a plugin exchange; `kinds` are all exchange types."""
    if kind == DELAYED:
        delayed_type = arguments.get(DELAYED_TYPE)
        if delayed_type not in kinds or delayed_type in PLUGIN_KINDS:
            raise PreconditionFailed(f"invalid argument, '{DELAYED_TYPE}' must be an exchange type")
    elif kind == DEDUPLICATING:
        _check_integer(arguments, CACHE_SIZE, 1 << 31)
        _check_integer(arguments, CACHE_TTL, MAX_DELAY_MS)
    elif kind == RECENT_HISTORY:
        _check_integer(arguments, HISTORY_LENGTH, MAX_HISTORY_LENGTH)


def _check_integer(arguments: Mapping[str, Any], name: str, maximum: int) -> None:
    value = arguments.get(name, 1)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
        raise PreconditionFailed(
            f"invalid argument, '{name}' must be a whole number from 1 to {maximum}, not {value!r}"
        )
