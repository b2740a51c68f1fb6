"""Messages for fronts that are not AMQP: publish, take, look without taking, ask the way.

Plain functions over the hub, on the event loop. Publishing follows the same rules as over AMQP;
whoever publishes waits for the store's mark before saying so. Taking never loses a message to a
caller who goes away: entries stay unacknowledged until `settle`, or go back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bindings import Binding, Destination, DestinationKind
from exchange import explain_route, route
from leveret.broker import firehose
from leveret.broker.access.rights import Action
from leveret.broker.judging import check_without_channel, copy_keys, without_blind_copies
from leveret.broker.names import require_open
from leveret.model.errors import NotImplementedHere
from leveret.model.message import Message
from leveret.model.store import Rotten
from leveret.model.tables import Table
from queues import ClassicQueue, Enqueued, Entry, HeldQueue, Outcome

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.users import User
    from leveret.broker.vhost import VirtualHost

_SLICE_SECONDS = 0.25
_DISK_SECONDS = 5.0
MOST_OCTETS = 16 * 1024 * 1024
"""Of bodies in one answer: beyond it nothing more is taken or read, and the answer is shorter."""
_READ_AT_ONCE = 4
"""Messages, each of which may be as large as one gets."""

IsGone = Callable[[], Awaitable[bool]]


# Publishing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a message. When it is `stored`, it is safe once the store says so."""

    routed: bool
    taken: bool
    stored: bool


def publish(broker: Broker, vhost: VirtualHost, user: User, message: Message) -> Published:
    """Judge and route one message; the right to write is the caller's to check."""
    check_without_channel(message, broker.settings, user.name)
    headers = message.headers()
    keys = copy_keys(headers)
    exchange = vhost.exchange(message.exchange)
    require_open(exchange, vhost.name)
    broker.users.demand_topic(
        user.name, vhost.name, Action.PUBLISH, exchange, (message.routing_key, *keys)
    )
    message = without_blind_copies(message, headers)
    plan = vhost.plan(message.address, keys, headers, broker.users.revision)
    if vhost.tracing:
        who = {"connection": "HTTP API", "channel": 0, "user": user.name}
        firehose.published(broker, vhost, plan, message, who)
    message.time_ms = broker.clock.wall_ms()
    message.origin = broker.origin_of(vhost.name, user.name)
    taken = broker.route(plan, message)
    if not plan.queues:
        broker.counters.dropped_unroutable += 1
        vhost.counters.dropped_unroutable += 1
    broker.turn.schedule()
    return Published(bool(plan.queues), taken is not Enqueued.REJECTED, message.stored)


# Taking ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Taken:
    """An entry that was handed out, and how many were ready behind it."""

    entry: Entry
    left: int


@dataclass(frozen=True, slots=True)
class Getter:
    """Polls one queue on behalf of somebody (`actor` in the history)."""

    broker: Broker
    vhost: VirtualHost
    queue: HeldQueue
    actor: int

    async def take(
        self,
        count: int,
        wait: float = 0,
        is_gone: IsGone | None = None,
        turn: Callable[[], Awaitable[None]] | None = None,
    ) -> list[Taken]:
        """Up to `count` entries, unacknowledged; with `wait`, hold back until there is one.

        Whoever asked may have gone away meanwhile (`is_gone`): then everything stays. More than one
        are taken when `turn` says so.
        """
        taken: list[Taken] = []
        try:
            await self._take(1 if turn else count, wait, is_gone or _stays, taken)
            if turn and taken:
                await turn()
                await self._take(count, 0, is_gone or _stays, taken)
            if taken and is_gone is not None and await is_gone():
                self.settle(taken, Outcome.REQUEUE)
                return []
        except BaseException:
            self.settle(taken, Outcome.REQUEUE)
            raise
        if not taken:
            self.broker.counters.get_empty += 1
        return taken

    async def _take(self, count: int, wait: float, is_gone: IsGone, taken: list[Taken]) -> None:
        queue, now = self.queue, asyncio.get_running_loop().time
        deadline, disk_deadline = now() + wait, 0.0
        octets = sum(one.entry.message.body_size for one in taken)
        news = _News(queue)
        while (
            len(taken) < count
            and octets < MOST_OCTETS
            and self.vhost.queues.get(queue.name) is queue
        ):
            entry = queue.take(self.actor, no_ack=False)
            self.broker.turn.schedule()
            if entry is not None:
                taken.append(Taken(entry, queue.ready_count))
                octets += entry.message.body_size
                disk_deadline = 0.0
                continue
            if queue.ready_count:
                # There is something, but it has to come from disk first.
                disk_deadline = disk_deadline or now() + _DISK_SECONDS
            elif taken:
                return
            left = max(deadline, disk_deadline) - now()
            if left <= 0 or await is_gone():
                return
            await news.wait(min(_SLICE_SECONDS, left))

    def settle(self, taken: Sequence[Taken], outcome: Outcome) -> None:
        if taken:
            self.queue.settle([one.entry for one in taken], outcome, self.actor)
            self.broker.turn.touch(self.queue)


async def _stays() -> bool:
    return False


class _News:
    """Waits for a queue's head; at most one call-back is left behind in the queue."""

    def __init__(self, queue: HeldQueue) -> None:
        self._queue = queue
        self._arrived = asyncio.Event()
        self._listening = False

    def _tell(self) -> None:
        self._listening = False
        self._arrived.set()

    async def wait(self, seconds: float) -> None:
        self._arrived.clear()
        if not self._listening:
            self._listening = True
            self._queue.when_head(self._tell)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), seconds)


# Looking -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """A message in a queue, looked at and left where it is; `position` counts from 1."""

    position: int
    message: Message
    redelivered: bool
    is_unacked: bool


async def browse(broker: Broker, queue: HeldQueue, offset: int, count: int) -> list[Seen]:
    """What a queue holds: unacknowledged first, then ready, in order."""
    if not isinstance(queue, ClassicQueue):
        raise NotImplementedHere(f"a {queue.spec.kind} queue is read by offset, not browsed")
    entries, ids = queue.peek(offset, count)
    unacked, octets, seen = queue.unacked.keys(), 0, list[Seen]()
    for index, entry in enumerate(entries, offset + 1):
        if octets >= MOST_OCTETS:
            return seen
        seen.append(Seen(index, entry.message, entry.redelivered, entry.id in unacked))
        octets += entry.message.body_size
    if not ids:
        return seen
    await _committed(broker)
    start = offset + len(entries) + 1
    for first in range(0, len(ids), _READ_AT_ONCE):
        if octets >= MOST_OCTETS:
            return seen
        found = await broker.store.load(ids[first : first + _READ_AT_ONCE])
        for index, stored in enumerate(found, start + first):
            if not isinstance(stored, Rotten):
                redelivered = queue.paging is not None and queue.paging.was_delivered(stored.id)
                seen.append(Seen(index, Message.restored(stored), redelivered, False))
                octets += seen[-1].message.body_size
    return seen


async def _committed(broker: Broker) -> None:
    """Only what is committed can be read back."""
    decided = asyncio.Event()
    broker.turn.schedule()
    broker.commits.after(broker.store.mark, decided.set, decided.set)
    await decided.wait()


# Asking the way ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Way:
    """Which queues a message would reach, and through which bindings."""

    queues: tuple[str, ...]
    path: tuple[Binding, ...]


def find_way(vhost: VirtualHost, exchange_name: str, routing_key: str, headers: Table) -> Way:
    """Where a message would go now; nothing is published."""
    exchange = vhost.exchange(exchange_name)
    keys = [routing_key, *copy_keys(headers)]
    if not exchange.name:
        names = tuple(dict.fromkeys(key for key in keys if key in vhost.queues))
        to = [Destination(DestinationKind.QUEUE, name) for name in names]
        return Way(names, tuple(Binding.of("", one, one.name, {}) for one in to))
    found = route(vhost.exchanges, exchange, keys, headers)
    queues = tuple(name for name in found.queues if name in vhost.queues)
    return Way(queues, tuple(explain_route(vhost.exchanges, exchange, keys, headers)))
