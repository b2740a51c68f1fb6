"""A virtual host: its exchanges, queues and bindings, and plans from an address to queues.

`version` grows with every change of the topology; plans made for an older version are made again.
Durable changes join the store's current batch; the caller waits until it is committed before it
sends `-ok`. Event-loop thread only.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol
from weakref import WeakValueDictionary

from leveret.bindings import Binding, Destination, DestinationKind
from leveret.broker.names import (
    check_length,
    check_name,
    reject_default_exchange,
    require_deletable,
    require_not_default,
    require_unreserved,
)
from leveret.broker.publishing.plugin_exchanges import PassThroughTarget
from leveret.exchange import Exchange, ExchangeSpec, Route, Walk, route
from leveret.model.arguments import dump_arguments, require_same, require_same_arguments
from leveret.model.counters import VhostCounters
from leveret.model.definitions import BindingDefinition, ExchangeDefinition, QueueDefinition
from leveret.model.errors import (
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from leveret.model.history import Keep
from leveret.model.message import DIRECT_REPLY_TO, Address
from leveret.model.store import Store
from leveret.model.tables import Table
from leveret.queues.log.spec import parse_log_spec, partition_names
from leveret.queues.options import check_arguments, require_same_queue
from leveret.queues.port import Consumer, Queue, Target
from leveret.queues.reply import ReplyQueue
from leveret.queues.spec import QueueSpec, check_kind

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


@dataclass(slots=True)
class Plan:
    """The targets of messages for one address, valid for one `version` of the topology."""

    version: int
    exchange: Exchange
    targets: list[Target]
    reusable: bool
    permissions_revision: int
    """`Users.revision` at which the publisher's permissions were checked."""
    keep: Keep


class TopologyListener(Protocol):
    """What a virtual host needs from its broker. Implemented by `TopologyHandler`."""

    def make_queue(
        self, vhost: VirtualHost, spec: QueueSpec, definition: QueueDefinition
    ) -> Queue: ...

    def make_plugin_target(
        self, vhost: VirtualHost, exchange: Exchange, keys: list[str]
    ) -> Target: ...

    def on_created(self, vhost: VirtualHost, created: Exchange | Queue) -> None: ...

    def on_queue_deleted(self, vhost: VirtualHost, queue: Queue) -> None: ...

    def on_exchange_deleted(self, vhost: VirtualHost, exchange: Exchange) -> None: ...

    def on_bound(self, vhost: VirtualHost, exchange: Exchange, binding: Binding) -> None: ...

    def on_unbound(self, vhost: VirtualHost, binding: Binding) -> None: ...


class VirtualHost:
    def __init__(
        self, name: str, store: Store, queue_ids: Iterator[int], listener: TopologyListener
    ) -> None:
        self.name = name
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.reply_queues: dict[str, ReplyQueue] = {}
        self.publish_caches: WeakValueDictionary[str, Any] = WeakValueDictionary()
        """By user name: a cache of the AMQP server that lives as long as the user's connections."""
        self.version = 0
        self.counters = VhostCounters()
        self.keep_unroutable = Keep.NOTHING
        self.tracing = False
        self.options: dict[str, Any] = {}
        self.created_ms = 0
        """History from before belongs to a deleted virtual host of the same name."""
        self.max_queues = NO_LIMIT
        self.policy_pass: Iterator[Exchange | Queue] = iter(())
        """Exchanges and queues that the last policy change has not been applied to yet."""
        self._store = store
        self._queue_ids = queue_ids
        self._listener = listener
        self._bindings_to: dict[Destination, dict[Binding, None]] = {}
        self._exclusive_queues: dict[object, dict[Queue, None]] = {}
        for exchange_name, kind in PREDECLARED:
            self.exchanges[exchange_name] = Exchange(ExchangeSpec(exchange_name, kind, True))
        for internal in (TRACE_EXCHANGE, EVENT_EXCHANGE) if name == "/" else (TRACE_EXCHANGE,):
            spec = ExchangeSpec(internal, "topic", durable=True, internal=True)
            self.exchanges[internal] = Exchange(spec)

    def __repr__(self) -> str:
        return (
            f"<VirtualHost {self.name!r} exchanges={len(self.exchanges)} queues={len(self.queues)}>"
        )

    # Exchanges ---------------------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self.name}'")
        return exchange

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
        self.add_new_exchange(created)
        return created

    def add_new_exchange(self, exchange: Exchange) -> None:
        """Add an exchange that does not exist yet, with the bindings it has already."""
        self.exchanges[exchange.name] = exchange
        self._listener.on_created(self, exchange)
        self.version += 1
        if exchange.spec.durable:
            self._store.save(_exchange_row(self.name, exchange.spec))
        for binding in exchange.bindings:
            self._add_binding(exchange, binding)

    def _require_same_exchange(self, current: Exchange, spec: ExchangeSpec) -> None:
        label = f"exchange '{spec.name}' in vhost '{self.name}'"
        require_same(label, "type", spec.kind, current.spec.kind)
        require_same(label, "durable", spec.durable, current.spec.durable)
        require_same(label, "auto_delete", spec.auto_delete, current.spec.auto_delete)
        require_same(label, "internal", spec.internal, current.spec.internal)
        require_same_arguments(
            label, ("alternate-exchange",), (spec.arguments, {}), (current.spec.arguments, {})
        )

    def delete_exchange(self, name: str, if_unused: bool = False) -> None:
        require_deletable(name, self.name)
        current = self.exchanges.get(name)
        if current is None:
            return
        if if_unused and current.bindings:
            raise PreconditionFailed(f"exchange '{name}' in vhost '{self.name}' in use")
        queue = self.queues.get(name)
        if queue is not None and queue.partitions:
            raise PreconditionFailed(
                f"exchange '{name}' belongs to {self.label(name)}: delete that queue instead"
            )
        self._remove_exchanges([current])

    def _remove_exchanges(self, exchanges: list[Exchange]) -> None:
        """Remove them and the auto-delete exchanges they leave unused.

        The list grows meanwhile: a chain of such exchanges may be too long for recursion.
        """
        for exchange in exchanges:
            exchanges += self._remove_exchange(exchange)

    def _remove_exchange(self, exchange: Exchange) -> list[Exchange]:
        """Returns the auto-delete exchanges that are unused now."""
        del self.exchanges[exchange.name]
        self.version += 1
        for binding in list(exchange.bindings):
            self._drop_binding(exchange, binding)
        destination = Destination(DestinationKind.EXCHANGE, exchange.name)
        unused = self._drop_bindings_to(destination)
        self._listener.on_exchange_deleted(self, exchange)
        if exchange.spec.durable:
            self._store.delete(_exchange_row(self.name, exchange.spec))
        return unused

    # Queues ------------------------------------------------------------------------------------

    def queue(self, name: str, owner: object | None = None) -> Queue:
        """Look up a queue for use, which restarts its expiry.

        Raises if the queue is exclusive to another connection than `owner`.
        """
        queue = self.inspect_queue(name, owner)
        queue.on_lookup()
        return queue

    def inspect_queue(self, name: str, owner: object | None = None) -> Queue:
        """Look up a queue without restarting its expiry."""
        queue = self.queues.get(name)
        if queue is None:
            raise NotFound(f"no queue '{name}' in vhost '{self.name}'")
        if queue.owner is not None and queue.owner is not owner:
            raise ResourceLocked(
                f"cannot obtain exclusive access to locked {self.label(name)}. It could be "
                "originally declared on another connection or the exclusive property value does "
                "not match that of the original declaration."
            )
        return queue

    def declare_queue(self, spec: QueueSpec, owner: object | None = None) -> Queue:
        """Find or create a queue; an exclusive queue belongs to `owner`."""
        require_unreserved("queue", spec.name)
        current = self.queues.get(spec.name)
        if current is not None:
            self.queue(spec.name, owner)
            require_same_queue(self.label(spec.name), current.spec, spec)
            self.counters.queues_declared += 1
            return current
        return self.create_queue(spec, owner)

    def with_default_type(self, spec: QueueSpec) -> QueueSpec:
        """Apply the vhost's default queue type if the spec names none and allows it."""
        kind = self.options.get("default_queue_type", "classic")
        named = "x-queue-type" in spec.arguments
        if kind == "classic" or named or not spec.durable or spec.exclusive or spec.auto_delete:
            return spec
        current = self.queues.get(spec.name)
        return spec.with_kind(kind if current is None else current.spec.kind)

    def create_queue(self, spec: QueueSpec, owner: object | None) -> Queue:
        """Create a queue that does not exist yet; its name may be one from `server_name`."""
        self.check_new_queue(spec)
        definition = self.define_queue(spec)
        created = self._listener.make_queue(self, spec, definition)
        self.add_new_queue(created, definition, owner if spec.exclusive else None)
        return created

    def check_new_queue(self, spec: QueueSpec) -> None:
        """Raise if no such queue can be created."""
        check_name("queue", spec.name)
        check_kind(spec, self.label(spec.name))
        check_arguments(spec.arguments, self.label(spec.name))
        self._check_queue_limit(spec)

    def define_queue(self, spec: QueueSpec) -> QueueDefinition:
        """The definition of a new queue, with an id that no other queue has."""
        return _queue_definition(self.name, next(self._queue_ids), spec)

    def add_new_queue(
        self, queue: Queue, definition: QueueDefinition, owner: object | None = None
    ) -> None:
        """Add a queue that was made for this definition, and store the definition."""
        if definition.durable:
            self._store.save(definition)
        self.add_queue(queue, owner)
        self.counters.queues_declared += 1
        self.counters.queues_created += 1

    def _check_queue_limit(self, spec: QueueSpec) -> None:
        """Each partition of a log counts as a queue, unless it exists already as a log."""
        is_log = spec.kind == "stream"
        parts = parse_log_spec(spec, self.label(spec.name)).partitions if is_log else 0
        names = (spec.name, *partition_names(spec.name, parts))
        new = sum(name not in self.queues for name in names)
        if 0 <= self.max_queues < len(self.queues) + new:
            raise PreconditionFailed(
                f"cannot declare queue '{spec.name}': queue limit in vhost '{self.name}' "
                f"({self.max_queues}) is reached"
            )

    def add_queue(self, queue: Queue, owner: object | None = None) -> None:
        if owner is not None:
            queue.owner = owner
            self._exclusive_queues.setdefault(owner, {})[queue] = None
        self.queues[queue.name] = queue
        self._listener.on_created(self, queue)
        self.version += 1

    def delete_queue(
        self,
        name: str,
        owner: object | None = None,
        if_unused: bool = False,
        if_empty: bool = False,
    ) -> int:
        """Delete a queue and return its number of ready messages; 0 if there is no such queue."""
        if name not in self.queues:
            return 0
        queue = self.queue(name, owner)
        if queue.partition_of is not None:
            whole = self.label(queue.partition_of.name)
            raise PreconditionFailed(
                f"{self.label(name)} is a partition of {whole}: delete that queue instead"
            )
        if if_unused and queue.consumers:
            raise PreconditionFailed(f"{self.label(name)} in use")
        if if_empty and queue.ready_count:
            raise PreconditionFailed(f"{self.label(name)} not empty")
        return self.remove_queue(queue)

    def remove_queue(self, queue: Queue) -> int:
        """Delete without checks; returns the number of ready messages."""
        if self.queues.get(queue.name) is not queue:
            return 0
        del self.queues[queue.name]
        self._exclusive_queues.get(queue.owner, {}).pop(queue, None)
        self.version += 1
        self.counters.queues_deleted += 1
        destination = Destination(DestinationKind.QUEUE, queue.name)
        self._remove_exchanges(self._drop_bindings_to(destination))
        self._listener.on_queue_deleted(self, queue)
        ready = queue.close(deleted=True)
        if queue.spec.durable and not queue.spec.exclusive:
            self._store.delete(
                QueueDefinition(id=queue.id, vhost=self.name, name=queue.name, kind=queue.spec.kind)
            )
        return ready

    def take_exclusive_queues(self, owner: object) -> list[Queue]:
        """The queues to delete now that the connection that owns them closes."""
        return list(self._exclusive_queues.pop(owner, ()))

    def remove_consumer(self, queue: Queue, consumer: Consumer) -> None:
        """Remove a consumer; an auto-delete queue is deleted with its last one."""
        was_consuming = consumer in queue.consumers
        queue.remove_consumer(consumer)
        if was_consuming and queue.spec.auto_delete and not queue.consumers:
            self.remove_queue(queue)

    def add_reply_queue(self) -> ReplyQueue:
        """The queue behind a channel's `amq.rabbitmq.reply-to`."""
        name = REPLY_PREFIX + secrets.token_urlsafe(18)
        queue = ReplyQueue(name)
        self.reply_queues[name] = queue
        return queue

    def require_reply_queue(self, name: str) -> None:
        """Raise if the consumer of this reply address does not exist any more."""
        if name != DIRECT_REPLY_TO and name not in self.reply_queues:
            raise NotFound(f"no queue '{name}' in vhost '{self.name}'")

    def remove_reply_queue(self, queue: Queue) -> None:
        queue.close(deleted=True)
        if self.reply_queues.pop(queue.name, None) is not None:
            self.version += 1

    def label(self, name: str) -> str:
        """How error texts name a queue."""
        return f"queue '{name}' in vhost '{self.name}'"

    # Bindings ----------------------------------------------------------------------------------

    def bindings(self) -> Iterator[Binding]:
        return chain.from_iterable([exchange.bindings for exchange in self.exchanges.values()])

    def bindings_to(self, destination: Destination) -> list[Binding]:
        return list(self._bindings_to.get(destination, ()))

    def is_bound(self, binding: Binding) -> bool:
        exchange = self.exchanges.get(binding.source)
        return exchange is not None and binding in exchange.bindings

    def bind(
        self,
        source: str,
        destination: Destination,
        key: str,
        arguments: Mapping[str, Any],
        is_stored: bool = False,
    ) -> None:
        reject_default_exchange(source, destination)
        exchange = self.exchange(source)
        self._require_destination(destination)
        check_length("routing key", key)
        binding = Binding.of(source, destination, key, arguments)
        if not exchange.bind(binding, is_stored):
            return
        self._add_binding(exchange, binding, is_stored)

    def _add_binding(self, exchange: Exchange, binding: Binding, is_stored: bool = False) -> None:
        self._bindings_to.setdefault(binding.destination, {})[binding] = None
        self.version += 1
        if is_stored:
            return
        if self._is_durable(binding):
            self._store.save(_binding_row(self.name, binding))
        self._listener.on_bound(self, exchange, binding)

    def unbind(
        self, source: str, destination: Destination, key: str, arguments: Mapping[str, Any]
    ) -> None:
        reject_default_exchange(source, destination)
        binding = Binding.of(source, destination, key, arguments)
        if self.is_bound(binding):
            exchange = self.exchanges[source]
            self._drop_binding(exchange, binding)
            if exchange.is_auto_deletable:
                self._remove_exchanges([exchange])

    def _require_destination(self, destination: Destination) -> None:
        if destination.kind is DestinationKind.EXCHANGE:
            self.exchange(destination.name)
        elif destination.name not in self.queues:
            raise NotFound(f"no queue '{destination.name}' in vhost '{self.name}'")

    def _drop_binding(self, exchange: Exchange, binding: Binding) -> None:
        durable = self._is_durable(binding)
        exchange.unbind(binding)
        self.version += 1
        bindings = self._bindings_to.get(binding.destination)
        if bindings is not None:
            bindings.pop(binding, None)
            if not bindings:
                del self._bindings_to[binding.destination]
        self._listener.on_unbound(self, binding)
        if durable:
            self._store.delete(_binding_row(self.name, binding))

    def _drop_bindings_to(self, destination: Destination) -> list[Exchange]:
        """Returns the auto-delete exchanges that are unused without these bindings."""
        unused = []
        for binding in self.bindings_to(destination):
            source = self.exchanges.get(binding.source)
            if source is not None:
                self._drop_binding(source, binding)
                if source.is_auto_deletable:
                    unused.append(source)
        return unused

    def _is_durable(self, binding: Binding) -> bool:
        """Both ends are durable; an end that is just being deleted does not count."""
        source = self.exchanges.get(binding.source)
        if source is not None and not source.spec.durable:
            return False
        if binding.destination.kind is DestinationKind.QUEUE:
            queue = self.queues.get(binding.destination.name)
            return queue is None or (queue.spec.durable and not queue.spec.exclusive)
        exchange = self.exchanges.get(binding.destination.name)
        return exchange is None or exchange.spec.durable

    # Plans -------------------------------------------------------------------------------------

    def plan(
        self, address: Address, extra_keys: list[str], headers: Table, permissions_revision: int
    ) -> Plan:
        """The targets that a message for this address reaches now."""
        exchange = self.exchange(address.exchange)
        if not exchange.name and address.routing_key.startswith(REPLY_PREFIX):
            reply_queue = self.reply_queues.get(address.routing_key)
            replies: list[Target] = [reply_queue] if reply_queue else []
            return Plan(self.version, exchange, replies, False, permissions_revision, Keep.NOTHING)
        keys = list(dict.fromkeys((address.routing_key, *extra_keys)))
        walk = Walk()
        if exchange.name:
            routed = route(self.exchanges, exchange, keys, headers, walk)
        else:
            routed = Route(tuple(keys), reusable=True)
        targets = self._resolve_targets(routed, keys, headers, walk)
        reusable = routed.reusable and not extra_keys and not self.tracing
        keep = max((target.keep for target in targets), default=self.keep_unroutable)
        return Plan(self.version, exchange, targets, reusable, permissions_revision, keep)

    def _resolve_targets(
        self, routed: Route, keys: list[str], headers: Table, walk: Walk
    ) -> list[Target]:
        """The queues, and a target for each plugin exchange with the queues reached only by it."""
        names = set(routed.queues)
        targets: list[Target] = [self.queues[name] for name in routed.queues if name in self.queues]
        remaining = [(exchange, targets) for exchange in reversed(routed.plugin_exchanges)]
        while remaining:
            exchange, siblings = remaining.pop()
            target = self._listener.make_plugin_target(self, exchange, keys)
            siblings.append(target)
            if not isinstance(target, PassThroughTarget) or target.holds:
                continue
            routed = route(self.exchanges, exchange, keys, headers, walk)
            new = [name for name in routed.queues if name not in names and name in self.queues]
            names.update(new)
            target.targets += [self.queues[name] for name in new]
            remaining += [(inner, target.targets) for inner in reversed(routed.plugin_exchanges)]
        return targets

    def queues_after(self, exchange: Exchange, keys: list[str], headers: Table) -> list[Target]:
        """The targets behind a plugin exchange, for a message that it has held."""
        walk = Walk({exchange.name})
        routed = route(self.exchanges, exchange, keys, headers, walk)
        return self._resolve_targets(routed, keys, headers, walk)

    def drop_deleted_targets(self, plan: Plan) -> Plan:
        """An older plan without the targets that were deleted since."""
        targets = [target for target in plan.targets if self.has_target(target)]
        return Plan(
            self.version, plan.exchange, targets, False, plan.permissions_revision, plan.keep
        )

    def has_target(self, target: Target) -> bool:
        exchange = getattr(target, "exchange", None)
        if isinstance(exchange, Exchange):
            return self.exchanges.get(exchange.name) is exchange
        return self.queues.get(target.name) is target or target.name in self.reply_queues


# Rows of the store -------------------------------------------------------------------------------


def _exchange_row(vhost: str, spec: ExchangeSpec) -> ExchangeDefinition:
    return ExchangeDefinition(
        vhost,
        spec.name,
        spec.kind,
        spec.auto_delete,
        spec.internal,
        dump_arguments(spec.arguments),
    )


def _queue_definition(vhost: str, number: int, spec: QueueSpec) -> QueueDefinition:
    return QueueDefinition(
        id=number,
        vhost=vhost,
        name=spec.name,
        kind=spec.kind,
        durable=spec.durable and not spec.exclusive,
        auto_delete=spec.auto_delete,
        exclusive=spec.exclusive,
        arguments=dump_arguments(spec.arguments),
    )


def _binding_row(vhost: str, binding: Binding) -> BindingDefinition:
    return BindingDefinition(
        vhost,
        binding.source,
        binding.destination.name,
        binding.destination.kind.value,
        binding.routing_key,
        dump_arguments(binding.arguments),
    )
