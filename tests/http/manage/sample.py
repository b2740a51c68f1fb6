"""Definitions exported by RabbitMQ."""

from __future__ import annotations

import json
from typing import Any

# Written by RabbitMQ 3.10.8: several objects of every kind in one vhost.
FROM_RABBITMQ: dict[str, Any] = {
    "rabbit_version": "3.10.8",
    "rabbitmq_version": "3.10.8",
    "product_name": "RabbitMQ",
    "product_version": "3.10.8",
    "users": [
        {
            "name": "porter",
            "password_hash": "6nxr3j0vfqIpCL+t0GyXjf921TMr9aua7Fv9TQ6H+VTcpdQ/",
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": ["management", "monitoring"],
            "limits": {},
        }
    ],
    "vhosts": [{"name": "moved"}],
    "permissions": [
        {"user": "porter", "vhost": "moved", "configure": ".*", "write": ".*", "read": ".*"}
    ],
    "topic_permissions": [
        {"user": "porter", "vhost": "moved", "exchange": "ex", "write": ".*", "read": "^a"}
    ],
    "parameters": [
        {
            "value": {"max-queues": 50},
            "vhost": "moved",
            "component": "vhost-limits",
            "name": "limits",
        },
        {
            "value": {
                "pattern": "a",
                "definition": {"max-length": 4},
                "priority": 0,
                "apply-to": "all",
            },
            "vhost": "moved",
            "component": "operator_policy",
            "name": "p2",
        },
    ],
    "global_parameters": [{"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-x"}],
    "policies": [
        {
            "vhost": "moved",
            "name": "history-short",
            "pattern": "^orders\\.",
            "apply-to": "queues",
            "definition": {"max-length-bytes": 500000000, "overflow": "reject-publish"},
            "priority": 5,
        }
    ],
    "queues": [
        {
            "name": "orders.eu",
            "vhost": "moved",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-dead-letter-exchange": "dlx", "x-max-length": 100000},
        },
        {
            "name": "invoices",
            "vhost": "moved",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "quorum"},
        },
        {
            "name": "idle",
            "vhost": "moved",
            "durable": False,
            "auto_delete": False,
            "arguments": {},
        },
    ],
    "exchanges": [
        {
            "name": "ex",
            "vhost": "moved",
            "type": "topic",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {"alternate-exchange": "amq.fanout"},
        }
    ],
    "bindings": [
        {
            "source": "ex",
            "vhost": "moved",
            "destination": "orders.eu",
            "destination_type": "queue",
            "routing_key": "a.#",
            "arguments": {"x": 1},
        },
        {
            "source": "amq.topic",
            "vhost": "moved",
            "destination": "ex",
            "destination_type": "exchange",
            "routing_key": "#",
            "arguments": {},
        },
    ],
}
KINDS = ("users", "vhosts", "permissions", "topic_permissions", "parameters", "policies",
         "queues", "exchanges", "bindings", "global_parameters")  # fmt: skip


def of_vhost(definitions, vhost="moved"):
    return {
        kind: sorted(
            (row for row in definitions[kind] if row.get("vhost", row.get("name")) == vhost),
            key=lambda row: json.dumps(row, sort_keys=True),
        )
        for kind in KINDS
    }
