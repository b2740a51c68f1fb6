"""A batch: everything that becomes durable together.

Filled on the event-loop thread with plain list appends; once handed over, it belongs to the writer
thread until its outcome is reported. Flattening, packing and checksums happen there.
"""

from bisect import bisect_right
from collections.abc import MutableSequence, Sequence
from typing import TypeAlias

from leveret.model.history import EventKind
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
        "bytes", "changes", "discards", "events", "lease", "log_bytes", "logs", "mark", "rows",
        "snapshots", "strips",
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
        self.lease: Lease | None = None

    @property
    def size(self) -> int:
        return self.bytes + self.log_bytes

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.events or self.logs or self.has_small_parts)

    @property
    def has_small_parts(self) -> bool:
        return bool(self.changes or self.snapshots or self.discards or self.strips or self.lease)

    @property
    def has_sql(self) -> bool:
        return bool(self.rows or self.events or self.has_small_parts)

    def carry(self, failed: "Batch", lost: "IdRanges") -> None:
        """Take over what a failed batch held, except its new messages and log records.

        While the process runs nothing that was settled or defined is forgotten. What is newer
        here wins; events are a set, so their order does not matter.
        """
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
        self.drop(lost)

    def drop(self, lost: "IdRanges") -> None:
        """Forget everything said about messages whose content could not be stored."""
        for key, (time_ms, ids, sizes) in list(self.events.items()):
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

    def __contains__(self, message_id: int) -> bool:
        place = bisect_right(self._first, message_id) - 1
        return place >= 0 and message_id <= self._last[place]

    def add_batch(self, rows: Sequence[NewMessage | NewMessageTuple]) -> None:
        """Every id from the lowest to the highest: no other batch can hold one between them."""
        if not rows:
            return
        ids = [row[0] for row in rows]
        first, last = min(ids), max(ids)
        if self._last and first <= self._last[-1] + 1:
            self._last[-1] = max(last, self._last[-1])
        else:
            self._first.append(first)
            self._last.append(last)
