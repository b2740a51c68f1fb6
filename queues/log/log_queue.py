"""The two kinds of log: `LogQueue`, one partition, and `PartitionedLog`, a log of several.

A published record joins the store's batch and becomes readable when that batch is committed, not
before: `next_offset` moves in `on_committed`, on the loop. The writer thread writes, syncs and
deletes segments, the reader thread does long reads; everything here belongs to the event loop.
A crash leaves what the segment files hold. Consumers without a group start again where they ask
to, groups at their committed offsets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leveret.model.errors import BrokerError, NotImplementedHere, PreconditionFailed
from leveret.model.history import Keep
from leveret.model.message import Address, Message
from leveret.model.partitioning import Partitioner
from leveret.model.run import Run
from leveret.model.store import MustNotLose, SequencedMessage, Store
from leveret.queues.counters import QueueCounters
from leveret.queues.delivery import Delivery
from leveret.queues.entry import Outcome
from leveret.queues.log.deliveries import PARTITION_HEADER, DeliveryFramer
from leveret.queues.log.files import (
    ApplyRetention,
    Partition,
    PartitionSink,
    ProducerState,
    Record,
    SequenceResult,
    SyncLog,
)
from leveret.queues.log.files.errors import MISSING_END, TRUNCATED
from leveret.queues.log.readers import GROUP_ARGUMENT, LogContext, Readers
from leveret.queues.log.spec import LogSpec, with_policy
from leveret.queues.port import (
    Consumer,
    EnqueueResult,
    PeekedMessages,
    Queue,
    QueueStats,
    Tap,
    Target,
)
from leveret.queues.spec import QueueSpec

if TYPE_CHECKING:
    from leveret.queues.log.cursor import Cursor

logger = logging.getLogger("leveret.log")

PRODUCER_HEADER, SEQUENCE_HEADER = "x-producer-id", "x-producer-seq"
_PRODUCER_FIELD, _PARTITION_FIELD = b"\x0dx-producer-id", b"\x0bx-partition"
WOKEN_AT_ONCE = 200
"""Half a millisecond of work."""
CACHED_RECORDS = 512
"""This many of the newest records are assumed to be in the page cache."""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The queue id of a log, and how error texts name it."""

    id: int
    full_name: str


class LogBase:
    """What both kinds of log have in common; `log_spec` includes the effect of policies.

    Records are delivered through `Readers` and never removed, so there is no basic.get or purge.
    """

    # Defaults are class attributes: CPython is slower with more than 30 attributes of an instance.
    is_partitioned = False
    keep = Keep.NOTHING  # a log is its own history
    owner: object | None = None
    partition_of: PartitionedLog | None = None
    partitions: Sequence[LogQueue] = ()
    failure: BrokerError | None = None
    """Why its files could not be created; raised to clients that wait for its declaration."""
    readers: Readers

    def __init__(
        self, spec: QueueSpec, log_spec: LogSpec, identity: LogIdentity, context: LogContext
    ) -> None:
        self.spec = spec
        self.log_spec = log_spec
        self.name = spec.name
        self.id = identity.id
        self.dispatch_pending = False
        self.is_closed = False
        self.counters = QueueCounters()
        self.tap: Tap | None = None
        self.full_name = identity.full_name
        self._context = context

    def all_partitions(self) -> Sequence[LogQueue]:
        """The partitions; a log that is not partitioned is its own only partition."""
        return self.partitions

    def enqueue(self, run: Run) -> list[EnqueueResult] | None:
        return [self.append(message) for message in run.messages]

    def append(self, message: Message) -> EnqueueResult:
        raise NotImplementedError

    def stores_content(self, persistent: bool) -> bool:
        return False

    def rejects_dead_letter(self, message: Message) -> bool:
        return False

    def mark_redelivered(self, message_id: int) -> None:
        return None

    def dispatch(self) -> None:
        self.dispatch_pending = False
        self.readers.serve()

    def on_split(self, delivery: Delivery) -> None:
        """The readers count single records."""

    def settle(self, deliveries: Sequence[Delivery], outcome: Outcome, actor: int) -> None:
        entries = [entry for delivery in deliveries for entry in delivery.entries()]
        settled = self.readers.settle(entries, outcome)
        if outcome is Outcome.ACK:
            self.counters.acked += settled

    def add_consumer(self, consumer: Consumer) -> None:
        self.readers.add(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        self.readers.remove(consumer)

    def on_credit(self, consumer: Consumer) -> None:
        self.readers.on_credit(consumer)

    @property
    def consumers(self) -> Collection[Consumer]:
        return self.readers.consumers

    @property
    def ready_count(self) -> int:
        """0 for a partitioned log: its partitions count their records."""
        return 0

    @property
    def unacked_count(self) -> int:
        return self.readers.unacked

    @property
    def active_consumer(self) -> Consumer | None:
        return None

    @property
    def consumer_timeout_ms(self) -> int:
        return 0

    @property
    def blocks_get(self) -> bool:
        return False

    @property
    def waits_for_lease(self) -> bool:
        return False

    def basic_get(self, actor: int, no_ack: bool) -> Delivery | None:
        raise NotImplementedHere(f"basic.get not supported by stream queues {self.full_name}")

    def when_readable(self, call: Callable[[], None]) -> None:
        call()

    def purge(self) -> int:
        raise NotImplementedHere(f"queue.purge not supported by stream queues {self.full_name}")

    def apply_policy(self, policy: Mapping[str, Any], history: Keep) -> None:
        """A partitioned log has no policy of its own: its partitions have."""

    def on_lookup(self) -> None:
        return None

    def deliver_pending(self) -> None:
        return None  # delivered records stay in the log

    def stats(self) -> QueueStats | None:
        return None

    def oldest_ready_ms(self) -> int | None:
        return None

    def oldest_unacked_ms(self) -> int | None:
        return None

    def memory_bytes(self) -> int:
        return 0

    def header_bytes(self) -> int:
        return 0

    def peek(self, offset: int, count: int) -> PeekedMessages:
        raise NotImplementedHere(f"a {self.spec.kind} queue is read by offset, not browsed")

    def close(self, deleted: bool) -> int:
        ready = self.ready_count
        self.is_closed = True
        if deleted:
            self.readers.cancel_all()
            self.readers.break_cycles()
        else:
            self.readers.close()
        return ready


class LogQueue(LogBase):
    """A log of one partition, or one partition of `partition_of`."""

    _asleep: Iterator[Cursor] = iter(())
    """Cursors to wake because records were committed."""

    def __init__(
        self,
        spec: QueueSpec,
        log_spec: LogSpec,
        identity: LogIdentity,
        files: tuple[Partition, Executor],
        store: Store,
        context: LogContext,
    ) -> None:
        super().__init__(spec, log_spec, identity, context)
        self.partition_number: int | None = None
        self.declared = log_spec
        self.partition, self._executor = files
        interval = log_spec.sync_interval_ms
        self.sink = PartitionSink(self.partition, log_spec.retention, interval)
        self.framer = DeliveryFramer(None)
        self.read_ahead = context.read_ahead
        self.cursors_at_end: dict[Cursor, None] = {}
        self.readers = Readers(self, identity.full_name, [self], context)
        self.duplicates = self.gaps = self.skipped = 0
        self.producers = ProducerState(self.partition.producers())
        self._sync_timer: asyncio.TimerHandle | None = None
        self._waiters: list[Callable[[], None]] = []
        self._store = store
        self._next_offset = self._opened_at = self.partition.next_offset

    def __repr__(self) -> str:
        return f"<LogQueue {self.name!r} {self.first_offset}..{self.next_offset}>"

    def attach(self, log: PartitionedLog, number: int) -> None:
        """Become partition `number` of a log."""
        self.partition_of, self.partition_number = log, number
        self.framer = DeliveryFramer(number)

    def detach(self) -> None:
        """Become a log of its own again."""
        self.partition_of, self.partition_number = None, None
        self.framer = DeliveryFramer(None)

    def apply_policy(self, policy: Mapping[str, Any], history: Keep) -> None:
        """Apply a policy: retention limits at once, the segment size from the next segment on."""
        before, self.log_spec = self.log_spec, with_policy(self.declared, policy)
        self.partition.max_segment_bytes = self.log_spec.segment_bytes
        self.sink.retention = self.log_spec.retention
        if self.log_spec.retention != before.retention:
            self.apply_retention(self.now_ms())

    def all_partitions(self) -> Sequence[LogQueue]:
        return [self]

    def apply_retention(self, now_ms: int) -> None:
        """Have the writer delete segments beyond the limits."""
        limits = self.log_spec.retention
        if limits.is_limited:
            self._store.append_job(ApplyRetention(self.partition, limits, now_ms))
            self._context.mark_ready(self)

    # Publishing ----------------------------------------------------------------------------------

    def append(self, message: Message) -> EnqueueResult:
        record: Message | SequencedMessage = message
        if message.scan.has_headers and _PRODUCER_FIELD in message.properties:
            checked = self._check_sequence(message)
            if isinstance(checked, EnqueueResult):
                return checked
            record = checked
        self.counters.published += 1
        self._store.append_log(self.sink, record, message.body_size)
        if isinstance(record, SequencedMessage):
            # If it were lost, later sequence numbers might already be stored, and the producer
            # could not send it again.
            self._store.save(MustNotLose((message.id,), atomic=False))
        return EnqueueResult.ACCEPTED_ON_COMMIT

    def enqueue(self, run: Run) -> list[EnqueueResult] | None:
        if not run.is_packed or run.has_header(_PRODUCER_FIELD):
            return super().enqueue(run)
        self.counters.published += len(run)
        self._store.append_log(self.sink, run, sum(run.body_sizes))
        return [EnqueueResult.ACCEPTED_ON_COMMIT] * len(run)

    def _check_sequence(self, message: Message) -> SequencedMessage | Message | EnqueueResult:
        """What to do with a message of an idempotent producer: store it, or this result."""
        headers = message.headers()
        name, sequence = headers.get(PRODUCER_HEADER), headers.get(SEQUENCE_HEADER)
        if not isinstance(name, str) or not isinstance(sequence, int):
            return message
        producer, log = name.encode(), self.partition_of
        elsewhere = log.highest_sequence(producer) if log is not None else None
        result = self.producers.accept(producer, sequence, elsewhere)
        if result is SequenceResult.ACCEPTED:
            if log is not None:
                log.producers.remember(producer, max(sequence, elsewhere or 0))
            return SequencedMessage(message, producer, sequence)
        if result is SequenceResult.DUPLICATE:
            self.duplicates += 1
            return EnqueueResult.ACCEPTED_ON_COMMIT  # the first copy may not be on disk yet
        self.gaps += 1
        last = max(elsewhere or 0, self.producers.last(producer) or 0)
        logger.warning(
            "%s: rejected sequence number %d of producer %r, which last sent %d",
            self.full_name,
            sequence,
            name,
            last,
        )
        return EnqueueResult.REJECTED

    def on_committed(self, next_offset: int) -> None:
        """The batch with the records below `next_offset` is on disk."""
        self._next_offset = next_offset
        if self.sink.is_unsynced and self._sync_timer is None:
            delay = self.log_spec.sync_interval_ms / 1000
            self._sync_timer = asyncio.get_running_loop().call_later(delay, self._sync)
        waiters, self._waiters = self._waiters, []
        for call in waiters:
            call()
        if self.cursors_at_end:
            self._asleep = iter(list(self.cursors_at_end))
            self._wake_cursors()

    def _wake_cursors(self) -> None:
        """Wake those that wait for records. There may be thousands: the rest is woken later."""
        for count, cursor in enumerate(self._asleep, 1):
            cursor.wake()
            if count == WOKEN_AT_ONCE:
                self._context.mark_ready(self)
                break

    def dispatch(self) -> None:
        super().dispatch()
        self._wake_cursors()

    def _sync(self) -> None:
        self._sync_timer = None
        if not self.is_closed and self.sink.is_unsynced:
            self._store.append_job(SyncLog(self.sink))
            self._context.mark_ready(self)

    # Consuming -----------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        if self.partition_of is not None and GROUP_ARGUMENT in consumer.arguments:
            raise PreconditionFailed(
                f"invalid arg '{GROUP_ARGUMENT}' for {self.full_name}: groups share the partitions "
                f"of a log, so consume from '{self.partition_of.name}'"
            )
        super().add_consumer(consumer)

    @property
    def addresses(self) -> frozenset[bytes]:
        """The routing keys by which the default exchange reaches this log; no keys of records."""
        parents = () if self.partition_of is None else (self.partition_of.name,)
        return frozenset(name.encode() for name in (self.name, *parents))

    @property
    def ready_count(self) -> int:
        return self.count_records(self.first_offset)

    def when_readable(self, call: Callable[[], None]) -> None:
        self._waiters.append(call)

    def remove_waiter(self, call: Callable[[], None]) -> None:
        if call in self._waiters:
            self._waiters.remove(call)

    def close(self, deleted: bool) -> int:
        if self._sync_timer is not None:
            self._sync_timer.cancel()
        if deleted:
            self.partition_of = None
        self._asleep = iter(())
        return super().close(deleted)

    # Reading -------------------------------------------------------------------------------------

    @property
    def first_offset(self) -> int:
        """The oldest offset (Kafka: log start offset)."""
        return min(self.partition.first_offset, self._next_offset)

    @property
    def next_offset(self) -> int:
        """The offset after the last committed record (Kafka: high watermark)."""
        return self._next_offset

    @property
    def has_lost(self) -> bool:
        return self.partition.view.has_lost

    def count_records(self, start: int) -> int:
        """The number of offsets from `start` on that are not known to be lost."""
        stop = self._next_offset
        return max(0, stop - start - self.partition.view.count_lost(start, stop))

    def is_end_lost_at(self, offset: int) -> bool:
        """Whether the offset was beyond the end of the log when that was found to be truncated."""
        return any(
            lost.first_offset < offset < (lost.next_offset or 0)
            for lost in self.partition.view.lost
            if lost.reason in (TRUNCATED, MISSING_END)
        )

    def on_skipped(self, start: int, stop: int, reader: str) -> None:
        """A reader has passed these offsets: report those that are lost."""
        for first, after in self.partition.view.lost_between(start, stop):
            self.skipped += after - first
            logger.warning(
                "%s: consumer '%s' skips the offsets %d to %d, which are lost",
                self.full_name,
                reader,
                first,
                after - 1,
            )

    def offset_for_time(self, time_ms: int) -> int:
        return min(self.partition.offset_for_time(time_ms), self._next_offset)

    def now_ms(self) -> int:
        return self._context.now_ms()

    def is_cached(self, offset: int) -> bool:
        return offset >= self._opened_at and self._next_offset - offset <= CACHED_RECORDS

    def read_now(self, offset: int, max_records: int, max_bytes: int) -> list[Record]:
        """Committed records; reads the file on the calling thread."""
        end = self._next_offset
        records = self.partition.read(offset, max_records, max_bytes)
        while records and records[-1].offset >= end:
            records.pop()
        return records

    def read_soon(
        self,
        offset: int,
        max_records: int,
        max_bytes: int,
        done: Callable[[Sequence[Record] | None], None],
    ) -> None:
        """Read on the reader thread; `done` gets the records, or None after an error."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, self.read_now, offset, max_records, max_bytes)
        future.add_done_callback(lambda result: done(self._maybe_records(result)))

    def _maybe_records(self, future: asyncio.Future[list[Record]]) -> list[Record] | None:
        if future.cancelled():
            return None
        error = future.exception()
        if error is not None:
            logger.error("cannot read %s: %s", self.full_name, error)
            return None
        return future.result()


class PartitionedLog(LogBase):
    """A log of several partitions, which holds no records itself.

    Consumers without a group read all partitions; the members of a group share them. Publishers
    normally use the exchange of the same name. A message that reaches this queue directly (through
    the default exchange or a binding) is assigned to a partition by the same rules: its
    `x-partition` header, its routing key, or in turn. The default exchange needs this queue's name
    as the routing key, so that name is not a key there.
    """

    is_partitioned = True

    def __init__(
        self,
        spec: QueueSpec,
        log_spec: LogSpec,
        identity: LogIdentity,
        partitions: Sequence[LogQueue],
        context: LogContext,
    ) -> None:
        super().__init__(spec, log_spec, identity, context)
        self.partitions: list[LogQueue] = list(partitions)
        self.readers = Readers(self, identity.full_name, self.partitions, context)
        self._partitioner = Partitioner(len(partitions))
        self.producers = ProducerState()
        """The highest sequence numbers of recent producers, in any partition."""
        for number, partition in enumerate(self.partitions):
            partition.attach(self, number)

    def __repr__(self) -> str:
        return f"<PartitionedLog {self.name!r} of {len(self.partitions)}>"

    def detach(self, logs: Sequence[LogQueue]) -> None:
        """Make these partitions logs of their own again; they outlive this log."""
        self.partitions = [partition for partition in self.partitions if partition not in logs]
        for partition in logs:
            partition.detach()

    def highest_sequence(self, producer: bytes) -> int | None:
        """The partitions are asked once for each producer, not for each message."""
        highest = self.producers.last(producer)
        if highest is None:
            known = [partition.producers.last(producer) for partition in self.partitions]
            highest = max((last for last in known if last is not None), default=None)
            if highest is not None:
                self.producers.remember(producer, highest)
        return highest

    def append(self, message: Message) -> EnqueueResult:
        explicit = message.headers().get(PARTITION_HEADER)
        if isinstance(explicit, bool) or not isinstance(explicit, int | None):
            return EnqueueResult.REJECTED
        if explicit is not None and not 0 <= explicit < len(self.partitions):
            return EnqueueResult.REJECTED
        key = self._key(message.address)
        return self.partitions[self._partitioner.choose(key, explicit)].append(message)

    def enqueue(self, run: Run) -> list[EnqueueResult] | None:
        """A run has one key, so all its messages go to one partition; without a key, in turn."""
        key = self._key(run.address)
        if not key or not run.is_packed or run.has_header(_PARTITION_FIELD):
            return super().enqueue(run)
        return self.partitions[self._partitioner.choose(key)].enqueue(run)

    def _key(self, address: Address) -> bytes:
        """The key of a message; the name of the log is only an address in the default exchange."""
        key = address.routing_key
        return b"" if key == self.name and not address.exchange else key.encode()


AnyLog = LogQueue | PartitionedLog


def maybe_log(queue: Target | None) -> AnyLog | None:
    """The queue if it is a log.

    Offsets and groups are not part of the queue port, because other queues have none. Therefore the
    kind of a queue is tested here and in `maybe_partition`, and nowhere else.
    """
    return queue if isinstance(queue, AnyLog) else None


def maybe_partition(queue: Queue | None) -> LogQueue | None:
    """The queue if it is a partition, or a log that is not partitioned."""
    return queue if isinstance(queue, LogQueue) else None


def can_become_partition(queue: Queue) -> bool:
    """Whether the queue is an independent log without consumers and groups."""
    log = maybe_partition(queue)
    if log is None or log.partition_of is not None:
        return False
    return not log.readers and not log.readers.groups


def require_created(queue: Queue) -> None:
    """Called when the declaration is on disk: raises if a log's files could not be created."""
    if queue.failure is not None:
        raise queue.failure
