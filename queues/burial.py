"""How messages leave a queue without being consumed: out of the journal, to the dead letters.

The event that takes a message out of its queue and the new message in the dead-letter target join
one batch, so after a crash it is in exactly one of the two places. What the target refuses by its
limits is *stuck*: it stays with the queue, unacknowledged and held by nobody, and is tried again
every second. A crash brings stuck messages back as ready. Event-loop thread only.

The queue comes with each call. Kept here it would make a circle, and what is deleted would stay in
memory, with the connection that owned it, until somebody looks for such.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from leveret.model.history import EventKind
from queues.entry import Entry
from queues.port import DeathReason, Upward

if TYPE_CHECKING:
    from queues.classic import ClassicQueue

RETRY_MS = 1_000
MOST_STUCK = 10_000


class Cause(NamedTuple):
    """What happened to an entry, and through whom."""

    kind: EventKind
    reason: DeathReason
    actor: int


class Burial:
    __slots__ = ("_up", "retry_ms", "stuck")

    def __init__(self, upward: Upward) -> None:
        self._up = upward
        self.stuck: list[tuple[Cause, Entry]] = []
        self.retry_ms = 0

    @property
    def is_blocked(self) -> bool:
        """So many are stuck that what follows waits where it is."""
        return len(self.stuck) >= MOST_STUCK

    def bury(
        self,
        queue: ClassicQueue,
        entries: Sequence[Entry],
        kind: EventKind,
        reason: DeathReason,
        actor: int = 0,
    ) -> None:
        """Entries that left the ready or unacknowledged ones for good."""
        detail = None
        target = queue.options.dead_letter_exchange
        if target is not None:
            refused = self._up.republish(queue, [entry.message for entry in entries], reason)
            if refused:
                kept = [entry for entry in entries if entry.id in refused]
                self._keep(queue, kept, Cause(kind, reason, actor))
                entries = [entry for entry in entries if entry.id not in refused]
            kind, detail = EventKind.DEAD_LETTERED, f"{reason} to '{target}'"
        if queue.journal is not None:
            queue.journal.settled(kind, stored_ids(entries), actor, detail)

    def _keep(self, queue: ClassicQueue, entries: list[Entry], cause: Cause) -> None:
        queue.unacked.update((entry.id, entry) for entry in entries)
        queue.unacked_bytes += sum(entry.message.body_size for entry in entries)
        self.stuck += [(cause, entry) for entry in entries]
        self.retry_ms = self._up.now_ms() + RETRY_MS
        self._up.look_at(self.retry_ms, queue)

    def retry(self, queue: ClassicQueue) -> None:
        """Try again if it is time to."""
        if self._up.now_ms() < self.retry_ms:
            return
        groups: dict[Cause, list[Entry]] = {}
        for cause, entry in self.stuck:
            groups.setdefault(cause, []).append(entry)
        self.clear(queue)
        for (kind, reason, actor), entries in groups.items():
            self.bury(queue, entries, kind, reason, actor)

    def clear(self, queue: ClassicQueue) -> list[Entry]:
        """Nothing is stuck any more; what was."""
        stuck, self.stuck = self.stuck, []
        queue.unacked_bytes -= sum(entry.message.body_size for _, entry in stuck)
        return [queue.unacked.pop(entry.id) for _, entry in stuck]


def stored_ids(entries: Iterable[Entry]) -> list[int]:
    return [entry.id for entry in entries if entry.message.stored]
