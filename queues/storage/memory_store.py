"""The store that forgets: for `--memory`, and for tests.

Everything runs on the event-loop thread; a batch is committed the moment it is flushed. Content is
held while a queue holds the message, so that paging works as it does on disk; history and
definitions are not kept, since nothing can come back after the process ends.
"""

from collections.abc import Callable, Sequence

from leveret.model.history import FIRST_SETTLING, LAST_SETTLING, EventKind
from leveret.model.store import (
    Committed,
    LogSink,
    NewMessage,
    NewMessageTuple,
    OnCommitted,
    OnFailed,
    Recovered,
    Retention,
    Rotten,
    StoredMessage,
    StoreError,
    StoreState,
    Usage,
)
from queues.storage.batch import Batch
from queues.storage.filling import FillingStore, wall_clock_ms

_ENTERS = frozenset({EventKind.ENQUEUED, EventKind.ENQUEUED_TRANSIENT})


class MemoryStore(FillingStore):
    """Implements `leveret.model.store.Store` without a disk."""

    def __init__(
        self,
        *,
        on_committed: OnCommitted,
        on_failed: OnFailed,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        super().__init__(on_committed=on_committed, on_failed=on_failed, now_ms=now_ms)
        self._content: dict[int, NewMessage | NewMessageTuple] = {}
        self._holders: dict[int, int] = {}
        self._bytes = 0
        self._flushing = False

    @property
    def in_memory(self) -> int:
        return self._bytes + self.backlog

    def recover(self) -> Recovered:
        if self.state is not StoreState.OPENING:
            raise StoreError("the store is already open")
        self.state = StoreState.RUNNING
        return Recovered()

    def flush(self) -> None:
        """Work done by a listener is flushed too, after the listener has returned."""
        if self._flushing:
            return
        self._flushing = True
        try:
            while not self._batch.is_empty:
                batch = self._take_batch()
                self._apply(batch)
                self.committed = batch.mark
                self._on_committed(Committed(batch.mark, _write_logs(batch)))
            self._batch.forget_promises()
        finally:
            self._flushing = False

    def _apply(self, batch: Batch) -> None:
        for row in batch.rows:
            self._content[row[0]] = row
            self._bytes += len(row[5]) + len(row[6])
        holders = self._holders
        settled: list[int] = []
        for (kind, _, _, _), (_, ids, _) in batch.events.items():
            if kind in _ENTERS:
                for message_id in ids:
                    holders[message_id] = holders.get(message_id, 0) + 1
            elif FIRST_SETTLING <= kind <= LAST_SETTLING:
                settled.extend(ids)
        for message_id in settled:
            holders[message_id] = holders.get(message_id, 0) - 1
        for message_id in {*settled, *batch.discards, *(row[0] for row in batch.rows)}:
            if holders.get(message_id, 0) <= 0:
                self._forget(message_id)

    def _forget(self, message_id: int) -> None:
        self._holders.pop(message_id, None)
        row = self._content.pop(message_id, None)
        if row is not None:
            self._bytes -= len(row[5]) + len(row[6])

    async def load(self, message_ids: Sequence[int]) -> list[StoredMessage | Rotten]:
        found: list[StoredMessage | Rotten] = []
        for message_id in message_ids:
            row = self._content.get(message_id)
            if row is None:
                found.append(Rotten(message_id, "no such message"))
            else:
                found.append(StoredMessage(*row[:7]))
        return found

    async def sweep(self, retention: Retention) -> Usage:
        """Nothing to trim: only what queues hold is here."""
        first = min(self._content, default=0)
        last = max(self._content, default=0)
        self.usage = Usage(self._bytes, first, last, *map(self._time_of, (first, last)))
        return self.usage

    def _time_of(self, message_id: int) -> int:
        row = self._content.get(message_id)
        return row[1] if row is not None else 0

    async def close(self) -> None:
        if self.state is StoreState.RUNNING:
            self.flush()
        self.state = StoreState.CLOSED


def _write_logs(batch: Batch) -> dict[LogSink, object]:
    answers = {sink: sink.write(records) for sink, records in batch.logs.items()}
    for sink in batch.logs:
        sink.sync()
    return answers
