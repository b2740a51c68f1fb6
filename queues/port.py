"""The queue port: what the rest of the broker asks of a queue, and what a queue asks of a consumer.

Classic queues, logs, partitioned logs and reply queues implement `Queue`. `Target` is the part of
it that routing needs; plugin exchanges implement it, too.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Any, NamedTuple, Protocol

from leveret.model.clients import ConsumerInfo
from leveret.model.errors import BrokerError
from leveret.model.history import Keep
from leveret.model.message import Message
from leveret.model.run import Run
from leveret.model.store import LoadResult
from leveret.queues.counters import QueueCounters
from leveret.queues.delivery import Delivery
from leveret.queues.entry import Entry, Outcome
from leveret.queues.spec import QueueSpec

MESSAGE_OVERHEAD = 400
"""Bytes of memory that a message takes in addition to its headers and body."""


class EnqueueResult(Enum):
    """Whether a queue accepted a message.

    `ACCEPTED_ON_COMMIT`: accepted, but it must not be confirmed before the current batch of the
    store is committed.
    """

    ACCEPTED = auto()
    ACCEPTED_ON_COMMIT = auto()
    REJECTED = auto()


class DeathReason(StrEnum):
    """Why a message is dead-lettered, as `x-death` names it."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


class QueueStats(NamedTuple):
    """Sizes of a queue whose messages are counted in bytes; `paged_out` messages are on disk only.

    A named tuple, which is created faster than a dataclass: a listing creates one for each queue.
    """

    ready_bytes: int
    unacked_bytes: int
    ready_in_memory: int
    ready_bytes_in_memory: int
    paged_out: int
    paged_out_bytes: int


@dataclass(frozen=True, slots=True)
class PeekedMessages:
    """A part of a queue's content, read without consuming it.

    The first `unacked_count` entries are unacknowledged, the others are ready. `disk_ids` follow
    them: ready messages whose content is on disk only, which `load` reads. Of these, the ones up to
    `redelivered_to` will be delivered as redelivered.
    """

    entries: list[Entry]
    unacked_count: int
    disk_ids: array[int] = field(default_factory=lambda: array("Q"))
    redelivered_to: int = 0
    load: Callable[[Sequence[int]], Awaitable[list[LoadResult]]] | None = None


class CommitPort(Protocol):
    """How queues wait until their changes are on disk. Implemented by `CommitWaiters`."""

    def when_committed(
        self,
        batch_number: int,
        callback: Callable[[], None],
        on_failed: Callable[[], None] | None = None,
    ) -> None:
        """Call `callback` once this batch is on disk, or `on_failed` if it is lost."""

    def when_durable(
        self, callback: Callable[[], None], on_store_failed: Callable[[], None]
    ) -> None:
        """Call `callback` once everything done so far is on disk, in this batch or a later one."""

    async def committed(self) -> object:
        """Wait until the current batch is decided."""


class Consumer(Protocol):
    """A consumer of one queue. Implemented by AMQP channels and by HTTP group members."""

    tag: str
    no_ack: bool
    exclusive: bool
    prefetch: int
    priority: int
    arguments: dict[str, Any]
    actor: int

    @property
    def shares_credit(self) -> bool:
        """Whether a delivery to this consumer may use up the credit of another one."""

    @property
    def is_writable(self) -> bool:
        """Whether it can receive anything right now, whatever its credit."""

    @property
    def takes_turns(self) -> bool:
        """Whether consumers of other queues wait for the same credit: after each delivery it is
        their turn."""

    def credit(self) -> int:
        """How many entries can be delivered to it right now."""

    def deliver(self, delivery: Delivery) -> None:
        """Deliver these messages in order; never more than `credit()` allows."""

    def info(self) -> ConsumerInfo: ...

    def cancelled(self) -> None:
        """The queue was deleted."""


class Target(Protocol):
    """A destination of routing: it accepts messages and dispatches them at the end of a tick."""

    name: str
    dispatch_pending: bool

    @property
    def keep(self) -> Keep:
        """How much of the messages that pass through is kept as history."""

    def enqueue(self, run: Run) -> list[EnqueueResult] | None:
        """One result per message; None if all of them are `ACCEPTED`."""

    def stores_content(self, persistent: bool) -> bool:
        """Whether such a message will be written to the store as soon as it is enqueued here."""

    def rejects_dead_letter(self, message: Message) -> bool:
        """Whether this dead letter would be lost here because the target is full."""

    def mark_redelivered(self, message_id: int) -> None:
        """Mark a message that was just enqueued: a crash may have undone its first delivery."""

    def dispatch(self) -> None:
        """Deliver what can be delivered now."""


Tap = Callable[["Queue", Sequence[Entry], Consumer | None], None]
"""Called with every delivery of a queue; the consumer is None for basic.get."""


class Queue(Target, Protocol):
    """A queue of any kind."""

    spec: QueueSpec
    id: int
    owner: object | None
    counters: QueueCounters
    tap: Tap | None

    @property
    def failure(self) -> BrokerError | None:
        """Why the queue cannot be used although it is declared; None if it can."""

    @property
    def ready_count(self) -> int: ...

    @property
    def unacked_count(self) -> int: ...

    @property
    def consumers(self) -> Collection[Consumer]:
        """The live collection: copy it before consumers may be added or removed."""

    @property
    def active_consumer(self) -> Consumer | None:
        """The single active consumer; None if the queue delivers to all its consumers."""

    @property
    def consumer_timeout_ms(self) -> int:
        """How long a delivery may stay unacknowledged; 0 for no limit."""

    @property
    def blocks_get(self) -> bool:
        """Whether basic.get returns nothing for now although messages are ready."""

    @property
    def waits_for_lease(self) -> bool:
        """Whether consumers will take messages as soon as the queue's lease is saved."""

    @property
    def partition_of(self) -> Queue | None:
        """The partitioned log that this queue is a partition of."""

    @property
    def partitions(self) -> Sequence[Queue]:
        """The partitions of a partitioned log; empty for every other queue."""

    # What clients do ---------------------------------------------------------------------------

    def basic_get(self, actor: int, no_ack: bool) -> Delivery | None:
        """Deliver the next message, which is a single entry, to a polling client."""

    def when_readable(self, callback: Callable[[], None]) -> None:
        """Call once, when basic.get may return something again."""

    def settle(self, deliveries: Sequence[Delivery], outcome: Outcome, actor: int) -> None: ...

    def on_split(self, delivery: Delivery) -> None:
        """A part of one of its deliveries has become this delivery."""

    def add_consumer(self, consumer: Consumer) -> None: ...

    def remove_consumer(self, consumer: Consumer) -> None: ...

    def on_credit(self, consumer: Consumer) -> None:
        """The consumer may have credit again: deliver to it at the end of the tick."""

    def purge(self) -> int:
        """Remove all ready messages and return their number."""

    # What the broker does ----------------------------------------------------------------------

    def apply_policy(self, policy: Mapping[str, Any], history: Keep) -> None:
        """Use this policy from now on, and keep this much history."""

    def on_lookup(self) -> None:
        """A client named this queue: restart its expiry, deliver what consumers can take, and apply
        limits to the rest."""

    def deliver_pending(self) -> None:
        """Deliver now instead of at the end of the tick: basic.get, queue.purge and others must not
        find ready messages that a consumer can take."""

    def close(self, deleted: bool) -> int:
        """Stop; cancel consumers if the queue is deleted. Returns the number of ready messages."""

    # What management reads ---------------------------------------------------------------------

    def stats(self) -> QueueStats | None:
        """None for queues whose messages are not counted in bytes."""

    def oldest_ready_ms(self) -> int | None:
        """When the first ready message in memory was published."""

    def oldest_unacked_ms(self) -> int | None:
        """When the oldest unacknowledged message was published."""

    def memory_bytes(self) -> int:
        """Memory taken by messages, without their headers."""

    def header_bytes(self) -> int:
        """Memory taken by message headers; estimated from a sample where there are many."""

    def peek(self, offset: int, count: int) -> PeekedMessages:
        """Read messages from position `offset` on, unacknowledged ones first."""
