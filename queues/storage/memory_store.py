"""The store without a disk: for `--memory`, and for tests.

Everything runs on the event-loop thread; a batch is committed as soon as it is flushed. Content is
kept while a queue holds the message, so that paging works as it does with a disk; history and
definitions are not kept, because nothing survives the process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leveret.model.history import FIRST_SETTLING, LAST_SETTLING, EventKind
from leveret.model.message import Message
from leveret.model.run import Run
from leveret.model.store import (
    BatchCommitted,
    LoadedRun,
    LoadResult,
    LogSink,
    OnCommitted,
    OnFailed,
    RecoveredState,
    RetentionRequest,
    Spill,
    StagedRuns,
    StoreError,
    StoreState,
    UnreadableMessage,
    Usage,
    split_runs,
)
from leveret.queues.storage.batch import Batch
from leveret.queues.storage.batch_builder import BatchBuilder, wall_clock_ms

_ENQUEUED_KINDS = frozenset({EventKind.ENQUEUED, EventKind.ENQUEUED_TRANSIENT})


@dataclass(frozen=True, slots=True)
class _UnstoredRuns:
    runs: Sequence[Run]


class MemoryStore(BatchBuilder):
    """Implements `leveret.model.store.Store` without a disk."""

    def __init__(
        self,
        *,
        on_committed: OnCommitted,
        on_failed: OnFailed,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        super().__init__(on_committed=on_committed, on_failed=on_failed, now_ms=now_ms)
        self._content: dict[int, Message] = {}
        self._queue_counts: dict[int, int] = {}
        """How many queues hold each message."""
        self._bytes = 0
        self._flushing = False

    @property
    def memory_bytes(self) -> int:
        return self._bytes + self.backlog

    def recover(self) -> RecoveredState:
        if self.state is not StoreState.OPENING:
            raise StoreError("the store is already open")
        self.state = StoreState.RUNNING
        return RecoveredState()

    def flush(self) -> None:
        """Work added by a listener is flushed, too, after the listener has returned."""
        if self._flushing:
            return
        self._flushing = True
        try:
            while not self._batch.is_empty:
                batch = self._take_batch()
                self._apply(batch)
                self.committed = batch.number
                self._on_committed(
                    BatchCommitted(batch.number, _write_logs(batch), jobs=batch.jobs)
                )
            self._batch.forget_guarantees()
        finally:
            self._flushing = False

    def _apply(self, batch: Batch) -> None:
        appended = [
            message for run in batch.runs if isinstance(run, Run) for message in run.messages
        ]
        for message in appended:
            self._content[message.id] = message
            self._bytes += message.content_size
        queue_counts = self._queue_counts
        settled: list[int] = []
        for (kind, _, _, _), (_, ids, _) in batch.events.items():
            if kind in _ENQUEUED_KINDS:
                for message_id in ids:
                    queue_counts[message_id] = queue_counts.get(message_id, 0) + 1
            elif FIRST_SETTLING <= kind <= LAST_SETTLING:
                settled.extend(ids)
        for message_id in settled:
            queue_counts[message_id] = queue_counts.get(message_id, 0) - 1
        for message_id in {*settled, *(message.id for message in appended)}:
            if queue_counts.get(message_id, 0) <= 0:
                self._forget(message_id)

    def stage(self, runs: Sequence[Run]) -> StagedRuns:
        """There is no disk to write to before the messages are published."""
        return _UnstoredRuns(runs)

    def _forget(self, message_id: int) -> None:
        self._queue_counts.pop(message_id, None)
        message = self._content.pop(message_id, None)
        if message is not None:
            self._bytes -= message.content_size

    @property
    def spilled_bytes(self) -> int:
        return 0

    @property
    def can_spill(self) -> bool:
        return False

    def open_spill(self) -> Spill:
        raise StoreError("there is no disk to spill to")

    async def load(self, message_ids: Sequence[int]) -> list[LoadResult]:
        return list(split_runs(await self.load_runs(message_ids)))

    async def load_runs(self, message_ids: Sequence[int]) -> list[LoadedRun]:
        results: list[LoadedRun] = []
        for message_id in message_ids:
            message = self._content.get(message_id)
            if message is None:
                results.append(UnreadableMessage(message_id, "no such message"))
            else:
                results.append(Run.of([message]))
        return results

    async def apply_retention(self, request: RetentionRequest) -> Usage:
        """There is nothing to trim: only messages that queues hold are here."""
        first = min(self._content, default=0)
        last = max(self._content, default=0)
        self.usage = Usage(self._bytes, first, last, *map(self._time_of, (first, last)))
        return self.usage

    def _time_of(self, message_id: int) -> int:
        message = self._content.get(message_id)
        return message.time_ms if message is not None else 0

    async def close(self) -> None:
        if self.state is StoreState.RUNNING:
            self.flush()
        self.state = StoreState.CLOSED

    async def kill(self) -> None:
        self.state = StoreState.CLOSED


def _write_logs(batch: Batch) -> dict[LogSink, int]:
    for job in batch.jobs:
        job.prepare()
    next_offsets = {sink: sink.write(records) for sink, records in batch.logs.items()}
    for sink in batch.logs:
        sink.sync()
    for job in batch.jobs:
        job.finish()
    return next_offsets
