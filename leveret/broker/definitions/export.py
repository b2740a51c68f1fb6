"""Export of definitions: everything but messages, in RabbitMQ's format.

Exclusive queues belong to a connection and predeclared exchanges exist everywhere, so neither is
exported. What RabbitMQ would refuse goes to the section `leveret` (see `extension.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from leveret.bindings import Binding, DestinationKind
from leveret.broker.access.users import User
from leveret.broker.definitions.extension import (
    SECTION,
    Accounts,
    split_accounts,
    split_policy,
    split_queue,
)
from leveret.broker.policies.parameters import GLOBAL
from leveret.broker.policies.policies import Policy
from leveret.broker.runtime.slices import Steps
from leveret.exchange import ExchangeSpec
from leveret.model.definitions import PermissionDefinition, TopicPermissionDefinition
from leveret.queues.spec import QueueSpec

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.definitions.file import NewBinding
    from leveret.broker.vhost import VirtualHost

Row = dict[str, Any]
OPERATOR_POLICY = "operator_policy"
LEVERET_POLICIES, LEVERET_QUEUES = "leveret.policies", "leveret.queues"


def export_all(broker: Broker) -> Steps[Row]:
    """Export the whole broker."""
    vhosts = [_VhostSnapshot(broker, vhost) for vhost in broker.vhosts.values()]
    accounts, leveret_accounts = split_accounts(_accounts(broker))
    document: Row = {
        "vhosts": [_vhost_row(vhost) for vhost in broker.vhosts.values()],
        **accounts,
        "global_parameters": global_parameter_rows(broker),
    }
    parts = []
    for vhost in vhosts:
        parts.append((yield from vhost.rows()))
    return {
        **document,
        **{name: [row for part in parts for row in part[name]] for name in _SECTIONS},
        **_leveret_section(
            **leveret_accounts,
            policies=[row for part in parts for row in part[LEVERET_POLICIES]],
            queues=[row for part in parts for row in part[LEVERET_QUEUES]],
        ),
    }


def _accounts(broker: Broker) -> Accounts:
    users = broker.users
    return {
        "users": [user_row(user) for user in users.by_name.values()],
        "permissions": [permission_row(each) for each in users.permissions.values()],
        "topic_permissions": [
            topic_permission_row(each) for each in users.topic_permissions.values()
        ],
    }


def export_vhost(broker: Broker, vhost: VirtualHost) -> Steps[Row]:
    """Export one vhost without its name, so that it can be imported into another."""
    part = yield from _VhostSnapshot(broker, vhost).rows()
    for name in ("queues", "exchanges", "bindings", LEVERET_QUEUES):
        for row in part[name]:
            del row["vhost"]
    policies, queues = part.pop(LEVERET_POLICIES), part.pop(LEVERET_QUEUES)
    return {**part, **_leveret_section(policies=policies, queues=queues)}


def _leveret_section(**sections: list[Row]) -> Row:
    filled = {name: rows for name, rows in sections.items() if rows}
    return {SECTION: filled} if filled else {}


_SECTIONS = ("parameters", "policies", "queues", "exchanges", "bindings")


class _VhostSnapshot:
    """The definitions of a vhost at one moment; their rows are made in slices."""

    def __init__(self, broker: Broker, vhost: VirtualHost) -> None:
        policies, operator_policies, leveret_policies = _policies(broker, vhost)
        self._name = vhost.name
        self._small_sections = {
            "parameters": _parameters(broker, vhost.name) + operator_policies,
            "policies": policies,
            LEVERET_POLICIES: leveret_policies,
        }
        self._queues = [queue.spec for queue in vhost.queues.values()]
        self._exchanges = [exchange.spec for exchange in vhost.exchanges.values()]
        self._bindings = list(vhost.bindings())

    def rows(self) -> Steps[dict[str, list[Row]]]:
        queues, extras, exclusive = list[Row](), list[Row](), set[str]()
        for spec in self._queues:
            if spec.exclusive:
                exclusive.add(spec.name)
                continue
            row, extra = split_queue(queue_definition_row(self._name, spec), spec.kind)
            queues.append(row)
            if extra is not None:
                extras.append(extra)
            yield
        bindings = list[Row]()
        for binding in self._bindings:
            target = binding.destination
            if target.kind is not DestinationKind.QUEUE or target.name not in exclusive:
                bindings.append(binding_row(self._name, binding))
            yield
        return {
            **self._small_sections,
            "queues": queues,
            "exchanges": [
                exchange_row(self._name, spec)
                for spec in self._exchanges
                if not is_builtin(spec.name)
            ],
            "bindings": bindings,
            LEVERET_QUEUES: extras,
        }


def _policies(broker: Broker, vhost: VirtualHost) -> tuple[list[Row], list[Row], list[Row]]:
    """Return policies and operator policies for RabbitMQ, and the `leveret` part of both."""
    plain, operator, leveret = [], [], []
    for policy in broker.policies:
        if policy.vhost != vhost.name:
            continue
        row, extra = split_policy(policy_row(policy), policy.operator)
        if extra is not None:
            leveret.append(extra)
        if row is not None and policy.operator:
            operator.append(_as_parameter(row))
        elif row is not None:
            plain.append(row)
    leveret.sort(key=lambda row: (row.get("operator", False), row["name"]))
    return plain, operator, leveret


def policy_row(policy: Policy) -> Row:
    return {
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": dict(policy.definition),
        "priority": policy.priority,
    }


def parameter_rows(broker: Broker) -> list[Row]:
    """Return the parameters of all vhosts, including operator policies, as RabbitMQ does."""
    rows = [row for vhost in broker.vhosts for row in _parameters(broker, vhost)]
    return rows + [
        _as_parameter(policy_row(policy)) for policy in broker.policies if policy.operator
    ]


def _parameters(broker: Broker, vhost_name: str) -> list[Row]:
    return [
        {"value": value, "vhost": vhost, "component": component, "name": name}
        for (vhost, component, name), value in broker.parameters
        if vhost == vhost_name and vhost != GLOBAL
    ]


def _as_parameter(row: Row) -> Row:
    value = {key: part for key, part in row.items() if key not in ("vhost", "name")}
    return {
        "value": value,
        "vhost": row["vhost"],
        "component": OPERATOR_POLICY,
        "name": row["name"],
    }


def global_parameter_rows(broker: Broker) -> list[Row]:
    return [
        {"name": name, "value": value}
        for (vhost, _, name), value in broker.parameters
        if vhost == GLOBAL
    ]


def user_row(user: User) -> Row:
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "hashing_algorithm": user.hashing,
        "tags": list(user.tags),
        "limits": dict(user.limits),
    }


def permission_row(permission: PermissionDefinition) -> Row:
    return {
        "user": permission.user,
        "vhost": permission.vhost,
        "configure": permission.configure,
        "write": permission.write,
        "read": permission.read,
    }


def topic_permission_row(permission: TopicPermissionDefinition) -> Row:
    return {
        "user": permission.user,
        "vhost": permission.vhost,
        "exchange": permission.exchange,
        "write": permission.write,
        "read": permission.read,
    }


def _vhost_row(vhost: VirtualHost) -> Row:
    names = ("description", "tags", "default_queue_type")
    metadata = {name: value for name, value in vhost.options.items() if name in names}
    return {"name": vhost.name, **vhost.options, **({"metadata": metadata} if metadata else {})}


def queue_definition_row(vhost: str, spec: QueueSpec) -> Row:
    return {
        "name": spec.name,
        "vhost": vhost,
        "durable": spec.durable,
        "auto_delete": spec.auto_delete,
        "arguments": _plain(spec.arguments),
    }


def is_builtin(exchange: str) -> bool:
    return not exchange or exchange.startswith("amq.")


def exchange_row(vhost: str, spec: ExchangeSpec) -> Row:
    return {
        "name": spec.name,
        "vhost": vhost,
        "type": spec.kind,
        "durable": spec.durable,
        "auto_delete": spec.auto_delete,
        "internal": spec.internal,
        "arguments": _plain(spec.arguments),
    }


def binding_row(vhost: str, binding: Binding | NewBinding) -> Row:
    return {
        "source": binding.source,
        "vhost": vhost,
        "destination": binding.destination.name,
        "destination_type": binding.destination.kind.value,
        "routing_key": binding.routing_key,
        "arguments": _plain(binding.arguments),
    }


def _plain(table: Mapping[str, Any]) -> Row:
    return {key: _plain_value(value) for key, value in table.items()}


def _plain_value(value: Any) -> Any:
    """Decode bytes, which JSON lacks: they are texts that a client declared as byte arrays."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return _plain(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain_value(item) for item in value]
    return value
