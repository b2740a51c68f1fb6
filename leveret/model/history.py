"""What can happen to a message, and how much of it is kept.

The numbers are written to disk: they never change meaning and are never reused.
Kinds 10 to 19 *settle*: the message has left that queue for good. A queue's content after a
restart is what was enqueued and not settled, so these kinds are state; the others are history.
"""

from enum import IntEnum, unique


@unique
class EventKind(IntEnum):
    """One thing that happened to messages; stored in `events.kind`."""

    PUBLISHED = 1
    UNROUTABLE = 2
    ENQUEUED = 3
    DELIVERED = 4
    REDELIVERED = 5
    GOT = 6
    ENQUEUED_TRANSIENT = 7
    """Entered a queue in memory only: history, but nothing that a restart brings back."""
    ACKED = 10
    REJECTED = 11
    NACKED = 12
    EXPIRED = 13
    DEAD_LETTERED = 14
    DROPPED = 15
    PURGED = 16
    QUEUE_DELETED = 17
    RELEASED = 18
    """Its delay was over: it went on under a new id."""
    REQUEUED = 20
    SNAPSHOT = 30
    """The ids a queue held at that moment; where the fold of its events starts."""

    @property
    def settles(self) -> bool:
        """Whether the message has left its queue."""
        return FIRST_SETTLING <= self <= LAST_SETTLING

    @property
    def carries_sizes(self) -> bool:
        """Whether the event keeps the body size beside each message id."""
        return self in SIZED_KINDS

    @property
    def label(self) -> str:
        """The name users see in exports and timelines."""
        return _LABELS.get(self, self.name.lower())


FIRST_SETTLING = 10
LAST_SETTLING = 19

SIZED_KINDS = frozenset({EventKind.ENQUEUED, EventKind.ENQUEUED_TRANSIENT, EventKind.SNAPSHOT})

STATE_KINDS = frozenset(
    {EventKind.ENQUEUED, EventKind.SNAPSHOT}
    | {kind for kind in EventKind if FIRST_SETTLING <= kind <= LAST_SETTLING}
)
"""Written for every durable queue, with or without history: they are the journal."""

HANDED_OUT_KINDS = (EventKind.DELIVERED, EventKind.REDELIVERED, EventKind.GOT)
"""`detail`, where a delivery limit counts: how often these messages had been handed out then."""

REPEATABLE_KINDS = frozenset({*HANDED_OUT_KINDS, EventKind.ACKED, EventKind.REQUEUED})
"""Lost in a power failure, they only happen again: the message comes back as redelivered."""

_LABELS = {EventKind.ENQUEUED_TRANSIENT: "enqueued"}


@unique
class Keep(IntEnum):
    """What history keeps of a message once no queue holds it; stored in `messages.keep`."""

    NOTHING = 0
    METADATA = 1
    FULL = 2


@unique
class OriginKind(IntEnum):
    """Who acted: stored in `origins.kind`."""

    PUBLISHER = 1
    CONSUMER = 2
    BROKER = 3
