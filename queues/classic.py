"""A classic queue: first in, first out, competing consumers, settled one by one.

Order is by message id: `ready` (with content), then the `backlog` (ids of what is on disk only).
Everything delivered and not settled is in `unacked`. A message is in exactly one of the three.
A durable queue writes what happens to its journal; after a crash the journal gives back exactly
what was enqueued and not settled. Event-loop thread only.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from leveret.model.errors import AccessRefused
from leveret.model.history import EventKind, Keep
from leveret.model.message import Message
from leveret.model.store import Live
from queues.attempts import attempts_of, tell_returns, worn
from queues.backlog import Backlog
from queues.burial import Burial, stored_ids
from queues.counters import QueueCounters
from queues.dedup import Deduplication
from queues.entry import Entry, Outcome
from queues.journal import Journal
from queues.limits import deadline, is_past, overdue, refuses, surplus
from queues.options import Overflow, options_of
from queues.paging import Paging
from queues.port import Consumer, DeathReason, Enqueued, Tap, Upward
from queues.ready import Ready, by_id, make_ready, put_back
from queues.rota import Rota
from queues.shares import share, share_out
from queues.spec import QueueSpec

HANDED_OUT_AT_ONCE = 1000
"""More wait for the next turn: a millisecond or two of work."""


class ClassicQueue:
    def __init__(
        self,
        spec: QueueSpec,
        queue_id: int,
        upward: Upward,
        journal: Journal | None = None,
        window: int = 20_000,
        window_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.id = queue_id
        self.journal = journal
        self.owner: object | None = None
        self.touched = False
        self.options = options_of(spec.arguments, {})
        self.ready: Ready = make_ready(self.options.max_priority)
        self.ready_bytes = 0
        self.unacked: dict[int, Entry] = {}
        self.unacked_bytes = 0
        self.burial = Burial(upward)
        self.dedup: Deduplication | None = None
        self.tap: Tap | None = None
        self.backlog = Backlog()
        self.paging = Paging(self, upward, journal) if journal is not None else None
        self.had_consumers = False
        self.counters = QueueCounters()
        self._up = upward
        self._plain = self.options.is_plain
        self._last_used_ms = upward.now_ms()
        # By priority, only a queue that has everything at hand knows what comes next.
        in_memory = self.options.max_priority is not None
        self._window = sys.maxsize if in_memory else window
        self._window_bytes = sys.maxsize if in_memory else window_bytes
        self._rota = Rota()
        self._is_handing_out = False
        self._exclusive: Consumer | None = None
        self._waiting_for_head: list[Callable[[], None]] = []
        self.closed = False
        self._tell_journal()

    def __repr__(self) -> str:
        return (
            f"<ClassicQueue {self.name!r} ready={self.ready_count} "
            f"unacked={len(self.unacked)} consumers={len(self._rota)}>"
        )

    @property
    def keep(self) -> Keep:
        return self.journal.keep if self.journal is not None else Keep.NOTHING

    @property
    def ready_count(self) -> int:
        return len(self.ready) + len(self.backlog)

    @property
    def unacked_count(self) -> int:
        return len(self.unacked)

    @property
    def is_held_back(self) -> bool:
        """Whether polling gives nothing although something is ready."""
        return self.burial.is_blocked or (self.options.single_active and len(self._rota) > 0)

    @property
    def has_plenty(self) -> bool:
        """Whether so much content is at hand that none need be read."""
        return len(self.ready) > self._window // 2 or self.ready_bytes > self._window_bytes // 2

    @property
    def consumers(self) -> Collection[Consumer]:
        return self._rota

    @property
    def active_consumer(self) -> Consumer | None:
        """Who gets everything, where only one consumer gets anything."""
        return self._rota.active if self.options.single_active else None

    @property
    def message_bytes(self) -> int:
        return self.ready_bytes + self.backlog.bytes

    # In ----------------------------------------------------------------------------------------

    def enqueue(self, message: Message) -> Enqueued:
        self.counters.published += 1
        if self._plain and message.scan.expiration is None:
            self._admit(message, 0)
            return Enqueued.TAKEN
        if self.dedup is not None and self.dedup.is_repeated(message):
            return Enqueued.WAITING
        if refuses(self, message) and self._still_refuses(message):
            if self.options.overflow is Overflow.REJECT_PUBLISH_DLX:
                self._up.republish(self, [message], DeathReason.MAXLEN)
            return Enqueued.REJECTED
        self._admit(message, deadline(self.options, message))
        if self.dedup is not None:
            self.dedup.remember(message)
        # What consumers can take is no surplus, and a burial may fill another queue that buries:
        # both are seen to at the end of the turn.
        if not self._rota and self.options.dead_letter_exchange is None:
            self._trim()
        return Enqueued.TAKEN

    def _still_refuses(self, message: Message) -> bool:
        """After consumers have taken what they can."""
        if self._rota and not self._is_handing_out:
            self._hand_out()
        return refuses(self, message)

    def enqueue_run(self, messages: list[Message]) -> bool:
        """`enqueue` for several messages at once, none of which expires.

        False: nothing was done, take them one by one.
        """
        if not self._plain:
            return False
        sizes = [message.body_size for message in messages]
        journal = self.journal
        if journal is not None:
            full = len(self.ready) >= self._window or self.ready_bytes >= self._window_bytes
            if full or self.backlog:
                journal.enqueued_run(messages, sizes)
                ids = array("Q", [message.id for message in messages])
                self.backlog.extend(Live(ids, array("I", sizes)))
                self.counters.published += len(messages)
                return True
            persistent = [message.scan.persistent for message in messages]
            if all(persistent):
                journal.enqueued_run(messages, sizes)
            elif any(persistent):
                return False
            else:
                for message in messages:
                    journal.passed_through(message)
        self.counters.published += len(messages)
        self.ready.extend([Entry(message) for message in messages])
        self.ready_bytes += sum(sizes)
        return True

    def _admit(self, message: Message, expires_ms: int) -> None:
        size = message.body_size
        if self.journal is not None:
            full = len(self.ready) >= self._window or self.ready_bytes >= self._window_bytes
            if full or self.backlog:
                self.journal.enqueued(message)
                self.backlog.append(message.id, size)
                return
            if message.scan.persistent:
                self.journal.enqueued(message)
            else:
                self.journal.passed_through(message)
        entry = Entry(message)
        entry.expires_ms = expires_ms
        self.ready.append(entry)
        self.ready_bytes += size

    def _make_room(self, most: int = sys.maxsize) -> None:
        """Consumers take what they can, but so many at most; what is too much then goes."""
        if not self._rota or self._hand_out(most):
            self._trim()

    def _trim(self) -> None:
        """Where too much is held, what came first goes first."""
        entries = surplus(self)
        if entries:
            self.burial.bury(self, entries, EventKind.DROPPED, DeathReason.MAXLEN)

    def _expire(self) -> bool:
        """Bury what has expired at the head; whether what stands there now may be handed out."""
        now, burial = self._up.now_ms(), self.burial
        if not burial.is_blocked:
            expired = overdue(self, now)
            if expired:
                burial.bury(self, expired, EventKind.EXPIRED, DeathReason.EXPIRED)
        if not self.ready or not self.ready[0].expires_ms:
            return True
        due = self.ready[0].expires_ms
        self._up.look_at(burial.retry_ms if burial.is_blocked else due, self)
        return due > now

    def govern(self, policy: Mapping[str, Any]) -> None:
        """The policy of this queue is this from now on."""
        self.options = options_of(self.spec.arguments, policy)
        self._plain = self.options.is_plain
        self._tell_journal()
        self.used()
        self._up.touch(self)

    def _tell_journal(self) -> None:
        if self.journal is not None:
            self.journal.counts_attempts = self.options.counts_returns

    def asked_for(self) -> None:
        """Somebody names this queue: what was published before must have had its effect."""
        self.used()
        if self.options.has_length_limit:
            self._make_room()

    def used(self) -> None:
        """Somebody declared, polled or consumed: the queue's own expiry starts anew."""
        if self.options.expires is not None:
            self._last_used_ms = self._up.now_ms()
            self._up.look_at(self._last_used_ms + self.options.expires, self)

    def _retire_if_unused(self) -> bool:
        expires = self.options.expires
        if expires is None or self._rota or self.closed:
            return False
        due = self._last_used_ms + expires
        if self._up.now_ms() < due:
            self._up.look_at(due, self)
            return False
        self._up.retire(self)
        return True

    # Out ---------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        self.touched = False
        if self.closed:
            return
        if self.burial.stuck:
            self.burial.retry(self)
        if self._waiting_for_head and (self.ready or not self.backlog):
            self._tell_head_waiters()
        self._rota.tidy()
        if not self._rota:
            if not self._retire_if_unused():
                self._expire()
                self._trim()
                self._read_ahead()
            return
        self._make_room(HANDED_OUT_AT_ONCE)
        if self.ready and self.ready[0].expires_ms:
            self._expire()
        self._read_ahead()

    def _read_ahead(self) -> None:
        if self.backlog and self.paging is not None:
            self.paging.read_ahead()

    def _hand_out(self, most: int = sys.maxsize) -> bool:
        """Give consumers what they can take; False while they wait for a lease or the next turn."""
        self._is_handing_out = True
        try:
            return self._serve_all(most)
        finally:
            self._is_handing_out = False

    def _serve_all(self, most: int) -> bool:
        single, stop = self.options.single_active, len(self.ready) - most
        while self.ready:
            if len(self.ready) <= stop:
                self._up.touch(self)
                return False
            if is_past(self.ready[0], self._up) and not self._expire():
                return True
            takers = self._rota.only_first() if single else self._rota.takers()
            if not takers or not self.ready:
                return True
            if not self._may_deliver():
                return False
            if len(takers) == 1:
                self._serve_one(*takers[0])
            elif any(consumer.shares_credit for consumer, _ in takers):
                self._serve_one(takers[0][0], 1)
                self._rota.served(takers[0][0])
            else:
                self._serve_in_turn(takers)
        return True

    def _may_deliver(self) -> bool:
        """Durable queues deliver only what the lease covers, and renew it ahead of need."""
        journal = self.journal
        if self.options.max_priority is not None and self.backlog:
            return False  # something more urgent may still be on disk
        if journal is None:
            return True
        journal.extend_lease(max(self.ready[-1].id, self.ready[0].id), self._lease_granted)
        return self.ready[0].id <= journal.lease

    def _lease_granted(self) -> None:
        self._up.touch(self)

    def _serve_one(self, consumer: Consumer, credit: int) -> None:
        self._hand_over(consumer, share(self.ready, credit, self._lease_limit()))

    def _serve_in_turn(self, takers: list[tuple[Consumer, int]]) -> None:
        shares, last = share_out(self.ready, takers, self._lease_limit())
        for (consumer, _), entries in zip(takers, shares, strict=True):
            if entries:
                self._hand_over(consumer, entries)
        self._rota.served(last)

    def _lease_limit(self) -> int:
        return self.journal.lease if self.journal is not None else 1 << 63

    def _hand_over(self, consumer: Consumer, entries: list[Entry]) -> None:
        if self.journal is not None:
            self.journal.delivered(entries, consumer.actor)
        self._leave_ready(entries, consumer.no_ack, consumer.actor)
        self.counters.delivered(entries, consumer.no_ack)
        consumer.deliver(self, entries)
        if self.tap is not None:
            self.tap(self, entries, consumer)

    def _leave_ready(self, entries: Sequence[Entry], no_ack: bool, actor: int) -> None:
        size = sum([entry.message.body_size for entry in entries])
        self.ready_bytes -= size
        if not no_ack:
            self.unacked_bytes += size
            unacked = self.unacked
            for entry in entries:
                unacked[entry.id] = entry
        elif self.journal is not None:
            self.journal.settled(EventKind.ACKED, stored_ids(entries), actor)

    def take(self, actor: int, no_ack: bool) -> Entry | None:
        self.used()
        may_take = self._expire()
        if self.options.single_active and self._rota:
            return None
        if not self.ready or not may_take:
            self._read_ahead()
            return None
        if not self._may_deliver():
            return None
        entry = self.ready.popleft()
        if self.options.is_quorum and not entry.returns:
            tell_returns(entry)  # RabbitMQ says 0 to who polls, and nothing yet to a consumer
        if self.journal is not None:
            self.journal.got(entry, actor)
        self._leave_ready([entry], no_ack, actor)
        self.counters.got(entry, no_ack)
        if self.tap is not None:
            self.tap(self, [entry], None)
        self._read_ahead()
        return entry

    def when_head(self, call: Callable[[], None]) -> None:
        self._waiting_for_head.append(call)

    def _tell_head_waiters(self) -> None:
        waiting, self._waiting_for_head = self._waiting_for_head, []
        for call in waiting:
            call()

    # Settled -----------------------------------------------------------------------------------

    def settle(self, entries: Sequence[Entry], outcome: Outcome, actor: int) -> None:
        unacked = self.unacked
        held = [entry for entry in entries if unacked.pop(entry.id, None) is not None]
        if not held or self.closed:
            return
        self.unacked_bytes -= sum([entry.message.body_size for entry in held])
        if outcome is Outcome.REQUEUE:
            self._requeue(held, actor)
            return
        if outcome is Outcome.ACK:
            self.counters.acked += len(held)
            if self.journal is not None:
                self.journal.settled(EventKind.ACKED, stored_ids(held), actor)
            return
        self.burial.bury(self, held, outcome.value, DeathReason.REJECTED, actor)

    def _requeue(self, entries: list[Entry], actor: int) -> None:
        worn_out = worn(self.options, entries)
        if worn_out:
            self.burial.bury(self, worn_out, EventKind.DROPPED, DeathReason.DELIVERY_LIMIT, actor)
            entries = [entry for entry in entries if entry not in worn_out]
        self.ready_bytes += sum([entry.message.body_size for entry in entries])
        if self.journal is not None:
            self.journal.requeued(stored_ids(entries), actor)
        self.ready = put_back(self.ready, entries)
        self._up.touch(self)

    def purge(self) -> int:
        stuck = self.burial.clear(self)
        gone = self.ready_count + len(stuck)
        ids = array("Q", stored_ids(chain(self.ready, stuck)))
        ids.extend(self.backlog.clear())
        self.ready.clear()
        self.ready_bytes = 0
        if self.journal is not None and self.paging is not None:
            self.paging.attempts.clear()
            self.journal.settled(EventKind.PURGED, ids)
        self._up.touch(self)
        return gone

    def close(self, deleted: bool) -> int:
        gone = self.ready_count
        self.closed = True
        if deleted:
            if self.journal is not None:
                held = [*stored_ids(self.unacked.values()), *stored_ids(self.ready)]
                held += self.backlog.part().ids
                self.journal.settled(EventKind.QUEUE_DELETED, held)
            for consumer in list(self._rota):
                self._rota.remove(consumer)
                consumer.cancelled()
            self.ready.clear()
            self.unacked.clear()
            self.unacked_bytes = 0
            self.backlog.clear()
            self._tell_head_waiters()
            self._exclusive = self.paging = None  # no circle: it is freed when it is let go of
        elif self.journal is not None:
            self.journal.close(self.live(), attempts_of(self))
            self.backlog.stop()
        return gone

    def live(self) -> Live:
        """Every message a restart must bring back, unacknowledged ones included, by id."""
        held = [*self.unacked.values(), *self.ready]
        entries = sorted((entry for entry in held if entry.message.scan.persistent), key=by_id)
        ids = array("Q", [entry.id for entry in entries])
        sizes = array("I", [entry.message.body_size for entry in entries])
        on_disk = self.backlog.part()
        ids.extend(on_disk.ids)
        sizes.extend(on_disk.sizes)
        return Live(ids, sizes)

    def peek(self, offset: int, count: int) -> tuple[list[Entry], array[int]]:
        """What is held from place `offset` on, unacknowledged first; ids alone where on disk."""
        unacked = sorted(self.unacked.values(), key=by_id)
        entries = list(islice(chain(unacked, self.ready), offset, offset + count))
        if len(entries) == count:
            return entries, array("Q")
        start = max(0, offset - len(unacked) - len(self.ready))
        on_disk = self.backlog.part().ids
        return entries, on_disk[start : start + count - len(entries)]

    def snapshot(self) -> None:
        """Write down all that is held, so that a restart need not look further back."""
        if self.journal is not None:
            self.journal.snapshot(self.live(), attempts_of(self))

    # Consumers ---------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        alone = consumer.exclusive and (len(self._rota) or self.options.single_active)
        if self._exclusive is not None or alone:
            raise AccessRefused("in exclusive use")
        if consumer.exclusive:
            self._exclusive = consumer
        self._rota.add(consumer)
        self.had_consumers = True
        if self.journal is not None:
            self.journal.prepare_lease(self._lease_granted)
        self._up.touch(self)

    def remove_consumer(self, consumer: Consumer) -> None:
        if consumer is self._exclusive:
            self._exclusive = None
        if consumer in self._rota:
            self._rota.remove(consumer)
            self.used()
            self._up.touch(self)
