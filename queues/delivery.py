"""A delivery: messages of one queue that were handed out together and are not settled.

The queue and the channel share the object. A part that is settled alone becomes a delivery of its
own (`take`), so the queue always knows exactly what is unacknowledged.

Messages of a run stay a part of that run as long as they are settled from one of its ends, as
consumers do that acknowledge in order. A tag in the middle makes single entries of the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from leveret.queues.entry import MAX_UNUSED, Entry, RunPart, stored_ids

if TYPE_CHECKING:
    from leveret.queues.port import Consumer, Queue


class Delivery:
    """`part` is None for single entries. Tags are consecutive at first; entries may have gaps."""

    __slots__ = ("_entries", "_first_tag", "consumer", "count", "part", "queue")

    _entries: dict[int, Entry]
    """By their tag, counted from `_first_tag`; not set for a part of a run."""

    def __init__(
        self, queue: Queue, consumer: Consumer | None, taken: Sequence[Entry] | RunPart
    ) -> None:
        """`consumer` is None for basic.get, and for messages that no client has."""
        self.queue = queue
        self.consumer = consumer
        self._first_tag = 0
        if isinstance(taken, RunPart):
            self.part: RunPart | None = taken
            self.count = taken.count
        else:
            self.part = None
            self.count = len(taken)
            self._entries = dict(enumerate(taken))

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"<Delivery of {self.count} from {self.first_tag}>"

    @property
    def first_tag(self) -> int:
        """The lowest tag that is not settled."""
        return self._first_tag + (0 if self.part is not None else next(iter(self._entries)))

    @first_tag.setter
    def first_tag(self, first: int) -> None:
        """Set once, when it is delivered."""
        self._first_tag = first

    @property
    def last_tag(self) -> int:
        """The highest tag that is not settled."""
        if self.part is not None:
            return self._first_tag + self.count - 1
        return self._first_tag + next(reversed(self._entries))

    # Messages ----------------------------------------------------------------------------------

    @property
    def ids(self) -> Sequence[int]:
        if self.part is not None:
            return self.part.ids
        return [entry.id for entry in self._entries.values()]

    @property
    def last_id(self) -> int:
        """The highest id."""
        if self.part is not None:
            return self.part.last_id
        return max(self.ids)  # a priority queue's are not in order

    @property
    def stored_ids(self) -> Sequence[int]:
        """The ids of the messages whose content is in the store."""
        if self.part is not None:
            return self.part.stored_ids
        return stored_ids(self._entries.values())

    @property
    def body_bytes(self) -> int:
        if self.part is not None:
            return self.part.body_bytes
        return sum([entry.message.body_size for entry in self._entries.values()])

    @property
    def header_sizes(self) -> list[int]:
        if self.part is not None:
            return self.part.header_sizes
        return [entry.message.header_size for entry in self._entries.values()]

    @property
    def time_ms(self) -> int:
        """When the oldest message was published."""
        if self.part is not None:
            return self.part.run.time_ms
        return min([entry.message.time_ms for entry in self._entries.values()])

    @property
    def redelivered(self) -> int:
        """How many of them were delivered before."""
        if self.part is not None:
            return 0
        return sum([entry.redelivered for entry in self._entries.values()])

    def persistent(self) -> Iterable[tuple[int, int]]:
        """Id and body size of each persistent message."""
        part = self.part
        if part is not None:
            return zip(part.ids, part.body_sizes, strict=True) if part.run.persistent else ()
        messages = [entry.message for entry in self._entries.values()]
        return [(each.id, each.body_size) for each in messages if each.scan.persistent]

    def delivery_counts(self) -> dict[int, int]:
        """How often each message was delivered."""
        if self.part is not None:
            return dict.fromkeys(self.part.ids, 1)
        return {entry.id: entry.delivery_count + 1 for entry in self._entries.values()}

    def entries(self) -> list[Entry]:
        """Single entries; those of a run are made for the caller."""
        return list(self._entries.values()) if self.part is None else self.part.entries()

    def entries_by_tag(self) -> Iterator[tuple[int, Entry]]:
        """Those that are no part of a run."""
        if self.part is not None:
            return iter(())
        return ((self._first_tag + offset, entry) for offset, entry in self._entries.items())

    # Settling ----------------------------------------------------------------------------------

    def has(self, tag: int) -> bool:
        offset = tag - self._first_tag
        return offset in self._entries if self.part is None else 0 <= offset < self.count

    def take(self, first: int, last: int) -> Delivery | None:
        """Remove the messages with these tags; returns them, or None if there is none of them.

        They become a delivery of their own. If these are all messages, returns this delivery, which
        keeps them.
        """
        start, end = first - self._first_tag, last - self._first_tag + 1
        part, count = self.part, self.count
        if part is not None:
            if start <= 0 and end >= count:
                return self
            if start >= count or end <= 0:
                return None
            if start <= 0:
                return self._take_first(part, end)
            if end >= count:
                return self._take_last(part, start)
            self._make_entries(part)
        entries = self._entries
        if end - start == 1:
            return self._take_entries([start] if start in entries else [])
        return self._take_entries([offset for offset in entries if start <= offset < end])

    def take_some(self, tags: list[int]) -> Delivery | None:
        """`take` for tags that are not consecutive."""
        if self.part is not None:
            self._make_entries(self.part)
        entries, first = self._entries, self._first_tag
        return self._take_entries([tag - first for tag in tags if tag - first in entries])

    def _make_entries(self, part: RunPart) -> None:
        self._entries = dict(enumerate(part.entries()))
        self.part = None

    def _take_first(self, part: RunPart, count: int) -> Delivery:
        taken = self._split_off(part.split(count), self._first_tag)
        self._first_tag += count
        if len(part.run.frames) > MAX_UNUSED * part.count:
            part.forget_rest_of_run()
        return taken

    def _take_last(self, part: RunPart, count: int) -> Delivery:
        """Leave the first `count` messages."""
        self.part = part.split(count)
        return self._split_off(part, self._first_tag + count)

    def _take_entries(self, offsets: list[int]) -> Delivery | None:
        entries = self._entries
        if len(offsets) == self.count:
            return self
        if not offsets:
            return None
        taken = self._split_off([entries.pop(offset) for offset in offsets], self._first_tag)
        taken._entries = dict(zip(offsets, taken._entries.values(), strict=True))
        return taken

    def _split_off(self, messages: list[Entry] | RunPart, first_tag: int) -> Delivery:
        taken = Delivery(self.queue, self.consumer, messages)
        taken._first_tag = first_tag
        self.count -= taken.count
        self.queue.on_split(taken)
        return taken

    def split_all(self) -> list[Delivery]:
        """Each message as a delivery of its own, so that tags of others fit between them."""
        if self.part is not None:
            return [self]
        tags = [tag for tag, _ in self.entries_by_tag()]
        return [taken for tag in tags if (taken := self.take(tag, tag)) is not None]
