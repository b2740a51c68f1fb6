"""Definitions in the forms that RabbitMQ's versions write them.

Up to 4.2, `rabbitmqctl` writes property lists as lists of pairs, and an empty one as `[]`. 3.8
writes tags of users as one string; the module of a queue type appears instead of its name where a
version did not know the type yet.
"""

from __future__ import annotations

from typing import Any

SHA256 = "rabbit_password_hashing_sha256"
SHA512 = "rabbit_password_hashing_sha512"
MD5 = "rabbit_password_hashing_md5"
PASSWORD = "Wiesel 7"
HASHES = {
    SHA256: "AQIDBPF80lfwgUq0nofZsGe5xN1TltvxluYBAnPE+IlqUXvO",
    SHA512: (
        "AQIDBJom1rzeJyCWtBC2LrcwcrKLO46w1HnXVcxnH/jUPltuo7BXknNBfg7rqxjicW+4hRq1izWd3XYXTYljj/q4Lns="
    ),
    MD5: "AQIDBKX2dLgPDbhY90g2jeDpjUU=",
}
V38: dict[str, Any] = {
    "rabbit_version": "3.8.34",
    "rabbitmq_version": "3.8.34",
    "users": [
        {"name": "ada", "password_hash": "", "hashing_algorithm": SHA256, "limits": [],
         "tags": "administrator,monitoring"},
    ],
    "vhosts": [
        {"name": "shop", "limits": [["max-connections", 7], ["max-queues", 50]],
         "metadata": {"description": "The shop", "tags": ["eu", "live"]}},
        {"name": "bare", "limits": [], "metadata": []},
    ],
    "permissions": [
        {"user": "ada", "vhost": "shop", "configure": ".*", "write": ".*", "read": ".*"}
    ],
    "topic_permissions": [
        {"user": "ada", "vhost": "shop", "exchange": "amq.topic", "write": "^a", "read": ".*"}
    ],
    "parameters": [
        {"vhost": "shop", "component": "operator_policy", "name": "cap",
         "value": {"apply-to": "queues", "pattern": "^tmp", "priority": 3,
                   "definition": [["expires", 60000], ["max-length", 4]]}},
        {"vhost": "shop", "component": "shovel", "name": "old",
         "value": {"src-uri": "amqp://", "dest-properties": [["app", [["id", 1]]]]}},
    ],
    "global_parameters": [
        {"name": "mqtt_default_vhosts", "value": [["O=client,CN=guest", "/"]]},
    ],
    "policies": [
        {"vhost": "shop", "name": "ha", "pattern": "^(?!amq\\.).*", "apply-to": "queues",
         "priority": 0, "definition": {"ha-mode": "exactly", "ha-params": 2, "max-length": 9}},
        {"vhost": "shop", "name": "lone", "pattern": "x", "apply-to": "exchanges", "priority": 0,
         "definition": {"x-plugin-key": 1}},
        {"vhost": "shop", "name": "part", "pattern": "x", "apply-to": "exchanges", "priority": 0,
         "definition": {"x-plugin-key": 1, "alternate-exchange": "spare"}},
    ],
    "queues": [
        {"vhost": "shop", "name": "orders", "type": "classic", "durable": True,
         "auto_delete": False, "arguments": {"x-max-length": 3, "x-max-age": "1D",
                                             "x-odd": "Not UTF-8, base64 is: /wA="}},
        {"vhost": "shop", "name": "safe", "type": "quorum", "durable": True,
         "auto_delete": False, "arguments": []},
        {"vhost": "shop", "name": "feed", "type": "rabbit_stream_queue", "durable": True,
         "auto_delete": False, "arguments": [["x-queue-type", "stream"], ["x-max-age", "1D"]]},
    ],
    "exchanges": [
        {"vhost": "shop", "name": "in", "type": "headers", "durable": True, "auto_delete": False,
         "arguments": {"alternate-exchange": "hidden"}},
    ],
    "bindings": [
        {"vhost": "shop", "source": "in", "destination": "orders", "destination_type": "queue",
         "routing_key": "", "arguments": {"x-match": "all", "n": 1}},
        {"vhost": "shop", "source": "in", "destination": "amq.gen-private",
         "destination_type": "queue", "routing_key": "", "arguments": {}},
        {"vhost": "shop", "source": "hidden", "destination": "orders",
         "destination_type": "queue", "routing_key": "", "arguments": {}},
    ],
}  # fmt: skip
V313: dict[str, Any] = {
    "rabbit_version": "3.13.7",
    "rabbitmq_version": "3.13.7",
    "vhosts": [
        {"name": "shop", "limits": [],
         "metadata": {"description": "", "tags": [], "default_queue_type": "undefined"}},
        {"name": "safe", "limits": [],
         "metadata": {"description": "", "tags": [], "default_queue_type": "rabbit_quorum_queue"}},
    ],
    "users": [
        {"name": "ada", "password_hash": "", "hashing_algorithm": SHA512, "tags": [],
         "limits": {"max-channels": 4}},
    ],
    "parameters": [
        {"vhost": "shop", "component": "vhost-limits", "name": "limits",
         "value": {"max-connections": 7}},
        {"vhost": "shop", "component": "operator_policy", "name": "cap",
         "value": {"apply-to": "classic_queues", "pattern": "", "priority": 0,
                   "definition": [["overflow", "reject-publish"], ["queue-version", 2]]}},
        {"vhost": "shop", "component": "federation-upstream-set", "name": "set",
         "value": [{"upstream": "a"}]},
    ],
    "queues": [
        {"vhost": "shop", "name": "orders", "type": "classic", "durable": True,
         "auto_delete": False, "arguments": {"x-queue-type": "classic"}},
    ],
}  # fmt: skip
V43: dict[str, Any] = {
    "rabbit_version": "4.3.5",
    "rabbitmq_version": "4.3.5",
    "product_name": "RabbitMQ",
    "product_version": "4.3.5",
    "rabbitmq_definition_format": "cluster",
    "original_cluster_name": "rabbit@hare",
    "explanation": "Definitions of cluster 'rabbit@hare'",
    "vhosts": [
        {"name": "shop", "description": "", "tags": [], "default_queue_type": "quorum",
         "metadata": {"description": "", "tags": [], "default_queue_type": "quorum",
                      "protected_from_deletion": True, "color": "green"}},
    ],
    "parameters": [
        {"vhost": "shop", "component": "operator_policy", "name": "cap",
         "value": {"apply-to": "quorum_queues", "pattern": "", "priority": 0,
                   "definition": {"delayed-retry-min": 1000, "max-length": 5}}},
    ],
    "global_parameters": [{"name": "cluster_tags", "value": [["region", "eu"]]}],
    "policies": [
        {"vhost": "shop", "name": "slow", "pattern": "^s", "apply-to": "streams", "priority": 1,
         "definition": {"max-age": "7D", "consumer-disconnected-timeout": 1000}},
    ],
    "queues": [
        {"vhost": "shop", "name": "orders", "type": "quorum", "durable": True,
         "auto_delete": False, "arguments": {"x-queue-type": "quorum", "x-consumer-timeout": 5},
         "leader": "rabbit@hare"},
    ],
    "exchanges": [
        {"vhost": "shop", "name": "near", "type": "x-local-random", "durable": True,
         "auto_delete": False, "arguments": {}, "policy": "none"},
    ],
    "messages": [],
}  # fmt: skip
