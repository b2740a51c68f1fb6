"""One durable queue's line to the store.

What enters and leaves the queue is recorded in the batch that is being filled, so it becomes
durable together with everything else of that batch. Deliveries never run past the *lease*: a
message id saved beforehand, so that after a crash everything that may have been delivered comes
back marked as redelivered, and nothing else does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from leveret.model.history import EventKind, Keep
from leveret.model.message import Message
from leveret.model.store import (
    Live,
    NewMessageTuple,
    QueueDefinition,
    Rotten,
    Snapshot,
    Store,
    StoredMessage,
    StoreState,
)
from queues.entry import Entry

log = logging.getLogger("leveret.queues")

LEASE_STEP = 200_000
LEASE_MARGIN = 50_000

Call = Callable[[], None]
AfterCommit = Callable[[int, Call, Call | None], None]


def write_content(store: Store, message: Message) -> None:
    """Content joins the batch, once per message however many queues it goes to."""
    store.append(_row(message))
    if message.keep is not Keep.NOTHING:
        store.record(EventKind.PUBLISHED, 0, message.id, message.origin)


def _row(message: Message) -> NewMessageTuple:
    message.stored = True
    address = message.address
    return (
        message.id,
        message.time_ms,
        message.origin,
        address.exchange,
        address.routing_key,
        message.properties,
        message.body,
        message.keep,
    )


class Journal:
    """`keep` is how much history wants: nothing, metadata or everything.

    `counts_attempts`: a delivery limit needs every hand-out, whatever history wants.
    """

    def __init__(
        self,
        store: Store,
        definition: QueueDefinition,
        after_commit: AfterCommit,
        keep: Keep,
    ) -> None:
        self._store = store
        self._after_commit = after_commit
        self.definition = definition
        self.queue_id = definition.id
        self.keep = keep
        self.counts_attempts = False
        self.lease = definition.delivered_to
        self._asked = definition.delivered_to
        self.delivered_to = definition.delivered_to
        self._dirty = False

    def enqueued(self, message: Message) -> None:
        """It will be there after a restart."""
        self._dirty = True
        if not message.stored:
            write_content(self._store, message)
        self._store.record(
            EventKind.ENQUEUED, self.queue_id, message.id, message.origin, None, message.body_size
        )

    def enqueued_run(self, messages: list[Message], sizes: list[int]) -> None:
        """`enqueued` for messages of one publisher that went the same way."""
        self._dirty = True
        store, origin = self._store, messages[0].origin
        ids = [message.id for message in messages]
        fresh = [message for message in messages if not message.stored]
        if fresh:
            store.append(*[_row(message) for message in fresh])
            if fresh[0].keep is not Keep.NOTHING:
                new = ids if len(fresh) == len(ids) else [message.id for message in fresh]
                store.record_many(EventKind.PUBLISHED, 0, new, origin)
        store.record_many(EventKind.ENQUEUED, self.queue_id, ids, origin, None, sizes)

    def passed_through(self, message: Message) -> None:
        """It lives in memory only, but history wants to know."""
        if self.keep is Keep.NOTHING:
            return
        if not message.stored:
            write_content(self._store, message)
        self._store.record(
            EventKind.ENQUEUED_TRANSIENT,
            self.queue_id,
            message.id,
            message.origin,
            None,
            message.body_size,
        )

    def settled(
        self, kind: EventKind, ids: Sequence[int], actor: int = 0, detail: str | None = None
    ) -> None:
        if ids:
            self._dirty = True
            self._store.record_many(kind, self.queue_id, ids, actor, detail)

    def delivered(self, entries: Sequence[Entry], actor: int) -> None:
        last = max([entry.id for entry in entries])  # a priority queue's are not in order
        if last > self.delivered_to:
            self.delivered_to = last
        if self.keep is Keep.NOTHING and not self.counts_attempts:
            return
        fresh = [entry.id for entry in entries if not entry.redelivered and entry.message.stored]
        again = [entry for entry in entries if entry.redelivered and entry.message.stored]
        if fresh:
            self._store.record_many(EventKind.DELIVERED, self.queue_id, fresh, actor)
        if again:
            self._delivered_again(again, actor)

    def _delivered_again(self, entries: Sequence[Entry], actor: int) -> None:
        by_number: dict[str | None, list[int]] = {}
        for entry in entries:
            number = str(entry.returns + 1) if self.counts_attempts else None
            by_number.setdefault(number, []).append(entry.id)
        for number, ids in by_number.items():
            self._store.record_many(EventKind.REDELIVERED, self.queue_id, ids, actor, number)

    def got(self, entry: Entry, actor: int) -> None:
        if entry.id > self.delivered_to:
            self.delivered_to = entry.id
        counts = self.counts_attempts
        if entry.message.stored and (counts or self.keep is not Keep.NOTHING):
            number = str(entry.returns + 1) if counts else None
            self._store.record(EventKind.GOT, self.queue_id, entry.id, actor, number)

    def requeued(self, ids: Sequence[int], actor: int) -> None:
        if ids and self.keep is not Keep.NOTHING:
            self._store.record_many(EventKind.REQUEUED, self.queue_id, ids, actor)

    def prepare_lease(self, granted: Callable[[], None]) -> None:
        """Somebody will want deliveries: the first one should not have to wait."""
        self.extend_lease(next(self._store.ids), granted)

    def extend_lease(self, newest: int, granted: Callable[[], None]) -> None:
        """Ask for the right to deliver up to well past `newest`; `granted` when it is durable."""
        if newest + LEASE_MARGIN <= self._asked:
            return
        asked = self._asked = newest + LEASE_STEP
        self._store.save(replace(self.definition, delivered_to=asked))
        self._wait_for_lease(asked, granted)

    def _wait_for_lease(self, asked: int, granted: Callable[[], None]) -> None:
        def grant() -> None:
            self.lease = asked
            granted()

        def ask_again() -> None:
            # After a full disk the request is part of the next batch; a failed store has none,
            # and who waits has to look again.
            if self._store.state is StoreState.FAILED:
                granted()
            else:
                self._wait_for_lease(asked, granted)

        self._after_commit(self._store.mark, grant, ask_again)

    async def load(self, ids: Sequence[int]) -> list[StoredMessage | Rotten]:
        """Content from disk; what was enqueued a moment ago has to get there first."""
        await self._until_committed()
        return await self._store.load(ids)

    async def _until_committed(self) -> None:
        decided = asyncio.Event()
        self._after_commit(self._store.mark, decided.set, None)
        await decided.wait()

    def unreadable(self, rotten: Rotten) -> None:
        """Content that came back damaged is never delivered; the record says so."""
        log.error("queue %s: message %d: %s", self.definition.name, rotten.id, rotten.reason)
        self._store.record_many(
            EventKind.DROPPED, self.queue_id, [rotten.id], 0, f"unreadable: {rotten.reason}"
        )

    def snapshot(self, live: Live, attempts: tuple[Live, ...] = ()) -> None:
        trim = self.keep is Keep.NOTHING
        self._store.save(Snapshot(self.queue_id, (live, *attempts), trim))

    def close(self, live: Live, attempts: tuple[Live, ...] = ()) -> None:
        """A clean stop knows exactly what was delivered, and what is held."""
        if self._asked != self.delivered_to:
            self._store.save(replace(self.definition, delivered_to=self.delivered_to))
        if self._dirty:
            self.snapshot(live, attempts)
