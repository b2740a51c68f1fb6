"""The store port: everything durable goes through here, and nothing here blocks.

Threads: every method is called on the event-loop thread. Work joins the *batch* being filled;
`flush()` (once per loop turn) hands the batch over, and `on_committed` or `on_failed`, given at
construction, is called on the loop when it is decided. A batch is atomic: after a crash it is
there whole or not at all, and all of it that was reported committed is there.

A batch has a number, its *mark*; marks grow by one. To be told when work is durable: do the work,
read `mark`, and wait until `committed` reaches it (or until a failure with that mark arrives).

Message ids are global and grow in publish order, so the place of a message in a queue is its id.
A queue holds a message id at most once, ever: dead-lettering publishes under a new id.
"""

from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Final, NamedTuple, Protocol, TypeAlias

from leveret.model.history import EventKind, Keep, OriginKind


class StoreError(Exception):
    """The store cannot do its work; the text says why and what to do."""


class DataDirectoryInUse(StoreError):
    """Another process works on this data directory."""


class SchemaTooNew(StoreError):
    """The data directory was written by a newer version."""


class StoreFailed(StoreError):
    """The store has failed and refuses further work."""


class DiskFull(StoreError):
    """No space left for this batch; the store goes on when space is freed."""


@unique
class StoreState(Enum):
    """Whether the store takes work."""

    OPENING = "opening"
    RUNNING = "running"
    DISK_FULL = "disk full"
    FAILED = "failed"
    CLOSED = "closed"


# -- messages ------------------------------------------------------------------------------------


class NewMessage(NamedTuple):
    """Content to be stored; `append` also takes a plain tuple in this order."""

    id: int
    time_ms: int
    origin: int
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes
    keep: int = Keep.FULL


NewMessageTuple: TypeAlias = tuple[int, int, int, str, str, bytes, bytes, int]


class StoredMessage(NamedTuple):
    """Content as read back, checked against its checksum."""

    id: int
    time_ms: int
    origin: int
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


class Rotten(NamedTuple):
    """Content that cannot be read back: missing or damaged. Never delivered.

    `was_lost`: a full disk kept it from being stored, and its publisher was told.
    """

    id: int
    reason: str
    was_lost: bool = False


# -- definitions ---------------------------------------------------------------------------------
# One frozen class per table. `arguments`, `options`, `value` and `definition` are JSON text that
# the store does not look into. `save` inserts or replaces by key, `delete` looks at the key alone.


@dataclass(frozen=True, slots=True)
class VhostDefinition:
    name: str
    options: str = "{}"


@dataclass(frozen=True, slots=True)
class UserDefinition:
    name: str
    password_hash: str
    hashing: str
    tags: str = ""
    options: str = "{}"


@dataclass(frozen=True, slots=True)
class PermissionDefinition:
    user: str
    vhost: str
    configure: str = ""
    write: str = ""
    read: str = ""


@dataclass(frozen=True, slots=True)
class TopicPermissionDefinition:
    user: str
    vhost: str
    exchange: str
    write: str = ""
    read: str = ""


@dataclass(frozen=True, slots=True)
class ExchangeDefinition:
    vhost: str
    name: str
    kind: str = "direct"
    auto_delete: bool = False
    internal: bool = False
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class QueueDefinition:
    """Keyed by `id`, which is never reused; a deleted queue keeps its row while history needs it.

    `durable=False` names a transient queue in the history only; it is not recovered.
    `delivered_to`: every message up to this id has been handed to a consumer before
    (exact after a clean stop; after a crash the lease decides).
    """

    id: int
    vhost: str
    name: str
    kind: str = "classic"
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: str = "{}"
    created_ms: int = 0
    delivered_to: int = 0


@dataclass(frozen=True, slots=True)
class BindingDefinition:
    """Every field is part of the key."""

    vhost: str
    source: str
    destination: str
    destination_kind: str = "queue"
    routing_key: str = ""
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class PolicyDefinition:
    vhost: str
    name: str
    operator: bool = False
    pattern: str = ""
    apply_to: str = "all"
    priority: int = 0
    definition: str = "{}"


@dataclass(frozen=True, slots=True)
class ParameterDefinition:
    """Runtime parameters; global ones have an empty vhost and component."""

    vhost: str
    component: str
    name: str
    value: str = "null"


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """How far a consumer group has come in one partition (a log-mode queue)."""

    queue_id: int
    group_name: str
    offset: int = 0
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """Who published or consumed; ids are given by the caller and never reused."""

    id: int
    kind: OriginKind
    vhost: str = ""
    user: str = ""
    connection: str = ""
    channel: int = 0
    consumer_tag: str = ""
    created_ms: int = 0
    closed_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Messages up to this id may have been delivered; saved before any delivery past it."""

    message_id: int


@dataclass(frozen=True, slots=True)
class Indispensable:
    """Messages of the batch being filled that nobody would send again if a full disk lost them.

    They stay with what else the batch held: both join the next one, until it is on disk.
    `bound`: a crash, too, must leave them with the rest of their batch or not at all. Costs a
    commit where they go to a log; within the database it is so anyway.
    """

    message_ids: Sequence[int]
    bound: bool = True


@dataclass(frozen=True, slots=True)
class Synced:
    """Somebody will wait for the batch being filled: it must outlive a power failure, and with it
    everything before it. Without this note one that holds only deliveries and acks need not."""


@dataclass(frozen=True, slots=True)
class Live:
    """Messages alive in a queue, ascending by id. `detail` is what they were enqueued with."""

    ids: "array[int]"
    sizes: "array[int]"
    detail: str | None = None


ATTEMPTS: Final = "attempts "
"""So begins the detail of a snapshot's part that only says how often its messages were handed
out; the messages themselves are in another part."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a queue holds now; saving it shortens the fold of its events.

    The arrays are read by another thread afterwards: give copies.
    `trim`: the queue keeps no history, so its events before this one may go.
    """

    queue_id: int
    parts: tuple[Live, ...]
    trim: bool = False


Definition: TypeAlias = (
    VhostDefinition
    | UserDefinition
    | PermissionDefinition
    | TopicPermissionDefinition
    | ExchangeDefinition
    | QueueDefinition
    | BindingDefinition
    | PolicyDefinition
    | ParameterDefinition
    | GroupOffset
    | Origin
)

Saved: TypeAlias = Definition | Lease | Snapshot | Indispensable | Synced


# -- recovery, retention, outcomes ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the store holds at start.

    `live` has an entry per durable queue that holds messages: one `Live` per detail.
    `damaged` names queues whose journal has unreadable rows, with the reason; what could be
    folded from the rest is in `live`.
    `attempts`, of queues that may have a delivery limit: how often a live message was handed out.
    """

    definitions: tuple[Definition, ...] = ()
    live: dict[int, tuple[Live, ...]] = field(default_factory=dict)
    damaged: dict[int, str] = field(default_factory=dict)
    attempts: dict[int, dict[int, int]] = field(default_factory=dict)
    log_ends: dict[str, int] = field(default_factory=dict)
    """Logs in which a batch was being written that is not committed, and where they ended before:
    what they hold from there on must go."""
    lease: int = 0
    last_message_id: int = 0
    last_queue_id: int = 0
    last_origin_id: int = 0
    clean: bool = True


@dataclass(frozen=True, slots=True)
class Retention:
    """What history may keep: nothing before `before_ms`, at most `max_bytes` beside the live.

    `live`: the ids each queue holds now (copies), unacknowledged ones included;
    `live_bytes`: the sum of their sizes. Ids above `upto` are left alone.
    """

    upto: int
    live: tuple["array[int]", ...] = ()
    live_bytes: int = 0
    before_ms: int = 0
    max_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Usage:
    """Size and range of what is stored."""

    bytes: int = 0
    first_id: int = 0
    last_id: int = 0
    first_ms: int = 0
    last_ms: int = 0
    removed: int = 0


class LogSink(Protocol):
    """Where log-mode records go; implemented by `queues.log`, called on the writer thread.

    All sinks of a batch are written, then all synced, then the SQL transaction commits.
    A record with an `id` is the message of that id.
    """

    def write(self, records: Sequence[object]) -> object:
        """Write the records; the answer reaches `Committed.logs`."""

    def sync(self) -> None:
        """Return when what was written is on disk."""

    def rollback(self) -> None:
        """Forget what was written since the last successful batch: this one has failed."""

    def end(self) -> tuple[str, int]:
        """Which log this is, and where it ends now; what `Recovered.log_ends` gives back."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A batch is durable. `due` names queues whose next `Snapshot` is wanted."""

    mark: int
    logs: dict[LogSink, object]
    due: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """A batch is not durable: its new messages must be nacked.

    After `DiskFull` the rest of the batch (settled events, definitions, whatever was said to be
    indispensable) joins the next one by itself. Any other error is fatal: the store refuses all
    further work.
    """

    mark: int
    error: StoreError

    @property
    def is_fatal(self) -> bool:
        return not isinstance(self.error, DiskFull)


OnCommitted: TypeAlias = Callable[[Committed], None]
OnFailed: TypeAlias = Callable[[Failed], None]


class Store(Protocol):
    """Two implementations: `SqlStore` and `MemoryStore`; one contract suite."""

    @property
    def ids(self) -> Iterator[int]:
        """`next(store.ids)` is the next message id."""

    @property
    def mark(self) -> int:
        """The batch to wait for so that everything done so far is durable."""

    @property
    def committed(self) -> int:
        """Every batch up to this mark is decided."""

    @property
    def state(self) -> StoreState: ...

    @property
    def backlog(self) -> int:
        """Bytes of content taken and not yet durable: what backpressure looks at."""

    @property
    def in_memory(self) -> int:
        """Bytes of content it keeps in memory, beside what queues keep."""

    @property
    def written(self) -> int:
        """Bytes of content taken since the start."""

    @property
    def usage(self) -> Usage:
        """As of the last `sweep` (or start)."""

    def recover(self) -> Recovered:
        """Open the store; once, before anything else. Blocks: called before clients are."""

    def append(
        self, *messages: NewMessage | tuple[int, int, int, str, str, bytes, bytes, int]
    ) -> None:
        """Content of messages, each once, however many queues it goes to."""

    def record(
        self,
        kind: EventKind,
        queue_id: int,
        message_id: int,
        actor: int = 0,
        detail: str | None = None,
        size: int = 0,
    ) -> None:
        """One message's event. `queue_id` 0: none. `actor` is an `Origin` id, 0: the broker."""

    def record_many(
        self,
        kind: EventKind,
        queue_id: int,
        message_ids: Sequence[int],
        actor: int = 0,
        detail: str | None = None,
        sizes: Sequence[int] = (),
    ) -> None:
        """The same event of many messages; `sizes` for the kinds that carry them."""

    def discard(self, message_ids: Sequence[int], keep: Keep = Keep.NOTHING) -> None:
        """No queue holds these any more and history keeps only so much of them."""

    def save(self, value: Saved) -> None:
        """Insert or replace by key."""

    def delete(self, value: Definition) -> None:
        """Remove by key; nothing happens when it is not there."""

    def append_log(self, sink: LogSink, record: object, size: int = 0) -> None:
        """A log-mode record of so many bytes: written and synced in the same batch."""

    def flush(self) -> None:
        """End of a loop turn: hand the batch over if the writer is free (else it follows)."""

    def load(self, message_ids: Sequence[int]) -> Awaitable[list[StoredMessage | Rotten]]:
        """Committed content, one answer per id, in the order asked."""

    def sweep(self, retention: Retention) -> Awaitable[Usage]:
        """Trim history in slices between commits."""

    def close(self) -> Awaitable[None]:
        """Commit what was taken, write the clean mark, release the directory. Twice is free."""
