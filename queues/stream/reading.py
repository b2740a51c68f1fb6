"""A consumer at work on a log: its credit is shared by its cursors, which take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from queues.port import Consumer, TappedQueue
from queues.stream.cursor import Cursor
from queues.stream.records import LogEntry

if TYPE_CHECKING:
    from queues.stream.groups import LogGroup

Defer = Callable[[Callable[[], None]], None]
"""Call when everything joined to the store's batch so far is on disk."""
Placed = dict["Reading", None]
"""Who has a place to read at. Members of a group that have none cost nothing when it is served."""


class Reading:
    """`group` is None for a consumer that reads for itself."""

    def __init__(
        self,
        queue: TappedQueue,
        consumer: Consumer,
        defer: Defer,
        placed: Placed,
        group: LogGroup | None = None,
    ) -> None:
        self.consumer = consumer
        self.group = group
        self.cursors: list[Cursor] = []
        self.awake: dict[Cursor, None] = {}
        """Those that may have something, whose turn is next first."""
        self.unacked = 0
        self.is_closed = False
        self._queue = queue
        self._defer = defer
        self._placed = placed
        self._held_back = 0

    def __repr__(self) -> str:
        return f"<Reading of {self.consumer.tag!r}, {len(self.cursors)} cursors>"

    @property
    def partitions(self) -> list[int]:
        """Which partitions it has in its group."""
        return sorted(cursor.lease.partition for cursor in self.cursors if cursor.lease)

    def read(self, cursor: Cursor) -> None:
        """This place is read, too."""
        cursor.reading = self
        self._placed[self] = None
        self.cursors.append(cursor)
        self.awake[cursor] = None

    def stop_reading(self, cursor: Cursor) -> None:
        cursor.close()
        self.awake.pop(cursor, None)
        if cursor in self.cursors:
            self.cursors.remove(cursor)
        if not self.cursors:
            self._placed.pop(self, None)

    def serve(self) -> None:
        """Hand out what there is, as far as credit goes."""
        consumer = self.consumer
        while self.awake and (credit := consumer.credit() - self._held_back) > 0:
            entries = self._take(credit)
            if not entries:
                return
            if self.group is None or self.group.commit_delivered(entries):
                self._hand_over(entries)
            else:
                self._hand_over_later(entries)

    def _take(self, credit: int) -> list[LogEntry]:
        while self.awake:
            cursor = next(iter(self.awake))
            del self.awake[cursor]
            entries = cursor.take(credit)
            if entries:
                self.awake[cursor] = None
                return entries
            cursor.sleep()
        return []

    def _hand_over(self, entries: Sequence[LogEntry]) -> None:
        self.unacked += len(entries)
        self._queue.counters.delivered(entries, no_ack=False)
        self.consumer.deliver(self._queue, entries)
        if self._queue.tap is not None:
            self._queue.tap(self._queue, entries, self.consumer)

    def _hand_over_later(self, entries: Sequence[LogEntry]) -> None:
        """Saved first, then sent: a crash in between loses them for the group, never repeats."""
        self._held_back += len(entries)

        def now() -> None:
            self._held_back -= len(entries)
            if not self.is_closed:
                self._hand_over(entries)

        self._defer(now)

    def close(self) -> None:
        self.is_closed = True
        for cursor in self.cursors:
            cursor.close()
        self.cursors.clear()
        self.awake.clear()
        self._placed.pop(self, None)
