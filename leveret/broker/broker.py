"""The hub: virtual hosts, users, and the one order in which things become durable.

Built from a store; `start` takes up what the store holds. Fronts reach everything from here, and
the hub reaches fronts only through what they registered: connections to be listed or closed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from exchange import Exchange
from leveret.broker import firehose, governing, hooks, recovery
from leveret.broker.access.gate import Gate
from leveret.broker.alarms import Alarms
from leveret.broker.clock_moves import ClockMoves
from leveret.broker.commits import Commits
from leveret.broker.dead_letters import DeadLetters
from leveret.broker.deadlines import Deadlines
from leveret.broker.events import Events
from leveret.broker.log_keeper import LogKeeper
from leveret.broker.logs import Logs
from leveret.broker.metrics import Metrics, queue_values
from leveret.broker.parameters import CLUSTER_NAME, GLOBAL, Parameters
from leveret.broker.policies import Policies
from leveret.broker.stations import KEYS_OF_QUEUE, Stations
from leveret.broker.turn import Turn
from leveret.broker.upkeep import Upkeep
from leveret.broker.users import User, Users, hash_password
from leveret.broker.vhost import Plan, VirtualHost
from leveret.config import Settings
from leveret.model.clock import Clock, SystemClock
from leveret.model.counters import SIZE_BOUNDS, Counters
from leveret.model.history import EventKind, Keep, OriginKind
from leveret.model.message import Message
from leveret.model.store import (
    Committed,
    Definition,
    Failed,
    OnCommitted,
    OnFailed,
    Origin,
    PermissionDefinition,
    QueueDefinition,
    Store,
    VhostDefinition,
)
from queues import ClassicQueue, Enqueued, HeldQueue, QueueSpec
from queues.journal import Journal, write_content
from queues.port import Upward

log = logging.getLogger("leveret.broker")

T = TypeVar("T")
D = TypeVar("D", bound=Definition)
MakeStore = Callable[[OnCommitted, OnFailed], Store]
DEFAULT_VHOST = "/"
BACKLOG_HIGH = 8 * 1024 * 1024
BACKLOG_LOW = 2 * 1024 * 1024


class HeldBack(Protocol):
    def let_go(self) -> None:
        """Reading may go on."""


class ChannelEntry(Protocol):
    """A channel as management sees it."""

    def describe(self) -> dict[str, Any]:
        """The channel as a row of the management API."""

    def counts(self) -> tuple[int, ...]:
        """In the order of `metrics.CHANNEL_FIELDS`."""


class ConnectionEntry(Protocol):
    """A client connection as management sees it."""

    name: str
    user: User
    vhost: VirtualHost
    received: int
    sent: int

    @property
    def kept(self) -> int:
        """Octets of messages and methods that are not done with because they have not come whole,
        or wait behind something."""

    @property
    def channels(self) -> Mapping[int, ChannelEntry]: ...

    def describe(self) -> dict[str, Any]:
        """The connection as a row of the management API."""

    def close(self, reason: str) -> None:
        """Ask the client to go: connection.close 320 with this reason."""

    def review_rights(self) -> None:
        """The user's rights have changed: end what it may no longer do."""


class Broker:
    def __init__(
        self, settings: Settings, make_store: MakeStore, clock: Clock | None = None
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.commits = Commits()
        self.alarms = Alarms()
        self.counters = Counters()
        self.store = make_store(self._committed, self._failed)
        self.users = Users(self.store)
        self.policies = Policies(self.store, lambda vhost: governing.apply_policies(self, vhost))
        self.parameters = Parameters(self.store, lambda vhost: governing.apply_limits(self, vhost))
        self.vhosts: dict[str, VirtualHost] = {}
        self.connections: dict[ConnectionEntry, None] = {}
        self.turn = Turn(
            lambda call: asyncio.get_running_loop().call_soon(call),
            self._flush,
            lambda: self.clock.monotonic(),
        )
        self._message_ids: Iterator[int] = itertools.count(1)
        self.queue_ids = itertools.count(1)
        self.origin_ids = itertools.count(1)
        self.started_ms = self.clock.wall_ms()
        self.deadlines = Deadlines(self.clock, self.turn.touch)
        self.metrics = Metrics(self)
        self.apart: AbstractContextManager[None] = nullcontext()
        """Around the making of what connections keep (leveret/broker/apart.py)."""
        self.log_keeper = LogKeeper(self)
        self.logs = Logs(self, self.log_keeper)
        self.upkeep = Upkeep(self)
        self.stations = Stations.of(self)
        self.dead_letters = DeadLetters(self)
        self.clock_moves = ClockMoves()
        self.events = Events(self, DEFAULT_VHOST)
        self.policies.on_change = self.events.policy
        self.parameters.on_change = self.events.parameter
        self.alarms.on_change = self.events.alarm
        self.access = Gate(self)
        self.users.on_change = self.access.changed
        self._classics: dict[int, ClassicQueue] = {}
        self._held_back: dict[HeldBack, None] = {}
        self._origins: dict[tuple[str, str], int] = {}

    def __repr__(self) -> str:
        return f"<Broker vhosts={len(self.vhosts)} connections={len(self.connections)}>"

    # Starting and stopping ---------------------------------------------------------------------

    def start(self) -> None:
        """Take up what the store holds; on a new store, make the defaults."""
        recovered = self.store.recover()
        self.clock.not_before(self.store.usage.last_ms)
        self.commits.committed = self.store.committed
        self._message_ids = self.store.ids
        self.queue_ids = itertools.count(recovered.last_queue_id + 1)
        self.origin_ids = itertools.count(recovered.last_origin_id + 1)
        self.clock_moves.start(recovered, self.clock, self.store)
        recovery.take_up(self, recovered)
        if not self.vhosts:
            self._make_defaults()
        self.turn.schedule()
        self.upkeep.start()

    def _make_defaults(self) -> None:
        self.add_vhost(DEFAULT_VHOST, born_ms=0)
        self.make_default_user()
        self.turn.schedule()

    def make_default_user(self) -> None:
        """Its hash is one that takes no time, until the start is over."""
        name, password = self.settings.default_user, self.settings.default_password
        if name:
            user = self.users.put_user(name, hash_password(password), ("administrator",))
            self.users.set_permission(PermissionDefinition(name, DEFAULT_VHOST, ".*", ".*", ".*"))
            self.access.logins.upgrade(user, password)

    async def stop(self) -> None:
        """Everything taken is committed; queues write where they stopped."""
        await self.upkeep.stop()
        self.deadlines.stop()
        self.stations.delays.stop()
        for vhost in self.vhosts.values():
            for queue in vhost.queues.values():
                queue.close(deleted=False)
        await self.access.stop()
        await self.store.close()
        await self.log_keeper.stop()

    # Publishing --------------------------------------------------------------------------------

    def route(self, plan: Plan, message: Message) -> Enqueued:
        """Hand a message to its queues; the one place where a message gets its number."""
        message.id = next(self._message_ids)
        message.keep = plan.keep
        counters, size = self.counters, message.body_size
        counters.published += 1
        counters.published_bytes += size
        counters.sizes[bisect_left(SIZE_BOUNDS, size)] += 1
        exchange, queues = plan.exchange, plan.queues
        exchange.published_in += 1
        exchange.published_out += len(queues)
        taken, touch = Enqueued.TAKEN, self.turn.touch
        for queue in queues:
            answer = queue.enqueue(message)
            if answer is not Enqueued.TAKEN and taken is not Enqueued.REJECTED:
                taken = answer
            if not queue.touched:
                touch(queue)
        if not queues and message.scan.persistent and plan.keep is not Keep.NOTHING:
            write_content(self.store, message)
            where = None if message.origin else self._vhost_of(exchange)
            self.store.record(EventKind.UNROUTABLE, 0, message.id, message.origin, where)
            self.turn.schedule()
        return taken

    def route_run(
        self, plan: Plan, messages: list[Message], now_ms: int, origin: int
    ) -> list[Enqueued] | None:
        """`route` for several messages of one channel; None: every queue took every message."""
        keep, ids, size_counts = plan.keep, self._message_ids, self.counters.sizes
        size = 0
        for message in messages:
            message.id = next(ids)
            message.time_ms, message.origin, message.keep = now_ms, origin, keep
            size += message.body_size
            size_counts[bisect_left(SIZE_BOUNDS, message.body_size)] += 1
        count, queues = len(messages), plan.queues
        self.counters.published += count
        self.counters.published_bytes += size
        plan.exchange.published_in += count
        plan.exchange.published_out += count * len(queues)
        answers: list[Enqueued] | None = None
        for queue in queues:
            if not (isinstance(queue, ClassicQueue) and queue.enqueue_run(messages)):
                answers = _worse(answers, [queue.enqueue(message) for message in messages])
            self.turn.touch(queue)
        return answers

    def _vhost_of(self, exchange: Exchange) -> str | None:
        """For the broker's own messages, such as dead letters: nothing else tells their vhost."""
        vhosts = self.vhosts.items()
        return next((name for name, one in vhosts if exchange in one.exchanges.values()), None)

    def origin_of(self, vhost: str, user: str) -> int:
        """Who acts through the HTTP API, as the history names it; one per user and vhost."""
        known = self._origins.get((vhost, user))
        if known is None:
            known = self._origins[vhost, user] = next(self.origin_ids)
            self.store.save(
                Origin(
                    id=known,
                    kind=OriginKind.PUBLISHER,
                    vhost=vhost,
                    user=user,
                    connection="HTTP API",
                    created_ms=self.clock.wall_ms(),
                )
            )
        return known

    @property
    def cluster_name(self) -> str:
        return str(self.parameters.get(GLOBAL, GLOBAL, CLUSTER_NAME) or self.settings.node_name)

    # Virtual hosts -----------------------------------------------------------------------------

    def add_vhost(
        self, name: str, options: Mapping[str, Any] | None = None, born_ms: int | None = None
    ) -> VirtualHost:
        """Born in the next millisecond: one of the same name may have been deleted in this one."""
        vhost = self.make_vhost(name)
        vhost.born_ms = self.clock.wall_ms() + 1 if born_ms is None else born_ms
        self.set_vhost_options(vhost, options or {})
        self.events.vhost(name, "created")
        for exchange in vhost.exchanges.values():
            self.events.topology(vhost, exchange, "created")
        return vhost

    def set_vhost_options(self, vhost: VirtualHost, options: Mapping[str, Any]) -> None:
        """Description, tags and the like: kept and shown."""
        vhost.options = dict(options)
        firehose.switch(self, vhost)
        stored = {**vhost.options, recovery.BORN_MS: vhost.born_ms}
        self.store.save(VhostDefinition(vhost.name, json.dumps(stored)))
        self.turn.schedule()

    def make_vhost(self, name: str) -> VirtualHost:
        vhost = VirtualHost(name, self.store, self.make_queue, self.turn.touch, self.queue_ids)
        vhost.keep_unroutable = governing.KEEP[self.settings.history]
        vhost.on_queue_gone = lambda queue: self._queue_gone(vhost, queue)
        hooks.listen(self, vhost)
        self.vhosts[name] = vhost
        governing.apply_limits(self, name)
        return vhost

    def delete_vhost(self, name: str) -> None:
        """Everything in it goes, and so do its clients."""
        vhost = self.vhosts.pop(name)
        self._close_connections(f"vhost '{name}' is deleted", lambda one: one.vhost is vhost)
        for queue in list(vhost.queues.values()):
            vhost.forget_queue(queue)
        for exchange in list(vhost.exchanges.values()):
            if _is_builtin(exchange.name):
                self.events.topology(vhost, exchange, "deleted")
            else:
                vhost.delete_exchange(exchange.name)
        for key in [key for key in self.users.permissions if key[1] == name]:
            self.users.clear_permission(*key)
        for topic in [key for key in self.users.topic_permissions if key[1] == name]:
            self.users.clear_topic_permission(*topic)
        self.policies.delete_vhost(name)
        self.parameters.delete_vhost(name)
        for origin in [key for key in self._origins if key[0] == name]:
            del self._origins[origin]
        self.store.delete(VhostDefinition(name))
        self.events.vhost(name, "deleted")
        self.turn.schedule()

    def delete_user(self, name: str) -> None:
        """The user goes, and so do their connections."""
        self.users.delete_user(name)
        self._close_connections(f"user '{name}' was deleted", lambda one: one.user.name == name)
        self.turn.schedule()

    def _close_connections(self, reason: str, chosen: Callable[[ConnectionEntry], bool]) -> None:
        for connection in [one for one in self.connections if chosen(one)]:
            connection.close(reason)

    def require_room(self, user: User, vhost: VirtualHost) -> None:
        """May this user open one more connection here?"""
        governing.require_room(self, user, vhost)

    def require_channel_room(self, user: User) -> None:
        """May this user open one more channel?"""
        governing.require_channel_room(self, user)

    def make_queue(
        self, vhost: VirtualHost, spec: QueueSpec, definition: QueueDefinition
    ) -> HeldQueue:
        if spec.kind == "stream":
            return self.log_keeper.make(vhost, spec, definition)
        return self._classic(vhost, spec, definition)

    def _classic(
        self, vhost: VirtualHost, spec: QueueSpec, definition: QueueDefinition
    ) -> ClassicQueue:
        journal = None
        if definition.durable:
            keep = governing.KEEP[self.settings.history]
            journal = Journal(self.store, definition, self.commits.after, keep)
        queue = ClassicQueue(
            spec,
            definition.id,
            self._upward(vhost),
            journal,
            self.settings.queue_window,
            self.settings.queue_window_bytes,
        )
        if journal is not None:
            self._classics[definition.id] = queue
        if queue.options.deduplicates:
            component, durable = KEYS_OF_QUEUE + spec.name, definition.durable
            queue.dedup = self.stations.deduplication(vhost, component, spec.arguments, durable)
        return queue

    def _upward(self, vhost: VirtualHost) -> Upward:
        return Upward(
            self.turn.touch,
            self.deadlines.look_at,
            lambda queue, *deaths: self.dead_letters.republish(vhost, queue, *deaths),
            lambda queue: self._retire(vhost, queue),
            self.clock.wall_ms,
            self.clock_moves.of,
        )

    def _retire(self, vhost: VirtualHost, queue: HeldQueue) -> None:
        """A queue nobody has used for longer than it was meant to wait."""
        vhost.forget_queue(queue)
        self.turn.schedule()

    def _queue_gone(self, vhost: VirtualHost, queue: HeldQueue) -> None:
        self._classics.pop(queue.id, None)
        self.deadlines.forget(queue)
        self.log_keeper.gone(vhost, queue)
        self.events.topology(vhost, queue, "deleted")
        if isinstance(queue, ClassicQueue) and queue.dedup is not None:
            queue.dedup.clear()
        for gone in (self.counters.gone_queues, vhost.counters.gone_queues):
            for index, value in enumerate(queue_values(queue)[:7]):
                gone[index] += value

    def durable_queues(self) -> list[ClassicQueue]:
        return [
            queue
            for vhost in self.vhosts.values()
            for queue in vhost.queues.values()
            if isinstance(queue, ClassicQueue) and queue.journal is not None
        ]

    # Durability --------------------------------------------------------------------------------

    def _flush(self) -> None:
        self.store.flush()

    def _committed(self, batch: Committed) -> None:
        self.log_keeper.committed(batch.logs)
        self.commits.advance(batch.mark)
        for queue_id in batch.due:
            queue = self._classics.get(queue_id) or self.stations.delays.by_id(queue_id)
            if queue is not None and not queue.closed:
                queue.snapshot()
        if batch.due:
            self.turn.schedule()
        if self._held_back and self.store.backlog < BACKLOG_LOW:
            waiting, self._held_back = self._held_back, {}
            for one in waiting:
                one.let_go()

    def hold_back(self, publisher: HeldBack) -> None:
        """More is waiting for disk than is good: this publisher is not read until it is less."""
        self._held_back[publisher] = None

    def _failed(self, batch: Failed) -> None:
        log.error("batch %d is not durable: %s", batch.mark, batch.error)
        self.alarms.set("store" if batch.is_fatal else "disk", f"{batch.error}")
        if not batch.is_fatal:
            self.log_keeper.failed()
        self.commits.fail(batch.mark)


def _is_builtin(name: str) -> bool:
    return not name or name.startswith("amq.")


def _worse(some: list[Enqueued] | None, others: list[Enqueued]) -> list[Enqueued]:
    """Per message what its publisher has to be told, after one more queue has answered."""
    if some is None:
        return others
    return [
        one if one is Enqueued.REJECTED or other is Enqueued.TAKEN else other
        for one, other in zip(some, others, strict=True)
    ]
