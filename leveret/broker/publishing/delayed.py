"""Delayed messages: each waits at its exchange until it is due and is then routed on.

Each exchange with delayed messages has a hidden queue in the store. Its ENQUEUED events carry the
due time as `detail`, followed by the BCC keys, which the stored message does not contain. So the
schedule survives a crash, and the event that releases a message is in the same batch as the message
that is routed on. In memory a scheduled message is one number; its content is read a moment before
it is due, so that it leaves on time. Event-loop thread only.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import logging
from array import array
from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.broker.publishing.copies import record_copies
from leveret.broker.publishing.validation import cc_keys
from leveret.exchange import Exchange, TooManySteps
from leveret.exchange.plugin_kinds import DELAY_HEADER, delay_of
from leveret.model.definitions import QueueDefinition
from leveret.model.history import EventKind, Keep
from leveret.model.message import Message, edit_headers
from leveret.model.run import Run
from leveret.model.store import (
    LiveMessages,
    LoadResult,
    MustNotLose,
    Snapshot,
    StoredMessage,
    StoreError,
    StoreState,
    UnreadableMessage,
)
from leveret.model.tables import Table
from leveret.queues.classic.classic_queue import write_messages
from leveret.queues.counters import QueueCounters
from leveret.queues.port import EnqueueResult, Target

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

log = logging.getLogger("leveret.broker")

KIND = "delayed"
LATE_MS = 2
"""How late a message may be on an idle broker."""
READ_AHEAD_MS = 50
MAX_READ_AHEAD, MAX_READ_AHEAD_BYTES = 1_000, 16 * 1024 * 1024
"""Messages whose content is in memory before they are due."""
MAX_RELEASED_PER_TICK = 100
RETRY_MS = 1_000
"""After the store could not read content."""
POSTPONE_MS = 60_000
"""After a message could not be routed on because of a bug."""
_BYTES_PER_MESSAGE = 60
_SIZE_BITS, _ID_BITS = 32, 56
_ID_MASK, _SIZE_MASK = (1 << _ID_BITS) - 1, (1 << _SIZE_BITS) - 1


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A message that waits at its exchange, with its content."""

    due_ms: int
    message: StoredMessage


def _pack(due_ms: int, message_id: int, size: int) -> int:
    return (due_ms << _ID_BITS | message_id) << _SIZE_BITS | size


def _due(packed: int) -> int:
    return packed >> (_ID_BITS + _SIZE_BITS)


def _id(packed: int) -> int:
    return packed >> _SIZE_BITS & _ID_MASK


class DelayQueue:
    """The delayed messages of one exchange, ordered by due time; a target of plans."""

    def __init__(
        self, broker: Broker, vhost: VirtualHost, exchange: Exchange, definition: QueueDefinition
    ) -> None:
        self.name = definition.name
        self.id = definition.id
        self.dispatch_pending = False
        self.is_closed = False
        self.counters = QueueCounters()
        self.exchange = exchange
        self._broker = broker
        self._vhost = vhost
        self._definition = definition
        self._heap: list[int] = []
        self._releasing: list[int] = []
        """Due within `READ_AHEAD_MS`, by due time; their content is in `_content` or being read."""
        self._content: dict[int, LoadResult] = {}
        self._uncommitted: deque[tuple[int, int]] = deque()
        """Batches that are not on disk yet, each with the first message scheduled in it."""
        self._bcc_keys: dict[int, str] = {}
        """BCC keys as JSON, of the few messages that have any."""
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<DelayQueue {self.exchange.name!r} scheduled={len(self)}>"

    def __len__(self) -> int:
        return len(self._heap) + len(self._releasing)

    @property
    def keep(self) -> Keep:
        return self._vhost.keep_unroutable

    def memory_bytes(self) -> int:
        """Memory used by the schedule and by content that was read, approximately."""
        keys = sum(map(len, self._bcc_keys.values()))
        return _BYTES_PER_MESSAGE * len(self) + self._content_bytes() + keys

    def stored_bytes(self) -> int:
        """Body bytes of all delayed messages; takes long if there are many."""
        return sum([packed & _SIZE_MASK for packed in (*self._heap, *self._releasing)])

    # Scheduling --------------------------------------------------------------------------------

    def enqueue(self, run: Run) -> list[EnqueueResult] | None:
        return [self.schedule(message, ()) for message in run.messages]

    def stores_content(self, persistent: bool) -> bool:
        return False

    def rejects_dead_letter(self, message: Message) -> bool:
        return False

    def mark_redelivered(self, message_id: int) -> None:
        return None

    def schedule(self, message: Message, keys: Sequence[str]) -> EnqueueResult:
        """Hold a message until it is due; `keys` are all its routing keys, including BCC."""
        headers = message.headers()
        due = message.time_ms + delay_of(headers)
        visible = (message.routing_key, *cc_keys(headers))
        bcc_keys = [key for key in keys if key not in visible]
        if bcc_keys:
            self._bcc_keys[message.id] = json.dumps(bcc_keys)
        store = self._broker.store
        write_messages(store, [message])
        size, detail = message.body_size, self._detail(due, message.id)
        store.record(EventKind.ENQUEUED, self.id, message.id, message.origin, detail, size)
        self.counters.published += 1
        if message.exchange == self.exchange.name:
            self.exchange.published_out -= 1  # routing counted it, but it has not left yet
        heapq.heappush(self._heap, _pack(due, message.id, size))
        self._note_batch(message.id)
        self._broker.timers.wake_at(due - READ_AHEAD_MS, self)
        return EnqueueResult.ACCEPTED_ON_COMMIT

    def _note_batch(self, message_id: int) -> None:
        batches, store = self._uncommitted, self._broker.store
        while batches and batches[0][0] <= store.committed:
            batches.popleft()
        if not batches or batches[-1][0] != store.batch_number:
            batches.append((store.batch_number, message_id))

    def recover(self, parts: Iterable[LiveMessages]) -> None:
        for part in parts:
            due_text, _, bcc_keys = (part.detail or "0").partition(" ")
            due, drift_ms = int(due_text), self._broker.clock_shift.offset_ms
            for message_id, size in zip(part.ids, part.sizes, strict=True):
                self._heap.append(_pack(due + drift_ms(message_id), message_id, size))
            if bcc_keys:
                self._bcc_keys.update(dict.fromkeys(part.ids, bcc_keys))
        heapq.heapify(self._heap)
        self._wake_for_next()

    # Releasing ---------------------------------------------------------------------------------

    def dispatch(self) -> None:
        self.dispatch_pending = False
        if self.is_closed:
            return
        self._release_due()
        self._read_ahead()
        self._wake_for_next()

    def _wake_for_next(self) -> None:
        """Wake up when the next message is due, or when its content is to be read."""
        if self._task is not None:
            return  # `dispatch` follows it
        if self._releasing:
            self._broker.timers.wake_at(_due(self._releasing[0]), self)
        if self._heap and self._has_room(self._free_bytes()):
            self._broker.timers.wake_at(_due(self._heap[0]) - READ_AHEAD_MS, self)

    def _has_room(self, free_bytes: int) -> bool:
        """Whether content may be read ahead. A message that is due before others that were read
        need not wait for them, up to twice the limit."""
        releasing, count = self._releasing, len(self._releasing)
        if count < MAX_READ_AHEAD and free_bytes > 0:
            return True
        return count < 2 * MAX_READ_AHEAD and self._heap[0] < releasing[-1]

    def _free_bytes(self) -> int:
        return MAX_READ_AHEAD_BYTES - self._content_bytes()

    def _content_bytes(self) -> int:
        return sum([packed & _SIZE_MASK for packed in self._releasing])

    def _read_ahead(self) -> None:
        """Read the content of messages that are due soon; one read at a time."""
        if self._task is not None:
            return
        soon, heap = self._broker.clock.wall_ms() + READ_AHEAD_MS, self._heap
        free_bytes = self._free_bytes()
        while heap and _due(heap[0]) <= soon and self._has_room(free_bytes):
            packed = heapq.heappop(heap)
            insort(self._releasing, packed)
            free_bytes -= packed & _SIZE_MASK
        missing = [id_ for packed in self._releasing if (id_ := _id(packed)) not in self._content]
        if missing:
            self._task = asyncio.get_running_loop().create_task(self._read(missing))

    async def _read(self, ids: Sequence[int]) -> None:
        try:
            if self._is_uncommitted(max(ids)):
                await self._broker.commit_waiters.committed()
            loaded = await self._broker.store.load(ids)
        except StoreError as error:
            self._retry_read(error)
            return
        self._task = None
        releasing = {_id(packed) for packed in self._releasing}  # some may be cancelled
        self._content.update({each.id: each for each in loaded if each.id in releasing})
        self._broker.scheduler.mark_ready(self)

    def _is_uncommitted(self, message_id: int) -> bool:
        """Whether this message, or an earlier one, may not be on disk yet."""
        store = self._broker.store
        if store.state is not StoreState.RUNNING:  # a failed batch counts as committed
            return True
        waiting = [first for number, first in self._uncommitted if number > store.committed]
        return bool(waiting) and message_id >= waiting[0]

    def _release_due(self) -> None:
        """Route on what is due, in order of due time; stops at a message that is being read."""
        now, due = self._broker.clock.wall_ms(), list[int]()
        for packed in self._releasing[:MAX_RELEASED_PER_TICK]:
            if _due(packed) > now or _id(packed) not in self._content:
                break
            due.append(packed)
        if not due:
            return
        del self._releasing[: len(due)]
        released, copies = list[int](), list[tuple[int, int]]()
        for packed in due:
            stored = self._content.pop(_id(packed))
            if isinstance(stored, UnreadableMessage):
                log.error(
                    "exchange %s: delayed message %d is unreadable and lost: %s",
                    self.exchange.name,
                    stored.id,
                    stored.reason,
                )
            elif (message_id := self._try_to_route_on(stored)) is not None:
                copies.append((message_id, stored.id))
            else:
                self._postpone(packed)
                continue
            released.append(stored.id)
        self._broker.store.save(MustNotLose([message_id for message_id, _ in copies]))
        record_copies(self._broker.store, self.id, copies)
        self._record(EventKind.RELEASED, sorted(released), f"due at '{self.exchange.name}'")
        self._broker.scheduler.mark_ready(self)

    def _try_to_route_on(self, stored: StoredMessage) -> int | None:
        """The new id of the message; None after an unexpected error, which must not stop others."""
        try:
            return self._route_on(stored)
        except Exception:
            log.exception(
                "exchange %s: delayed message %d could not be routed, trying again in %d s",
                self.exchange.name,
                stored.id,
                POSTPONE_MS // 1000,
            )
            return None

    def _postpone(self, packed: int) -> None:
        later = self._broker.clock.wall_ms() + POSTPONE_MS
        heapq.heappush(self._heap, _pack(later, _id(packed), packed & _SIZE_MASK))

    def _retry_read(self, error: StoreError) -> None:
        """The messages stay scheduled, and their content is read again later."""
        log.warning(
            "exchange %s: cannot read delayed messages, trying again: %s", self.exchange.name, error
        )
        unread = [packed for packed in self._releasing if _id(packed) not in self._content]
        self._releasing = [packed for packed in self._releasing if _id(packed) in self._content]
        for packed in unread:
            heapq.heappush(self._heap, packed)
        self._task = None
        self._broker.timers.wake_at(self._broker.clock.wall_ms() + RETRY_MS, self)

    async def _load(self, ids: Sequence[int]) -> list[LoadResult]:
        """Read content, once the batch with the latest messages is committed."""
        await self._broker.commit_waiters.committed()
        return await self._broker.store.load(ids)

    def _route_on(self, stored: StoredMessage) -> int:
        """Route it on under a new id; its delay is negated so that it is not delayed again."""
        broker, exchange = self._broker, self.exchange
        delayed = Message.restored(stored)
        negated = {DELAY_HEADER: -delay_of(delayed.headers())}
        properties = edit_headers(delayed.properties, frozenset({DELAY_HEADER}), negated)
        message = delayed.with_properties(properties)
        message.origin = stored.origin
        headers = message.headers()
        keys = [stored.routing_key, *cc_keys(headers), *self._get_bcc_keys(stored.id)]
        queues = self._queues_after(keys, headers)
        exchange.published_out += len(queues)
        if not queues:
            broker.counters.dropped_unroutable += 1
        broker.enqueue_internal(queues, message)
        broker.republished_redelivery.mark(stored.id, message.id, queues)
        return message.id

    def _queues_after(self, keys: list[str], headers: Table) -> list[Target]:
        try:
            return self._vhost.queues_after(self.exchange, keys, headers)
        except TooManySteps:  # route it without its copies instead of losing it
            return self._vhost.queues_after(self.exchange, keys[:1], headers)

    def _detail(self, due: int, message_id: int) -> str:
        bcc_keys = self._bcc_keys.get(message_id)
        return str(due) if bcc_keys is None else f"{due} {bcc_keys}"

    def _get_bcc_keys(self, message_id: int) -> list[str]:
        keys: list[str] = json.loads(self._bcc_keys.get(message_id, "[]"))
        return keys

    def _record(self, kind: EventKind, ids: Sequence[int], detail: str) -> None:
        """Record why messages do not wait here any more."""
        for message_id in ids if self._bcc_keys else ():
            self._bcc_keys.pop(message_id, None)
        self._broker.store.record_many(kind, self.id, ids, 0, detail)
        self._broker.scheduler.schedule()

    # Listing and cancelling --------------------------------------------------------------------

    async def scheduled(self, offset: int, count: int) -> list[Scheduled]:
        """The delayed messages by due time, starting with number `offset`."""
        chosen = sorted([*self._releasing, *self._heap])[offset : offset + count]
        due = {_id(packed): _due(packed) for packed in chosen}
        loaded = await self._load(list(due))
        return [
            Scheduled(due[stored.id], stored)
            for stored in loaded
            if isinstance(stored, StoredMessage)
        ]

    def cancel(self, message_id: int) -> bool:
        """Remove a message from the schedule; False if it is not scheduled (any more)."""
        for scheduled in (self._releasing, self._heap):
            remaining = [packed for packed in scheduled if _id(packed) != message_id]
            if len(remaining) < len(scheduled):
                scheduled[:] = remaining
                heapq.heapify(self._heap)
                self._content.pop(message_id, None)
                self._record(EventKind.DROPPED, [message_id], "cancelled")
                return True
        return False

    # Disk --------------------------------------------------------------------------------------

    def live(self) -> list[LiveMessages]:
        """All delayed messages, one part per due time."""
        parts: dict[str, tuple[array[int], array[int]]] = {}
        drift_ms = self._broker.clock_shift.offset_ms  # stored times are those first recorded
        for packed in sorted([*self._releasing, *self._heap]):
            due = _due(packed) - drift_ms(_id(packed))
            detail = self._detail(due, _id(packed))
            ids, sizes = parts.setdefault(detail, (array("Q"), array("I")))
            ids.append(_id(packed))
            sizes.append(packed & _SIZE_MASK)
        return [LiveMessages(ids, sizes, detail) for detail, (ids, sizes) in parts.items()]

    def snapshot(self) -> None:
        trim = self.keep is Keep.NOTHING
        self._broker.store.save(Snapshot(self.id, tuple(self.live()), trim))

    def purge(self) -> int:
        ids = [_id(packed) for packed in (*self._releasing, *self._heap)]
        self._clear()
        self._record(EventKind.PURGED, ids, "purged")
        return len(ids)

    def close(self, deleted: bool) -> int:
        self.is_closed = True
        count = len(self)
        if self._task is not None:
            self._task.cancel()
        if deleted:
            ids = [_id(packed) for packed in (*self._releasing, *self._heap)]
            self._record(EventKind.QUEUE_DELETED, ids, "exchange deleted")
            self._broker.store.delete(self._definition)
            self._clear()
        return count

    def _clear(self) -> None:
        self._releasing.clear()
        self._heap.clear()
        self._content.clear()


class DelayQueues:
    """The delay queues of all exchanges, created when first needed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.by_exchange: dict[Exchange, DelayQueue] = {}

    def get_or_create(self, vhost: VirtualHost, exchange: Exchange) -> DelayQueue:
        queue = self.by_exchange.get(exchange)
        if queue is None:
            definition = QueueDefinition(
                id=next(self._broker.queue_ids),
                vhost=vhost.name,
                name=f"{exchange.name} (delayed)",
                kind=KIND,
                arguments=json.dumps({"exchange": exchange.name}),
                created_ms=self._broker.clock.wall_ms(),
            )
            self._broker.store.save(definition)
            queue = DelayQueue(self._broker, vhost, exchange, definition)
            self.by_exchange[exchange] = queue
        return queue

    def recover(
        self, vhost: VirtualHost, definition: QueueDefinition, parts: Iterable[LiveMessages]
    ) -> None:
        exchange = vhost.exchanges.get(json.loads(definition.arguments)["exchange"])
        if exchange is None:  # it was not durable, so its schedule is not either
            ids = [message_id for part in parts for message_id in part.ids]
            self._broker.store.record_many(EventKind.QUEUE_DELETED, definition.id, ids)
            self._broker.store.delete(definition)
            return
        queue = DelayQueue(self._broker, vhost, exchange, definition)
        self.by_exchange[exchange] = queue
        queue.recover(parts)

    def on_exchange_deleted(self, exchange: Exchange) -> None:
        queue = self.by_exchange.pop(exchange, None)
        if queue is not None:
            self._broker.timers.cancel(queue)
            queue.close(deleted=True)

    def maybe_by_id(self, queue_id: int) -> DelayQueue | None:
        return next((queue for queue in self.by_exchange.values() if queue.id == queue_id), None)

    def stop(self) -> None:
        for queue in self.by_exchange.values():
            queue.close(deleted=False)
