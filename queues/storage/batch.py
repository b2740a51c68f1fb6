"""A batch: everything that becomes durable together.

Filled on the event-loop thread with plain list appends; once handed over, it belongs to the writer
thread until its outcome is reported. Flattening, packing and checksums happen there.
"""

from bisect import bisect_right
from collections.abc import Iterator, MutableSequence, Sequence
from itertools import chain
from typing import TypeAlias

from leveret.model.definitions import Definition, LogEnd
from leveret.model.history import REPEATABLE_KINDS, EventKind
from leveret.model.run import Run
from leveret.model.store import (
    LiveMessages,
    LoggedMessage,
    LogRecords,
    LogSink,
    Snapshot,
    WriterJob,
)
from leveret.queues.storage.packs import StagedPack

EventKey: TypeAlias = tuple[EventKind, int, int, str | None]
"""kind, queue id, actor, detail"""

EventGroup: TypeAlias = tuple[int, MutableSequence[int], MutableSequence[int] | None]
"""time, message ids, and sizes for `SIZED_KINDS`"""

DefinitionKey: TypeAlias = tuple[type, tuple[object, ...]]


class Batch:
    """The parts are public: the hot path of the store appends to them directly."""

    __slots__ = (
        "atomic", "bytes", "changes", "events", "is_awaited", "is_ordered", "jobs", "log_bytes",
        "log_ends", "logs", "must_not_lose", "number", "parts", "released_parts", "requires_sync",
        "runs", "snapshots",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number = number
        self.bytes = 0
        self.log_bytes = 0
        self.runs: list[Run | StagedPack] = []
        """New messages. Their ids are higher than those of earlier batches."""
        self.is_ordered = True
        """Whether the ids of `runs` ascend."""
        self.parts: list[tuple[int, bytes]] = []
        """Ids and data of parts of large bodies."""
        self.released_parts: set[int] = set()
        """Parts that no message will refer to. They alone are no reason to write a batch."""
        self.events: dict[EventKey, EventGroup] = {}
        self.changes: dict[DefinitionKey, tuple[Definition, bool]] = {}
        """The last change per key; True saves, False deletes."""
        self.snapshots: dict[int, Snapshot] = {}
        self.logs: dict[LogSink, list[LogRecords]] = {}
        self.log_ends: list[LogEnd] = []
        """Set by the writer when it has written the logs."""
        self.jobs: list[WriterJob] = []
        self.must_not_lose = IdSet()
        """Messages that a full disk must not lose."""
        self.atomic = IdSet()
        """Those that, after a crash, must be on disk with the rest of the batch or not at all."""
        self.requires_sync = False
        self.is_awaited = False
        """Somebody waits for its commit, though not for a sync."""

    @property
    def size(self) -> int:
        return self.bytes + self.log_bytes

    @property
    def is_empty(self) -> bool:
        return not (
            self.runs
            or self.parts
            or self.events
            or self.logs
            or self.jobs
            or self.changes
            or self.snapshots
            or self.requires_sync
        )

    @property
    def may_sync_later(self) -> bool:
        """No client waits for it, and losing it in a power failure only causes redeliveries."""
        return not (
            self.runs
            or self.parts
            or self.logs
            or self.jobs
            or self.changes
            or self.snapshots
            or self.requires_sync
        ) and all(key[0] in REPEATABLE_KINDS for key in self.events)

    @property
    def has_sql(self) -> bool:
        return bool(
            self.runs
            or self.parts
            or self.events
            or self.changes
            or self.snapshots
            or self.log_ends
        )

    def forget_guarantees(self) -> None:
        """Forget what `MustNotLose` said: those messages are in memory only."""
        self.must_not_lose.clear()
        self.atomic.clear()

    def carry(self, failed: "Batch", lost: "IdRanges") -> None:
        """Take over the content of a failed batch, except new messages that may be lost.

        While the process runs, nothing that was settled or defined is forgotten. The newer change
        of a key wins; events are a set, so their order does not matter.
        """
        if failed.must_not_lose:
            self._carry_content(failed)
        self.released_parts |= failed.released_parts
        for key, (time_ms, ids, sizes) in failed.events.items():
            newer = self.events.get(key)
            if newer is not None:
                ids.extend(newer[1])
                if sizes is not None and newer[2] is not None:
                    sizes.extend(newer[2])
            self.events[key] = (time_ms, ids, sizes)
        self.changes = {**failed.changes, **self.changes}
        self.snapshots = {**failed.snapshots, **self.snapshots}
        self.requires_sync = self.requires_sync or failed.requires_sync
        self.drop(lost)

    def _carry_content(self, failed: "Batch") -> None:
        runs = [run for failed_run in failed.runs for run in _chosen(failed_run, failed)]
        self.runs[:0] = runs
        self.is_ordered = self.is_ordered and failed.is_ordered
        self.bytes += sum(run.bytes_to_store for run in runs)
        bodies = [
            run.large_body for run in runs if isinstance(run, Run) and run.large_body is not None
        ]
        needed = {i for body in bodies for i in range(body.first_part, body.end_part)}
        parts = [part for part in failed.parts if part[0] in needed]
        self.parts[:0] = parts
        self.bytes += sum(len(data) for _, data in parts)
        for sink, records in failed.logs_with(failed.must_not_lose).items():
            self.logs[sink] = [*records, *self.logs.get(sink, ())]
            self.log_bytes += sum(record.body_size for record in records)
        self.must_not_lose.add_all(failed.must_not_lose)
        self.atomic.add_all(failed.atomic)

    def logs_with(self, message_ids: "IdSet") -> dict[LogSink, list[LoggedMessage]]:
        """The log records of these messages. On the loop's thread: it may make single messages."""
        return {
            sink: [
                record
                for records in self.logs[sink]
                for record in (records.messages if isinstance(records, Run) else (records,))
                if record.id in message_ids
            ]
            for sink in self.sinks_with(message_ids)
        }

    def sinks_with(self, message_ids: "IdSet") -> list[LogSink]:
        """The logs that have records of these messages."""
        return [
            sink
            for sink, records in self.logs.items()
            if any(
                message_ids.has_any(each.ids) if isinstance(each, Run) else each.id in message_ids
                for each in records
            )
        ]

    def drop(self, lost: "IdRanges") -> None:
        """Remove every event of messages whose content could not be stored.

        Called for every later batch, so ids above the newest lost one must cost nothing.
        """
        for key, (time_ms, ids, sizes) in list(self.events.items()):
            if min(ids, default=0) > lost.newest:
                continue
            stays = [message_id not in lost for message_id in ids]
            if all(stays):
                continue
            kept_ids = [i for i, stay in zip(ids, stays, strict=True) if stay]
            if not kept_ids:
                del self.events[key]
                continue
            kept_sizes = sizes and [s for s, stay in zip(sizes, stays, strict=True) if stay]
            self.events[key] = (time_ms, kept_ids, kept_sizes)
        for queue_id, snapshot in self.snapshots.items():
            parts = tuple(_without(part, lost) for part in snapshot.parts)
            self.snapshots[queue_id] = Snapshot(queue_id, parts, snapshot.trim)


def _chosen(run: Run | StagedPack, failed: Batch) -> Iterator[Run | StagedPack]:
    """The messages of a run that a full disk must not lose."""
    if isinstance(run, StagedPack):  # of a transaction
        yield run
        return
    messages = [message for message in run.messages if message.id in failed.must_not_lose]
    if messages:
        yield run if len(messages) == len(run) else Run.of(messages)


def _without(part: LiveMessages, lost: "IdRanges") -> LiveMessages:
    if part.ids and min(part.ids) > lost.newest:
        return part
    ids, sizes = part.ids[:0], part.sizes[:0]
    for message_id, size in zip(part.ids, part.sizes, strict=True):
        if message_id not in lost:
            ids.append(message_id)
            sizes.append(size)
    return LiveMessages(ids, sizes, part.detail)


class IdSet:
    """Ids that are rarely looked up: adding a hundred thousand of them takes no time."""

    __slots__ = ("_added", "_ids")

    def __init__(self, *added: Sequence[int]) -> None:
        self._added = list(added)
        self._ids: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._added or self._ids)

    def __iter__(self) -> Iterator[int]:
        self._join()
        return iter(self._ids)

    def __contains__(self, message_id: int) -> bool:
        self._join()
        return message_id in self._ids

    def has_any(self, ids: Sequence[int]) -> bool:
        self._join()
        return not self._ids.isdisjoint(ids)

    def add(self, ids: Sequence[int]) -> None:
        if ids:
            self._added.append(ids)

    def add_all(self, other: "IdSet") -> None:
        self._added += other._added
        self._ids |= other._ids

    def clear(self) -> None:
        self._added, self._ids = [], set()

    def _join(self) -> None:
        for ids in self._added:
            self._ids.update(ids)
        self._added = []


class IdRanges:
    """A growing set of ids, stored as ascending ranges: adjacent batches take no extra space."""

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
        position = bisect_right(self._first, message_id) - 1
        return position >= 0 and message_id <= self._last[position]

    def add_batch(self, batch: Batch) -> None:
        """Add the messages a failed batch has lost. No other batch has ids between two of these."""
        continues = False
        for message_id in sorted(chain.from_iterable(run.ids for run in batch.runs)):
            if message_id in batch.must_not_lose:
                continues = False
            else:
                self._add(message_id, continues)
                continues = True

    def _add(self, message_id: int, continues: bool) -> None:
        if continues or (self._last and message_id == self._last[-1] + 1):
            self._last[-1] = message_id
        else:
            self._first.append(message_id)
            self._last.append(message_id)
