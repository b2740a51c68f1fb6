"""One reader's position in one partition, and the records read ahead of it.

Records are delivered in order, each once; requeued records are delivered again before new ones.
A cursor holds at most two chunks: one being delivered and one read ahead on the reader thread. The
chunks get smaller when many cursors are behind the end of their partition (`ReadAheadBudget`).
Recently written records are in the page cache and are read at once, without a thread switch. A
cursor at the end of its partition costs nothing until the log wakes it.
Event-loop thread only. A crash loses cursors; groups keep their committed offsets.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from leveret.queues.log.deliveries import DeliveryFramer, LogEntry
from leveret.queues.log.files import Record
from leveret.queues.log.group_coordinator import PartitionAssignment

if TYPE_CHECKING:
    from leveret.queues.log.filter import RecordFilter
    from leveret.queues.log.readers import ConsumerReader

FIRST_CHUNK_RECORDS = 64
MAX_CHUNK_RECORDS, MAX_CHUNK_BYTES = 2_048, 256 * 1024
MIN_CHUNK_RECORDS, MIN_CHUNK_BYTES = 16, 16 * 1024
FULL_CHUNK_CURSORS = 64
"""Up to this many active cursors use chunks of the maximum size; more cursors share the total."""
RECENT_CHUNKS = 16
RETRY_SECONDS = 1.0
_offset = attrgetter("offset")


class RecentReads:
    """The last chunk that was read from each of a few partitions.

    Many readers that wait at the end of a log read the same records: one of them reads the file.
    """

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: dict[int, tuple[int, list[Record]]] = {}
        """By partition: the offset that was asked for, and what was found."""

    def read(
        self, log: ReadablePartition, offset: int, max_records: int, max_bytes: int
    ) -> list[Record]:
        start, records = self._chunks.get(log.id, (0, []))
        if records and start <= offset <= records[-1].offset:
            at = bisect_left(records, offset, key=_offset)
            return records[at : at + max_records]
        records = log.read_now(offset, max_records, max_bytes)
        if records and (len(records) > 1 or len(records[0].body) <= MAX_CHUNK_BYTES):
            self._chunks.pop(log.id, None)
            while len(self._chunks) >= RECENT_CHUNKS:
                del self._chunks[next(iter(self._chunks))]
            self._chunks[log.id] = (offset, records)
        return records


class ReadAheadBudget:
    """Bounds the memory of all cursors of all logs: the more are active, the smaller the chunks.

    A cursor is active while it is behind the end of its partition.
    """

    __slots__ = ("active_cursors", "recent")

    def __init__(self) -> None:
        self.active_cursors = 0
        self.recent = RecentReads()

    @property
    def chunk_records(self) -> int:
        if self.active_cursors <= FULL_CHUNK_CURSORS:
            return MAX_CHUNK_RECORDS
        return max(MIN_CHUNK_RECORDS, MAX_CHUNK_RECORDS * FULL_CHUNK_CURSORS // self.active_cursors)

    @property
    def chunk_bytes(self) -> int:
        if self.active_cursors <= FULL_CHUNK_CURSORS:
            return MAX_CHUNK_BYTES
        return max(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES * FULL_CHUNK_CURSORS // self.active_cursors)


class ReadablePartition(Protocol):
    """A partition as its readers see it: committed records only."""

    id: int
    full_name: str
    framer: DeliveryFramer
    read_ahead: ReadAheadBudget
    cursors_at_end: dict[Cursor, None]
    """Cursors to wake when more records are committed."""

    @property
    def first_offset(self) -> int:
        """The oldest offset (Kafka: log start offset)."""

    @property
    def next_offset(self) -> int:
        """The offset after the last committed record (Kafka: high watermark)."""

    @property
    def has_lost(self) -> bool:
        """Whether some of its offsets are known to be lost (damage, missing files)."""

    def count_records(self, start: int) -> int:
        """The number of offsets from `start` on that are not known to be lost."""

    def is_end_lost_at(self, offset: int) -> bool:
        """Whether the offset was beyond the end of the log when that was found to be truncated."""

    def on_skipped(self, start: int, stop: int, reader: str) -> None:
        """A reader has passed these offsets: report those that are lost."""

    def offset_for_time(self, time_ms: int) -> int: ...

    def now_ms(self) -> int: ...

    def is_cached(self, offset: int) -> bool:
        """Whether the records from `offset` on are recent enough to be in the page cache."""

    def read_now(self, offset: int, max_records: int, max_bytes: int) -> list[Record]: ...

    def read_soon(
        self,
        offset: int,
        max_records: int,
        max_bytes: int,
        done: Callable[[Sequence[Record] | None], None],
    ) -> None:
        """Read on the reader thread; `done` is called on the loop, with None after an error."""


class Cursor:
    """`redelivered_below`: offsets that another member of the group may have received before.

    `assignment` is None for a consumer outside a group. Records that do not match `filter` are
    skipped and cost no credit.
    """

    __slots__ = (
        "_ahead",
        "_at",
        "_chunk_records",
        "_filter",
        "_is_active",
        "_is_loading",
        "_read_from",
        "_records",
        "_redelivered_below",
        "_requeued",
        "_wake_log",
        "assignment",
        "is_closed",
        "is_queued",
        "log",
        "reader",
    )

    def __init__(
        self,
        log: ReadablePartition,
        position: int,
        wake_log: Callable[[], None],
        assignment: PartitionAssignment[ConsumerReader] | None = None,
        redelivered_below: int = 0,
        filter: RecordFilter | None = None,
    ) -> None:
        self.log = log
        self.assignment = assignment
        self.reader: ConsumerReader | None = None
        self.is_closed = False
        self.is_queued = False
        """Whether its reader will look at it when it is served."""
        self._wake_log = wake_log
        self._redelivered_below = redelivered_below
        self._filter = filter
        self._requeued: list[Record] = []
        self._records: Sequence[Record] = ()
        self._at = 0
        self._ahead: Sequence[Record] | None = None
        self._is_loading = False
        self._read_from = position
        self._chunk_records = FIRST_CHUNK_RECORDS
        self._is_active = False
        self._set_active(True)

    def __repr__(self) -> str:
        loaded = len(self._records) - self._at + len(self._ahead or ())
        return f"<Cursor at {self._read_from}, {loaded} loaded, {len(self._requeued)} requeued>"

    @property
    def is_behind(self) -> bool:
        """Whether there are records it has not delivered."""
        loaded = self._requeued or self._ahead or self._at < len(self._records)
        return bool(loaded) or self._is_loading or self._read_from < self.log.next_offset

    @property
    def position(self) -> int:
        """Offset of the next record it will deliver."""
        loaded = self._requeued or self._records[self._at : self._at + 1] or self._ahead
        return loaded[0].offset if loaded else self._read_from

    def take(self, max_entries: int) -> list[LogEntry]:
        """The next entries, or none while they are being read."""
        if self._requeued:
            requeued = self._requeued[:max_entries]
            self._requeued = self._requeued[max_entries:]
            return [LogEntry(record, self, True) for record in requeued]
        if self._at >= len(self._records):
            self._refill()
        start, stop = self._at, self._at + max_entries
        records = self._records[start:stop]
        self._at = min(stop, len(self._records))
        if not records:
            return []
        if records[0].offset < self._redelivered_below:
            below = self._redelivered_below
            return [LogEntry(record, self, record.offset < below) for record in records]
        return [LogEntry(record, self, False) for record in records]

    def requeue(self, record: Record) -> None:
        insort(self._requeued, record)
        self.wake()

    def sleep(self) -> None:
        """Wait until the pending read finishes or the log commits more records."""
        if not self._is_loading:
            self._set_active(False)
            self.log.cursors_at_end[self] = None

    def wake(self) -> None:
        """There may be records to deliver."""
        if self.is_closed:
            return
        self.log.cursors_at_end.pop(self, None)
        self._set_active(True)
        if self.reader is not None:
            self.reader.on_cursor_ready(self)
        self._wake_log()

    def close(self) -> None:
        self.is_closed = True
        self._records, self._ahead, self._requeued = (), None, []
        self.log.cursors_at_end.pop(self, None)
        self._set_active(False)

    def _set_active(self, is_active: bool) -> None:
        self.log.read_ahead.active_cursors += is_active - self._is_active
        self._is_active = is_active

    def _refill(self) -> None:
        self._records, self._at = (), 0
        if self._ahead is not None:
            self._records, self._ahead = self._ahead, None
        elif not self._is_loading and self.log.is_cached(self._read_from):
            self._read_now()
        self._read_ahead()

    def _read_now(self) -> None:
        end = self.log.next_offset
        if self._read_from < end:
            budget = self.log.read_ahead
            max_records = min(end - self._read_from, budget.chunk_records)
            try:
                records = budget.recent.read(
                    self.log, self._read_from, max_records, budget.chunk_bytes
                )
            except OSError:
                return  # the reader thread retries, and logs the error
            self._advance(records, end)
            self._records = records if self._filter is None else self._filter.matching(records)

    def _read_ahead(self) -> None:
        left = self.log.next_offset - self._read_from
        if self._is_loading or self._ahead is not None or left <= 0:
            return
        if self.log.is_cached(self._read_from) and self._records:
            return
        self._is_loading = True
        end = self.log.next_offset
        budget = self.log.read_ahead
        max_records = min(left, self._chunk_records, budget.chunk_records)
        self._chunk_records = min(self._chunk_records * 4, MAX_CHUNK_RECORDS)
        self.log.read_soon(
            self._read_from,
            max_records,
            budget.chunk_bytes,
            lambda records: self._on_loaded(records, end),
        )

    def _on_loaded(self, records: Sequence[Record] | None, end: int) -> None:
        if self.is_closed:
            return
        if records is None:  # the read failed: keep the position, and retry
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._retry)
            return
        self._is_loading = False
        self._advance(records, end)
        if self._filter is not None:
            records = self._filter.matching(records)
        self._ahead = records or None
        self.wake()

    def _retry(self) -> None:
        self._is_loading = False
        self.wake()

    def _advance(self, records: Sequence[Record], end: int) -> None:
        """No records below `end` means that they were compacted away or are damaged."""
        start, self._read_from = (
            self._read_from,
            records[-1].offset + 1 if records else max(end, self._read_from),
        )
        if self.log.has_lost:
            tag = self.reader.consumer.tag if self.reader is not None else ""
            self.log.on_skipped(start, self._read_from, tag)
