"""Definitions in: judged whole against what is there, then applied in one go.

Nothing is changed while anything in the file is wrong. What exists already stays as it is where
RabbitMQ leaves it (queues, exchanges, bindings) and is replaced where it replaces (users,
permissions, policies, parameters), so importing twice is importing once. Applying does not wait,
so all of it is in one batch of the store: after a crash it is there whole or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from bindings import Binding, DestinationKind
from exchange import Exchange
from leveret.broker.definition_file import Import
from leveret.broker.import_names import Names, Place
from leveret.broker.names import RESERVED
from leveret.broker.parameters import GLOBAL
from leveret.model.errors import PreconditionFailed
from leveret.model.store import PermissionDefinition, TopicPermissionDefinition

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

Granted: TypeAlias = PermissionDefinition | TopicPermissionDefinition


def check(broker: Broker, plan: Import) -> None:
    """Refuse an import that names what neither it nor the broker has."""
    vhosts = broker.vhosts.keys() | {name for name, _ in plan.vhosts}
    named = {vhost for vhost, _ in [*plan.queues, *plan.exchanges, *plan.bindings]}
    granted: list[Granted] = [*plan.permissions, *plan.topic_permissions]
    named |= {one.vhost for one in granted} | {one.vhost for one in plan.policies}
    named |= {key[0] for key, _ in plan.parameters if key[0] != GLOBAL}
    for vhost in sorted(named - vhosts):
        raise PreconditionFailed(f"no vhost '{vhost}': neither here nor in the file")
    users = broker.users.by_name | {user.name: user for user in plan.users}
    for one in granted:
        if one.user not in users:
            raise PreconditionFailed(f"no user '{one.user}': neither here nor in the file")
    broker.users.require_administrator(users.values())
    _check_bindings(broker, plan, Names(broker, plan))


def _check_bindings(broker: Broker, plan: Import, names: Names) -> None:
    slow: dict[Place, Exchange] = {}
    for vhost, one in plan.bindings:
        is_queue = one.destination.kind is DestinationKind.QUEUE
        if (vhost, one.destination.name) not in (names.queues if is_queue else names.exchanges):
            what = f"{one.destination.kind} '{one.destination.name}'"
            raise PreconditionFailed(f"no {what} in vhost '{vhost}' to bind")
        source = names.exchanges.get((vhost, one.source))
        if source is None:
            raise PreconditionFailed(f"no exchange '{one.source}' in vhost '{vhost}' to bind")
        made = Binding.of(one.source, one.destination, one.routing_key, one.arguments)
        bound = slow.get((vhost, one.source)) or Exchange(source)
        bound.bind(made, is_stored=True)  # refuses what means nothing there
        if bound.matcher.most_steps:
            slow[vhost, one.source] = bound
    for (vhost, name), bound in slow.items():
        held = broker.vhosts[vhost].exchanges.get(name) if vhost in broker.vhosts else None
        _require_quick(bound, held)


def _require_quick(new: Exchange, held: Exchange | None) -> None:
    """Judge what is to be bound together with what is; one by one may take no less than both."""
    before = held.matcher.steps if held is not None else 0
    if held is not None and new.matcher.steps + before > new.matcher.most_steps:
        for binding in held.bindings:
            new.bind(binding, is_stored=True)
    new.require_quick(before)


def apply(broker: Broker, plan: Import) -> None:
    """Make it so. Queues and exchanges that exist stay as they are."""
    users = broker.users
    for user in plan.users:
        users.put_user(user.name, user.password_hash, user.tags, user.hashing)
        users.set_limits(user.name, user.limits)
    for name, options in plan.vhosts:
        held = broker.vhosts.get(name)
        if held is None:
            broker.add_vhost(name, options)
        elif options:
            broker.set_vhost_options(held, {**held.options, **options})
    for permission in plan.permissions:
        users.set_permission(permission)
    for topic_permission in plan.topic_permissions:
        users.set_topic_permission(topic_permission)
    for key, value in plan.parameters:
        broker.parameters.put(*key, value)
    for policy in plan.policies:
        broker.policies.put(policy)
    _apply_topology(broker, plan)
    broker.turn.schedule()


def _apply_topology(broker: Broker, plan: Import) -> None:
    for vhost, queue in plan.queues:
        held = broker.vhosts[vhost]
        if queue.name in held.queues:
            continue
        if queue.name.startswith(RESERVED):  # named by the server that wrote the file
            held.declare_server_named(queue, None)
        else:
            held.declare_queue(queue)
    for vhost, exchange in plan.exchanges:
        if exchange.name not in broker.vhosts[vhost].exchanges:
            broker.vhosts[vhost].declare_exchange(exchange)
    for vhost, one in plan.bindings:
        broker.vhosts[vhost].bind(one.source, one.destination, one.routing_key, one.arguments)
