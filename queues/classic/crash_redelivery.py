"""Which messages of a durable queue are marked as redelivered after a crash.

Deliveries are not synced before they are sent. Instead they never go beyond the *lease*: a message
id that is saved well ahead of need. After a crash every message up to the lease may have been
delivered and is marked as redelivered, and no other message is. A clean stop saves the highest id
that was delivered instead. `ClassicQueue.recover` applies the rule.

Messages that are republished under a new id after a crash are marked by
leveret/broker/publishing/republished_redelivery.py. Event-loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from leveret.model.definitions import QueueDefinition
from leveret.model.store import Store
from leveret.queues.port import CommitPort

LEASE_STEP = 200_000
LEASE_MARGIN = 50_000


class RedeliveryLease:
    """Decides which messages a crash marks as redelivered: those up to `last_id`.

    Only these may be delivered.

    A new lease is to be requested for message ids above `extend_after`, before this one is used up.
    `highest_delivered` is the highest message id that may have been delivered: at first the lease
    saved by the last run, later the highest id that was delivered.
    """

    __slots__ = (
        "_commits",
        "_definition",
        "_requested_id",
        "_store",
        "extend_after",
        "highest_delivered",
        "last_id",
    )

    def __init__(self, store: Store, definition: QueueDefinition, commits: CommitPort) -> None:
        self._store = store
        self._definition = definition
        self._commits = commits
        self.last_id = self.highest_delivered = self._requested_id = definition.delivered_to
        self.extend_after = definition.delivered_to - LEASE_MARGIN

    def prepare(self, on_granted: Callable[[], None]) -> None:
        """Request a lease as soon as there is a consumer: its first delivery need not wait."""
        next_id = next(self._store.ids)
        if next_id > self.extend_after:
            self.extend(next_id, on_granted)

    def extend(self, newest_id: int, on_granted: Callable[[], None]) -> None:
        """Request a lease well past `newest_id`; `on_granted` is called when it is durable."""
        requested = self._requested_id = newest_id + LEASE_STEP
        self.extend_after = requested - LEASE_MARGIN
        self._store.save(replace(self._definition, delivered_to=requested))

        def grant() -> None:
            self.last_id = requested
            on_granted()

        # If the store has failed, there is no lease, and the queue has to check its state.
        self._commits.when_durable(grant, on_granted)

    def close(self) -> None:
        """A clean stop saves exactly what was delivered."""
        if self._requested_id != self.highest_delivered:
            self._store.save(replace(self._definition, delivered_to=self.highest_delivered))
