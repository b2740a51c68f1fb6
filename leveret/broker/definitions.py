"""Definitions out: everything but messages, as RabbitMQ writes it.

Exclusive queues belong to a connection and built-in exchanges are everywhere, so neither appears.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bindings import DestinationKind
from leveret.broker.parameters import GLOBAL
from leveret.broker.policies import Policy

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

Row = dict[str, Any]
OPERATOR_POLICY = "operator_policy"


def export_all(broker: Broker) -> Row:
    """The whole broker."""
    vhosts = broker.vhosts.values()
    users = broker.users
    parts = [_of_vhost(broker, vhost) for vhost in vhosts]
    return {
        "users": [_user(one) for one in users.by_name.values()],
        "vhosts": [_vhost(one) for one in vhosts],
        "permissions": [
            _fields(one, "user", "vhost", "configure", "write", "read")
            for one in users.permissions.values()
        ],
        "topic_permissions": [
            _fields(one, "user", "vhost", "exchange", "write", "read")
            for one in users.topic_permissions.values()
        ],
        "global_parameters": global_parameter_rows(broker),
        **{name: [row for part in parts for row in part[name]] for name in _SECTIONS},
    }


def export_vhost(broker: Broker, vhost: VirtualHost) -> Row:
    """One vhost, without its name, so that it can be imported into another."""
    part = _of_vhost(broker, vhost)
    for name in ("queues", "exchanges", "bindings"):
        for row in part[name]:
            del row["vhost"]
    return part


_SECTIONS = ("parameters", "policies", "queues", "exchanges", "bindings")


def _of_vhost(broker: Broker, vhost: VirtualHost) -> dict[str, list[Row]]:
    return {
        "parameters": [row for row in parameter_rows(broker) if row["vhost"] == vhost.name],
        "policies": [
            policy_row(one)
            for one in broker.policies
            if one.vhost == vhost.name and not one.operator
        ],
        "queues": _queues(vhost),
        "exchanges": _exchanges(vhost),
        "bindings": _bindings(vhost),
    }


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
    rows = [
        {"value": value, "vhost": vhost, "component": component, "name": name}
        for (vhost, component, name), value in broker.parameters
        if vhost != GLOBAL
    ]
    for policy in broker.policies:
        if policy.operator:
            value = policy_row(policy)
            vhost, name = value.pop("vhost"), value.pop("name")
            rows.append(
                {"value": value, "vhost": vhost, "component": OPERATOR_POLICY, "name": name}
            )
    return rows


def global_parameter_rows(broker: Broker) -> list[Row]:
    return [
        {"name": name, "value": value}
        for (vhost, _, name), value in broker.parameters
        if vhost == GLOBAL
    ]


def _user(user: Any) -> Row:
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "hashing_algorithm": user.hashing,
        "tags": list(user.tags),
        "limits": dict(user.limits),
    }


def _vhost(vhost: VirtualHost) -> Row:
    known = ("description", "tags", "default_queue_type")
    metadata = {key: value for key, value in vhost.options.items() if key in known}
    return {"name": vhost.name, **vhost.options, **({"metadata": metadata} if metadata else {})}


def _fields(value: object, *names: str) -> Row:
    return {name: getattr(value, name) for name in names}


def _queues(vhost: VirtualHost) -> list[Row]:
    return [
        {
            "name": queue.name,
            "vhost": vhost.name,
            "durable": queue.spec.durable,
            "auto_delete": queue.spec.auto_delete,
            "arguments": _plain(queue.spec.arguments),
        }
        for queue in vhost.queues.values()
        if not queue.spec.exclusive
    ]


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
