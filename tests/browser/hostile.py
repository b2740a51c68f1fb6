"""Names and bodies that would run if any page inserted them as HTML or code.

Each payload is the name of a virtual host and of every object in it: queue, exchange, binding key
and argument, user, tag, policy of either kind, limit, log, group, connection, consumer tag. It is
also a header, the ID and the body of three messages, one of them delayed.
"""

from __future__ import annotations

import re
from typing import Any

import pika

from tests.browser.shop_broker import FULL_ACCESS, Api, ShopBroker

PAYLOADS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    '"><svg onload=alert(3)>',
    "' autofocus onfocus='alert(4)",
    "javascript:alert(5)",
    "</title></textarea><script>alert(6)</script>",
    '<iframe srcdoc="<script>parent.alert(7)</script>"></iframe>',
    "{{constructor.constructor('alert(8)')()}}",
    "${alert(9)}`+alert(9)+`",
    '<a href="javascript:alert(10)">x</a>',
    "&lt;img src=x onerror=alert(11)&gt;",
    "%3Cscript%3Ealert(12)%3C/script%3E",
    "<details open ontoggle=alert(13)>",
    "<base href=//evil.test/><link rel=stylesheet href=//evil.test/x>",
    "../../api/users?\u202e<b onmouseover=alert(15)>#\\u003cb\\u003e",
)
LOG = "log of "
DELAYED = "delayed of "
UNCONSUMED = "unconsumed of "
DELAY_MS = 3_600_000


def definitions(payload: str) -> dict[str, list[dict[str, Any]]]:
    """The objects of one payload, as a definitions file."""
    here = {"vhost": payload}
    lasting = {"durable": True, "auto_delete": False}
    delayed = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "topic"}}
    stream = {"x-queue-type": "stream", "x-partitions": 1}
    policy = {"pattern": re.escape(payload), "definition": {"max-length": 1000}, "priority": 1}
    user = {"name": payload, "password_hash": "", "tags": ["monitoring", payload]}
    binding = {"source": payload, "destination": payload, "destination_type": "queue"}
    return {
        "vhosts": [{"name": payload}],
        "users": [user | {"hashing_algorithm": "rabbit_password_hashing_sha256"}],
        "permissions": [
            here | {"user": "guest"} | FULL_ACCESS,
            here | {"user": payload} | dict.fromkeys(FULL_ACCESS, re.escape(payload)),
        ],
        "policies": [here | policy | {"name": payload, "apply-to": "queues"}],
        "exchanges": [
            here | lasting | {"name": payload, "type": "topic", "internal": False, "arguments": {}},
            here | lasting | {"name": DELAYED + payload, "internal": False} | delayed,
        ],
        "queues": [
            here | lasting | {"name": payload, "arguments": {}},
            here | lasting | {"name": LOG + payload, "arguments": stream},
        ],
        "bindings": [here | binding | {"routing_key": payload, "arguments": {payload: payload}}],
    }


def build(broker: ShopBroker) -> list[pika.BlockingConnection]:
    """Create all objects of all payloads; return the open connections, which have them as names."""
    whole: dict[str, list[dict[str, Any]]] = {}
    for payload in PAYLOADS:
        for kind, objects in definitions(payload).items():
            whole.setdefault(kind, []).extend(objects)
    broker.api.post("definitions", body=whole)
    for payload in PAYLOADS:
        _limit(broker.api, payload)
    return [_connect(broker, payload) for payload in PAYLOADS]


def _limit(api: Api, payload: str) -> None:
    cap = {"pattern": re.escape(payload), "definition": {"max-length": 2000}, "apply-to": "queues"}
    api.put("operator-policies", payload, payload, body=cap)
    for kind in ("vhost-limits", "user-limits"):
        api.put(kind, payload, "max-connections", body={"value": 1000})


def publish_unconsumed(api: Api, payload: str) -> None:
    """Publish to a queue without consumers, which the overview lists."""
    api.put("queues", payload, UNCONSUMED + payload, body={"durable": True})
    message = {"routing_key": UNCONSUMED + payload, "payload": "x", "payload_encoding": "string"}
    api.post("exchanges", payload, "amq.default", "publish", body=message | {"properties": {}})


def remove(broker: ShopBroker) -> None:
    for payload in PAYLOADS:
        broker.api.delete("vhosts", payload)
        broker.api.delete("users", payload)


def _connect(broker: ShopBroker, payload: str) -> pika.BlockingConnection:
    connection = broker.connect(payload, payload)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=1)
    properties = pika.BasicProperties(
        message_id=payload, headers={payload: payload}, content_type=payload, delivery_mode=2
    )
    for _ in range(2):
        channel.basic_publish(payload, payload, payload.encode(), properties)
    channel.basic_publish(LOG + payload, payload, payload.encode())
    properties.headers = {payload: payload, "x-delay": DELAY_MS}
    channel.basic_publish(DELAYED + payload, payload, payload.encode(), properties)
    group = {"x-group": payload, "x-stream-offset": "first"}
    channel.basic_consume(payload, _ignore, consumer_tag=payload)
    channel.basic_consume(LOG + payload, _ignore, consumer_tag=LOG + payload, arguments=group)
    return connection


def _ignore(channel: Any, method: Any, properties: Any, body: bytes) -> None:
    """Does not acknowledge the message, so that the pages show it as unacknowledged."""
