"""A batch: everything that becomes durable together.

Filled on the event-loop thread with plain list appends; once handed over, it belongs to the writer
thread until its outcome is reported. Flattening, packing and checksums happen there.
"""

from bisect import bisect_right
from collections.abc import MutableSequence
from typing import TypeAlias

from leveret.model.history import REPEATABLE_KINDS, EventKind
from leveret.model.store import (
    Definition,
    Lease,
    Live,
    LogSink,
    NewMessage,
    NewMessageTuple,
    Snapshot,
)

EventKey: TypeAlias = tuple[EventKind, int, int, str | None]
"""kind, queue id, actor, detail"""

Group: TypeAlias = tuple[int, MutableSequence[int], MutableSequence[int] | None]
"""time, message ids, sizes for the kinds that carry them"""

DefinitionKey: TypeAlias = tuple[type, tuple[object, ...]]


class Batch:
    """The parts are public: the hot path of the store appends to them directly."""

    __slots__ = (
        "bound", "bytes", "changes", "discards", "events", "firm", "lease", "log_bytes", "logs",
        "mark", "rows", "snapshots", "strips", "synced",
    )  # fmt: skip

    def __init__(self, mark: int) -> None:
        self.mark = mark
        self.bytes = 0
        self.log_bytes = 0
        self.rows: list[NewMessage | NewMessageTuple] = []
        self.events: dict[EventKey, Group] = {}
        self.changes: dict[DefinitionKey, tuple[Definition, bool]] = {}
        """The last change per key wins; True saves, False deletes."""
        self.snapshots: dict[int, Snapshot] = {}
        self.discards: list[int] = []
        self.strips: list[int] = []
        self.logs: dict[LogSink, list[object]] = {}
        self.firm: set[int] = set()
        """Messages that a full disk must not lose."""
        self.bound: set[int] = set()
        """Those of them that a crash must leave with the rest of the batch or not at all."""
        self.lease: Lease | None = None
        self.synced = False

    @property
    def size(self) -> int:
        return self.bytes + self.log_bytes

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.events or self.logs or self.has_small_parts or self.synced)

    @property
    def may_sync_later(self) -> bool:
        """Nobody waits for it, and a power failure would only bring back what was handed out."""
        return not (
            self.rows or self.logs or self.changes or self.snapshots or self.lease or self.synced
        ) and all(key[0] in REPEATABLE_KINDS for key in self.events)

    @property
    def has_small_parts(self) -> bool:
        return bool(self.changes or self.snapshots or self.discards or self.strips or self.lease)

    @property
    def has_sql(self) -> bool:
        return bool(self.rows or self.events or self.has_small_parts)

    def forget_promises(self) -> None:
        """What was said of messages that are in memory only."""
        self.firm.clear()
        self.bound.clear()

    def carry(self, failed: "Batch", lost: "IdRanges") -> None:
        """Take over what a failed batch held, except new messages that are not indispensable.

        While the process runs nothing that was settled or defined is forgotten. What is newer
        here wins; events are a set, so their order does not matter.
        """
        if failed.firm:
            self._carry_content(failed)
        for key, (time_ms, ids, sizes) in failed.events.items():
            mine = self.events.get(key)
            if mine is not None:
                ids.extend(mine[1])
                if sizes is not None and mine[2] is not None:
                    sizes.extend(mine[2])
            self.events[key] = (time_ms, ids, sizes)
        self.changes = {**failed.changes, **self.changes}
        self.snapshots = {**failed.snapshots, **self.snapshots}
        self.discards += failed.discards
        self.strips += failed.strips
        self.lease = self.lease or failed.lease
        self.synced = self.synced or failed.synced
        self.drop(lost)

    def _carry_content(self, failed: "Batch") -> None:
        rows = [row for row in failed.rows if row[0] in failed.firm]
        self.rows[:0] = rows
        self.bytes += sum(len(row[5]) + len(row[6]) for row in rows)
        for sink, records in failed.logs_with(failed.firm).items():
            self.logs[sink] = [*records, *self.logs.get(sink, ())]
            self.log_bytes += sum(getattr(record, "body_size", 0) for record in records)
        self.firm |= failed.firm
        self.bound |= failed.bound

    def logs_with(self, message_ids: set[int]) -> dict[LogSink, list[object]]:
        """The log records of these messages."""
        found = {
            sink: [record for record in records if getattr(record, "id", 0) in message_ids]
            for sink, records in self.logs.items()
        }
        return {sink: records for sink, records in found.items() if records}

    def drop(self, lost: "IdRanges") -> None:
        """Forget everything said about messages whose content could not be stored.

        Asked of every batch from then on, so what is newer than all of them costs nothing.
        """
        for key, (time_ms, ids, sizes) in list(self.events.items()):
            if min(ids, default=0) > lost.newest:
                continue
            stays = [message_id not in lost for message_id in ids]
            if all(stays):
                continue
            kept = [i for i, stay in zip(ids, stays, strict=True) if stay]
            if not kept:
                del self.events[key]
                continue
            kept_sizes = sizes and [s for s, stay in zip(sizes, stays, strict=True) if stay]
            self.events[key] = (time_ms, kept, kept_sizes)
        for queue_id, snapshot in self.snapshots.items():
            parts = tuple(_live_without(part, lost) for part in snapshot.parts)
            self.snapshots[queue_id] = Snapshot(queue_id, parts, snapshot.trim)
        self.discards = [i for i in self.discards if i not in lost]
        self.strips = [i for i in self.strips if i not in lost]


def _live_without(part: Live, lost: "IdRanges") -> Live:
    if part.ids and min(part.ids) > lost.newest:
        return part
    ids, sizes = part.ids[:0], part.sizes[:0]
    for message_id, size in zip(part.ids, part.sizes, strict=True):
        if message_id not in lost:
            ids.append(message_id)
            sizes.append(size)
    return Live(ids, sizes, part.detail)


class IdRanges:
    """A growing set of ids, kept as ascending ranges: adjacent batches cost nothing."""

    __slots__ = ("_first", "_last")

    def __init__(self) -> None:
        self._first: list[int] = []
        self._last: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._first)

    @property
    def newest(self) -> int:
        return self._last[-1] if self._last else 0

    def __contains__(self, message_id: int) -> bool:
        place = bisect_right(self._first, message_id) - 1
        return place >= 0 and message_id <= self._last[place]

    def add_batch(self, batch: Batch) -> None:
        """What a failed batch has lost. Ids between two of these are in no other batch."""
        goes_on = False
        for message_id in sorted(row[0] for row in batch.rows):
            if message_id in batch.firm:
                goes_on = False
            else:
                self._add(message_id, goes_on)
                goes_on = True

    def _add(self, message_id: int, goes_on: bool) -> None:
        if goes_on or (self._last and message_id == self._last[-1] + 1):
            self._last[-1] = message_id
        else:
            self._first.append(message_id)
            self._last.append(message_id)
