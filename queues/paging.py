"""What a durable queue brings back from disk: all of it at a restart, the backlog ahead of need.

Content is read before consumers want it, so that memory holds a window of the queue only. A read
that fails for a passing reason changes nothing: it is asked for again. What comes back damaged is
never delivered, and the journal says so. Event-loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from leveret.model.history import EventKind
from leveret.model.message import Message
from leveret.model.store import Live, Rotten, StoredMessage, StoreError
from queues.attempts import is_worn
from queues.entry import Entry
from queues.journal import Journal
from queues.limits import deadline
from queues.port import DeathReason, Upward
from queues.ready import newest

if TYPE_CHECKING:
    from queues.classic import ClassicQueue

RETRY_MS = 1_000
log = logging.getLogger("leveret.queues")


class Paging:
    """`attempts`: how often a message was handed out before a restart, until it is read."""

    __slots__ = ("_delivered_to", "_journal", "_queue", "_recovered_to", "_up", "attempts")

    def __init__(self, queue: ClassicQueue, upward: Upward, journal: Journal) -> None:
        self._queue = queue
        self._up = upward
        self._journal = journal
        self._recovered_to = 0
        self._delivered_to = 0
        self.attempts: dict[int, int] = {}

    def recover(self, parts: Iterable[Live], last_id: int, attempts: Mapping[int, int]) -> None:
        """Take up what the journal says this queue held, and how often it was handed out."""
        for live in parts:
            self._queue.backlog.extend(live)
        self._recovered_to = last_id
        self._delivered_to = self._journal.delivered_to
        self.attempts = dict(attempts)
        self.read_ahead()

    def was_delivered(self, message_id: int) -> bool:
        """Whether a message that is on disk only would come back as redelivered."""
        return message_id <= self._delivered_to

    def comes_again(self, message_id: int) -> None:
        """It has just come, and its like may have been handed out right before a crash."""
        if self._delivered_to:
            for entry in newest(self._queue.ready):
                entry.redelivered = entry.redelivered or entry.id == message_id

    def read_ahead(self) -> None:
        queue = self._queue
        if queue.backlog and not queue.has_plenty:
            queue.backlog.read(self._journal.load, self._arrived, self._read_again_later)

    def _arrived(self, found: list[StoredMessage | Rotten]) -> None:
        queue = self._queue
        for stored in found:
            if not isinstance(stored, Rotten):
                self._take_up(stored)
            elif not stored.was_lost:
                queue.counters.rotten += 1
                self._journal.unreadable(stored)
        self._up.touch(queue)
        self.read_ahead()

    def _read_again_later(self, error: StoreError) -> None:
        """Nothing is wrong with the data: it stays where it is, and is asked for again."""
        log.warning("queue %s: %s; trying again", self._queue.name, error)
        self._up.look_at(self._up.now_ms() + RETRY_MS, self._queue)

    def _take_up(self, stored: StoredMessage) -> None:
        queue = self._queue
        message = Message.restored(stored)
        message.time_ms += self._up.moved(stored.id)
        if stored.id <= self._recovered_to and not message.scan.persistent:
            self._journal.settled(EventKind.DROPPED, [stored.id])
            return
        entry = Entry(message, redelivered=self.was_delivered(stored.id))
        entry.expires_ms = deadline(queue.options, message)
        entry.returns = self.attempts.pop(entry.id, 0)
        if is_worn(queue.options, entry):
            queue.burial.bury(queue, [entry], EventKind.DROPPED, DeathReason.DELIVERY_LIMIT)
            return
        queue.ready.append(entry)
        queue.ready_bytes += message.body_size
