"""The store port: everything durable goes through it, and no method blocks except `recover`.

Threads: every method is called on the event-loop thread. Work joins the current *batch*;
`flush()`, called once per loop iteration, hands the batch to the writer, and `on_committed` or
`on_failed`, given at construction, is called on the loop when the batch is decided. A batch is
atomic: after a crash all of it is on disk or none of it, and a batch that was reported committed
is on disk.

Batches are numbered consecutively. To learn when work is durable: do the work, read
`batch_number`, and wait until that batch is reported committed (or failed).

Message ids are global and ascend in publish order, so a message's position in a queue is its id.
A queue holds a message id at most once, ever: dead-lettering publishes under a new id.
"""

from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from leveret.model.definitions import Definition
from leveret.model.history import EventKind
from leveret.model.message import Body, Message
from leveret.model.run import Run

if TYPE_CHECKING:
    from leveret.model.run import Run


class StoreError(Exception):
    """The store cannot do its work; the text says why and what to do."""


class DataDirectoryInUse(StoreError):
    """Another process uses this data directory."""


class SchemaTooNew(StoreError):
    """The data directory was written by a newer version."""


class StoreFailed(StoreError):
    """The store has failed and refuses further work."""


class DiskFull(StoreError):
    """No space left for this batch; the store continues when space is freed."""


@unique
class StoreState(Enum):
    """Whether the store accepts work."""

    OPENING = "opening"
    RUNNING = "running"
    DISK_FULL = "disk full"
    FAILED = "failed"
    CLOSED = "closed"


# -- messages ------------------------------------------------------------------------------------


class StoredMessage(NamedTuple):
    """Content read from the store, verified against its checksum."""

    id: int
    time_ms: int
    origin: int
    exchange: str
    routing_key: str
    properties: bytes
    body: Body

    @property
    def is_in_store(self) -> bool:
        return True


class SpilledMessage(StoredMessage):
    """A transient message that was read from a spill file. The store does not know it."""

    __slots__ = ()

    @property
    def is_in_store(self) -> bool:
        return False


class UnreadableMessage(NamedTuple):
    """Content that is missing or damaged. It is never delivered.

    `was_lost`: it could not be stored because the disk was full; its publisher was told.
    """

    id: int
    reason: str
    was_lost: bool = False


class StagedRuns(Protocol):
    """Runs whose content was stored by `Store.stage`."""

    @property
    def runs(self) -> Sequence[Run]: ...


LoadResult: TypeAlias = StoredMessage | UnreadableMessage
LoadedRun: TypeAlias = Run | UnreadableMessage


def split_runs(loaded: Iterable[LoadedRun]) -> Iterator[LoadResult]:
    """The single messages."""
    for result in loaded:
        if isinstance(result, UnreadableMessage):
            yield result
            continue
        exchange, key = result.address.exchange, result.address.routing_key
        for message in result.messages:
            yield StoredMessage(
                message.id,
                message.time_ms,
                message.origin,
                exchange,
                key,
                message.properties,
                message.body_in_pieces(),
            )


# -- what `save` accepts beside definitions ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MustNotLose:
    """Messages of the current batch that no publisher would send again if a full disk lost them.

    If the batch fails because the disk is full, they join the next batch with the rest of it.
    `atomic`: after a crash, too, they must be on disk together with the rest of their batch or not
    at all. This costs one more commit if they go to a log; within the database it is free.
    """

    message_ids: Sequence[int]
    atomic: bool = True


@dataclass(frozen=True, slots=True)
class RequireSync:
    """A client will wait for the current batch, so it, and every batch before it, must survive a
    power failure. Without this, a batch of deliveries and acks alone may be synced later."""


@dataclass(frozen=True, slots=True)
class LiveMessages:
    """Messages that a queue holds, ascending by id. `detail` is the detail of their events."""

    ids: "array[int]"
    sizes: "array[int]"
    detail: str | None = None


DELIVERY_COUNT: Final = "attempts "
"""Prefix of the detail of a snapshot part that only tells how often its messages were delivered;
another part of the snapshot holds the messages themselves. Written to disk: do not change."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a queue holds now; recovery folds only the events after the last snapshot.

    The writer thread reads the arrays later: pass copies.
    `trim`: the queue keeps no history, so its events before this snapshot may be deleted.
    """

    queue_id: int
    parts: tuple[LiveMessages, ...]
    trim: bool = False


Saved: TypeAlias = Definition | Snapshot | MustNotLose | RequireSync


# -- recovery, retention, outcomes ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LostData:
    """Something that a damaged database no longer has, in one sentence.

    `table`: where it was stored. `queue` and `vhost`: the queue that lost it, if it is one.
    """

    table: str
    text: str
    vhost: str = ""
    queue: str = ""


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """What the store holds at start.

    `live` has an entry per durable queue that holds messages: one `LiveMessages` per detail.
    `damaged` names queues whose journal has unreadable rows, with the reason; `live` has what the
    readable rows tell.
    `delivery_counts`, for queues that may have a delivery limit: deliveries per live message id.
    """

    definitions: tuple[Definition, ...] = ()
    live: dict[int, tuple[LiveMessages, ...]] = field(default_factory=dict)
    damaged: dict[int, str] = field(default_factory=dict)
    delivery_counts: dict[int, dict[int, int]] = field(default_factory=dict)
    log_cuts: dict[str, int] = field(default_factory=dict)
    """Logs that were being written when the broker crashed, and their end before that batch: the
    batch was not committed, so the records from there on must be cut."""
    last_message_id: int = 0
    last_queue_id: int = 0
    last_origin_id: int = 0
    clean: bool = True
    lost: tuple[LostData, ...] = ()
    """What earlier damage has cost, as long as its report is in the data directory."""


@dataclass(frozen=True, slots=True)
class RetentionRequest:
    """The limits of history: nothing before `before_ms`, at most `max_bytes` beside live messages.

    `live`: the ids each queue holds now (copies), including unacknowledged ones;
    `live_bytes`: the sum of their sizes. Ids above `upto` are left alone.
    `min_free_bytes`: free space that history must leave to the volume, whatever `max_bytes` allows.
    """

    upto: int
    live: tuple["array[int]", ...] = ()
    live_bytes: int = 0
    before_ms: int = 0
    max_bytes: int = 1 << 30
    min_free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DatabaseSize:
    """Bytes of the database file: pages in use, and free pages, which new rows use first."""

    used: int = 0
    free: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Size and range of the stored content."""

    bytes: int = 0
    first_id: int = 0
    last_id: int = 0
    first_ms: int = 0
    last_ms: int = 0
    removed: int = 0


class SequencedMessage(NamedTuple):
    """A message of an idempotent producer, with the producer's id and sequence number."""

    message: Message
    producer_id: bytes
    sequence: int

    @property
    def id(self) -> int:
        return self.message.id

    @property
    def body_size(self) -> int:
        return self.message.body_size


LoggedMessage: TypeAlias = Message | SequencedMessage
LogRecords: TypeAlias = "LoggedMessage | Run"
"""One record of a log, or the records of a packed run."""


class LogSink(Protocol):
    """Writes the records of one log; implemented by `leveret.queues.log`, on the writer thread.

    All sinks of a batch are written, then all are synced, then the SQL transaction commits. If
    there are many, other threads call `sync`, for several sinks at a time, while the writer waits.
    """

    def write(self, records: Sequence[LogRecords]) -> int:
        """Write the records; returns the log's next offset, which reaches `BatchCommitted.logs`."""

    def sync(self) -> None:
        """Return when everything written is on disk."""

    def rollback(self) -> None:
        """Undo what was written since the last successful batch: this batch has failed."""

    def end(self) -> tuple[str, int]:
        """The log's name and its next offset, as in `RecoveredState.log_cuts`."""


class WriterJob(Protocol):
    """Work on the files of a log that belongs to a batch but writes no records.

    Runs on the writer thread. The jobs of a failed batch are dropped.
    """

    def prepare(self) -> None:
        """Called before the records of the batch are written."""

    def finish(self) -> None:
        """Called when they are synced, before the SQL transaction commits."""


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """A batch is durable. `snapshots_due` are the queues whose next `Snapshot` should be saved."""

    batch_number: int
    logs: dict[LogSink, int]
    snapshots_due: tuple[int, ...] = ()
    jobs: Sequence[WriterJob] = ()


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """A batch is not durable: its new messages must be nacked.

    After `DiskFull` the store moves the rest of the batch (settled events, definitions, messages
    of `MustNotLose`) to the next one. Any other error is fatal: the store refuses all further work.
    """

    batch_number: int
    error: StoreError

    @property
    def is_fatal(self) -> bool:
        return not isinstance(self.error, DiskFull)


OnCommitted: TypeAlias = Callable[[BatchCommitted], None]
OnFailed: TypeAlias = Callable[[BatchFailed], None]


class Spill(Protocol):
    """Where a queue keeps transient messages that do not fit into its window."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of messages that are not handed to the disk yet."""

    def append(self, messages: Sequence[Message]) -> None:
        """Add messages to the end; their ids ascend."""

    def load(self, message_ids: Sequence[int]) -> Awaitable[dict[int, LoadResult]]:
        """Read messages, by ascending id."""

    def drop_to(self, message_id: int) -> None:
        """The messages up to this one are no longer needed."""

    def clear(self) -> None:
        """No message is needed any more."""


class Store(Protocol):
    """Implemented by `SqlStore` and `MemoryStore`, which share one contract test suite."""

    on_spilled: Callable[[], None]
    """Called when messages were written to spill files, so that `backlog` is shorter."""

    @property
    def ids(self) -> Iterator[int]:
        """`next(store.ids)` is the next message id."""

    @property
    def batch_number(self) -> int:
        """The batch to wait for so that everything done so far is durable."""

    @property
    def current_batch_number(self) -> int:
        """The same for everything but log records, which may have to wait for a later batch."""

    @property
    def committed(self) -> int:
        """Every batch up to this number is decided."""

    @property
    def state(self) -> StoreState: ...

    @property
    def backlog(self) -> int:
        """Bytes of content accepted and not yet written; backpressure depends on it."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of content the store keeps in memory, beside the queues' own copies."""

    def waiting_changes(self) -> int:
        """How many changed definitions are in the current batch, which the writer does not have."""

    @property
    def bytes_appended(self) -> int:
        """Bytes of content accepted since the start."""

    @property
    def usage(self) -> Usage:
        """Measured at start and after every `apply_retention`."""

    @property
    def database_size(self) -> DatabaseSize:
        """Measured whenever the write-ahead log is copied into the database file."""

    @property
    def lost(self) -> tuple[LostData, ...]:
        """What damage of the database has cost, as `RecoveredState.lost`."""

    def recover(self) -> RecoveredState:
        """Open the store; once, before anything else. Blocks, so clients are accepted after it."""

    def append(self, content: Run | StagedRuns) -> None:
        """Store the content of messages, each once, regardless of the number of queues.

        A message with a large body is alone in its run.
        """

    def stage(self, runs: Sequence[Run]) -> StagedRuns:
        """Store the content of messages that have no ids yet, before they are published.

        When they have their ids, in ascending order, give the result to `append`, or to `discard`
        if they are not published; until then the content belongs to no message.
        """

    def discard(self, staged: StagedRuns) -> None:
        """These messages are not published: their content may be deleted."""

    def reserve_parts(self, count: int) -> int:
        """Reserve ids for the parts of a large body, or of a staged pack; returns the first.

        A body of more than `PARTS_FROM` bytes is stored in parts, in the batch of its message or
        before; the row of the message names the first one (`LargeBody.first_part`).
        """

    def append_parts(self, first_id: int, parts: Sequence[bytes]) -> None:
        """Store these parts of a body, the first of them under this id."""

    def release_parts(self, first_id: int, count: int) -> None:
        """No message will refer to these parts: they may be deleted."""

    def record(
        self,
        kind: EventKind,
        queue_id: int,
        message_id: int,
        actor: int = 0,
        detail: str | None = None,
        size: int = 0,
    ) -> None:
        """Record an event of one message. `queue_id` 0: none.

        `actor`: an `Origin` id, or 0 for the broker itself.
        """

    def record_many(
        self,
        kind: EventKind,
        queue_id: int,
        message_ids: Sequence[int],
        actor: int = 0,
        detail: str | None = None,
        sizes: Sequence[int] = (),
    ) -> None:
        """Record the same event of many messages; `SIZED_KINDS` need a size per message."""

    def save(self, value: Saved) -> None:
        """Insert or replace by key."""

    def delete(self, value: Definition) -> None:
        """Delete by key; a no-op if there is no such row."""

    def append_log(self, sink: LogSink, records: LogRecords, size: int = 0) -> None:
        """Write log records, with bodies of `size` bytes, and sync them: in this batch or later.

        The records of a log are written in this order.
        """

    def append_job(self, job: WriterJob) -> None:
        """Run a job on the writer thread as part of the batch."""

    @property
    def spilled_bytes(self) -> int:
        """Size of the files with spilled messages."""

    @property
    def can_spill(self) -> bool:
        """Whether there is a disk for transient messages that do not fit into memory."""

    def open_spill(self) -> Spill:
        """A place for transient messages of one queue; only if `can_spill`."""

    def flush(self) -> None:
        """Hand the batch to the writer if it is idle; otherwise that happens when it becomes idle.

        Called at the end of each loop iteration. A batch of deliveries and acks that nobody waits
        for may be handed over a little later.
        """

    def await_batch(self) -> None:
        """Somebody waits for the current batch: the next `flush` hands it over."""

    def load(self, message_ids: Sequence[int]) -> Awaitable[list[LoadResult]]:
        """Read committed content: one result per id, in the given order."""

    def load_runs(self, message_ids: Sequence[int]) -> Awaitable[list[LoadedRun]]:
        """Read committed content by ascending id: messages that were stored as a run are one."""

    def apply_retention(self, request: RetentionRequest) -> Awaitable[Usage]:
        """Trim history in slices between commits."""

    def close(self) -> Awaitable[None]:
        """Commit all accepted work, record the clean stop, release the directory. Idempotent."""

    def kill(self) -> Awaitable[None]:
        """Release the directory without writing anything more, as a killed process does."""
