"""Definitions out: everything but messages, as RabbitMQ writes it and reads it.

Exclusive queues belong to a connection and built-in exchanges are everywhere, so neither appears.
What RabbitMQ would refuse is in the section `leveret` (see `own_definitions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bindings import DestinationKind
from leveret.broker.own_definitions import (
    SECTION,
    Accounts,
    split_accounts,
    split_policy,
    split_queue,
)
from leveret.broker.parameters import GLOBAL
from leveret.broker.policies import Policy
from leveret.broker.users import User
from leveret.model.store import PermissionDefinition, TopicPermissionDefinition
from queues import HeldQueue

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

Row = dict[str, Any]
OPERATOR_POLICY = "operator_policy"
OWN_POLICIES, OWN_QUEUES = "leveret.policies", "leveret.queues"


def export_all(broker: Broker) -> Row:
    """The whole broker."""
    vhosts = broker.vhosts.values()
    parts = [_of_vhost(broker, vhost) for vhost in vhosts]
    accounts, own_accounts = split_accounts(_accounts(broker))
    return {
        "vhosts": [_vhost(one) for one in vhosts],
        **accounts,
        "global_parameters": global_parameter_rows(broker),
        **{name: [row for part in parts for row in part[name]] for name in _SECTIONS},
        **_own(
            **own_accounts,
            policies=[row for part in parts for row in part[OWN_POLICIES]],
            queues=[row for part in parts for row in part[OWN_QUEUES]],
        ),
    }


def _accounts(broker: Broker) -> Accounts:
    users = broker.users
    return {
        "users": [user_row(one) for one in users.by_name.values()],
        "permissions": [permission_row(one) for one in users.permissions.values()],
        "topic_permissions": [
            topic_permission_row(one) for one in users.topic_permissions.values()
        ],
    }


def export_vhost(broker: Broker, vhost: VirtualHost) -> Row:
    """One vhost, without its name, so that it can be imported into another."""
    part = _of_vhost(broker, vhost)
    for name in ("queues", "exchanges", "bindings", OWN_QUEUES):
        for row in part[name]:
            del row["vhost"]
    own = _own(policies=part.pop(OWN_POLICIES), queues=part.pop(OWN_QUEUES))
    return {**part, **own}


def _own(**found: list[Row]) -> Row:
    kept = {name: rows for name, rows in found.items() if rows}
    return {SECTION: kept} if kept else {}


_SECTIONS = ("parameters", "policies", "queues", "exchanges", "bindings")


def _of_vhost(broker: Broker, vhost: VirtualHost) -> dict[str, list[Row]]:
    policies, operator_policies, own_policies = _policies(broker, vhost)
    queues = [split_queue(_queue(vhost, one), one.spec.kind) for one in _lasting(vhost)]
    return {
        "parameters": _parameters(broker, vhost.name) + operator_policies,
        "policies": policies,
        "queues": [row for row, _ in queues],
        "exchanges": _exchanges(vhost),
        "bindings": _bindings(vhost),
        OWN_POLICIES: own_policies,
        OWN_QUEUES: [own for _, own in queues if own is not None],
    }


def _policies(broker: Broker, vhost: VirtualHost) -> tuple[list[Row], list[Row], list[Row]]:
    """Policies and operator policies as RabbitMQ takes them, and what is ours of both."""
    plain, operator, own = [], [], []
    for policy in broker.policies:
        if policy.vhost != vhost.name:
            continue
        row, ours = split_policy(policy_row(policy), policy.operator)
        if ours is not None:
            own.append(ours)
        if row is not None and policy.operator:
            operator.append(_as_parameter(row))
        elif row is not None:
            plain.append(row)
    own.sort(key=lambda row: (row.get("operator", False), row["name"]))
    return plain, operator, own


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
    """Parameters of vhosts; operator policies are among them, as with RabbitMQ."""
    rows = [row for vhost in broker.vhosts for row in _parameters(broker, vhost)]
    return rows + [_as_parameter(policy_row(one)) for one in broker.policies if one.operator]


def _parameters(broker: Broker, wanted: str) -> list[Row]:
    return [
        {"value": value, "vhost": vhost, "component": component, "name": name}
        for (vhost, component, name), value in broker.parameters
        if vhost == wanted and vhost != GLOBAL
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


def permission_row(one: PermissionDefinition) -> Row:
    return {
        "user": one.user,
        "vhost": one.vhost,
        "configure": one.configure,
        "write": one.write,
        "read": one.read,
    }


def topic_permission_row(one: TopicPermissionDefinition) -> Row:
    return {
        "user": one.user,
        "vhost": one.vhost,
        "exchange": one.exchange,
        "write": one.write,
        "read": one.read,
    }


def _vhost(vhost: VirtualHost) -> Row:
    known = ("description", "tags", "default_queue_type")
    metadata = {key: value for key, value in vhost.options.items() if key in known}
    return {"name": vhost.name, **vhost.options, **({"metadata": metadata} if metadata else {})}


def _lasting(vhost: VirtualHost) -> list[HeldQueue]:
    return [queue for queue in vhost.queues.values() if not queue.spec.exclusive]


def _queue(vhost: VirtualHost, queue: HeldQueue) -> Row:
    return {
        "name": queue.name,
        "vhost": vhost.name,
        "durable": queue.spec.durable,
        "auto_delete": queue.spec.auto_delete,
        "arguments": _plain(queue.spec.arguments),
    }


def is_builtin(exchange: str) -> bool:
    return not exchange or exchange.startswith("amq.")


def _exchanges(vhost: VirtualHost) -> list[Row]:
    return [
        {
            "name": exchange.name,
            "vhost": vhost.name,
            "type": exchange.spec.kind,
            "durable": exchange.spec.durable,
            "auto_delete": exchange.spec.auto_delete,
            "internal": exchange.spec.internal,
            "arguments": _plain(exchange.spec.arguments),
        }
        for exchange in vhost.exchanges.values()
        if not is_builtin(exchange.name)
    ]


def _bindings(vhost: VirtualHost) -> list[Row]:
    exclusive = {queue.name for queue in vhost.queues.values() if queue.spec.exclusive}
    return [
        {
            "source": one.source,
            "vhost": vhost.name,
            "destination": one.destination.name,
            "destination_type": one.destination.kind.value,
            "routing_key": one.routing_key,
            "arguments": _plain(one.arguments),
        }
        for one in vhost.bindings()
        if one.destination.kind is not DestinationKind.QUEUE
        or one.destination.name not in exclusive
    ]


def _plain(table: Mapping[str, Any]) -> Row:
    return {key: _plain_value(value) for key, value in table.items()}


def _plain_value(value: Any) -> Any:
    """JSON has no octets; in declarations they are texts of a client that did not say so."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return _plain(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain_value(one) for one in value]
    return value
