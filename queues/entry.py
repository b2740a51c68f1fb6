"""The place of a message, or of a part of a run, in one queue."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import islice
from secrets import randbelow

from leveret.model.history import EventKind
from leveret.model.message import Message, edit_headers
from leveret.model.run import Run

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


class RunPart:
    """The messages `start` to `end` of a run: ready, or on their way to a consumer.

    They have not been delivered before and do not expire.
    """

    __slots__ = ("end", "run", "start")

    def __init__(self, run: Run, start: int, end: int) -> None:
        self.run = run
        self.start = start
        self.end = end

    def __len__(self) -> int:
        return self.end - self.start

    def __repr__(self) -> str:
        return f"<RunPart {self.id} to {self.last_id}>"

    @property
    def id(self) -> int:
        """The id of the first message."""
        return self.run.ids[self.start]

    @property
    def last_id(self) -> int:
        return self.run.ids[self.end - 1]

    @property
    def ids(self) -> Sequence[int]:
        return self.run.ids[self.start : self.end]

    @property
    def body_bytes(self) -> int:
        return sum(self.run.body_sizes[self.start : self.end])

    @property
    def stored_ids(self) -> Sequence[int]:
        """The ids of the messages whose content is in the store."""
        if self.run.is_packed:
            return self.ids if self.run.is_stored else ()
        messages = self.run.messages[self.start : self.end]
        return [message.id for message in messages if message.stored]

    def entries(self) -> list[Entry]:
        return [Entry(message) for message in self.run.messages[self.start : self.end]]

    def pop_entry(self) -> Entry:
        """Take the first message, which leaves this part."""
        entry = Entry(self.run.messages[self.start])
        self.start += 1
        return entry

    def split(self, count: int) -> RunPart:
        """Take the first `count` messages, which leave this part."""
        first = RunPart(self.run, self.start, self.start + count)
        self.start += count
        return first

    def count_before(self, message_id: int) -> int:
        """How many messages have a lower id."""
        return bisect_left(self.run.ids, message_id, self.start, self.end) - self.start


def by_id(entry: Entry) -> int:
    return entry.id


def stored_ids(entries: Iterable[Entry]) -> list[int]:
    """The ids of the entries whose content is in the store."""
    return [entry.id for entry in entries if entry.message.stored]


def estimate_header_bytes(count: int, sizes: Iterable[int]) -> int:
    """Bytes of all headers, extrapolated from a random sample where there are many."""
    step = count // MAX_SAMPLED + 1
    return step * sum(islice(sizes, randbelow(step), None, step))
