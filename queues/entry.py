"""The place of a message, or of a part of a run, in one queue."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import islice
from secrets import randbelow

from leveret.model.history import EventKind
from leveret.model.message import Address, LargeContent, Message, edit_headers
from leveret.model.mypyc import mypyc_attr
from leveret.model.run import Run

MAX_SAMPLED = 100
MAX_UNUSED = 4
"""An unacknowledged part of a run with more than this many times as many messages is copied: the
rest of the run is not to stay in memory for it."""
Framed = tuple[Sequence[Address], Sequence[bytes | LargeContent]]


class Outcome(Enum):
    """How a delivery was settled."""

    ACK = EventKind.ACKED
    REJECT = EventKind.REJECTED
    NACK = EventKind.NACKED
    REQUEUE = EventKind.REQUEUED


@mypyc_attr(allow_interpreted_subclasses=True)
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

    @property
    def is_record(self) -> bool:
        """Whether it is a record of a log."""
        return False

    def framed(self, entries: Sequence[Entry], channel: int, frame_max: int) -> Framed:
        """Addresses and content frames of entries, made together; only for records of a log."""
        raise NotImplementedError

    def stamp_delivery_count(self) -> None:
        """Set the header `x-delivery-count` in a copy of the message."""
        message = self.message
        stamped = message.with_properties(
            edit_headers(message.properties, frozenset(), {"x-delivery-count": self.delivery_count})
        )
        stamped.id, stamped.time_ms, stamped.origin = message.id, message.time_ms, message.origin
        stamped.stored, stamped.keep = message.stored, message.keep
        self.message = stamped


MESSAGES_PER_EFFORT = 4
"""So many messages of a run count as one single message: their frames are written together. If a
queue delivered less per tick than a publisher can send, it would spill to disk."""


class RunPart:
    """`count` messages of a run from `start` on: one after the other or, among consumers in turn,
    every `step`-th. They have not been delivered before and do not expire."""

    __slots__ = ("count", "run", "start", "step")

    def __init__(self, run: Run, start: int, count: int, step: int = 1) -> None:
        self.run = run
        self.start = start
        self.count = count
        self.step = step

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"<RunPart {self.id} to {self.last_id}>"

    @property
    def effort(self) -> int:
        """How much work it is to deliver it, in single messages."""
        return self.count // MESSAGES_PER_EFFORT + 1

    @property
    def slice(self) -> slice:
        return slice(self.start, self.start + self.count * self.step, self.step)

    @property
    def id(self) -> int:
        """The id of the first message."""
        return self.run.ids[self.start]

    @property
    def last_id(self) -> int:
        if self.count == 1:
            return self.run.ids[self.start]
        return self.run.ids[self.start + (self.count - 1) * self.step]

    @property
    def ids(self) -> Sequence[int]:
        return self.run.ids[self.slice]

    @property
    def body_sizes(self) -> list[int]:
        return self.run.body_sizes[self.slice]

    @property
    def body_bytes(self) -> int:
        if self.count == 1:
            return self.run.body_sizes[self.start]
        return sum(self.body_sizes)

    @property
    def header_sizes(self) -> list[int]:
        return self.run.header_sizes[self.slice]

    @property
    def stored_ids(self) -> Sequence[int]:
        """The ids of the messages whose content is in the store."""
        if self.run.is_packed:
            if not self.run.is_stored:
                return ()
            return self.ids if self.count > 1 else [self.run.ids[self.start]]
        return [message.id for message in self.run.messages[self.slice] if message.stored]

    def entries(self) -> list[Entry]:
        return [Entry(message) for message in self.run.make_messages(self.slice)]

    def split(self, count: int) -> RunPart:
        """Take the first `count` messages, which leave this part."""
        first = RunPart(self.run, self.start, count, self.step)
        self.start += count * self.step
        self.count -= count
        return first

    def deal(self, count: int) -> list[RunPart]:
        """Deal the messages out one by one in turn, to `count` parts; none may be left empty."""
        rounds, rest = divmod(self.count, count)
        return [
            RunPart(self.run, self.start + place, rounds + (place < rest), count)
            for place in range(count)
        ]

    def forget_rest_of_run(self) -> None:
        self.run, self.start, self.step = self.run.copy(self.slice), 0, 1

    def count_before(self, message_id: int) -> int:
        """How many messages have a lower id; `step` is 1."""
        start = self.start
        return bisect_left(self.run.ids, message_id, start, start + self.count) - start


def entries_of(run: Run, expires_ms: int) -> list[Entry]:
    entries = [Entry(message) for message in run.messages]
    for entry in entries:
        entry.expires_ms = expires_ms
    return entries


def by_id(entry: Entry) -> int:
    return entry.id


def stored_ids(entries: Iterable[Entry]) -> list[int]:
    """The ids of the entries whose content is in the store."""
    return [entry.id for entry in entries if entry.message.stored]


def estimate_header_bytes(count: int, sizes: Iterable[int]) -> int:
    """Bytes of all headers, extrapolated from a random sample where there are many."""
    step = count // MAX_SAMPLED + 1
    return step * sum(islice(sizes, randbelow(step), None, step))
