"""A classic queue: first in, first out, competing consumers, settled one by one.

Order is by message id: `ready` (with content), then the `backlog` (ids of what is on disk only).
Everything delivered and not settled is in `unacked`. A message is in exactly one of the three.
A durable queue writes what happens to its journal; after a crash the journal gives back exactly
what was enqueued and not settled. Event-loop thread only.
"""

from __future__ import annotations

import asyncio
import heapq
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice

from leveret.model.errors import AccessRefused
from leveret.model.history import EventKind, Keep
from leveret.model.message import Address, Message
from leveret.model.store import Live, Rotten, StoredMessage
from queues.backlog import Backlog
from queues.counters import QueueCounters
from queues.entry import Entry, Outcome
from queues.journal import Journal
from queues.port import Consumer, Enqueued, HeldQueue
from queues.rota import Rota
from queues.spec import QueueSpec

READ_AHEAD = 2_000
READ_AHEAD_BYTES = 4 * 1024 * 1024
SLICE_BYTES = 128 * 1024
_NOTHING = Live(array("Q"), array("I"))


class ClassicQueue:
    def __init__(
        self,
        spec: QueueSpec,
        queue_id: int,
        touch: Callable[[HeldQueue], None],
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
        self.ready: deque[Entry] = deque()
        self.ready_bytes = 0
        self.unacked: dict[int, Entry] = {}
        self.backlog = Backlog()
        self.had_consumers = False
        self.counters = QueueCounters()
        self._touch = touch
        self._window = window
        self._window_bytes = window_bytes
        self._rota = Rota()
        self._exclusive: Consumer | None = None
        self._recovered_to = 0
        self._delivered_to = 0
        self._loading: asyncio.Task[None] | None = None
        self._loading_part = _NOTHING
        self._waiting_for_head: list[Callable[[], None]] = []
        self.closed = False

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
        return len(self.ready) + len(self.backlog) + len(self._loading_part.ids)

    @property
    def unacked_count(self) -> int:
        return len(self.unacked)

    @property
    def consumers(self) -> Sequence[Consumer]:
        return list(self._rota)

    @property
    def message_bytes(self) -> int:
        return self.ready_bytes + self.backlog.bytes + sum(self._loading_part.sizes)

    # In ----------------------------------------------------------------------------------------

    def enqueue(self, message: Message) -> Enqueued:
        size = message.body_size
        self.counters.published += 1
        if self.journal is not None:
            full = len(self.ready) >= self._window or self.ready_bytes >= self._window_bytes
            if full or self.backlog or self._loading is not None:
                self.journal.enqueued(message)
                self.backlog.append(message.id, size)
                return Enqueued.TAKEN
            if message.scan.persistent:
                self.journal.enqueued(message)
            else:
                self.journal.passed_through(message)
        self.ready.append(Entry(message))
        self.ready_bytes += size
        return Enqueued.TAKEN

    # Out ---------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        self.touched = False
        if self._waiting_for_head and self.ready:
            self._tell_head_waiters()
        if not self._rota:
            return
        while self.ready:
            takers = self._rota.takers()
            if not takers or not self._may_deliver():
                break
            if len(takers) == 1:
                self._serve_one(*takers[0])
            elif any(consumer.shares_credit for consumer, _ in takers):
                self._serve_one(takers[0][0], 1)
                self._rota.served(takers[0][0])
            else:
                self._serve_in_turn(takers)
        self._read_ahead()

    def _may_deliver(self) -> bool:
        """Durable queues deliver only what the lease covers, and renew it ahead of need."""
        journal = self.journal
        if journal is None:
            return True
        journal.extend_lease(self.ready[-1].id, self._lease_granted)
        return self.ready[0].id <= journal.lease

    def _lease_granted(self) -> None:
        self._touch(self)

    def _serve_one(self, consumer: Consumer, credit: int) -> None:
        ready, limit = self.ready, self._lease_limit()
        entries: list[Entry] = []
        room = SLICE_BYTES
        while credit and ready and room > 0 and ready[0].id <= limit:
            entry = ready.popleft()
            room -= entry.message.body_size
            entries.append(entry)
            credit -= 1
        self._hand_over(consumer, entries)

    def _serve_in_turn(self, takers: list[tuple[Consumer, int]]) -> None:
        ready, limit = self.ready, self._lease_limit()
        shares: list[list[Entry]] = [[] for _ in takers]
        credits = [credit for _, credit in takers]
        room = SLICE_BYTES
        turn, idle = 0, 0
        last = takers[0][0]
        while ready and room > 0 and idle < len(takers) and ready[0].id <= limit:
            if credits[turn]:
                entry = ready.popleft()
                room -= entry.message.body_size
                shares[turn].append(entry)
                credits[turn] -= 1
                last, idle = takers[turn][0], 0
            else:
                idle += 1
            turn = (turn + 1) % len(takers)
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

    def _leave_ready(self, entries: Sequence[Entry], no_ack: bool, actor: int) -> None:
        self.ready_bytes -= sum([entry.message.body_size for entry in entries])
        if not no_ack:
            unacked = self.unacked
            for entry in entries:
                unacked[entry.id] = entry
        elif self.journal is not None:
            self.journal.settled(EventKind.ACKED, _stored_ids(entries), actor)

    def take(self, actor: int, no_ack: bool) -> Entry | None:
        if not self.ready:
            self._read_ahead()
            return None
        if not self._may_deliver():
            return None
        entry = self.ready.popleft()
        if self.journal is not None:
            self.journal.got(entry, actor)
        self._leave_ready([entry], no_ack, actor)
        self.counters.got(entry, no_ack)
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
        if outcome is Outcome.REQUEUE:
            self._requeue(held, actor)
            return
        if outcome is Outcome.ACK:
            self.counters.acked += len(held)
        if self.journal is not None:
            self.journal.settled(outcome.value, _stored_ids(held), actor)

    def _requeue(self, entries: list[Entry], actor: int) -> None:
        for entry in entries:
            entry.redelivered = True
        self.ready_bytes += sum([entry.message.body_size for entry in entries])
        if self.journal is not None:
            self.journal.requeued(_stored_ids(entries), actor)
        entries.sort(key=_by_id)
        ready = self.ready
        while entries and (not ready or entries[-1].id < ready[0].id):
            ready.appendleft(entries.pop())
        if entries:
            self.ready = deque(heapq.merge(entries, ready, key=_by_id))
        self._touch(self)

    def purge(self) -> int:
        gone = self.ready_count
        ids = array("Q", _stored_ids(self.ready))
        ids.extend(self._stop_loading().ids)
        ids.extend(self.backlog.clear())
        self.ready.clear()
        self.ready_bytes = 0
        if self.journal is not None:
            self.journal.settled(EventKind.PURGED, ids)
        return gone

    def close(self, deleted: bool) -> int:
        gone = self.ready_count
        self.closed = True
        if deleted:
            if self.journal is not None:
                held = [*_stored_ids(self.unacked.values()), *_stored_ids(self.ready)]
                held += [*self._loading_part.ids, *self.backlog.part().ids]
                self.journal.settled(EventKind.QUEUE_DELETED, held)
            self._stop_loading()
            for consumer in list(self._rota):
                self._rota.remove(consumer)
                consumer.cancelled()
            self.ready.clear()
            self.unacked.clear()
            self.backlog.clear()
        elif self.journal is not None:
            self.journal.close(self.live())
            self._stop_loading()
        return gone

    def live(self) -> Live:
        """Every message a restart must bring back, unacknowledged ones included, by id."""
        held = [*self.unacked.values(), *self.ready]
        entries = sorted((entry for entry in held if entry.message.scan.persistent), key=_by_id)
        ids = array("Q", [entry.id for entry in entries])
        sizes = array("I", [entry.message.body_size for entry in entries])
        for part in (self._loading_part, self.backlog.part()):
            ids.extend(part.ids)
            sizes.extend(part.sizes)
        return Live(ids, sizes)

    def peek(self, offset: int, count: int) -> tuple[list[Entry], array[int]]:
        """What is held from place `offset` on, unacknowledged first: entries in memory, then the
        ids of what is on disk only."""
        unacked = sorted(self.unacked.values(), key=_by_id)
        entries = list(islice(chain(unacked, self.ready), offset, offset + count))
        if len(entries) == count:
            return entries, array("Q")
        start = max(0, offset - len(unacked) - len(self.ready))
        on_disk = self._loading_part.ids + self.backlog.part().ids
        return entries, on_disk[start : start + count - len(entries)]

    def was_delivered(self, message_id: int) -> bool:
        """Whether a message that is on disk only would come back as redelivered."""
        return message_id <= self._delivered_to

    def snapshot(self) -> None:
        """Write down all that is held, so that a restart need not look further back."""
        if self.journal is not None:
            self.journal.snapshot(self.live())

    # Consumers ---------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        if self._exclusive is not None or (consumer.exclusive and len(self._rota)):
            raise AccessRefused("in exclusive use")
        if consumer.exclusive:
            self._exclusive = consumer
        self._rota.add(consumer)
        self.had_consumers = True
        self._touch(self)

    def remove_consumer(self, consumer: Consumer) -> None:
        if consumer is self._exclusive:
            self._exclusive = None
        if any(consumer is one for one in self._rota):
            self._rota.remove(consumer)

    # Disk --------------------------------------------------------------------------------------

    def recover(self, parts: Iterable[Live], last_id: int) -> None:
        """Take up what the journal says this queue held."""
        for live in parts:
            self.backlog.extend(live.ids, live.sizes)
        self._recovered_to = last_id
        if self.journal is not None:
            self._delivered_to = self.journal.delivered_to
        self._read_ahead()

    def _read_ahead(self) -> None:
        if not self.backlog or self._loading is not None or self.journal is None:
            return
        if len(self.ready) > self._window // 2 or self.ready_bytes > self._window_bytes // 2:
            return
        self._loading_part = self.backlog.take(READ_AHEAD, READ_AHEAD_BYTES)
        load = self._load(self._loading_part.ids)
        self._loading = asyncio.get_running_loop().create_task(load)

    def _stop_loading(self) -> Live:
        """Give up reading ahead; what was being read."""
        part, self._loading_part = self._loading_part, _NOTHING
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        return part

    async def _load(self, ids: Sequence[int]) -> None:
        assert self.journal is not None
        found = await self.journal.load(ids)
        self._loading, self._loading_part = None, _NOTHING
        for stored in found:
            if isinstance(stored, Rotten):
                self.counters.rotten += 1
                self.journal.unreadable(stored)
            else:
                self._take_up(stored)
        self._touch(self)
        self._read_ahead()

    def _take_up(self, stored: StoredMessage) -> None:
        message = Message.build(
            Address.of(stored.exchange, stored.routing_key), stored.properties, stored.body
        )
        message.id, message.time_ms = stored.id, stored.time_ms
        message.origin, message.stored = stored.origin, True
        if stored.id <= self._recovered_to and not message.scan.persistent:
            assert self.journal is not None
            self.journal.settled(EventKind.DROPPED, [stored.id])
            return
        self.ready.append(Entry(message, redelivered=stored.id <= self._delivered_to))
        self.ready_bytes += message.body_size


def _by_id(entry: Entry) -> int:
    return entry.id


def _stored_ids(entries: Iterable[Entry]) -> list[int]:
    return [entry.id for entry in entries if entry.message.stored]
