"""The two ends of a queue: what fronts ask of it, and what it asks of a consumer.

Classic queues, log queues and reply queues are siblings under `HeldQueue`. A `Target` is less: all
that routing knows of where it leads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Any, Protocol

from leveret.model.history import Keep
from leveret.model.message import Message
from queues.counters import QueueCounters
from queues.entry import Entry, Outcome
from queues.spec import QueueSpec


class Enqueued(Enum):
    """What a queue did with a message it was given.

    `WAITING` is taken, too, but safe only when the store's current batch is.
    """

    TAKEN = auto()
    WAITING = auto()
    REJECTED = auto()


class DeathReason(StrEnum):
    """Why a message is dead-lettered, as `x-death` names it."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


def _nothing(*arguments: object) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Upward:
    """The calls a queue makes upwards, given to it at construction."""

    touch: Callable[[HeldQueue], None] = _nothing
    """There may be something to hand out."""
    look_at: Callable[[int, HeldQueue], None] = _nothing
    """Touch me not later than this wall-clock time."""
    republish: Callable[[HeldQueue, Sequence[Message], DeathReason], Collection[int]] = (
        lambda queue, messages, reason: ()
    )
    """These died here: take them to the dead-letter exchange; the ids of those it refused."""
    retire: Callable[[HeldQueue], None] = _nothing
    """Nobody uses me any more: delete me."""
    now_ms: Callable[[], int] = lambda: 0
    moved: Callable[[int], int] = lambda message_id: 0
    """By how many milliseconds the clock was set since this message was stored."""


class Consumer(Protocol):
    """Somebody who takes entries from one queue. Implemented by the AMQP channel."""

    tag: str
    no_ack: bool
    exclusive: bool
    prefetch: int
    priority: int
    arguments: dict[str, Any]
    actor: int

    @property
    def shares_credit(self) -> bool:
        """Whether taking one entry may use up the credit of another consumer."""

    def credit(self) -> int:
        """How many entries it can take right now."""

    def deliver(self, queue: HeldQueue, entries: Sequence[Entry]) -> None:
        """Take these, in order. Never more than `credit()` said."""

    def describe(self) -> dict[str, Any]:
        """The consumer as a row of the management API."""

    def cancelled(self) -> None:
        """The queue has gone."""


class Target(Protocol):
    """Where messages are routed to: it takes them, and does the rest at the end of a turn."""

    name: str
    touched: bool

    @property
    def keep(self) -> Keep:
        """How much history wants of what passes through."""

    def enqueue(self, message: Message) -> Enqueued: ...

    def dispatch(self) -> None:
        """Hand out what can be handed out."""


class HeldQueue(Target, Protocol):
    """A queue as fronts see it."""

    spec: QueueSpec
    id: int
    owner: object | None
    counters: QueueCounters

    @property
    def ready_count(self) -> int: ...

    @property
    def unacked_count(self) -> int: ...

    @property
    def consumers(self) -> Collection[Consumer]:
        """As they are at any moment: make a list before they may come or go."""

    def take(self, actor: int, no_ack: bool) -> Entry | None:
        """The next entry for a polling client."""

    def when_head(self, call: Callable[[], None]) -> None:
        """Call once, when there may be something to take again."""

    def settle(self, entries: Sequence[Entry], outcome: Outcome, actor: int) -> None: ...

    def add_consumer(self, consumer: Consumer) -> None: ...

    def remove_consumer(self, consumer: Consumer) -> None: ...

    def purge(self) -> int:
        """Drop what is ready; how many that was."""

    def close(self, deleted: bool) -> int:
        """End: consumers are told when it is deleted for good; how many were ready."""


Tap = Callable[[HeldQueue, Sequence[Entry], Consumer | None], None]
"""Sees what a queue hands out, and to whom; to a poller when to nobody."""


class TappedQueue(HeldQueue, Protocol):
    """A queue whose deliveries may be looked at."""

    tap: Tap | None
