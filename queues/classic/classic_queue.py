"""A classic or quorum queue: first in, first out, with competing consumers.

A message is in exactly one of three places: `ready` (in memory), `backlog` (on disk only, newer
than everything in `ready`) or `unacked` (delivered and not settled, or rejected by a full
dead-letter target). Messages are ordered by id; with priorities, by priority first.

A durable queue records its changes in its journal. After a crash the journal gives back exactly the
messages that were enqueued and not settled. Memory holds a window of a durable queue: content is
read from disk before consumers need it.

Which messages are marked as redelivered after a crash is decided by a lease (crash_redelivery.py).

The delivery limit counts deliveries. In memory an entry counts those that failed; the journal
records every delivery with its number, and a snapshot contains the numbers so far. At recovery each
delivery of a message that is still in the queue has failed, perhaps because of the crash itself. A
message that keeps crashing its consumers, or the broker, reaches the limit all the same.

Event-loop thread only.
"""

from __future__ import annotations

import logging
import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from leveret.model.definitions import QueueDefinition
from leveret.model.errors import AccessRefused
from leveret.model.history import EventKind, Keep
from leveret.model.message import PARTS_FROM, LargeBody, Message, part_count
from leveret.model.run import Run
from leveret.model.store import (
    DELIVERY_COUNT,
    LiveMessages,
    LoadedRun,
    LoadResult,
    Snapshot,
    Spill,
    Store,
    StoredMessage,
    StoreError,
    UnreadableMessage,
    split_runs,
)
from leveret.queues.classic.crash_redelivery import RedeliveryLease
from leveret.queues.classic.dead_lettering import Cause, DeadLetterer
from leveret.queues.classic.deduplication import Deduplication
from leveret.queues.classic.disk_backlog import READ_AHEAD, DiskBacklog
from leveret.queues.classic.limits import (
    expired_count,
    expiry_of,
    is_full,
    is_too_late,
    surplus_count,
)
from leveret.queues.classic.ready import Ready, make_ready, take_in_turn
from leveret.queues.classic.round_robin import RoundRobin
from leveret.queues.classic.unacked import Unacked
from leveret.queues.counters import QueueCounters
from leveret.queues.delivery import Delivery
from leveret.queues.entry import Entry, Outcome, RunPart, estimate_header_bytes, stored_ids
from leveret.queues.options import Overflow, options_of
from leveret.queues.port import (
    MESSAGE_OVERHEAD,
    CommitPort,
    Consumer,
    DeathReason,
    EnqueueResult,
    PeekedMessages,
    QueueStats,
    Tap,
)
from leveret.queues.spec import QueueSpec

log = logging.getLogger("leveret.queues")

MAX_DELIVERED_PER_TICK = 1000
"""The rest waits for the next tick: this is a millisecond or two of work."""
READ_RETRY_MS = 1_000
_ACCEPTED = (EnqueueResult.ACCEPTED,)


def _nothing(*arguments: object) -> None:
    return None


@dataclass(frozen=True, slots=True)
class QueueCallbacks:
    """What a classic queue asks of the broker."""

    mark_ready: Callable[[ClassicQueue], None] = _nothing
    """Dispatch this queue at the end of the tick."""
    wake_at: Callable[[int, ClassicQueue], None] = _nothing
    """Dispatch this queue at this wall-clock time at the latest."""
    dead_letter: Callable[[ClassicQueue, Sequence[Message], DeathReason], Collection[int]] = (
        lambda queue, messages, reason: ()
    )
    """Publish these messages to the dead-letter exchange; returns the ids of rejected ones."""
    delete_unused: Callable[[ClassicQueue], None] = _nothing
    """Delete this queue: it has not been used for its `x-expires` time."""
    now_ms: Callable[[], int] = lambda: 0
    clock_shift_ms: Callable[[int], int] = lambda message_id: 0
    """By how much the wall clock was set since this message was stored."""
    open_spill: Callable[[], Spill] | None = None
    """Open files for transient messages that do not fit into the window; None without a disk."""


class ClassicQueue:
    """`ready_bytes` are the body bytes of `ready`.

    After a restart, persistent messages up to `_recovered_to` are read back, and those up to
    `_redelivered_to` are marked as redelivered.
    """

    failure = None
    partition_of = None
    partitions = ()
    # Set on few queues. As class attributes they keep instances within the 30 attributes up to
    # which CPython 3.11 looks attributes up quickly.
    owner: object | None = None
    tap: Tap | None = None
    _exclusive_consumer: Consumer | None = None

    def __init__(
        self,
        spec: QueueSpec,
        queue_id: int,
        callbacks: QueueCallbacks,
        journal: Journal | None = None,
        window: int = 20_000,
        window_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.id = queue_id
        self.journal = journal
        self.dispatch_pending = False
        self.is_closed = False
        self.counters = QueueCounters()
        self.dedup: Deduplication | None = None
        self.dead_letterer = DeadLetterer(callbacks)
        self._callbacks = callbacks
        self._set_options({})
        self.ready: Ready = make_ready(self.options.max_priority)
        self.ready_bytes = 0
        self.unacked = Unacked()
        self.backlog = DiskBacklog(callbacks.open_spill)
        # The next message by priority is known only if everything is in memory.
        in_memory = self.options.max_priority is not None or (
            journal is None and not self.backlog.can_spill
        )
        self._window = sys.maxsize if in_memory else window
        self._window_bytes = sys.maxsize if in_memory else window_bytes
        self._recovered_to = 0
        self._redelivered_to = 0
        self._recovered_delivery_counts: dict[int, int] = {}
        """How often messages of the backlog were delivered before the restart."""
        self._consumers = RoundRobin()
        self._is_delivering = False
        self._get_waiters: list[Callable[[], None]] = []
        self._last_used_ms = callbacks.now_ms()

    def __repr__(self) -> str:
        return (
            f"<ClassicQueue {self.name!r} ready={self.ready_count} "
            f"unacked={len(self.unacked)} consumers={len(self._consumers)}>"
        )

    # Properties of the port --------------------------------------------------------------------

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
    def unacked_bytes(self) -> int:
        return self.unacked.bytes

    @property
    def message_bytes(self) -> int:
        """Body bytes of all ready messages, including those on disk."""
        return self.ready_bytes + self.backlog.bytes

    @property
    def consumers(self) -> Collection[Consumer]:
        return self._consumers

    @property
    def active_consumer(self) -> Consumer | None:
        return self._consumers.active if self.options.single_active else None

    @property
    def consumer_timeout_ms(self) -> int:
        return self.options.consumer_timeout or 0

    @property
    def blocks_get(self) -> bool:
        return self.dead_letterer.is_blocked or (
            self.options.single_active and len(self._consumers) > 0
        )

    @property
    def waits_for_lease(self) -> bool:
        if self.journal is None or not self.ready or not self._consumers:
            return False
        is_leased = self.ready.first_id <= self.journal.lease.last_id
        return not is_leased and any(consumer.credit() > 0 for consumer in self._consumers)

    # Policy and expiry of the queue ------------------------------------------------------------

    def apply_policy(self, policy: Mapping[str, Any], history: Keep) -> None:
        self._set_options(policy)
        if self.journal is not None:
            self.journal.keep = history
        self._reset_expiry()
        self._callbacks.mark_ready(self)

    def _set_options(self, policy: Mapping[str, Any]) -> None:
        options = self.options = options_of(self.spec.arguments, policy)
        self._is_plain = options.is_plain
        self._has_length_limit = options.has_length_limit
        self._drops_head = options.has_length_limit and options.overflow is Overflow.DROP_HEAD
        if self.journal is not None:
            self.journal.counts_deliveries = options.counts_deliveries

    def on_lookup(self) -> None:
        self._reset_expiry()
        if self._has_length_limit:
            if not self._consumers or self._deliver_ready():
                self._drop_surplus()
        else:
            self.deliver_pending()

    def deliver_pending(self) -> None:
        if self.dispatch_pending and self.ready and self._consumers and not self._is_delivering:
            self._deliver_ready()

    def _reset_expiry(self) -> None:
        """The queue was used: the time until it is deleted as unused starts again."""
        if self.options.expires is not None:
            self._last_used_ms = self._callbacks.now_ms()
            self._callbacks.wake_at(self._last_used_ms + self.options.expires, self)

    def _delete_if_unused(self) -> bool:
        expires = self.options.expires
        if expires is None or self._consumers or self.is_closed:
            return False
        expires_ms = self._last_used_ms + expires
        if self._callbacks.now_ms() < expires_ms:
            self._callbacks.wake_at(expires_ms, self)
            return False
        self._callbacks.delete_unused(self)
        return True

    # Enqueue -----------------------------------------------------------------------------------

    def enqueue(self, run: Run) -> list[EnqueueResult] | None:
        """A message with an expiration of its own is alone in its run."""
        expires_ms, is_plain = 0, self._is_plain and run.scan.expiration is None
        if not is_plain:
            if len(run) > 1:
                runs = [Run.of([message]) for message in run.messages]
                return [result for each in runs for result in self.enqueue(each) or _ACCEPTED]
            message = run.messages[0]
            refusal = self._maybe_refusal(message)
            if refusal is not None:
                self.counters.published += 1
                return [refusal]
            expires_ms = expiry_of(self.options, message)
        sizes = run.body_sizes
        self.counters.published += len(sizes)
        full = len(self.ready) >= self._window or self.ready_bytes >= self._window_bytes
        if full or self.backlog:
            self._append_to_backlog(run)
        else:
            if self.journal is not None:
                self.journal.record_enqueued(run)
            self.ready.append_run(run, expires_ms)
            self.ready_bytes += sum(sizes)
        if not is_plain:
            self._after_enqueue(run.messages[0])
        return None

    def _maybe_refusal(self, message: Message) -> EnqueueResult | None:
        """The result for a message that is not enqueued: a duplicate, or one too many."""
        if self.dedup is not None and self.dedup.detect_duplicate(message):
            return EnqueueResult.ACCEPTED_ON_COMMIT
        if self._rejects(message) and self._rejects_after_delivery(message):
            if self.options.overflow is Overflow.REJECT_PUBLISH_DLX:
                self._callbacks.dead_letter(self, [message], DeathReason.MAXLEN)
            return EnqueueResult.REJECTED
        return None

    def _after_enqueue(self, message: Message) -> None:
        if self.dedup is not None:
            self.dedup.remember(message)
        # Messages that consumers can take are not surplus, and dead-lettering may fill another
        # queue that dead-letters: both wait for the end of the tick.
        if not self._consumers and self.options.dead_letter_exchange is None:
            self._drop_surplus()

    def _append_to_backlog(self, run: Run) -> None:
        """Messages that need not survive a restart, nor be kept as history, go to spill files."""
        journal = self.journal
        if journal is None or (
            journal.keep is Keep.NOTHING and self.backlog.can_spill and not run.persistent
        ):
            self.backlog.spill(run.messages, run.body_sizes)
        else:
            journal.record_enqueued(run, is_kept=True)
            self.backlog.append_run(run)

    # Limits ------------------------------------------------------------------------------------

    def _rejects(self, message: Message) -> bool:
        """Whether the queue is full and rejects new messages.

        A queue that drops its head rejects them, too, while its dead letters are stuck.
        """
        if not self._has_length_limit or (self._drops_head and not self.dead_letterer.stuck):
            return False
        return is_full(self.options, self.ready_count, self.message_bytes, message)

    def _rejects_after_delivery(self, message: Message) -> bool:
        """Whether the queue is still full after consumers have taken what they can."""
        if self._consumers and not self._is_delivering:
            self._deliver_ready()
        return self._rejects(message)

    def stores_content(self, persistent: bool) -> bool:
        journal = self.journal
        return journal is not None and (persistent or journal.keep > Keep.NOTHING)

    def rejects_dead_letter(self, message: Message) -> bool:
        """A queue that dead-letters rejected messages passes the message on instead."""
        passes_on = self.options.overflow is Overflow.REJECT_PUBLISH_DLX
        return not passes_on and self._rejects(message)

    def _drop_surplus(self) -> None:
        """Drop messages from the head until the length limits are respected."""
        if not self._drops_head or self.dead_letterer.is_blocked:
            return
        count = surplus_count(self.options, self.ready, self.ready_count, self.message_bytes)
        if count:
            self._dispose(self._pop_head(count), EventKind.DROPPED, DeathReason.MAXLEN)

    def _expire_head(self) -> bool:
        """Dead-letter or drop messages at the head whose TTL has passed (they are expired).

        Returns whether the message that is at the head then may be delivered.
        """
        if not self.ready or not self.ready.first_expires_ms:
            return True
        now_ms, dead_letterer = self._callbacks.now_ms(), self.dead_letterer
        if not dead_letterer.is_blocked:
            count = expired_count(self.ready, now_ms)
            if count:
                self._dispose(self._pop_head(count), EventKind.EXPIRED, DeathReason.EXPIRED)
        if not self.ready or not self.ready.first_expires_ms:
            return True
        expires_ms = self.ready.first_expires_ms
        wake_ms = dead_letterer.retry_ms if dead_letterer.is_blocked else expires_ms
        self._callbacks.wake_at(wake_ms, self)
        return expires_ms > now_ms

    def _pop_head(self, count: int) -> list[Entry]:
        popleft = self.ready.popleft
        entries = [popleft() for _ in range(count)]
        self.ready_bytes -= sum([entry.message.body_size for entry in entries])
        return entries

    # Dead-lettering ----------------------------------------------------------------------------

    def _dispose(
        self, entries: Sequence[Entry], kind: EventKind, reason: DeathReason, actor: int = 0
    ) -> None:
        """Dead-letter or drop entries that are no longer in `ready` or `unacked`."""
        self.dead_letterer.dispose(self, entries, Cause(kind, reason, actor))

    def _retry_stuck(self) -> None:
        for (kind, reason, actor), entries in self.dead_letterer.take_due(self).items():
            self._dispose(entries, kind, reason, actor)

    # Dispatch ----------------------------------------------------------------------------------

    def dispatch(self) -> None:
        self.dispatch_pending = False
        if self.is_closed:
            return
        if self.dead_letterer.stuck:
            self._retry_stuck()
        consumers = self._consumers
        if not consumers.is_compact:
            consumers.compact()
        if consumers:
            if self._deliver_ready(MAX_DELIVERED_PER_TICK, takes_turns=True) and self._drops_head:
                self._drop_surplus()
            if self.ready and self.ready.first_expires_ms:
                self._expire_head()
        elif self._delete_if_unused():
            return
        else:
            self._expire_head()
            self._drop_surplus()
        if self._get_waiters and (self.ready or not self.backlog):
            self._call_get_waiters()  # consumers come first
        if self.backlog:
            self._read_ahead()

    def _deliver_ready(self, max_count: int = sys.maxsize, takes_turns: bool = False) -> bool:
        """Deliver to all consumers with credit; False if the rest has to wait.

        It waits for a lease, for the next tick if more than `max_count` were ready, or, with
        `takes_turns`, for other queues whose consumers share the credit of a channel.
        """
        ready, single = self.ready, self.options.single_active
        budget, now_ms = max_count, self._callbacks.now_ms
        self._is_delivering = True
        try:
            while ready:
                if budget <= 0:
                    self._callbacks.mark_ready(self)
                    return False
                if (
                    ready.first_expires_ms
                    and is_too_late(ready.first(), now_ms())
                    and not self._expire_head()
                ):
                    return True
                consumers = self._consumers
                able = consumers.active_with_credit() if single else consumers.with_credit()
                if not able or not ready:
                    return True
                last_id = self._last_deliverable_id()
                if ready.first_id > last_id:
                    return False
                if len(able) == 1 and not able[0][0].takes_turns:
                    consumer, credit = able[0]
                    taken = ready.take(credit, last_id)
                    budget -= taken.effort if isinstance(taken, RunPart) else len(taken)
                    self._deliver(consumer, taken)
                    if not single and len(consumers) > 1:
                        consumers.rotate_past(consumer)
                elif any(consumer.shares_credit for consumer, _ in able):
                    consumer = able[0][0]
                    budget -= 1
                    self._deliver(consumer, ready.take(1, last_id))
                    consumers.rotate_past(consumer)
                    if takes_turns and consumer.takes_turns:
                        self._callbacks.mark_ready(self)
                        return False
                else:
                    budget -= self._deliver_in_turn(able, last_id)
            return True
        finally:
            self._is_delivering = False

    def _deliver_in_turn(self, able: list[tuple[Consumer, int]], last_id: int) -> int:
        """Returns the effort that it took."""
        taken, last_consumer = take_in_turn(self.ready, able, last_id)
        effort = sum(each.effort if isinstance(each, RunPart) else len(each) for each in taken)
        for (consumer, _), messages in zip(able, taken, strict=False):
            self._deliver(consumer, messages)
        self._consumers.rotate_past(last_consumer)
        return effort

    def _last_deliverable_id(self) -> int:
        """The last message id that may be delivered; extends the lease before it is used up."""
        if self.options.max_priority is not None and self.backlog:
            return 0  # a message of a higher priority may still be on disk
        journal, ready = self.journal, self.ready
        if journal is None:
            return sys.maxsize
        newest_id = max(ready.last_id, ready.first_id)
        lease = journal.lease
        if newest_id > lease.extend_after:
            lease.extend(newest_id, self._on_lease_granted)
        return lease.last_id

    def _on_lease_granted(self) -> None:
        self._callbacks.mark_ready(self)

    def _deliver(self, consumer: Consumer, taken: list[Entry] | RunPart) -> None:
        """Messages taken from `ready` are unacknowledged, or settled if no ack is expected."""
        delivery, journal = Delivery(self, consumer, taken), self.journal
        size, no_ack = delivery.body_bytes, consumer.no_ack
        if journal is not None:
            journal.record_delivered(delivery, consumer.actor)
            if no_ack:
                journal.record_settled(EventKind.ACKED, delivery.stored_ids, consumer.actor)
        self.ready_bytes -= size
        if not no_ack:
            self.unacked.add(delivery, size)
        self.counters.delivered(delivery, no_ack)
        consumer.deliver(delivery)
        if self.tap is not None:
            self.tap(self, delivery.entries(), consumer)

    # basic.get ---------------------------------------------------------------------------------

    def basic_get(self, actor: int, no_ack: bool) -> Delivery | None:
        self._reset_expiry()
        self.deliver_pending()
        is_deliverable = self._expire_head()
        if self.options.single_active and self._consumers:
            return None
        if not self.ready or not is_deliverable:
            self._read_ahead(is_wanted=True)
            return None
        if self.ready.first_id > self._last_deliverable_id():
            self._read_ahead(is_wanted=True)  # a priority queue needs all of its backlog first
            return None
        entry = self.ready.popleft()
        if self.options.is_quorum and not entry.delivery_count:
            entry.stamp_delivery_count()  # RabbitMQ sends 0 with basic.get, nothing to consumers
        delivery, size = Delivery(self, None, [entry]), entry.message.body_size
        if self.journal is not None:
            self.journal.record_got(entry, actor)
            if no_ack:
                self.journal.record_settled(EventKind.ACKED, delivery.stored_ids, actor)
        self.ready_bytes -= size
        if not no_ack:
            self.unacked.add(delivery, size)
        self.counters.got(entry, no_ack)
        if self.tap is not None:
            self.tap(self, [entry], None)
        self._read_ahead(is_wanted=True)
        return delivery

    def when_readable(self, callback: Callable[[], None]) -> None:
        self._get_waiters.append(callback)

    def _call_get_waiters(self) -> None:
        waiters, self._get_waiters = self._get_waiters, []
        for callback in waiters:
            callback()

    # Settle ------------------------------------------------------------------------------------

    def on_split(self, delivery: Delivery) -> None:
        self.unacked.add_split(delivery)

    def settle(self, deliveries: Sequence[Delivery], outcome: Outcome, actor: int) -> None:
        settled = [delivery for delivery in deliveries if self.unacked.remove(delivery)]
        if not settled or self.is_closed:
            return
        if outcome is Outcome.ACK:
            for delivery in settled:
                self.counters.acked += delivery.count
            if self.journal is not None:
                ids = settled[0].stored_ids
                if len(settled) > 1:
                    ids = [number for delivery in settled for number in delivery.stored_ids]
                self.journal.record_settled(EventKind.ACKED, ids, actor)
            return
        entries = [entry for delivery in settled for entry in delivery.entries()]
        if outcome is Outcome.REQUEUE:
            self._requeue(entries, actor)
        else:
            self._dispose(entries, outcome.value, DeathReason.REJECTED, actor)

    def _requeue(self, entries: list[Entry], actor: int) -> None:
        over_limit: list[Entry] = []
        for entry in entries:
            entry.redelivered = True
            entry.delivery_count += 1
            if self._is_over_delivery_limit(entry):
                over_limit.append(entry)
            elif self.options.counts_deliveries:
                entry.stamp_delivery_count()
        if over_limit:
            self._dispose(over_limit, EventKind.DROPPED, DeathReason.DELIVERY_LIMIT, actor)
            entries = [entry for entry in entries if entry not in over_limit]
        self.ready_bytes += sum([entry.message.body_size for entry in entries])
        if self.journal is not None:
            self.journal.record_requeued(stored_ids(entries), actor)
        self.ready.put_back(entries)
        self._callbacks.mark_ready(self)

    def _is_over_delivery_limit(self, entry: Entry) -> bool:
        limit = self.options.delivery_limit
        return limit is not None and entry.delivery_count > limit

    def purge(self) -> int:
        stuck = self.dead_letterer.clear(self)
        count = self.ready_count + len(stuck)
        ids = array("Q", self.ready.stored_ids() + stored_ids(stuck))
        ids.extend(self.backlog.clear())
        self.ready.clear()
        self.ready_bytes = 0
        self._recovered_delivery_counts.clear()
        if self.journal is not None:
            self.journal.record_settled(EventKind.PURGED, ids)
        self._callbacks.mark_ready(self)
        return count

    def close(self, deleted: bool) -> int:
        count = self.ready_count
        self.is_closed = True
        if deleted:
            self._delete()
        elif self.journal is not None:
            self.journal.close(self.live(), self.delivery_attempts())
            self.backlog.stop()
        return count

    def _delete(self) -> None:
        if self.dedup is not None:
            self.dedup.clear()
        if self.journal is not None:
            ids = self.unacked.stored_ids() + self.ready.stored_ids()
            ids += self.backlog.stored().ids
            self.journal.record_settled(EventKind.QUEUE_DELETED, ids)
        for consumer in list(self._consumers):
            self._consumers.remove(consumer)
            consumer.cancelled()
        self.ready.clear()
        self.dead_letterer.clear(self)
        self.unacked.clear()
        self.ready_bytes = 0
        self.backlog.clear()
        self._call_get_waiters()
        self._exclusive_consumer = None  # no reference cycle: a deleted queue is freed at once

    # Reading from disk -------------------------------------------------------------------------

    def recover(
        self, parts: Iterable[LiveMessages], last_id: int, attempts: Mapping[int, int]
    ) -> None:
        """Restore what the journal says this queue held, and how often it was delivered."""
        assert self.journal is not None
        for part in parts:
            self.backlog.extend(part)
        self._recovered_to = last_id
        self._redelivered_to = self.journal.lease.highest_delivered
        if attempts:
            self._recovered_delivery_counts = dict(attempts)

    def restore_first(self, first: LoadResult) -> None:
        """The message at the head was read after a start: it may expire, and has an age."""
        if not self.is_closed and not self.ready and self.backlog.take_first(first.id):
            if isinstance(first, StoredMessage):
                self._on_loaded([Run.of([Message.restored(first)])])
            else:
                self._on_loaded([first])

    def mark_redelivered(self, message_id: int) -> None:
        """Only where deliveries may have been undone by a crash."""
        if not self._redelivered_to:
            return
        if self.backlog:  # new messages are enqueued there while it is not empty
            self.backlog.mark_redelivered(message_id)
        for entry in self.ready.newest():
            entry.redelivered = entry.redelivered or entry.id == message_id

    def _is_read(self) -> bool:
        """Whether messages leave this queue, or may leave it soon."""
        if self._consumers or self._get_waiters or self._drops_head:
            return True
        expires = bool(self.ready and self.ready.first_expires_ms)
        return expires or self.options.message_ttl is not None

    def _read_ahead(self, is_wanted: bool = False) -> None:
        """Read the next part of the backlog, unless half a window of content is in memory.

        A queue that nobody reads needs only its head, which may expire.
        """
        if not self.backlog:
            return
        if not is_wanted and not self._is_read():
            if not self.ready:
                self._read(1)
            return
        if len(self.ready) > self._window // 2 or self.ready_bytes > self._window_bytes // 2:
            return
        self._read()

    def _read(self, max_count: int = READ_AHEAD) -> None:
        self.backlog.read(self._load_stored, self._on_loaded, self._on_load_failed, max_count)

    async def _load_stored(self, ids: Sequence[int]) -> list[LoadedRun]:
        return [] if self.journal is None else await self.journal.load_runs(ids)

    async def _load_messages(self, ids: Sequence[int]) -> list[LoadResult]:
        return list(split_runs(await self.backlog.load(self._load_stored, ids)))

    def _on_loaded(self, loaded: list[LoadedRun]) -> None:
        for result in loaded:
            if isinstance(result, Run):
                self._restore(result)
            elif not result.was_lost:
                self.counters.unreadable += 1
                log.error("queue %s: message %d: %s", self.name, result.id, result.reason)
                if self.journal is not None:
                    self.journal.record_unreadable(result)
        self._callbacks.mark_ready(self)
        self._read_ahead()

    def _on_load_failed(self, error: StoreError) -> None:
        """The data is not damaged: it stays in the backlog and is read again later."""
        log.warning("queue %s: %s; trying again", self.name, error)
        self._callbacks.wake_at(self._callbacks.now_ms() + READ_RETRY_MS, self)

    def _restore(self, run: Run) -> None:
        run.shift_time(self._callbacks.clock_shift_ms(run.ids[0]))
        if self._may_restore_whole(run):
            self.ready.append_run(run)
            self.ready_bytes += sum(run.body_sizes)
            return
        for message in run.messages:
            self._restore_message(message)

    def _may_restore_whole(self, run: Run) -> bool:
        """Whether nothing has to be known of its single messages."""
        return (
            self._is_plain
            and run.scan.expiration is None
            and run.ids[0] > self._redelivered_to
            and (run.persistent or run.ids[0] > self._recovered_to)
            and not self.backlog.has_redelivered
            and not self._recovered_delivery_counts
        )

    def _restore_message(self, message: Message) -> None:
        if message.id <= self._recovered_to and not message.scan.persistent:
            if self.journal is not None:
                self.journal.record_settled(EventKind.DROPPED, [message.id])
            return
        was_delivered = message.id <= self._redelivered_to
        entry = Entry(message, was_delivered or self.backlog.is_redelivered(message.id))
        entry.expires_ms = expiry_of(self.options, message)
        entry.delivery_count = self._recovered_delivery_counts.pop(entry.id, 0)
        if entry.delivery_count:
            if self._is_over_delivery_limit(entry):
                self._dispose([entry], EventKind.DROPPED, DeathReason.DELIVERY_LIMIT)
                return
            if self.options.counts_deliveries:
                entry.stamp_delivery_count()
        self.ready.append(entry)
        self.ready_bytes += message.body_size

    # Snapshots ---------------------------------------------------------------------------------

    def snapshot(self) -> None:
        """Save everything that is held, so that recovery need not read older events."""
        if self.journal is not None:
            self.journal.snapshot(self.live(), self.delivery_attempts())

    def live(self) -> LiveMessages:
        """Every message that must survive a restart, unacknowledged ones included, by id."""
        in_memory = [*self.unacked.persistent(), *self.ready.persistent()]
        in_memory.sort()
        ids = array("Q", [message_id for message_id, _ in in_memory])
        sizes = array("I", [size for _, size in in_memory])
        on_disk = self.backlog.stored()
        ids.extend(on_disk.ids)
        sizes.extend(on_disk.sizes)
        return LiveMessages(ids, sizes)

    def delivery_attempts(self) -> tuple[LiveMessages, ...]:
        """For a snapshot: delivered messages, grouped by how often they were delivered."""
        if not self.options.counts_deliveries or self.journal is None:
            return ()
        attempts = dict(self._recovered_delivery_counts)
        attempts |= self.ready.delivery_counts()
        attempts |= self.unacked.delivery_counts()
        groups: dict[int, list[int]] = {}
        for message_id in sorted(attempts):
            groups.setdefault(attempts[message_id], []).append(message_id)
        return tuple(
            LiveMessages(array("Q", ids), array("I", bytes(4 * len(ids))), f"{DELIVERY_COUNT}{n}")
            for n, ids in groups.items()
        )

    # Management --------------------------------------------------------------------------------

    def stats(self) -> QueueStats:
        return QueueStats(
            self.message_bytes,
            self.unacked.bytes,
            len(self.ready),
            self.ready_bytes,
            len(self.backlog),
            self.backlog.bytes,
        )

    def oldest_ready_ms(self) -> int | None:
        return self.ready.first_time_ms if self.ready else None

    def oldest_unacked_ms(self) -> int | None:
        return self.unacked.oldest_ms()

    def memory_bytes(self) -> int:
        count = len(self.ready) + len(self.unacked)
        size = self.ready_bytes + self.unacked.bytes + count * MESSAGE_OVERHEAD
        files = self.backlog.files
        return size if files is None else size + files.memory_bytes

    def header_bytes(self) -> int:
        if not self.ready and not self.unacked:
            return 0
        ready = estimate_header_bytes(len(self.ready), self.ready.header_sizes())
        return ready + estimate_header_bytes(len(self.unacked), self.unacked.header_sizes())

    def peek(self, offset: int, count: int) -> PeekedMessages:
        entries = self.unacked.entries(offset, count)
        unacked_count = len(entries)
        start = max(0, offset - len(self.unacked))
        entries += islice(self.ready, start, start + count - unacked_count)
        start = max(0, start - len(self.ready))
        missing = count - len(entries)
        disk_ids = self.backlog.ids(start, missing)
        redelivered_to = self._redelivered_to
        return PeekedMessages(entries, unacked_count, disk_ids, redelivered_to, self._load_messages)

    # Consumers ---------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        is_shared = consumer.exclusive and (len(self._consumers) or self.options.single_active)
        if self._exclusive_consumer is not None or is_shared:
            raise AccessRefused("in exclusive use")
        if consumer.exclusive:
            self._exclusive_consumer = consumer
        self._consumers.add(consumer)
        if self.journal is not None:
            self.journal.lease.prepare(self._on_lease_granted)
        self._callbacks.mark_ready(self)

    def on_credit(self, consumer: Consumer) -> None:
        self._callbacks.mark_ready(self)

    def remove_consumer(self, consumer: Consumer) -> None:
        if consumer is self._exclusive_consumer:
            self._exclusive_consumer = None
        if consumer in self._consumers:
            self._consumers.remove(consumer)
            self._reset_expiry()
            self._callbacks.mark_ready(self)


def write_messages(store: Store, messages: Sequence[Message]) -> None:
    """Append the content of messages of one run to the batch, unless it is stored already."""
    new = [message for message in messages if not message.stored]
    if not new:
        return
    for message in new:
        message.stored = True
        if message.large_body is not None:  # it is alone in its run
            write_parts(store, message.large_body)
    store.append(Run.of(new))
    if new[0].keep is not Keep.NOTHING:
        ids = [message.id for message in new]
        store.record_many(EventKind.PUBLISHED, 0, ids, new[0].origin)


def write_parts(store: Store, body: LargeBody) -> None:
    """Append the parts of a large body to the batch, unless they are stored already."""
    if len(body) > PARTS_FROM and not body.first_part:
        body.first_part = store.reserve_parts(part_count(len(body)))
        store.append_parts(body.first_part, list(body.parts()))


class Journal:
    """What a durable queue records in the store: every change becomes part of the current batch.

    `keep` is how much history is kept: nothing, metadata or everything.

    `counts_deliveries`: every delivery is recorded, whatever `keep` is, for a delivery limit.
    """

    def __init__(
        self, store: Store, definition: QueueDefinition, commits: CommitPort, keep: Keep
    ) -> None:
        self._store = store
        self._commits = commits
        self.definition = definition
        self.queue_id = definition.id
        self.keep = keep
        self.counts_deliveries = False
        self.lease = RedeliveryLease(store, definition, commits)
        self._dirty = False

    # Messages that enter and leave the queue ---------------------------------------------------

    def record_enqueued(self, run: Run, is_kept: bool = False) -> None:
        """Persistent messages will survive a restart. Others are in memory only unless `is_kept`,
        and are recorded if history is kept."""
        kind = EventKind.ENQUEUED
        if run.persistent or is_kept:
            self._dirty = True
        elif self.keep is Keep.NOTHING:
            return
        else:
            kind = EventKind.ENQUEUED_TRANSIENT
        store = self._store
        if not run.is_packed:
            write_messages(store, run.messages)
        elif not run.is_stored:  # once, however many queues it goes to
            run.is_stored = True
            store.append(run)
            if run.keep is not Keep.NOTHING:
                store.record_many(EventKind.PUBLISHED, 0, run.ids, run.origin)
        store.record_many(kind, self.queue_id, run.ids, run.origin, None, run.body_sizes)

    def record_settled(
        self, kind: EventKind, ids: Sequence[int], actor: int = 0, detail: str | None = None
    ) -> None:
        if ids:
            self._dirty = True
            self._store.record_many(kind, self.queue_id, ids, actor, detail)

    def record_delivered(self, delivery: Delivery, actor: int) -> None:
        last_id = delivery.last_id
        if last_id > self.lease.highest_delivered:
            self.lease.highest_delivered = last_id
        if self.keep is Keep.NOTHING and not self.counts_deliveries:
            return
        first = delivery.stored_ids
        if delivery.part is None:
            entries = [entry for entry in delivery.entries() if entry.message.stored]
            first = [entry.id for entry in entries if not entry.redelivered]
            self._record_redelivered([entry for entry in entries if entry.redelivered], actor)
        self._store.record_many(EventKind.DELIVERED, self.queue_id, first, actor)

    def _record_redelivered(self, entries: Sequence[Entry], actor: int) -> None:
        by_attempt: dict[str | None, list[int]] = {}
        for entry in entries:
            attempt = str(entry.delivery_count + 1) if self.counts_deliveries else None
            by_attempt.setdefault(attempt, []).append(entry.id)
        for attempt, ids in by_attempt.items():
            self._store.record_many(EventKind.REDELIVERED, self.queue_id, ids, actor, attempt)

    def record_got(self, entry: Entry, actor: int) -> None:
        if entry.id > self.lease.highest_delivered:
            self.lease.highest_delivered = entry.id
        counts = self.counts_deliveries
        if entry.message.stored and (counts or self.keep is not Keep.NOTHING):
            attempt = str(entry.delivery_count + 1) if counts else None
            self._store.record(EventKind.GOT, self.queue_id, entry.id, actor, attempt)

    def record_requeued(self, ids: Sequence[int], actor: int) -> None:
        if ids and self.keep is not Keep.NOTHING:
            self._store.record_many(EventKind.REQUEUED, self.queue_id, ids, actor)

    def record_unreadable(self, message: UnreadableMessage) -> None:
        """Damaged content is never delivered; the event says why."""
        self._store.record_many(
            EventKind.DROPPED, self.queue_id, [message.id], 0, f"unreadable: {message.reason}"
        )

    # Content and snapshots ---------------------------------------------------------------------

    async def load_runs(self, ids: Sequence[int]) -> list[LoadedRun]:
        """Read content from disk, after messages that were just enqueued have been written."""
        await self._commits.committed()
        return await self._store.load_runs(ids)

    def snapshot(self, live: LiveMessages, attempts: tuple[LiveMessages, ...] = ()) -> None:
        trim = self.keep is Keep.NOTHING
        self._store.save(Snapshot(self.queue_id, (live, *attempts), trim))

    def close(self, live: LiveMessages, attempts: tuple[LiveMessages, ...] = ()) -> None:
        """A clean stop saves exactly what was delivered, and what the queue holds."""
        self.lease.close()
        if self._dirty:
            self.snapshot(live, attempts)
