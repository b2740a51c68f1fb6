"""A log of one partition: a queue that keeps its records.

What is published joins the store's batch; it becomes readable when that batch is committed, and
not before: `next_offset` moves in `committed`, on the loop. Writing, syncing and dropping segments
belong to the writer thread, long reads to the reader thread; everything here to the event loop.
A crash leaves what the segment files hold; consumers that read for themselves start anew where
they ask to, groups where they committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from leveret.model.errors import PreconditionFailed
from leveret.model.message import Message
from leveret.model.store import Indispensable, Store
from queues.log import (
    Numbered,
    Partition,
    PartitionSink,
    ProducerTable,
    Record,
    RetentionSink,
    SyncSink,
    Verdict,
)
from queues.port import Consumer, Enqueued
from queues.spec import QueueSpec
from queues.stream.front import LogFront, LogIdentity
from queues.stream.readers import GROUP_ARGUMENT, Readers, Surroundings
from queues.stream.records import Stamp
from queues.stream.spec import LogSpec, governed

if TYPE_CHECKING:
    from queues.stream.cursor import Cursor
    from queues.stream.partitioned import PartitionedLog

log = logging.getLogger("leveret.log")

PRODUCER_HEADER, SEQUENCE_HEADER = "x-producer-id", "x-producer-seq"
_PRODUCER_SIGN = b"\x0dx-producer-id"
WARM_RECORDS = 512


class LogQueue(LogFront):
    def __init__(
        self,
        spec: QueueSpec,
        log_spec: LogSpec,
        identity: LogIdentity,
        files: tuple[Partition, Executor],
        store: Store,
        around: Surroundings,
    ) -> None:
        super().__init__(spec, log_spec, identity, around)
        self.number: int | None = None
        self.declared = log_spec
        self.partition, self._executor = files
        interval = log_spec.sync_interval_ms
        self.sink = PartitionSink(self.partition, log_spec.retention, interval)
        self.stamp = Stamp(None)
        self.crowd = around.crowd
        self.at_end: dict[Cursor, None] = {}
        self.readers = Readers(self, identity.where, [self], around)
        self.whole: PartitionedLog | None = None
        self.duplicates = self.gaps = 0
        self.producers = ProducerTable(self.partition.producers())
        self._sync_timer: asyncio.TimerHandle | None = None
        self._waiters: list[Callable[[], None]] = []
        self._store = store
        self._next_offset = self._opened_at = self.partition.next_offset

    def __repr__(self) -> str:
        return f"<LogQueue {self.name!r} {self.first_offset}..{self.next_offset}>"

    def become_partition(self, whole: PartitionedLog, number: int) -> None:
        self.whole, self.number = whole, number
        self.stamp = Stamp(number)

    def become_single(self) -> None:
        self.whole, self.number = None, None
        self.stamp = Stamp(None)

    def govern(self, policy: Mapping[str, Any]) -> None:
        """The policy of this log is this from now on: limits hold at once, sizes from the next
        segment on."""
        before, self.log_spec = self.log_spec, governed(self.declared, policy)
        self.partition.max_segment_bytes = self.log_spec.segment_bytes
        self.sink.retention = self.log_spec.retention
        if self.log_spec.retention != before.retention:
            self.retain(self.now_ms())

    def retain(self, now_ms: int) -> None:
        """Let the writer drop what is beyond the limits."""
        limits = self.log_spec.retention
        if limits.is_limited:
            self._store.append_log(RetentionSink(self.partition, limits), now_ms)
            self._around.touch(self)

    # In ----------------------------------------------------------------------------------------

    def enqueue(self, message: Message) -> Enqueued:
        record: Message | Numbered = message
        if message.scan.has_headers and _PRODUCER_SIGN in message.properties:
            judged = self._judge(message)
            if isinstance(judged, Enqueued):
                return judged
            record = judged
        self.counters.published += 1
        self._store.append_log(self.sink, record, message.body_size)
        if isinstance(record, Numbered):
            # Were it lost, numbers after it might be stored already and it could not follow.
            self._store.save(Indispensable((message.id,), bound=False))
        return Enqueued.WAITING

    def _judge(self, message: Message) -> Numbered | Message | Enqueued:
        """A numbered message is stored once: what is to be done with this one?"""
        headers = message.headers()
        name, sequence = headers.get(PRODUCER_HEADER), headers.get(SEQUENCE_HEADER)
        if not isinstance(name, str) or not isinstance(sequence, int):
            return message
        producer = name.encode()
        others = [one for one in self.whole.partitions if one is not self] if self.whole else ()
        elsewhere = [n for one in others if (n := one.producers.last(producer)) is not None]
        verdict = self.producers.judge(producer, sequence, max(elsewhere, default=None))
        if verdict is Verdict.ACCEPTED:
            return Numbered(message, producer, sequence)
        if verdict is Verdict.DUPLICATE:
            self.duplicates += 1
            return Enqueued.WAITING  # the first copy may still be on its way to disk
        self.gaps += 1
        last = max([*elsewhere, self.producers.last(producer) or 0])
        log.warning("%s: producer %r sent %d after %d", self.where, name, sequence, last)
        return Enqueued.REJECTED

    def committed(self, next_offset: int) -> None:
        """The records up to here are on disk, and the batch they came with."""
        self._next_offset = next_offset
        if self.sink.is_unsynced and self._sync_timer is None:
            delay = self.log_spec.sync_interval_ms / 1000
            self._sync_timer = asyncio.get_running_loop().call_later(delay, self._sync)
        waiters, self._waiters = self._waiters, []
        for call in waiters:
            call()
        for cursor in list(self.at_end):
            cursor.awaken()

    def _sync(self) -> None:
        self._sync_timer = None
        if not self.is_closed and self.sink.is_unsynced:
            self._store.append_log(SyncSink(self.sink), None)
            self._around.touch(self)

    # Out ---------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        if self.whole is not None and GROUP_ARGUMENT in consumer.arguments:
            raise PreconditionFailed(
                f"invalid arg '{GROUP_ARGUMENT}' for {self.where}: groups share the partitions "
                f"of a log, so consume from '{self.whole.name}'"
            )
        super().add_consumer(consumer)

    @property
    def ready_count(self) -> int:
        return self.next_offset - self.first_offset

    def when_head(self, call: Callable[[], None]) -> None:
        self._waiters.append(call)

    def forget_waiter(self, call: Callable[[], None]) -> None:
        if call in self._waiters:
            self._waiters.remove(call)

    def close(self, deleted: bool) -> int:
        if self._sync_timer is not None:
            self._sync_timer.cancel()
        if deleted:
            self.whole = None
        return super().close(deleted)

    # Reading -----------------------------------------------------------------------------------

    @property
    def first_offset(self) -> int:
        return min(self.partition.first_offset, self._next_offset)

    @property
    def next_offset(self) -> int:
        return self._next_offset

    def offset_for_time(self, time_ms: int) -> int:
        return min(self.partition.offset_for_time(time_ms), self._next_offset)

    def now_ms(self) -> int:
        return self._around.now_ms()

    def is_warm(self, offset: int) -> bool:
        return offset >= self._opened_at and self._next_offset - offset <= WARM_RECORDS

    def read_now(self, offset: int, most: int, max_bytes: int) -> list[Record]:
        """What is committed; looks at the disk on the calling thread."""
        end = self._next_offset
        records = self.partition.read(offset, most, max_bytes)
        while records and records[-1].offset >= end:
            records.pop()
        return records

    def read_soon(
        self,
        offset: int,
        most: int,
        max_bytes: int,
        done: Callable[[Sequence[Record] | None], None],
    ) -> None:
        """`done` gets the records, or None when they could not be read this time."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, self.read_now, offset, most, max_bytes)
        future.add_done_callback(lambda result: done(self._result(result)))

    def _result(self, future: asyncio.Future[list[Record]]) -> list[Record] | None:
        if future.cancelled():
            return None
        error = future.exception()
        if error is not None:
            log.error("cannot read %s: %s", self.where, error)
            return None
        return future.result()
