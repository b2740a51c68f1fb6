"""The loop side of a store: the batch being filled, and its number.

Shared by both stores. Everything here runs on the event-loop thread and is plain list and
dictionary work; a batch leaves through `_hand_over`, whole, and a fresh one takes its place.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Final

from leveret.model.history import SIZED_KINDS, EventKind, Keep
from leveret.model.store import (
    Definition,
    Indispensable,
    Lease,
    LogSink,
    NewMessage,
    NewMessageTuple,
    OnCommitted,
    OnFailed,
    Saved,
    Snapshot,
    StoreState,
    Synced,
    Usage,
)
from queues.storage.batch import Batch
from queues.storage.keys import KEY_COLUMNS


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class FillingStore:
    """What joins the current batch. Subclasses say what becomes of a full one."""

    def __init__(
        self, *, on_committed: OnCommitted, on_failed: OnFailed, now_ms: Callable[[], int]
    ) -> None:
        self.ids: Iterator[int] = count(1)
        self.committed = 0
        self.state = StoreState.OPENING
        self.usage = Usage()
        self.written = 0
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
    def mark(self) -> int:
        batch = self._batch
        return batch.mark - 1 if batch.is_empty else batch.mark

    @property
    def backlog(self) -> int:
        return self._batch.size

    @property
    def in_memory(self) -> int:
        return self.backlog

    def append(self, *messages: NewMessage | NewMessageTuple) -> None:
        batch = self._batch
        batch.rows += messages
        for message in messages:
            batch.bytes += len(message[5]) + len(message[6])  # properties may be all there is

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

    def discard(self, message_ids: Sequence[int], keep: Keep = Keep.NOTHING) -> None:
        if keep is Keep.NOTHING:
            self._batch.discards.extend(message_ids)
        elif keep is Keep.METADATA:
            self._batch.strips.extend(message_ids)

    def save(self, value: Saved) -> None:
        if isinstance(value, Snapshot):
            self._batch.snapshots[value.queue_id] = value
        elif isinstance(value, Lease):
            self._batch.lease = value
        elif isinstance(value, Indispensable):
            self._batch.firm.update(value.message_ids)
            if value.bound:
                self._batch.bound.update(value.message_ids)
        elif isinstance(value, Synced):
            self._batch.synced = True
        else:
            self._change(value, saved=True)

    def delete(self, value: Definition) -> None:
        self._change(value, saved=False)

    def append_log(self, sink: LogSink, record: object, size: int = 0) -> None:
        batch = self._batch
        batch.log_bytes += size
        records = batch.logs.get(sink)
        if records is None:
            records = batch.logs[sink] = []
        records.append(record)

    def _change(self, value: Definition, *, saved: bool) -> None:
        kind = type(value)
        key = (kind, tuple(getattr(value, name) for name in KEY_COLUMNS[kind]))
        self._batch.changes[key] = (value, saved)

    def _take_batch(self) -> Batch:
        batch = self._batch
        self._batch = Batch(batch.mark + 1)
        self.written += batch.bytes
        return batch
