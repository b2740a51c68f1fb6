"""Import of definitions: checked as a whole against the broker's objects, then applied.

Nothing changes if anything in the file is wrong. As with RabbitMQ, existing queues, exchanges and
bindings stay as they are, and users, permissions, policies and parameters are replaced, so
importing a file twice has the same result as importing it once. A warning names what is ignored.

Checking and applying are generators of steps (see `runtime/slices.py`): clients may change the
broker's objects in between. What they deleted after the check is not created again, as if they had
deleted it after the import. What clashes with something that they created is skipped and reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from leveret.bindings import Binding, DestinationKind
from leveret.broker.definitions.file import NewBinding, ParsedDefinitions
from leveret.broker.names import RESERVED, require_unreserved
from leveret.broker.policies.parameters import GLOBAL, LIMITS_NAME, VHOST_LIMITS, Key
from leveret.broker.policies.policies import Policy
from leveret.broker.runtime.slices import Steps
from leveret.broker.vhost import NO_LIMIT, PREDECLARED, TRACE_EXCHANGE
from leveret.exchange import SUPER_STREAM, Exchange, ExchangeSpec
from leveret.model.definitions import PermissionDefinition, TopicPermissionDefinition
from leveret.model.errors import BrokerError, NotFound, PreconditionFailed
from leveret.queues.log.log_queue import can_become_partition
from leveret.queues.log.spec import parse_log_spec, partition_names, partition_spec
from leveret.queues.options import require_same_queue
from leveret.queues.port import Queue
from leveret.queues.spec import QueueSpec

if TYPE_CHECKING:
    from leveret.broker.access.users import User, Users
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

AnyPermission: TypeAlias = PermissionDefinition | TopicPermissionDefinition
QualifiedName: TypeAlias = tuple[str, str]
"""A vhost and a name in it."""


# Checking ----------------------------------------------------------------------------------------


def check_import(broker: Broker, definitions: ParsedDefinitions) -> Steps[None]:
    """Reject an import that refers to objects which neither it nor the broker has."""
    vhosts = broker.vhosts.keys() | {name for name, _ in definitions.vhosts}
    permissions: list[AnyPermission] = [*definitions.permissions, *definitions.topic_permissions]
    for vhost in sorted(_vhosts_used(definitions, permissions) - vhosts):
        raise PreconditionFailed(f"no vhost '{vhost}' in the broker or in the file")
    users = broker.users.by_name | {user.name: user for user in definitions.users}
    for permission in permissions:
        if permission.user not in users:
            raise PreconditionFailed(f"no user '{permission.user}' in the broker or in the file")
    broker.users.require_administrator(users.values())
    names = _ResultingNames(broker)
    yield from names.add_all(definitions)
    if definitions.is_from_rabbitmq:
        yield from _leave_out_dangling_bindings(definitions, names)
    yield from _check_bindings(broker, definitions, names)


def _vhosts_used(definitions: ParsedDefinitions, permissions: list[AnyPermission]) -> set[str]:
    objects = [*definitions.queues, *definitions.exchanges, *definitions.bindings]
    vhosts = {vhost for vhost, _ in objects}
    vhosts |= {permission.vhost for permission in permissions}
    vhosts |= {policy.vhost for policy in definitions.policies}
    return vhosts | {key[0] for key, _ in definitions.parameters if key[0] != GLOBAL}


class _ResultingNames:
    """The queues and exchanges that would exist after the import.

    A partitioned log creates a queue for each partition and an exchange, so its name may clash
    with existing objects or with others in the same file. `add_all` raises the error that
    declaring would raise; whatever passes can be declared in the order of the file.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.queues: dict[QualifiedName, QueueSpec] = {}
        self.exchanges: dict[QualifiedName, ExchangeSpec] = {}
        self._existing_queues: dict[QualifiedName, Queue] = {}
        self._partitions: set[QualifiedName] = set()

    def add_all(self, definitions: ParsedDefinitions) -> Steps[None]:
        for vhost_name, _ in definitions.vhosts:
            for name, kind in (*PREDECLARED, (TRACE_EXCHANGE, "topic")):
                self.exchanges[vhost_name, name] = ExchangeSpec(name, kind, durable=True)
        yield from self._add_existing()
        for vhost_name, queue_spec in definitions.queues:
            self._add_queue(vhost_name, queue_spec)
            yield
        for vhost_name, exchange_spec in definitions.exchanges:
            self._add_exchange(vhost_name, exchange_spec)
            yield
        self._check_queue_limits(definitions)

    def _add_existing(self) -> Steps[None]:
        for vhost in list(self._broker.vhosts.values()):
            for queue in list(vhost.queues.values()):
                key = (vhost.name, queue.name)
                self.queues[key], self._existing_queues[key] = queue.spec, queue
                yield
            for exchange in list(vhost.exchanges.values()):
                self.exchanges[vhost.name, exchange.name] = exchange.spec
                yield

    def _add_queue(self, vhost: str, spec: QueueSpec) -> None:
        key, label = (vhost, spec.name), f"queue '{spec.name}' in vhost '{vhost}'"
        if key in self._existing_queues:
            return  # it stays as it is
        if key in self._partitions:
            self._require_same(key, spec)
            return
        partitions = parse_log_spec(spec, label).partitions if spec.kind == "stream" else 0
        self.queues[key] = spec
        if partitions:
            self._add_partitions(vhost, spec, partitions)

    def _add_partitions(self, vhost: str, spec: QueueSpec, partitions: int) -> None:
        require_unreserved("queue", spec.name)
        existing = self.exchanges.get((vhost, spec.name))
        if existing is not None and existing.arguments.get(SUPER_STREAM) is not True:
            raise PreconditionFailed(f"exchange '{spec.name}' in vhost '{vhost}' exists")
        exchange = ExchangeSpec(spec.name, "direct", True, arguments={SUPER_STREAM: True})
        self.exchanges.setdefault((vhost, spec.name), exchange)
        for name in partition_names(spec.name, partitions):
            key, partition = (vhost, name), partition_spec(spec, name)
            if key in self.queues:
                self._require_free(key)
                self._require_same(key, partition)
            self.queues[key] = partition
            self._partitions.add(key)

    def _require_free(self, key: QualifiedName) -> None:
        """Reject a partition whose queue exists and cannot become a partition of this log."""
        vhost, name = key
        spec = self.queues[key]
        is_whole = spec.kind == "stream" and not spec.arguments.get("x-partitions")
        existing = self._existing_queues.get(key)
        is_used = existing is not None and not can_become_partition(existing)
        if not is_whole or is_used or key in self._partitions:
            raise PreconditionFailed(f"queue '{name}' in vhost '{vhost}' exists")

    def _require_same(self, key: QualifiedName, spec: QueueSpec) -> None:
        require_same_queue(f"queue '{key[1]}' in vhost '{key[0]}'", self.queues[key], spec)

    def _add_exchange(self, vhost: str, spec: ExchangeSpec) -> None:
        key = (vhost, spec.name)
        if key in self.exchanges:
            return  # it stays as it is, or belongs to a partitioned log
        require_unreserved("exchange", spec.name)
        self.exchanges[key] = spec

    def _check_queue_limits(self, definitions: ParsedDefinitions) -> None:
        """Reject more queues than max-queues allows; limits in the file itself apply already."""
        limits_key = (VHOST_LIMITS, LIMITS_NAME)
        in_file = {key[0]: value for key, value in definitions.parameters if key[1:] == limits_key}
        before = Counter(vhost for vhost, _ in self._existing_queues)
        added = Counter(vhost for vhost, _ in self.queues) - before
        for vhost, count in sorted(added.items()):
            existing = before[vhost]
            limits = in_file.get(vhost, self._broker.parameters.vhost_limits(vhost))
            limit = limits.get("max-queues", self._broker.settings.queue_max or NO_LIMIT)
            if 0 <= limit < existing + count:
                raise PreconditionFailed(
                    f"adding {count} queue(s) to virtual host '{vhost}' would exceed its limit of "
                    f"{limit} queue(s); it has {existing} now"
                )


def _leave_out_dangling_bindings(
    definitions: ParsedDefinitions, names: _ResultingNames
) -> Steps[None]:
    """Leave out bindings of exclusive queues and internal exchanges, which RabbitMQ exports alone.

    Its export contains neither these queues nor these exchanges.
    """
    kept = []
    for vhost, binding in definitions.bindings:
        yield
        target = binding.destination
        existing = names.queues if target.kind is DestinationKind.QUEUE else names.exchanges
        missing = [
            name
            for name, is_missing in (
                (f"exchange '{binding.source}'", (vhost, binding.source) not in names.exchanges),
                (f"{target.kind} '{target.name}'", (vhost, target.name) not in existing),
            )
            if is_missing
        ]
        if not missing:
            kept.append((vhost, binding))
            continue
        definitions.warnings.append(
            f"binding from '{binding.source}' to {target.kind} '{target.name}' in vhost '{vhost}' "
            f"was left out: the file has no {' and no '.join(missing)}, because RabbitMQ does not "
            "export exclusive queues and internal exchanges"
        )
    definitions.bindings = kept


def _check_bindings(
    broker: Broker, definitions: ParsedDefinitions, names: _ResultingNames
) -> Steps[None]:
    exchanges: dict[QualifiedName, Exchange] = {}
    for vhost, binding in definitions.bindings:
        target, key = binding.destination, (vhost, binding.source)
        existing = names.queues if target.kind is DestinationKind.QUEUE else names.exchanges
        if (vhost, target.name) not in existing:
            raise PreconditionFailed(f"no {target.kind} '{target.name}' in vhost '{vhost}' to bind")
        source = names.exchanges.get(key)
        if source is None:
            raise PreconditionFailed(f"no exchange '{binding.source}' in vhost '{vhost}' to bind")
        exchange = exchanges.get(key)
        if exchange is None:
            exchange = exchanges[key] = Exchange(source)
        bound = Binding.of(binding.source, target, binding.routing_key, binding.arguments)
        exchange.bind(bound, is_stored=True)  # raises for arguments the exchange cannot use
        yield
    for (vhost, name), exchange in exchanges.items():
        if exchange.matcher.max_steps:
            current = broker.vhosts[vhost].exchanges.get(name) if vhost in broker.vhosts else None
            yield from _require_quick(exchange, current)


def _require_quick(imported: Exchange, current: Exchange | None) -> Steps[None]:
    """Check the matching cost of imported and existing bindings together."""
    before = current.matcher.steps if current is not None else 0
    if current is not None and imported.matcher.steps + before > imported.matcher.max_steps:
        for binding in list(current.bindings):
            imported.bind(binding, is_stored=True)
            yield
    imported.check_match_cost(before)


# Applying ----------------------------------------------------------------------------------------


def apply_import(broker: Broker, definitions: ParsedDefinitions, first: int = 0) -> Steps[None]:
    """Apply definitions that `check_import` has accepted, one per step, from number `first` on."""
    clashes: list[str] = []
    for change in islice(_changes(broker, definitions), first, None):
        try:
            change()
        except NotFound:
            pass  # deleted since the check
        except BrokerError as error:
            clashes.append(error.explanation)
        yield
    broker.scheduler.schedule()
    if clashes:
        raise PreconditionFailed(
            f"{len(clashes)} of {len(definitions)} definitions were not imported, because they "
            f"clash with objects created meanwhile. The first: {clashes[0]}"
        )


def _changes(broker: Broker, definitions: ParsedDefinitions) -> Iterator[Callable[[], object]]:
    """What applying does, in an order in which each depends only on those before it."""
    users = broker.users
    for user in definitions.users:
        yield partial(_put_user, users, user)
    for name, options in definitions.vhosts:
        yield partial(_put_vhost, broker, name, options)
    permissions: list[AnyPermission] = [*definitions.permissions, *definitions.topic_permissions]
    for permission in permissions:
        yield partial(_set_permission, broker, permission)
    for key, value in definitions.parameters:
        yield partial(_put_parameter, broker, key, value)
    for policy in definitions.policies:
        yield partial(_put_policy, broker, policy)
    for vhost_name, queue in definitions.queues:
        yield partial(_declare_queue, broker, vhost_name, queue)
    for vhost_name, exchange in definitions.exchanges:
        yield partial(_declare_exchange, broker, vhost_name, exchange)
    for vhost_name, binding in definitions.bindings:
        yield partial(_bind, broker, vhost_name, binding)


def _put_user(users: Users, user: User) -> None:
    users.put_user(user.name, user.password_hash, user.tags, user.hashing)
    users.set_limits(user.name, user.limits)


def _put_vhost(broker: Broker, name: str, options: dict[str, Any]) -> None:
    vhost = broker.vhosts.get(name)
    if vhost is None:
        broker.add_vhost(name, options)
    elif options:
        broker.set_vhost_options(vhost, {**vhost.options, **options})


def _vhost(broker: Broker, name: str) -> VirtualHost:
    vhost = broker.vhosts.get(name)
    if vhost is None:
        raise NotFound(f"no vhost '{name}'")
    return vhost


def _set_permission(broker: Broker, permission: AnyPermission) -> None:
    _vhost(broker, permission.vhost)
    if permission.user not in broker.users.by_name:
        raise NotFound(f"no user '{permission.user}'")
    if isinstance(permission, TopicPermissionDefinition):
        broker.users.set_topic_permission(permission)
    else:
        broker.users.set_permission(permission)


def _put_parameter(broker: Broker, key: Key, value: Any) -> None:
    if key[0] != GLOBAL:
        _vhost(broker, key[0])
    broker.parameters.put(*key, value)


def _put_policy(broker: Broker, policy: Policy) -> None:
    _vhost(broker, policy.vhost)
    broker.policies.put(policy)


def _declare_queue(broker: Broker, vhost_name: str, spec: QueueSpec) -> None:
    vhost = _vhost(broker, vhost_name)
    if spec.name in vhost.queues:
        return
    if spec.name.startswith(RESERVED):  # named by the server that wrote the file
        vhost.create_queue(spec, None)
    else:
        vhost.declare_queue(spec)


def _declare_exchange(broker: Broker, vhost_name: str, spec: ExchangeSpec) -> None:
    vhost = _vhost(broker, vhost_name)
    if spec.name not in vhost.exchanges:
        vhost.declare_exchange(spec)


def _bind(broker: Broker, vhost_name: str, binding: NewBinding) -> None:
    vhost = _vhost(broker, vhost_name)
    vhost.bind(binding.source, binding.destination, binding.routing_key, binding.arguments)
