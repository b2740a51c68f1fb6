"""Messages without an AMQP channel: publish, get, browse, and the dry run of a route.

Plain functions over the broker, on the event loop. Publishing follows the same rules as over AMQP;
the caller waits for the commit before it answers. A get never loses messages to a client that
disconnects: entries stay unacknowledged until `settle`, or are requeued.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.bindings import Binding, Destination, DestinationKind
from leveret.broker.access.permissions import Action
from leveret.broker.events import firehose
from leveret.broker.names import require_not_internal
from leveret.broker.publishing.validation import (
    cc_and_bcc_keys,
    require_record_keys,
    validate_without_channel,
    without_bcc,
)
from leveret.exchange import explain_route, route
from leveret.model.message import Message
from leveret.model.run import Run
from leveret.model.store import UnreadableMessage
from leveret.model.tables import Table
from leveret.queues.delivery import Delivery
from leveret.queues.entry import Entry, Outcome
from leveret.queues.port import EnqueueResult, Queue

if TYPE_CHECKING:
    from leveret.broker.access.users import User
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Bytes of bodies in one response: once they are reached, no more messages are added."""
_POLL_SECONDS = 0.25
_LOAD_SECONDS = 5.0
_LOADED_AT_ONCE = 4
"""Messages; each of them may have the maximum size."""

IsDisconnected = Callable[[], Awaitable[bool]]


# Publishing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What became of a message; one that is `stored` is safe once its batch is committed."""

    routed: bool
    accepted: bool
    stored: bool


def publish(broker: Broker, vhost: VirtualHost, user: User, message: Message) -> PublishResult:
    """Validate and enqueue a message; the caller has checked the write permission."""
    validate_without_channel(message, broker.settings, user)
    headers = message.headers()
    extra_keys = cc_and_bcc_keys(headers)
    exchange = vhost.exchange(message.exchange)
    require_not_internal(exchange, vhost.name)
    broker.users.authorize_topic(
        user.name, vhost.name, Action.PUBLISH, exchange, (message.routing_key, *extra_keys)
    )
    message = without_bcc(message, headers)
    plan = vhost.plan(message.address, extra_keys, headers, broker.users.revision)
    require_record_keys(message.exchange, plan.targets)
    if vhost.tracing:
        client = {"connection": "HTTP API", "channel": 0, "user": user.name}
        firehose.on_published(broker, vhost, plan, message, client)
    message.time_ms = broker.clock.wall_ms()
    message.origin = broker.http_origin(vhost.name, user.name)
    results = broker.enqueue(plan, Run.of([message]))
    if not plan.targets:
        broker.counters.dropped_unroutable += 1
        vhost.counters.dropped_unroutable += 1
    broker.scheduler.schedule()
    is_accepted = results is None or EnqueueResult.REJECTED not in results
    return PublishResult(bool(plan.targets), is_accepted, message.stored)


# Getting -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PolledMessage:
    """A delivery of one entry, and the number of ready messages behind it."""

    delivery: Delivery
    entry: Entry
    ready_count: int


@dataclass(frozen=True, slots=True)
class QueueGetter:
    """Gets messages from one queue for a client that history knows as `actor`."""

    broker: Broker
    vhost: VirtualHost
    queue: Queue
    actor: int

    async def get(
        self,
        count: int,
        wait: float = 0,
        is_disconnected: IsDisconnected | None = None,
        before_more: Callable[[], Awaitable[None]] | None = None,
    ) -> list[PolledMessage]:
        """Get up to `count` entries, unacknowledged; with `wait`, until there is at least one.

        If the client disconnects meanwhile, everything stays in the queue. After the first entry
        `before_more` is awaited, for example for a place in a concurrency limit.
        """
        got: list[PolledMessage] = []
        check = is_disconnected or _never
        try:
            await self._get(1 if before_more else count, wait, check, got)
            if before_more and got:
                await before_more()
                await self._get(count, 0, check, got)
            if got and is_disconnected is not None and await is_disconnected():
                self.settle(got, Outcome.REQUEUE)
                return []
        except BaseException:
            self.settle(got, Outcome.REQUEUE)
            raise
        if not got:
            self.broker.counters.get_empty += 1
        return got

    async def _get(
        self,
        count: int,
        wait: float,
        is_disconnected: IsDisconnected,
        got: list[PolledMessage],
    ) -> None:
        queue, now = self.queue, asyncio.get_running_loop().time
        deadline, load_deadline = now() + wait, 0.0
        size = sum(each.entry.message.body_size for each in got)
        readable = _ReadableEvent(queue)
        while (
            len(got) < count
            and size < MAX_BODY_BYTES
            and self.vhost.queues.get(queue.name) is queue
        ):
            delivery = queue.basic_get(self.actor, no_ack=False)
            self.broker.scheduler.schedule()
            if delivery is not None:
                (entry,) = delivery.entries()
                got.append(PolledMessage(delivery, entry, queue.ready_count))
                size += entry.message.body_size
                load_deadline = 0.0
                continue
            if queue.ready_count:
                # Messages are ready, but their content has to be read from disk first.
                load_deadline = load_deadline or now() + _LOAD_SECONDS
            elif got:
                return
            seconds_left = max(deadline, load_deadline) - now()
            if seconds_left <= 0 or await is_disconnected():
                return
            await readable.wait(min(_POLL_SECONDS, seconds_left))

    def settle(self, got: Sequence[PolledMessage], outcome: Outcome) -> None:
        if got:
            deliveries = [each.delivery for each in got]
            self.queue.settle(deliveries, outcome, self.actor)
            self.broker.scheduler.mark_ready(self.queue)


async def _never() -> bool:
    return False


class _ReadableEvent:
    """Waits until a queue may be readable; leaves at most one callback in the queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._event = asyncio.Event()
        self._is_registered = False

    def _on_readable(self) -> None:
        self._is_registered = False
        self._event.set()

    async def wait(self, seconds: float) -> None:
        self._event.clear()
        if not self._is_registered:
            self._is_registered = True
            self._queue.when_readable(self._on_readable)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)


# Browsing ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BrowsedMessage:
    """A message that stays in its queue; `position` counts from 1."""

    position: int
    message: Message
    redelivered: bool
    is_unacked: bool


async def browse(broker: Broker, queue: Queue, offset: int, count: int) -> list[BrowsedMessage]:
    """The messages of a queue in order: the unacknowledged ones, then the ready ones."""
    queue.deliver_pending()
    peeked = queue.peek(offset, count)
    entries, ids = peeked.entries, peeked.disk_ids
    size, browsed = 0, list[BrowsedMessage]()
    first_ready = offset + peeked.unacked_count + 1
    for position, entry in enumerate(entries, offset + 1):
        if size >= MAX_BODY_BYTES:
            return browsed
        is_unacked = position < first_ready
        browsed.append(BrowsedMessage(position, entry.message, entry.redelivered, is_unacked))
        size += entry.message.body_size
    if not ids or peeked.load is None:
        return browsed
    start = offset + len(entries) + 1
    for first in range(0, len(ids), _LOADED_AT_ONCE):
        if size >= MAX_BODY_BYTES:
            return browsed
        loaded = await peeked.load(ids[first : first + _LOADED_AT_ONCE])
        for position, stored in enumerate(loaded, start + first):
            if not isinstance(stored, UnreadableMessage):
                redelivered = stored.id <= peeked.redelivered_to
                message = Message.restored(stored)
                browsed.append(BrowsedMessage(position, message, redelivered, False))
                size += message.body_size
    return browsed


# Dry run -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DryRun:
    """The queues a message would reach, and the bindings it would pass."""

    queues: tuple[str, ...]
    bindings: tuple[Binding, ...]


def dry_run(vhost: VirtualHost, exchange_name: str, routing_key: str, headers: Table) -> DryRun:
    """Route a message without publishing it."""
    exchange = vhost.exchange(exchange_name)
    keys = [routing_key, *cc_and_bcc_keys(headers)]
    if not exchange.name:
        names = tuple(dict.fromkeys(key for key in keys if key in vhost.queues))
        destinations = [Destination(DestinationKind.QUEUE, name) for name in names]
        default_bindings = [Binding.of("", to, to.name, {}) for to in destinations]
        return DryRun(names, tuple(default_bindings))
    routed = route(vhost.exchanges, exchange, keys, headers)
    queues = tuple(name for name in routed.queues if name in vhost.queues)
    return DryRun(queues, tuple(explain_route(vhost.exchanges, exchange, keys, headers)))
