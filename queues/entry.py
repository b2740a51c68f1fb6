"""A message's place in one queue."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from itertools import islice
from secrets import randbelow

from leveret.model.history import EventKind
from leveret.model.message import Message, edit_headers

MAX_SAMPLED = 100


class Outcome(Enum):
    """How a delivery was settled."""

    ACK = EventKind.ACKED
    REJECT = EventKind.REJECTED
    NACK = EventKind.NACKED
    REQUEUE = EventKind.REQUEUED


class Entry:
    """`id` is the message's global number, which orders the queue.

    `delivery_count` counts failed deliveries, as `x-delivery-count` does. `expires_ms` is a
    wall-clock time; 0 means never.
    """

    __slots__ = ("delivery_count", "expires_ms", "id", "message", "redelivered")

    def __init__(self, message: Message, redelivered: bool = False) -> None:
        self.message = message
        self.id = message.id
        self.redelivered = redelivered
        self.delivery_count = 0
        self.expires_ms = 0

    def __repr__(self) -> str:
        return f"<Entry {self.id}{' redelivered' if self.redelivered else ''}>"

    @property
    def is_fenced(self) -> bool:
        """Whether an ack would have no effect, because a consumer group took the record away."""
        return False

    def stamp_delivery_count(self) -> None:
        """Set the header `x-delivery-count` in a copy of the message."""
        message = self.message
        stamped = message.with_properties(
            edit_headers(message.properties, frozenset(), {"x-delivery-count": self.delivery_count})
        )
        stamped.id, stamped.time_ms, stamped.origin = message.id, message.time_ms, message.origin
        stamped.stored, stamped.keep = message.stored, message.keep
        self.message = stamped


def by_id(entry: Entry) -> int:
    return entry.id


def stored_ids(entries: Iterable[Entry]) -> list[int]:
    """The ids of the entries whose content is in the store."""
    return [entry.id for entry in entries if entry.message.stored]


def estimate_header_bytes(count: int, entries: Iterable[Entry]) -> int:
    """Bytes of all headers, extrapolated from a random sample where there are many entries."""
    step = count // MAX_SAMPLED + 1
    sample = islice(entries, randbelow(step), None, step)
    return step * sum([entry.message.header_size for entry in sample])
