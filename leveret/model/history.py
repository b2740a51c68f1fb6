"""The events of a message, and how much of it history keeps.

The numbers are written to disk: they never change their meaning and are never reused.
Kinds 10 to 19 *settle*: the message has left that queue for good. After a restart a queue holds the
messages that were enqueued and not settled, so these kinds are state; the others are only history.
"""

from enum import IntEnum, unique


@unique
class EventKind(IntEnum):
    """What happened to messages; stored in `events.kind`."""

    PUBLISHED = 1
    UNROUTABLE = 2
    ENQUEUED = 3
    DELIVERED = 4
    REDELIVERED = 5
    GOT = 6
    ENQUEUED_TRANSIENT = 7
    """Entered a queue in memory only: a restart does not recover it."""
    ACKED = 10
    REJECTED = 11
    NACKED = 12
    EXPIRED = 13
    DEAD_LETTERED = 14
    DROPPED = 15
    PURGED = 16
    QUEUE_DELETED = 17
    RELEASED = 18
    """Its delay ended: it was published again under a new id."""
    REQUEUED = 20
    COPIED = 21
    """It is a copy of an earlier message: a dead letter, or a delayed message that was due. Its
    size is the distance from the id of that message to its own."""
    SNAPSHOT = 30
    """The ids a queue held at that time; the fold of its events starts here."""

    @property
    def settles(self) -> bool:
        """Whether the message has left its queue."""
        return FIRST_SETTLING <= self <= LAST_SETTLING

    @property
    def label(self) -> str:
        """The name in exports and in the message trace."""
        return _LABELS.get(self, self.name.lower())


FIRST_SETTLING = 10
LAST_SETTLING = 19

SIZED_KINDS = frozenset(
    {EventKind.ENQUEUED, EventKind.ENQUEUED_TRANSIENT, EventKind.COPIED, EventKind.SNAPSHOT}
)

INTERNAL_KINDS = frozenset({EventKind.COPIED, EventKind.SNAPSHOT})
"""Not shown as events of a message."""

STATE_KINDS = frozenset(
    {EventKind.ENQUEUED, EventKind.SNAPSHOT}
    | {kind for kind in EventKind if FIRST_SETTLING <= kind <= LAST_SETTLING}
)
"""Written for every durable queue, with or without history: they are the journal."""

DELIVERY_KINDS = (EventKind.DELIVERED, EventKind.REDELIVERED, EventKind.GOT)
"""For queues with a delivery limit, `detail` is the messages' delivery count at that time."""

REPEATABLE_KINDS = frozenset({*DELIVERY_KINDS, EventKind.ACKED, EventKind.REQUEUED})
"""If a power failure takes them, they only happen again: the message is redelivered."""

_LABELS = {EventKind.ENQUEUED_TRANSIENT: "enqueued"}


@unique
class Keep(IntEnum):
    """What history keeps of a message once no queue holds it; stored in `messages.keep`."""

    NOTHING = 0
    METADATA = 1
    FULL = 2


@unique
class OriginKind(IntEnum):
    """What an origin does; stored in `origins.kind`."""

    PUBLISHER = 1
    CONSUMER = 2
    BROKER = 3
