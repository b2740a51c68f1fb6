"""The event-loop side of a store: builds the current batch.

Shared by both stores. Everything here runs on the event-loop thread and is plain list and
dictionary work; `_take_batch` removes the whole batch, and the next one takes its place.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from math import inf
from typing import Final

from leveret.model.definitions import Definition, QueueDefinition
from leveret.model.history import SIZED_KINDS, EventKind
from leveret.model.mypyc import mypyc_attr
from leveret.model.run import Run
from leveret.model.store import (
    DatabaseSize,
    LogRecords,
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
from leveret.queues.storage.batch import Batch
from leveret.queues.storage.packs import StagedPack, stage_pack
from leveret.queues.storage.statements import key_of


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@mypyc_attr(allow_interpreted_subclasses=True)
class BatchBuilder:
    """Adds work to the current batch. Subclasses decide what happens to a taken batch."""

    def __init__(
        self,
        *,
        on_committed: OnCommitted,
        on_failed: OnFailed,
        now_ms: Callable[[], int],
        max_logs: float = inf,
    ) -> None:
        """A batch has the records of so many logs; those of other logs wait for the next one."""
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
        self._max_logs: Final = max_logs
        self._batch = Batch(1)
        self._later: deque[Batch] = deque()
        """The batches after the current one: log records for which that one has no room."""

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.state.value}, committed {self.committed},"
            f" {self.backlog} bytes waiting>"
        )

    @property
    def batch_number(self) -> int:
        return self._later[-1].number if self._later else self.current_batch_number

    @property
    def current_batch_number(self) -> int:
        batch = self._batch
        return batch.number - 1 if batch.is_empty else batch.number

    @property
    def backlog(self) -> int:
        return self._batch.size + sum(batch.size for batch in self._later)

    @property
    def memory_bytes(self) -> int:
        return self.backlog

    def waiting_changes(self) -> int:
        return len(self._batch.changes)

    def append(self, content: Run | StagedRuns) -> None:
        batch = self._batch
        if isinstance(content, Run) or (isinstance(content, StagedPack) and content.is_consecutive):
            if batch.runs and content.ids[0] < batch.runs[-1].ids[-1]:
                batch.is_ordered = False
            batch.runs.append(content)
            batch.bytes += content.bytes_to_store
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
            if value.atomic:
                self._join_batches()
                self._batch.atomic.add(value.message_ids)
            for batch in (self._batch, *self._later):
                batch.must_not_lose.add(value.message_ids)
        elif isinstance(value, RequireSync):
            self._batch.requires_sync = True
        else:
            self._change(value, saved=True)

    def delete(self, value: Definition) -> None:
        if self._later and isinstance(value, QueueDefinition):
            self._join_batches()  # nothing of a log is written after its definition is deleted
        self._change(value, saved=False)

    def append_log(self, sink: LogSink, records: LogRecords, size: int = 0) -> None:
        batch = self._batch
        known = batch.logs.get(sink)
        if known is None or self._later:
            batch = self._batch_for(sink)
            known = batch.logs.setdefault(sink, [])
        batch.log_bytes += size
        known.append(records)

    def _batch_for(self, sink: LogSink) -> Batch:
        """The batch for the next records of a log.

        Each log of a batch is synced, and all clients with anything in the batch wait for that. So
        a batch has a limited number of logs. The records of a log stay in order.
        """
        if self._batch.atomic:
            return self._batch
        batches = (self._batch, *self._later)
        for batch in reversed(batches):
            if sink in batch.logs:
                return batch
        for batch in batches:
            if len(batch.logs) < self._max_logs:
                return batch
        self._later.append(Batch(batches[-1].number + 1))
        self._later[-1].must_not_lose.add_all(self._batch.must_not_lose)
        return self._later[-1]

    def _join_batches(self) -> None:
        """Make one batch of the current and the later ones; it has the number of the last one."""
        current = self._batch
        for batch in self._later:
            current.number = batch.number
            current.log_bytes += batch.log_bytes
            current.must_not_lose.add_all(batch.must_not_lose)
            for sink, records in batch.logs.items():
                current.logs.setdefault(sink, []).extend(records)
        self._later.clear()

    def await_batch(self) -> None:
        self._batch.is_awaited = True

    def append_job(self, job: WriterJob) -> None:
        self._batch.jobs.append(job)

    def _change(self, value: Definition, *, saved: bool) -> None:
        kind = type(value)
        self._batch.changes[kind, key_of(value)] = (value, saved)

    def _take_batch(self) -> Batch:
        batch = self._batch
        self._batch = self._later.popleft() if self._later else Batch(batch.number + 1)
        self.bytes_appended += batch.bytes
        return batch
