"""Delayed messages: each waits at its exchange until it is due, then goes on as if published then.

Per exchange with delayed messages there is a hidden queue in the store. Its ENQUEUED events carry
the due time as `detail`, and behind it the keys of blind copies, which the stored message does not
show; so the schedule survives a crash, and the event that releases a message is
in the same batch as the message that goes on. In memory a scheduled message is one number; content
is read when it is due. Due times are rounded up to 10 ms, so that messages of one moment share a
row. Event-loop thread only.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import logging
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from exchange import Exchange, TooManySteps
from exchange.stations import DELAY_HEADER, delay_of
from leveret.broker.judging import open_copies
from leveret.model.history import EventKind, Keep
from leveret.model.message import Message
from leveret.model.properties import edit_headers
from leveret.model.store import (
    Indispensable,
    Live,
    QueueDefinition,
    Rotten,
    Snapshot,
    StoredMessage,
    StoreError,
)
from leveret.model.tables import Table
from queues import Enqueued, Target
from queues.counters import QueueCounters
from queues.journal import write_content

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

log = logging.getLogger("leveret.broker")

KIND = "delayed"
TICK_MS = 10
AT_ONCE = 1_000
RETRY_MS = 1_000
PUT_OFF_MS = 60_000
_OCTETS_EACH = 60
_SIZE_BITS, _ID_BITS = 32, 56
_ID_MASK, _SIZE_MASK = (1 << _ID_BITS) - 1, (1 << _SIZE_BITS) - 1


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A message that waits at its exchange."""

    due_ms: int
    message: StoredMessage


def _pack(due_ms: int, message_id: int, size: int) -> int:
    return (due_ms << _ID_BITS | message_id) << _SIZE_BITS | size


def _due(packed: int) -> int:
    return packed >> (_ID_BITS + _SIZE_BITS)


def _id(packed: int) -> int:
    return packed >> _SIZE_BITS & _ID_MASK


class DelayQueue:
    """What waits at one exchange, soonest first. Stands in a plan as a target."""

    def __init__(
        self, broker: Broker, vhost: VirtualHost, exchange: Exchange, definition: QueueDefinition
    ) -> None:
        self.name = definition.name
        self.id = definition.id
        self.touched = False
        self.closed = False
        self.counters = QueueCounters()
        self.exchange = exchange
        self._broker = broker
        self._vhost = vhost
        self._definition = definition
        self._heap: list[int] = []
        self._releasing: list[int] = []
        self._blind: dict[int, str] = {}  # keys of blind copies, JSON, of the few that have any
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<DelayQueue {self.exchange.name!r} scheduled={len(self)}>"

    def __len__(self) -> int:
        return len(self._heap) + len(self._releasing)

    @property
    def keep(self) -> Keep:
        return self._vhost.keep_unroutable

    @property
    def held_bytes(self) -> int:
        """What the schedule takes in memory, roughly."""
        return _OCTETS_EACH * len(self) + sum(map(len, self._blind.values()))

    # In ----------------------------------------------------------------------------------------

    def enqueue(self, message: Message) -> Enqueued:
        return self.schedule(message, ())

    def schedule(self, message: Message, keys: Sequence[str]) -> Enqueued:
        """Keep it until it is due; `keys` are all it was routed by, blind copies among them."""
        headers = message.headers()
        due = message.time_ms + delay_of(headers)
        due += -due % TICK_MS
        shown = (message.routing_key, *open_copies(headers))
        blind = [key for key in keys if key not in shown]
        if blind:
            self._blind[message.id] = json.dumps(blind)
        store = self._broker.store
        if not message.stored:
            write_content(store, message)
        size, detail = message.body_size, self._detail(due, message.id)
        store.record(EventKind.ENQUEUED, self.id, message.id, message.origin, detail, size)
        self.counters.published += 1
        if message.exchange == self.exchange.name:
            self.exchange.published_out -= 1  # routing has counted it, and it has not left yet
        heapq.heappush(self._heap, _pack(due, message.id, size))
        self._broker.deadlines.look_at(due, self)
        return Enqueued.WAITING

    def recover(self, parts: Iterable[Live]) -> None:
        for part in parts:
            due_text, _, blind = (part.detail or "0").partition(" ")
            due, moved = int(due_text), self._broker.clock_moves.of
            for message_id, size in zip(part.ids, part.sizes, strict=True):
                self._heap.append(_pack(due + moved(message_id), message_id, size))
            if blind:
                self._blind.update(dict.fromkeys(part.ids, blind))
        heapq.heapify(self._heap)
        if self._heap:
            self._broker.deadlines.look_at(_due(self._heap[0]), self)

    # Out ---------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        self.touched = False
        if self._task is not None or self.closed:
            return
        now, heap = self._broker.clock.wall_ms(), self._heap
        while heap and _due(heap[0]) <= now and len(self._releasing) < AT_ONCE:
            self._releasing.append(heapq.heappop(heap))
        if self._releasing:
            self._task = asyncio.get_running_loop().create_task(self._release())
        elif heap:
            self._broker.deadlines.look_at(_due(heap[0]), self)

    async def _release(self) -> None:
        try:
            found = await self._load([_id(packed) for packed in self._releasing])
        except StoreError as error:
            self._release_later(error)
            return
        going = {_id(packed): packed for packed in self._releasing}  # some may be cancelled
        moved = []
        for stored in found:
            if isinstance(stored, Rotten):
                log.error("delayed message %d is lost: %s", stored.id, stored.reason)
            elif stored.id in going:
                try:
                    moved.append(self._go_on(stored))
                except Exception:  # our bug, but it must not keep the others from going on
                    log.exception("delayed message %d cannot go on now", stored.id)
                    self._put_off(going.pop(stored.id))
        self._broker.store.save(Indispensable(moved))
        self._record(EventKind.RELEASED, sorted(going), f"due at '{self.exchange.name}'")
        self._releasing, self._task = [], None
        self._broker.turn.touch(self)

    def _put_off(self, packed: int) -> None:
        later = self._broker.clock.wall_ms() + PUT_OFF_MS
        heapq.heappush(self._heap, _pack(later, _id(packed), packed & _SIZE_MASK))

    def _release_later(self, error: StoreError) -> None:
        """Nothing is wrong with the data: it stays scheduled, and is read again."""
        log.warning("exchange %s: %s; trying again", self.exchange.name, error)
        for packed in self._releasing:
            heapq.heappush(self._heap, packed)
        self._releasing, self._task = [], None
        self._broker.deadlines.look_at(self._broker.clock.wall_ms() + RETRY_MS, self)

    async def _load(self, ids: Sequence[int]) -> list[StoredMessage | Rotten]:
        """What was scheduled a moment ago has to get to disk first."""
        broker, decided = self._broker, asyncio.Event()
        broker.turn.schedule()
        broker.commits.after(broker.store.mark, decided.set, decided.set)
        await decided.wait()
        return await broker.store.load(ids)

    def _go_on(self, stored: StoredMessage) -> int:
        """Route it on under a new id; the header is negative now, lest it waits again."""
        broker, exchange = self._broker, self.exchange
        held = Message.restored(stored)
        delay = -delay_of(held.headers())
        remove = frozenset({DELAY_HEADER})
        message = held.with_properties(edit_headers(held.properties, remove, {DELAY_HEADER: delay}))
        message.id, message.origin = next(broker.store.ids), stored.origin
        message.time_ms = broker.clock.wall_ms()
        headers = message.headers()
        keys = [stored.routing_key, *open_copies(headers), *self._blind_keys(stored.id)]
        queues = self._beyond(keys, headers)
        message.keep = max((queue.keep for queue in queues), default=Keep.NOTHING)
        exchange.published_out += len(queues)
        if not queues:
            broker.counters.dropped_unroutable += 1
        for queue in queues:
            queue.enqueue(message)
            broker.turn.touch(queue)
        broker.dead_letters.aftermath.mark(stored.id, message.id, queues)
        return message.id

    def _beyond(self, keys: list[str], headers: Table) -> list[Target]:
        try:
            return self._vhost.beyond(self.exchange, keys, headers)
        except TooManySteps:  # it is not lost for its copies
            return self._vhost.beyond(self.exchange, keys[:1], headers)

    def _detail(self, due: int, message_id: int) -> str:
        blind = self._blind.get(message_id)
        return str(due) if blind is None else f"{due} {blind}"

    def _blind_keys(self, message_id: int) -> list[str]:
        keys: list[str] = json.loads(self._blind.get(message_id, "[]"))
        return keys

    def _record(self, kind: EventKind, ids: Sequence[int], detail: str) -> None:
        """What happened to messages that wait here no longer."""
        for message_id in ids if self._blind else ():
            self._blind.pop(message_id, None)
        self._broker.store.record_many(kind, self.id, ids, 0, detail)
        self._broker.turn.schedule()

    # Looking and cancelling --------------------------------------------------------------------

    async def scheduled(self, offset: int, count: int) -> list[Scheduled]:
        """What waits, soonest first, from place `offset` on."""
        chosen = sorted([*self._releasing, *self._heap])[offset : offset + count]
        due = {_id(packed): _due(packed) for packed in chosen}
        found = await self._load(list(due))
        return [Scheduled(due[one.id], one) for one in found if isinstance(one, StoredMessage)]

    def cancel(self, message_id: int) -> bool:
        """Take a message off the schedule; false when it is not there (any more)."""
        for held in (self._releasing, self._heap):
            left = [packed for packed in held if _id(packed) != message_id]
            if len(left) < len(held):
                held[:] = left
                heapq.heapify(self._heap)
                self._record(EventKind.DROPPED, [message_id], "cancelled")
                return True
        return False

    # Disk --------------------------------------------------------------------------------------

    def live(self) -> list[Live]:
        """All that waits, one part per due time."""
        parts: dict[str, tuple[array[int], array[int]]] = {}
        moved = self._broker.clock_moves.of  # as it was written down at first
        for packed in sorted([*self._releasing, *self._heap]):
            due = _due(packed) - moved(_id(packed))
            detail = self._detail(due, _id(packed))
            ids, sizes = parts.setdefault(detail, (array("Q"), array("I")))
            ids.append(_id(packed))
            sizes.append(packed & _SIZE_MASK)
        return [Live(ids, sizes, detail) for detail, (ids, sizes) in parts.items()]

    def snapshot(self) -> None:
        trim = self.keep is Keep.NOTHING
        self._broker.store.save(Snapshot(self.id, tuple(self.live()), trim))

    def purge(self) -> int:
        gone = [_id(packed) for packed in (*self._releasing, *self._heap)]
        self._releasing.clear()
        self._heap.clear()
        self._record(EventKind.PURGED, gone, "purged")
        return len(gone)

    def close(self, deleted: bool) -> int:
        self.closed = True
        gone = len(self)
        if self._task is not None:
            self._task.cancel()
        if deleted:
            ids = [_id(packed) for packed in (*self._releasing, *self._heap)]
            self._record(EventKind.QUEUE_DELETED, ids, "exchange deleted")
            self._broker.store.delete(self._definition)
            self._releasing.clear()
            self._heap.clear()
        return gone


class Delays:
    """The delay queues of all exchanges, each made when it is first needed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.by_exchange: dict[Exchange, DelayQueue] = {}

    def of(self, vhost: VirtualHost, exchange: Exchange) -> DelayQueue:
        found = self.by_exchange.get(exchange)
        if found is None:
            definition = QueueDefinition(
                id=next(self._broker.queue_ids),
                vhost=vhost.name,
                name=f"{exchange.name} (delayed)",
                kind=KIND,
                arguments=json.dumps({"exchange": exchange.name}),
                created_ms=self._broker.clock.wall_ms(),
            )
            self._broker.store.save(definition)
            found = DelayQueue(self._broker, vhost, exchange, definition)
            self.by_exchange[exchange] = found
        return found

    def recover(
        self, vhost: VirtualHost, definition: QueueDefinition, parts: Iterable[Live]
    ) -> None:
        exchange = vhost.exchanges.get(json.loads(definition.arguments)["exchange"])
        if exchange is None:  # it was not durable, and neither is its schedule
            ids = [message_id for part in parts for message_id in part.ids]
            self._broker.store.record_many(EventKind.QUEUE_DELETED, definition.id, ids)
            self._broker.store.delete(definition)
            return
        queue = DelayQueue(self._broker, vhost, exchange, definition)
        self.by_exchange[exchange] = queue
        queue.recover(parts)

    def gone(self, exchange: Exchange) -> None:
        queue = self.by_exchange.pop(exchange, None)
        if queue is not None:
            self._broker.deadlines.forget(queue)
            queue.close(deleted=True)

    def by_id(self, queue_id: int) -> DelayQueue | None:
        return next((one for one in self.by_exchange.values() if one.id == queue_id), None)

    def stop(self) -> None:
        for queue in self.by_exchange.values():
            queue.close(deleted=False)
