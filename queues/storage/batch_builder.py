"""The event-loop side of a store: builds the current batch.

Shared by both stores. Everything here runs on the event-loop thread and is plain list and
dictionary work; `_take_batch` removes the whole batch, and a new one takes its place.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Final

from leveret.model.definitions import Definition
from leveret.model.history import SIZED_KINDS, EventKind
from leveret.model.run import Run
from leveret.model.store import (
    DatabaseSize,
    LoggedMessage,
    LogSink,
    LostData,
    MustNotLose,
    OnCommitted,
    OnFailed,
    RequireSync,
    Saved,
    Snapshot,
    StagedRuns,
    StoreState,
    Usage,
    WriterJob,
)
from leveret.queues.storage.batch import Batch, stored_bytes
from leveret.queues.storage.packs import StagedPack, stage_pack
from leveret.queues.storage.statements import KEY_COLUMNS


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class BatchBuilder:
    """Adds work to the current batch. Subclasses decide what happens to a taken batch."""

    def __init__(
        self, *, on_committed: OnCommitted, on_failed: OnFailed, now_ms: Callable[[], int]
    ) -> None:
        self.ids: Iterator[int] = count(1)
        self._part_ids: Iterator[int] = count(1)
        self.committed = 0
        self.state = StoreState.OPENING
        self.usage = Usage()
        self.database_size = DatabaseSize()
        self.lost: tuple[LostData, ...] = ()
        self.bytes_appended = 0
        self.on_spilled: Callable[[], None] = lambda: None
        self._on_committed: Final = on_committed
        self._on_failed: Final = on_failed
        self._now_ms: Final = now_ms
        self._batch = Batch(1)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.state.value}, committed {self.committed},"
            f" {self.backlog} bytes waiting>"
        )

    @property
    def batch_number(self) -> int:
        batch = self._batch
        return batch.number - 1 if batch.is_empty else batch.number

    @property
    def backlog(self) -> int:
        return self._batch.size

    @property
    def memory_bytes(self) -> int:
        return self.backlog

    def waiting_changes(self) -> int:
        return len(self._batch.changes)

    def append(self, content: Run | StagedRuns) -> None:
        batch = self._batch
        if isinstance(content, Run) or (isinstance(content, StagedPack) and content.is_consecutive):
            batch.runs.append(content)
            batch.bytes += stored_bytes(content)
        else:  # other messages have ids between these: they need packs of their own
            self.discard(content)
            for run in content.runs:
                self.append(run)

    def stage(self, runs: Sequence[Run]) -> StagedRuns:
        pack, parts = stage_pack(runs)
        pack.first_part = self.reserve_parts(len(parts))
        self.append_parts(pack.first_part, parts)
        return pack

    def discard(self, staged: StagedRuns) -> None:
        if isinstance(staged, StagedPack):
            self.release_parts(staged.first_part, staged.parts)

    def reserve_parts(self, count: int) -> int:
        """The id of the first of these parts, which are to be stored with `append_parts`."""
        first = next(self._part_ids)
        for _ in range(count - 1):
            next(self._part_ids)
        return first

    def append_parts(self, first_id: int, parts: Sequence[bytes]) -> None:
        batch = self._batch
        batch.parts += zip(count(first_id), parts, strict=False)
        batch.bytes += sum(map(len, parts))

    def release_parts(self, first_id: int, count: int) -> None:
        self._batch.released_parts.update(range(first_id, first_id + count))

    def record(
        self,
        kind: EventKind,
        queue_id: int,
        message_id: int,
        actor: int = 0,
        detail: str | None = None,
        size: int = 0,
    ) -> None:
        key = (kind, queue_id, actor, detail)
        events = self._batch.events
        group = events.get(key)
        if group is None:
            group = events[key] = (self._now_ms(), [], [] if kind in SIZED_KINDS else None)
        group[1].append(message_id)
        if group[2] is not None:
            group[2].append(size)

    def record_many(
        self,
        kind: EventKind,
        queue_id: int,
        message_ids: Sequence[int],
        actor: int = 0,
        detail: str | None = None,
        sizes: Sequence[int] = (),
    ) -> None:
        if not message_ids:
            return
        key = (kind, queue_id, actor, detail)
        events = self._batch.events
        group = events.get(key)
        if group is None:
            group = events[key] = (self._now_ms(), [], [] if kind in SIZED_KINDS else None)
        group[1].extend(message_ids)
        if group[2] is not None:
            if len(sizes) != len(message_ids):
                raise ValueError(f"{kind.name} needs one size per message id")
            group[2].extend(sizes)

    def save(self, value: Saved) -> None:
        if isinstance(value, Snapshot):
            self._batch.snapshots[value.queue_id] = value
        elif isinstance(value, MustNotLose):
            self._batch.must_not_lose.add(value.message_ids)
            if value.atomic:
                self._batch.atomic.add(value.message_ids)
        elif isinstance(value, RequireSync):
            self._batch.requires_sync = True
        else:
            self._change(value, saved=True)

    def delete(self, value: Definition) -> None:
        self._change(value, saved=False)

    def append_log(self, sink: LogSink, record: LoggedMessage, size: int = 0) -> None:
        batch = self._batch
        batch.log_bytes += size
        records = batch.logs.get(sink)
        if records is None:
            records = batch.logs[sink] = []
        records.append(record)

    def await_batch(self) -> None:
        self._batch.is_awaited = True

    def append_job(self, job: WriterJob) -> None:
        self._batch.jobs.append(job)

    def _change(self, value: Definition, *, saved: bool) -> None:
        kind = type(value)
        key = (kind, tuple(getattr(value, name) for name in KEY_COLUMNS[kind]))
        self._batch.changes[key] = (value, saved)

    def _take_batch(self) -> Batch:
        batch = self._batch
        self._batch = Batch(batch.number + 1)
        self.bytes_appended += batch.bytes
        return batch
