"""How messages leave a queue without being acknowledged: dead-lettered, or dropped.

The event that removes a message from its queue and the new message in the dead-letter target join
one batch, so after a crash the message is in exactly one of the two places. A message that the
target rejects because it is full is *stuck*: it stays in its queue, unacknowledged without a
consumer, and is tried again every second. A crash makes stuck messages ready again. Event-loop
thread only.

The queue is passed to each call. A reference to it would be a cycle, and a deleted queue would stay
in memory, with the connection that owned it, until the next garbage collection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from leveret.model.history import EventKind
from leveret.queues.delivery import Delivery
from leveret.queues.entry import Entry, stored_ids
from leveret.queues.port import DeathReason

if TYPE_CHECKING:
    from leveret.queues.classic.classic_queue import ClassicQueue, QueueCallbacks

RETRY_MS = 1_000
MAX_STUCK = 10_000


class Cause(NamedTuple):
    """Why an entry leaves its queue, and which origin caused it."""

    kind: EventKind
    reason: DeathReason
    actor: int


class DeadLetterer:
    __slots__ = ("_callbacks", "retry_ms", "stuck")

    def __init__(self, callbacks: QueueCallbacks) -> None:
        self._callbacks = callbacks
        self.stuck: list[tuple[Cause, Delivery]] = []
        """Each of them is one message."""
        self.retry_ms = 0

    @property
    def is_blocked(self) -> bool:
        """Whether so many messages are stuck that no more are taken from the queue's head."""
        return len(self.stuck) >= MAX_STUCK

    def dispose(self, queue: ClassicQueue, entries: Sequence[Entry], cause: Cause) -> None:
        """Dead-letter or drop entries that have left the queue; those that get stuck return."""
        kind, reason, actor = cause
        detail = None
        target = queue.options.dead_letter_exchange
        if target is not None:
            messages = [entry.message for entry in entries]
            rejected = self._callbacks.dead_letter(queue, messages, reason)
            if rejected:
                self._keep(queue, [entry for entry in entries if entry.id in rejected], cause)
                entries = [entry for entry in entries if entry.id not in rejected]
            kind, detail = EventKind.DEAD_LETTERED, f"{reason} to '{target}'"
        if queue.journal is not None:
            queue.journal.record_settled(kind, stored_ids(entries), actor, detail)

    def _keep(self, queue: ClassicQueue, entries: Sequence[Entry], cause: Cause) -> None:
        for entry in entries:
            delivery = Delivery(queue, None, [entry])
            self.stuck.append((cause, delivery))
            queue.unacked.add(delivery, entry.message.body_size)
        self.retry_ms = self._callbacks.now_ms() + RETRY_MS
        self._callbacks.wake_at(self.retry_ms, queue)

    def take_due(self, queue: ClassicQueue) -> dict[Cause, list[Entry]]:
        """Remove and return the stuck entries by cause, if it is time to try them again."""
        if not self.stuck or self._callbacks.now_ms() < self.retry_ms:
            return {}
        groups: dict[Cause, list[Entry]] = {}
        for cause, delivery in self.stuck:
            groups.setdefault(cause, []).extend(delivery.entries())
        self.clear(queue)
        return groups

    def clear(self, queue: ClassicQueue) -> list[Entry]:
        """Remove and return all stuck entries."""
        stuck, self.stuck = self.stuck, []
        for _, delivery in stuck:
            queue.unacked.remove(delivery)
        return [entry for _, delivery in stuck for entry in delivery.entries()]
