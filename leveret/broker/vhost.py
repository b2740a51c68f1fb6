"""A virtual host: its exchanges, queues and bindings, and the way from an address to queues.

`version` grows with every change of the topology; whatever was worked out under an older version
is worked out again. Durable changes join the store's batch; the caller waits for its mark before
it says `-ok`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from bindings import Binding, Destination, DestinationKind
from exchange import Exchange, ExchangeSpec, Route, Walk, explain_route, route
from leveret.broker.doorway import Doorway
from leveret.broker.log_keeper import partition_names
from leveret.broker.names import (
    check_length,
    check_name,
    require_deletable,
    require_named,
    require_not_default,
    require_unreserved,
)
from leveret.broker.rows import binding_row, exchange_row, queue_row
from leveret.model.arguments import require_same, require_same_arguments
from leveret.model.counters import VhostCounters
from leveret.model.errors import (
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from leveret.model.history import Keep
from leveret.model.message import Address
from leveret.model.properties import DIRECT_REPLY_TO
from leveret.model.store import QueueDefinition, Store
from leveret.model.tables import Table
from queues import (
    ClassicQueue,
    Consumer,
    HeldQueue,
    LogQueue,
    PartitionedLog,
    QueueSpec,
    ReplyQueue,
    Target,
)
from queues.options import check_arguments, require_same_queue
from queues.spec import check_kind
from queues.stream.spec import parse_log_spec

PREDECLARED = (
    ("", "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
)
TRACE_EXCHANGE, EVENT_EXCHANGE = "amq.rabbitmq.trace", "amq.rabbitmq.event"
NO_LIMIT = -1
REPLY_PREFIX = DIRECT_REPLY_TO + "."

MakeQueue = Callable[["VirtualHost", QueueSpec, QueueDefinition], HeldQueue]


@dataclass(slots=True)
class Plan:
    """Where messages for one address go, as long as `version` stands."""

    version: int
    exchange: Exchange
    queues: list[Target]
    reusable: bool
    rights: int
    keep: Keep
    takes_runs: bool = False
    """Whether several messages at once may be handed to these queues, and to nobody else."""


class VirtualHost:
    def __init__(
        self,
        name: str,
        store: Store,
        make_queue: MakeQueue,
        touch: Callable[[HeldQueue], None],
        queue_ids: Iterator[int],
    ) -> None:
        self.name = name
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, HeldQueue] = {}
        self.reply_queues: dict[str, ReplyQueue] = {}
        self.front_memory: WeakValueDictionary[str, Any] = WeakValueDictionary()
        """What a front remembers for all connections of a user, until the last of them ends."""
        self.version = 0
        self.counters = VhostCounters()
        self.queues_declared = self.queues_created = self.queues_deleted = 0
        self.keep_unroutable = Keep.NOTHING
        self.on_queue_gone: Callable[[HeldQueue], None] = lambda queue: None
        self.on_made: Callable[[Exchange | HeldQueue], None] = lambda made: None
        self.on_exchange_gone: Callable[[Exchange], None] = lambda exchange: None
        self.on_bound: Callable[[Exchange, Binding], None] = lambda exchange, binding: None
        self.on_unbound: Callable[[Binding], None] = lambda binding: None
        self.tracing = False
        self.doorway: Callable[[Exchange, list[str]], Target] | None = None
        self.options: dict[str, Any] = {}
        self.born_ms = 0
        """What history has of this name from before was another's, which is deleted."""
        self.most_queues = NO_LIMIT
        self.ungoverned: Iterator[Exchange | HeldQueue] = iter(())
        """What the last change of policies has not reached yet."""
        self._store = store
        self._make_queue = make_queue
        self._touch = touch
        self._queue_ids = queue_ids
        self._bindings_to: dict[Destination, dict[Binding, None]] = {}
        self._owned: dict[object, dict[HeldQueue, None]] = {}
        for exchange_name, kind in PREDECLARED:
            self.exchanges[exchange_name] = Exchange(ExchangeSpec(exchange_name, kind, True))
        for internal in (TRACE_EXCHANGE, EVENT_EXCHANGE) if name == "/" else (TRACE_EXCHANGE,):
            spec = ExchangeSpec(internal, "topic", durable=True, internal=True)
            self.exchanges[internal] = Exchange(spec)

    def __repr__(self) -> str:
        return (
            f"<VirtualHost {self.name!r} exchanges={len(self.exchanges)} queues={len(self.queues)}>"
        )

    # Finding -----------------------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        found = self.exchanges.get(name)
        if found is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self.name}'")
        return found

    def queue(self, name: str, owner: object | None = None) -> HeldQueue:
        """The queue, unless another connection holds it exclusively; asking for it is a use."""
        found = self.watched_queue(name, owner)
        if isinstance(found, ClassicQueue):
            found.asked_for()
        return found

    def watched_queue(self, name: str, owner: object | None = None) -> HeldQueue:
        """The same for who only looks: it expires as if nobody had."""
        found = self.queues.get(name)
        if found is None:
            raise NotFound(f"no queue '{name}' in vhost '{self.name}'")
        if found.owner is not None and found.owner is not owner:
            raise ResourceLocked(
                f"cannot obtain exclusive access to locked {self._q(name)}. It could be originally "
                "declared on another connection or the exclusive property value does not match "
                "that of the original declaration."
            )
        return found

    def bindings(self) -> Iterator[Binding]:
        for exchange in self.exchanges.values():
            yield from exchange.bindings

    def bindings_to(self, destination: Destination) -> list[Binding]:
        return list(self._bindings_to.get(destination, ()))

    # Exchanges ---------------------------------------------------------------------------------

    def declare_exchange(self, spec: ExchangeSpec, is_stored: bool = False) -> Exchange:
        require_not_default(spec.name)
        current = self.exchanges.get(spec.name)
        if current is not None:
            self._require_same_exchange(current, spec)
            return current
        require_unreserved("exchange", spec.name)
        check_name("exchange", spec.name)
        if not is_stored:
            spec.require_alternate(f"exchange '{spec.name}' in vhost '{self.name}'")
        created = Exchange(spec)
        self.exchanges[spec.name] = created
        self.on_made(created)
        self.version += 1
        if spec.durable:
            self._store.save(exchange_row(self.name, spec))
        return created

    def _require_same_exchange(self, current: Exchange, spec: ExchangeSpec) -> None:
        what = f"exchange '{spec.name}' in vhost '{self.name}'"
        require_same(what, "type", spec.kind, current.spec.kind)
        require_same(what, "durable", spec.durable, current.spec.durable)
        require_same(what, "auto_delete", spec.auto_delete, current.spec.auto_delete)
        require_same(what, "internal", spec.internal, current.spec.internal)
        require_same_arguments(
            what, ("alternate-exchange",), (spec.arguments, {}), (current.spec.arguments, {})
        )

    def delete_exchange(self, name: str, if_unused: bool = False) -> None:
        require_deletable(name, self.name)
        current = self.exchanges.get(name)
        if current is None:
            return
        if if_unused and current.bindings:
            raise PreconditionFailed(f"exchange '{name}' in vhost '{self.name}' in use")
        if isinstance(self.queues.get(name), PartitionedLog):
            raise PreconditionFailed(f"exchange '{name}' belongs to {self._q(name)}: delete that")
        self._forget_exchanges([current])

    def _forget_exchanges(self, going: list[Exchange]) -> None:
        """And those they leave abandoned, one after the other: a chain of them may be long."""
        for exchange in going:
            going += self._take_away(exchange)

    def _take_away(self, exchange: Exchange) -> list[Exchange]:
        """Which exchanges are abandoned now that it is gone."""
        del self.exchanges[exchange.name]
        self.version += 1
        for binding in list(exchange.bindings):
            self._drop_binding(exchange, binding)
        destination = Destination(DestinationKind.EXCHANGE, exchange.name)
        abandoned = self._drop_bindings_to(destination)
        self.on_exchange_gone(exchange)
        if exchange.spec.durable:
            self._store.delete(exchange_row(self.name, exchange.spec))
        return abandoned

    # Queues ------------------------------------------------------------------------------------

    def declare_queue(self, spec: QueueSpec, owner: object | None = None) -> HeldQueue:
        """Find or make; an exclusive queue belongs to `owner`."""
        require_unreserved("queue", spec.name)
        current = self.queues.get(spec.name)
        if current is not None:
            self.queue(spec.name, owner)
            require_same_queue(self._q(spec.name), current.spec, spec)
            self.queues_declared += 1
            return current
        return self._create_queue(spec, owner)

    def of_default_type(self, spec: QueueSpec) -> QueueSpec:
        """What does not name its type and could be of this virtual host's default one, is."""
        kind = self.options.get("default_queue_type", "classic")
        named = "x-queue-type" in spec.arguments
        if kind == "classic" or named or not spec.durable or spec.exclusive or spec.auto_delete:
            return spec
        held = self.queues.get(spec.name)
        return spec.of_kind(kind if held is None else held.spec.kind)

    def declare_server_named(self, spec: QueueSpec, owner: object | None) -> HeldQueue:
        """Make a queue whose name comes from `server_name`."""
        return self._create_queue(spec, owner)

    def _create_queue(self, spec: QueueSpec, owner: object | None) -> HeldQueue:
        check_name("queue", spec.name)
        check_kind(spec, self._q(spec.name))
        check_arguments(spec.arguments, self._q(spec.name))
        self._require_room(spec)
        definition = queue_row(self.name, next(self._queue_ids), spec)
        created = self._make_queue(self, spec, definition)
        if definition.durable:
            self._store.save(definition)
        self.adopt_queue(created, owner if spec.exclusive else None)
        self.queues_declared += 1
        self.queues_created += 1
        return created

    def _require_room(self, spec: QueueSpec) -> None:
        """Each partition of a log is a queue, too; some may be there already as logs."""
        is_log = spec.kind == "stream"
        parts = parse_log_spec(spec, self._q(spec.name)).partitions if is_log else 0
        names = (spec.name, *partition_names(spec.name, parts))
        new = sum(name not in self.queues for name in names)
        if 0 <= self.most_queues < len(self.queues) + new:
            raise PreconditionFailed(
                f"cannot declare queue '{spec.name}': queue limit in vhost '{self.name}' "
                f"({self.most_queues}) is reached"
            )

    def adopt_queue(self, queue: HeldQueue, owner: object | None = None) -> None:
        queue.owner = owner
        if owner is not None:
            self._owned.setdefault(owner, {})[queue] = None
        self.queues[queue.name] = queue
        self.on_made(queue)
        self.version += 1

    def delete_queue(
        self,
        name: str,
        owner: object | None = None,
        if_unused: bool = False,
        if_empty: bool = False,
    ) -> int:
        """Delete and say how many were ready; a missing queue is 0."""
        if name not in self.queues:
            return 0
        queue = self.queue(name, owner)
        if isinstance(queue, LogQueue) and queue.whole is not None:
            whole = self._q(queue.whole.name)
            raise PreconditionFailed(f"{self._q(name)} is a partition of {whole}: delete that")
        if if_unused and queue.consumers:
            raise PreconditionFailed(f"{self._q(name)} in use")
        if if_empty and queue.ready_count:
            raise PreconditionFailed(f"{self._q(name)} not empty")
        return self.forget_queue(queue)

    def forget_queue(self, queue: HeldQueue) -> int:
        if self.queues.get(queue.name) is not queue:
            return 0
        del self.queues[queue.name]
        self._owned.get(queue.owner, {}).pop(queue, None)
        self.version += 1
        self.queues_deleted += 1
        destination = Destination(DestinationKind.QUEUE, queue.name)
        self._forget_exchanges(self._drop_bindings_to(destination))
        self.on_queue_gone(queue)
        gone = queue.close(deleted=True)
        if queue.spec.durable and not queue.spec.exclusive:
            self._store.delete(
                QueueDefinition(id=queue.id, vhost=self.name, name=queue.name, kind=queue.spec.kind)
            )
        return gone

    def disown(self, owner: object) -> list[HeldQueue]:
        """The owner goes; these are the exclusive queues that have to go with it."""
        return list(self._owned.pop(owner, ()))

    def leave_queue(self, queue: HeldQueue, consumer: Consumer) -> None:
        """A consumer goes; an auto-delete queue goes with its last one."""
        was_consuming = consumer in queue.consumers
        queue.remove_consumer(consumer)
        if was_consuming and queue.spec.auto_delete and not queue.consumers:
            self.forget_queue(queue)

    def add_reply_queue(self) -> ReplyQueue:
        name = REPLY_PREFIX + secrets.token_urlsafe(18)
        queue = ReplyQueue(name)
        self.reply_queues[name] = queue
        return queue

    def require_reply_queue(self, name: str) -> None:
        """Does whoever gave this reply address still listen?"""
        if name != DIRECT_REPLY_TO and name not in self.reply_queues:
            raise NotFound(f"no queue '{name}' in vhost '{self.name}'")

    def remove_reply_queue(self, queue: ReplyQueue) -> None:
        queue.close(deleted=True)
        if self.reply_queues.pop(queue.name, None) is not None:
            self.version += 1

    # Bindings ----------------------------------------------------------------------------------

    def bind(
        self,
        source: str,
        destination: Destination,
        key: str,
        arguments: Mapping[str, Any],
        is_stored: bool = False,
    ) -> None:
        require_named(source, destination)
        exchange = self.exchange(source)
        self._require_destination(destination)
        check_length("routing key", key)
        binding = Binding.of(source, destination, key, arguments)
        if not exchange.bind(binding, is_stored):
            return
        self._bindings_to.setdefault(destination, {})[binding] = None
        self.version += 1
        if self._is_durable(binding):
            self._store.save(binding_row(self.name, binding))
        self.on_bound(exchange, binding)

    def unbind(
        self, source: str, destination: Destination, key: str, arguments: Mapping[str, Any]
    ) -> None:
        require_named(source, destination)
        binding = Binding.of(source, destination, key, arguments)
        if self.is_bound(binding):
            exchange = self.exchanges[source]
            self._drop_binding(exchange, binding)
            if exchange.is_abandoned:
                self._forget_exchanges([exchange])

    def is_bound(self, binding: Binding) -> bool:
        exchange = self.exchanges.get(binding.source)
        return exchange is not None and binding in exchange.bindings

    def _require_destination(self, destination: Destination) -> None:
        if destination.kind is DestinationKind.EXCHANGE:
            self.exchange(destination.name)
        elif destination.name not in self.queues:
            raise NotFound(f"no queue '{destination.name}' in vhost '{self.name}'")

    def _drop_binding(self, exchange: Exchange, binding: Binding) -> None:
        durable = self._is_durable(binding)
        exchange.unbind(binding)
        self.version += 1
        held = self._bindings_to.get(binding.destination)
        if held is not None:
            held.pop(binding, None)
            if not held:
                del self._bindings_to[binding.destination]
        self.on_unbound(binding)
        if durable:
            self._store.delete(binding_row(self.name, binding))

    def _drop_bindings_to(self, destination: Destination) -> list[Exchange]:
        """Which exchanges are abandoned without them."""
        abandoned = []
        for binding in self.bindings_to(destination):
            source = self.exchanges.get(binding.source)
            if source is not None:
                self._drop_binding(source, binding)
                if source.is_abandoned:
                    abandoned.append(source)
        return abandoned

    def _is_durable(self, binding: Binding) -> bool:
        """Between durable things; the destination may just be going."""
        source = self.exchanges.get(binding.source)
        if source is not None and not source.spec.durable:
            return False
        held: Exchange | HeldQueue | None
        if binding.destination.kind is DestinationKind.QUEUE:
            held = self.queues.get(binding.destination.name)
            return held is None or (held.spec.durable and not held.spec.exclusive)
        held = self.exchanges.get(binding.destination.name)
        return held is None or held.spec.durable

    # Publishing --------------------------------------------------------------------------------

    def plan(self, address: Address, extra_keys: list[str], headers: Table, rights: int) -> Plan:
        """Which queues a message for this address reaches now."""
        exchange = self.exchange(address.exchange)
        keys = list(dict.fromkeys((address.routing_key, *extra_keys)))
        walk = Walk()
        found = self._route(exchange, keys, headers, walk)
        queues = self._reached(found, keys, headers, walk)
        if not exchange.name and address.routing_key.startswith(REPLY_PREFIX):
            reply = self.reply_queues.get(address.routing_key)
            found_queues: list[Target] = [reply] if reply else []
            return Plan(self.version, exchange, found_queues, False, rights, Keep.NOTHING)
        reusable = found.reusable and not extra_keys and not self.tracing
        keep = max((queue.keep for queue in queues), default=self.keep_unroutable)
        return Plan(
            self.version, exchange, queues, reusable, rights, keep, reusable and bool(queues)
        )

    def _reached(self, found: Route, keys: list[str], headers: Table, walk: Walk) -> list[Target]:
        """The queues, and a doorway for each station; behind it what nothing before it leads to."""
        named = set(found.queues)
        queues: list[Target] = [self.queues[name] for name in found.queues if name in self.queues]
        if self.doorway is None:
            return queues
        ahead = [(station, queues) for station in reversed(found.stations)]
        while ahead:
            station, before = ahead.pop()
            door = self.doorway(station, keys)
            before.append(door)
            if not isinstance(door, Doorway) or door.keeps:
                continue
            found = route(self.exchanges, station, keys, headers, walk)
            new = [name for name in found.queues if name not in named and name in self.queues]
            named.update(new)
            door.behind += [self.queues[name] for name in new]
            ahead += [(one, door.behind) for one in reversed(found.stations)]
        return queues

    def beyond(self, station: Exchange, keys: list[str], headers: Table) -> list[Target]:
        """What lies behind a station, for a message that was kept there."""
        walk = Walk({station.name})
        found = route(self.exchanges, station, keys, headers, walk)
        return self._reached(found, keys, headers, walk)

    def still_there(self, plan: Plan) -> Plan:
        """An older plan without the queues that have gone since."""
        queues = [queue for queue in plan.queues if self.is_there(queue)]
        return Plan(self.version, plan.exchange, queues, False, plan.rights, plan.keep)

    def is_there(self, queue: Target) -> bool:
        station = getattr(queue, "exchange", None)
        if isinstance(station, Exchange):
            return self.exchanges.get(station.name) is station
        return self.queues.get(queue.name) is queue or queue.name in self.reply_queues

    def _route(self, exchange: Exchange, keys: list[str], headers: Table, walk: Walk) -> Route:
        if not exchange.name:
            return Route(tuple(keys), reusable=True)
        return route(self.exchanges, exchange, keys, headers, walk)

    def explain(self, exchange_name: str, key: str, headers: Table) -> list[Binding]:
        """The bindings a message would pass through (none for the default exchange)."""
        return explain_route(self.exchanges, self.exchange(exchange_name), [key], headers)

    def _q(self, name: str) -> str:
        return f"queue '{name}' in vhost '{self.name}'"
