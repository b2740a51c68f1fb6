"""One reader's place in one partition, and what has been read ahead of it.

Records are handed out in order, each once; what was given back comes again, before anything new.
At most two chunks are held: one being handed out, one read ahead on the reader thread; they are the
smaller the more cursors there are with something before them (`Crowd`). Records written a moment
ago are still in the page cache and are read at once, without a change of thread. A cursor at the
end of its partition costs nothing until its log tells it that there is more.
Event-loop thread only; a crash forgets cursors, groups keep their own offsets.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from queues.log import Lease, Record
from queues.stream.records import LogEntry, Stamp

if TYPE_CHECKING:
    from queues.stream.filter import RecordFilter
    from queues.stream.reading import Reading

SMALLEST_CHUNK = 64
LARGEST_CHUNK = 2_048
CHUNK_BYTES = 256 * 1024
CROWD = 64
"""So many cursors hold chunks of the largest size; more of them share what these would hold."""
FEW_RECORDS, FEW_BYTES = 16, 16 * 1024
RETRY_SECONDS = 1.0


class Crowd:
    """How many cursors have something before them, in all logs together."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    @property
    def records(self) -> int:
        """Of one chunk."""
        if self.count <= CROWD:
            return LARGEST_CHUNK
        return max(FEW_RECORDS, LARGEST_CHUNK * CROWD // self.count)

    @property
    def octets(self) -> int:
        if self.count <= CROWD:
            return CHUNK_BYTES
        return max(FEW_BYTES, CHUNK_BYTES * CROWD // self.count)


class Readable(Protocol):
    """A partition as a cursor sees it: only what is committed."""

    stamp: Stamp
    crowd: Crowd
    at_end: dict[Cursor, None]
    """Who is to be told of what is committed next."""

    @property
    def next_offset(self) -> int: ...

    def is_warm(self, offset: int) -> bool:
        """Whether reading from there needs no disk."""

    def read_now(self, offset: int, most: int, max_bytes: int) -> list[Record]: ...

    def read_soon(
        self,
        offset: int,
        most: int,
        max_bytes: int,
        done: Callable[[Sequence[Record] | None], None],
    ) -> None:
        """Read on the reader thread; `done` is called on the loop, with None for a failure."""


class Cursor:
    """`resent_below`: offsets that another member of the group may have seen before.

    `filter`: what is not wanted is passed over without costing credit.
    """

    __slots__ = (
        "_again",
        "_ahead",
        "_at",
        "_chunk",
        "_filter",
        "_is_counted",
        "_is_loading",
        "_read_from",
        "_records",
        "_resent_below",
        "_wake",
        "is_closed",
        "lease",
        "log",
        "reading",
    )

    def __init__(
        self,
        log: Readable,
        position: int,
        wake: Callable[[], None],
        lease: Lease[Reading] | None = None,
        resent_below: int = 0,
        filter: RecordFilter | None = None,
    ) -> None:
        self.log = log
        self.lease = lease
        self.reading: Reading | None = None
        self.is_closed = False
        self._wake = wake
        self._resent_below = resent_below
        self._filter = filter
        self._again: list[Record] = []
        self._records: Sequence[Record] = ()
        self._at = 0
        self._ahead: Sequence[Record] | None = None
        self._is_loading = False
        self._read_from = position
        self._chunk = SMALLEST_CHUNK
        self._is_counted = False
        self._count(True)

    def __repr__(self) -> str:
        held = len(self._records) - self._at + len(self._ahead or ())
        return f"<Cursor read to {self._read_from}, {held} held, {len(self._again)} given back>"

    @property
    def is_behind(self) -> bool:
        """Whether there is something it has not handed out."""
        held = self._again or self._ahead or self._at < len(self._records)
        return bool(held) or self._is_loading or self._read_from < self.log.next_offset

    @property
    def place(self) -> int:
        """Offset of the next record it will hand out."""
        held = self._again or self._records[self._at : self._at + 1] or self._ahead
        return held[0].offset if held else self._read_from

    def take(self, most: int) -> list[LogEntry]:
        """The next entries, or none while they are being read."""
        if self._again:
            again, self._again = self._again[:most], self._again[most:]
            return [LogEntry(record, self, True) for record in again]
        if self._at >= len(self._records):
            self._refill()
        start, stop = self._at, self._at + most
        records = self._records[start:stop]
        self._at = min(stop, len(self._records))
        if not records:
            return []
        if records[0].offset < self._resent_below:
            below = self._resent_below
            return [LogEntry(record, self, record.offset < below) for record in records]
        return [LogEntry(record, self, False) for record in records]

    def give_back(self, record: Record) -> None:
        insort(self._again, record)
        self.awaken()

    def sleep(self) -> None:
        """It has handed out all there is for now; what is being read wakes it, or its log does."""
        if not self._is_loading:
            self._count(False)
            self.log.at_end[self] = None

    def awaken(self) -> None:
        """There may be something to hand out."""
        if self.is_closed:
            return
        self.log.at_end.pop(self, None)
        self._count(True)
        if self.reading is not None:
            self.reading.awake[self] = None
        self._wake()

    def close(self) -> None:
        self.is_closed = True
        self._records, self._ahead, self._again = (), None, []
        self.log.at_end.pop(self, None)
        self._count(False)

    def _count(self, is_counted: bool) -> None:
        self.log.crowd.count += is_counted - self._is_counted
        self._is_counted = is_counted

    def _refill(self) -> None:
        self._records, self._at = (), 0
        if self._ahead is not None:
            self._records, self._ahead = self._ahead, None
        elif not self._is_loading and self.log.is_warm(self._read_from):
            self._read_now()
        self._read_ahead()

    def _read_now(self) -> None:
        end = self.log.next_offset
        if self._read_from < end:
            most = min(end - self._read_from, self.log.crowd.records)
            try:
                records = self.log.read_now(self._read_from, most, self.log.crowd.octets)
            except OSError:
                return  # the reader thread tries again, and tells of it
            self._passed(records, end)
            self._records = records if self._filter is None else self._filter.wanted(records)

    def _read_ahead(self) -> None:
        left = self.log.next_offset - self._read_from
        if self._is_loading or self._ahead is not None or left <= 0:
            return
        if self.log.is_warm(self._read_from) and self._records:
            return
        self._is_loading = True
        end = self.log.next_offset
        crowd = self.log.crowd
        most = min(left, self._chunk, crowd.records)
        self._chunk = min(self._chunk * 4, LARGEST_CHUNK)
        self.log.read_soon(
            self._read_from, most, crowd.octets, lambda records: self._loaded(records, end)
        )

    def _loaded(self, records: Sequence[Record] | None, end: int) -> None:
        if self.is_closed:
            return
        if records is None:  # nothing is known of what is there: stay, and look again
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._look_again)
            return
        self._is_loading = False
        self._passed(records, end)
        if self._filter is not None:
            records = self._filter.wanted(records)
        self._ahead = records or None
        self.awaken()

    def _look_again(self) -> None:
        self._is_loading = False
        self.awaken()

    def _passed(self, records: Sequence[Record], end: int) -> None:
        """Nothing found below `end` means that nothing is there: compacted or damaged."""
        self._read_from = records[-1].offset + 1 if records else max(end, self._read_from)
