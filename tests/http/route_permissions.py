"""The permissions that each route needs. A route that is missing here fails the test.

`Needs` is the least a user must have; `in_vhost` routes also need the vhost to be theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Needs(Enum):
    """Which of the users in `test_route_permissions.ROLES` are authorized."""

    NOTHING = ()
    A_TAG = ("management", "policymaker", "monitoring", "administrator")
    POLICYMAKER = ("policymaker", "administrator")
    POLICYMAKER_OR_MONITORING = ("policymaker", "monitoring", "administrator")
    MONITORING = ("monitoring", "administrator")
    ADMINISTRATOR = ("administrator",)


@dataclass(frozen=True, slots=True)
class Rule:
    needs: Needs
    in_vhost: bool = False
    body: Any = None
    query: dict[str, str] = field(default_factory=dict)


def _tag(body: Any = None, **query: str) -> Rule:
    return Rule(Needs.A_TAG, False, body, query)


def _vhost(needs: Needs = Needs.A_TAG, body: Any = None, **query: str) -> Rule:
    return Rule(needs, True, body, query)


def _admin(body: Any = None, **query: str) -> Rule:
    return Rule(Needs.ADMINISTRATOR, False, body, query)


_MONITORING = Rule(Needs.MONITORING)
_POLICY = {"pattern": "^no-such-queue$", "definition": {"max-length": 10}}
_USER = {"password_hash": "", "tags": ""}
_RIGHTS = {"configure": "", "write": "", "read": ""}
_TOPIC = {"exchange": "amq.topic", "write": "", "read": ""}
_POLICYMAKER = Needs.POLICYMAKER
_BOTH = Needs.POLICYMAKER_OR_MONITORING
_BINDING = "/api/bindings/{vhost}/e/{source}/{kind}/{destination}"
_GROUP = "/api/logs/{vhost}/{name}/groups/{group}"

RULES: dict[str, Rule] = {
    # Routes that need no authentication.
    "GET /{path}": Rule(Needs.NOTHING),
    "GET /metrics": Rule(Needs.NOTHING),
    "POST /api/login": Rule(Needs.NOTHING, body={"username": "guest", "password": "guest"}),
    # The broker as a whole.
    "GET /api/overview": _tag(),
    "GET /api/cluster-name": _tag(),
    "PUT /api/cluster-name": _admin({"name": "a"}),
    "PUT /api/memory-high-watermark": _admin({"absolute": "1GiB"}),
    "GET /api/version": _tag(),
    "GET /api/extensions": _tag(),
    "GET /api/feature-flags": _tag(),
    "GET /api/deprecated-features": _tag(),
    "GET /api/deprecated-features/used": _tag(),
    "GET /api/nodes": _MONITORING,
    "GET /api/nodes/{name}": _MONITORING,
    "GET /api/nodes/{name}/memory": _MONITORING,
    "GET /api/whoami": _tag(),
    "POST /api/logout": _tag(),
    "GET /api/auth/hash_password/{password}": _tag(),
    "GET /api/health/checks/alarms": _tag(),
    "GET /api/health/checks/local-alarms": _tag(),
    "GET /api/health/checks/virtual-hosts": _tag(),
    "GET /api/health/checks/is-in-service": _tag(),
    "GET /api/health/checks/ready-to-serve-clients": _tag(),
    "GET /api/health/checks/metadata-store/initialized": _tag(),
    "GET /api/health/checks/below-node-connection-limit": _tag(),
    "GET /api/health/checks/node-is-quorum-critical": _tag(),
    "GET /api/health/checks/node-is-mirror-sync-critical": _tag(),
    "GET /api/health/checks/certificate-expiration/{within}/{unit}": _tag(),
    "GET /api/health/checks/port-listener/{port}": _tag(),
    "GET /api/health/checks/protocol-listener/{protocol}": _tag(),
    "GET /api/healthchecks/node": _tag(),
    "GET /api/healthchecks/node/{name}": _tag(),
    "GET /api/aliveness-test/{vhost}": _vhost(),
    "GET /api/settings": _MONITORING,
    "GET /api/audit": _admin(),
    "GET /api/lost-data": _MONITORING,
    "GET /api/alarms": _tag(),
    "POST /api/shutdown": _admin(),
    "DELETE /api/reset": _admin(),
    "GET /api/openapi.json": _tag(),
    "GET /api/docs": _tag(),
    "GET /api/index.html": _tag(),
    "GET /api/stream": _tag(view="/api/whoami"),
    "GET /metrics/per-object": _MONITORING,
    "GET /metrics/detailed": _MONITORING,
    # History.
    "GET /api/history": _tag(),
    "GET /api/trace": _tag(id="1"),
    "GET /api/history/ranges": _MONITORING,
    "GET /api/history/export": Rule(Needs.MONITORING, query={"table": "events"}),
    # Connections.
    "GET /api/connections": _tag(),
    "GET /api/connections/{name}": _tag(),
    "DELETE /api/connections/{name}": _tag(),
    "GET /api/connections/{name}/channels": _tag(),
    "GET /api/connections/username/{user_name}": _tag(),
    "DELETE /api/connections/username/{user_name}": _admin(),
    "GET /api/channels": _tag(),
    "GET /api/channels/{name}": _tag(),
    "GET /api/consumers": _tag(),
    "GET /api/consumers/{vhost}": _vhost(),
    "GET /api/vhosts/{vhost}/connections": _vhost(),
    "GET /api/vhosts/{vhost}/channels": _vhost(),
    # Exchanges, queues, bindings.
    "GET /api/exchanges": _tag(),
    "GET /api/exchanges/{vhost}": _vhost(),
    "GET /api/exchanges/{vhost}/{name}": _vhost(),
    "PUT /api/exchanges/{vhost}/{name}": _vhost(body={"type": "topic"}),
    "DELETE /api/exchanges/{vhost}/{name}": _vhost(),
    "GET /api/exchanges/{vhost}/{name}/scheduled": _vhost(),
    "DELETE /api/exchanges/{vhost}/{name}/scheduled/{message_id}": _vhost(),
    "GET /api/exchanges/{vhost}/{name}/bindings/source": _vhost(),
    "GET /api/exchanges/{vhost}/{name}/bindings/destination": _vhost(),
    "GET /api/queues": _tag(),
    "GET /api/queues/{vhost}": _vhost(),
    "GET /api/queues/{vhost}/{name}": _vhost(),
    "PUT /api/queues/{vhost}/{name}": _vhost(body={}),
    "DELETE /api/queues/{vhost}/{name}": _vhost(),
    "DELETE /api/queues/{vhost}/{name}/contents": _vhost(),
    "GET /api/queues/{vhost}/{name}/bindings": _vhost(),
    "GET /api/bindings": _tag(),
    "GET /api/bindings/{vhost}": _vhost(),
    f"GET {_BINDING}": _vhost(),
    f"POST {_BINDING}": _vhost(body={"routing_key": "k"}),
    f"GET {_BINDING}/{{properties_key}}": _vhost(),
    f"DELETE {_BINDING}/{{properties_key}}": _vhost(),
    # Messages.
    "POST /api/exchanges/{vhost}/{name}/publish": _vhost(
        body={"properties": {}, "routing_key": "k", "payload": "p", "payload_encoding": "string"}
    ),
    "POST /api/queues/{vhost}/{name}/get": _vhost(
        body={"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    ),
    "GET /api/queues/{vhost}/{name}/browse": _vhost(),
    "POST /api/route/{vhost}": _vhost(body={"exchange": "amq.topic", "routing_key": "k"}),
    # Virtual hosts.
    "GET /api/vhosts": _tag(),
    "GET /api/vhosts/{vhost}": _vhost(),
    "PUT /api/vhosts/{vhost}": _admin({}),
    "DELETE /api/vhosts/{vhost}": _admin(),
    "POST /api/vhosts/{vhost}/deletion/protection": _admin(),
    "DELETE /api/vhosts/{vhost}/deletion/protection": _admin(),
    "POST /api/vhosts/{vhost}/start/{node}": _admin(),
    "GET /api/vhosts/{vhost}/permissions": _admin(),
    "GET /api/vhosts/{vhost}/topic-permissions": _admin(),
    "GET /api/vhost-limits": _tag(),
    "GET /api/vhost-limits/{vhost}": _vhost(),
    "PUT /api/vhost-limits/{vhost}/{limit}": _admin({"value": -1}),
    "DELETE /api/vhost-limits/{vhost}/{limit}": _admin(),
    # Users and permissions.
    "GET /api/users": _admin(),
    "GET /api/users/without-permissions": _admin(),
    "POST /api/users/bulk-delete": _admin({"users": []}),
    "GET /api/users/{name}": _admin(),
    "PUT /api/users/{name}": _admin(_USER),
    "DELETE /api/users/{name}": _admin(),
    "GET /api/user-limits": _admin(),
    "GET /api/user-limits/{name}": _admin(),
    "PUT /api/user-limits/{name}/{limit}": _admin({"value": -1}),
    "DELETE /api/user-limits/{name}/{limit}": _admin(),
    "GET /api/users/{user}/permissions": _admin(),
    "GET /api/users/{user}/topic-permissions": _admin(),
    "GET /api/permissions": _admin(),
    "GET /api/permissions/{vhost}/{user}": _admin(),
    "PUT /api/permissions/{vhost}/{user}": _admin(_RIGHTS),
    "DELETE /api/permissions/{vhost}/{user}": _admin(),
    "GET /api/topic-permissions": _admin(),
    "GET /api/topic-permissions/{vhost}/{user}": _admin(),
    "PUT /api/topic-permissions/{vhost}/{user}": _admin(_TOPIC),
    "DELETE /api/topic-permissions/{vhost}/{user}": _admin(),
    "DELETE /api/topic-permissions/{vhost}/{user}/{exchange}": _admin(),
    # Policies and parameters.
    "GET /api/policies": Rule(_BOTH),
    "GET /api/policies/{vhost}": _vhost(_BOTH),
    "GET /api/policies/{vhost}/{name}": _vhost(_BOTH),
    "PUT /api/policies/{vhost}/{name}": _vhost(_POLICYMAKER, _POLICY),
    "DELETE /api/policies/{vhost}/{name}": _vhost(_POLICYMAKER),
    "GET /api/operator-policies": Rule(_BOTH),
    "GET /api/operator-policies/{vhost}": _vhost(_BOTH),
    "GET /api/operator-policies/{vhost}/{name}": _vhost(_BOTH),
    "PUT /api/operator-policies/{vhost}/{name}": _admin(_POLICY),
    "DELETE /api/operator-policies/{vhost}/{name}": _admin(),
    "GET /api/parameters": Rule(_POLICYMAKER),
    "GET /api/parameters/{component}": Rule(_POLICYMAKER),
    "GET /api/parameters/{component}/{vhost}": _vhost(_POLICYMAKER),
    "GET /api/parameters/{component}/{vhost}/{name}": _vhost(_POLICYMAKER),
    "PUT /api/parameters/{component}/{vhost}/{name}": _vhost(_POLICYMAKER, {"value": {}}),
    "DELETE /api/parameters/{component}/{vhost}/{name}": _vhost(_POLICYMAKER),
    "GET /api/global-parameters": _admin(),
    "GET /api/global-parameters/{name}": _admin(),
    "PUT /api/global-parameters/{name}": _admin({"value": 1}),
    "DELETE /api/global-parameters/{name}": _admin(),
    "GET /api/definitions": _admin(),
    "PUT /api/definitions": _admin({}),
    "POST /api/definitions": _admin({}),
    "GET /api/definitions/{vhost}": _vhost(_POLICYMAKER),
    "PUT /api/definitions/{vhost}": _admin({}),
    "POST /api/definitions/{vhost}": _admin({}),
    # Logs.
    "GET /api/logs": _tag(),
    "GET /api/logs/{vhost}": _vhost(),
    "GET /api/logs/{vhost}/{name}": _vhost(),
    "PUT /api/logs/{vhost}/{name}": _vhost(body={"partitions": 1}),
    "DELETE /api/logs/{vhost}/{name}": _vhost(),
    "POST /api/logs/{vhost}/{name}/publish": _vhost(body={"records": [{"value": "v"}]}),
    "GET /api/logs/{vhost}/{name}/records": _vhost(),
    "GET /api/logs/{vhost}/{name}/groups": _vhost(),
    f"POST {_GROUP}/fetch": _vhost(body={}),
    f"POST {_GROUP}/commit": _vhost(body={"offsets": {"0": 0}}),
    f"POST {_GROUP}/reset": _vhost(body={"to": "first"}),
    f"DELETE {_GROUP}": _vhost(),
    f"POST {_GROUP}/members": _vhost(body={}),
    f"POST {_GROUP}/members/{{member}}/fetch": _vhost(body={}),
    f"POST {_GROUP}/members/{{member}}/commit": _vhost(body={"offsets": {"0": 0}}),
    f"DELETE {_GROUP}/members/{{member}}": _vhost(),
    "PUT /api/stream/super-streams/{vhost}/{name}": _vhost(body={"partitions": 1}),
    "DELETE /api/stream/super-streams/{vhost}/{name}": _vhost(),
    "GET /api/stream/{vhost}/{name}/tracking": _vhost(),
    "GET /api/stream/publishers": _tag(),
    "GET /api/stream/consumers": _tag(),
    "GET /api/stream/connections": _tag(),
    "GET /api/stream/publishers/{vhost}": _vhost(),
    "GET /api/stream/consumers/{vhost}": _vhost(),
    "GET /api/stream/connections/{vhost}": _vhost(),
}
