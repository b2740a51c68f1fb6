"""Who the client says it is, and who we say we are."""

from __future__ import annotations

import platform
from typing import Any

from leveret import __version__
from leveret.broker import Broker
from leveret.model.errors import BrokerError, ReplyCode
from leveret.model.tables import decode_table

CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)


def server_properties(broker: Broker) -> dict[str, Any]:
    return {
        "product": broker.settings.product,
        "version": __version__,
        "platform": f"Python {platform.python_version()}",
        "copyright": "Copyright the Leveret authors",
        "information": "Leveret, a RabbitMQ-compatible broker",
        "cluster_name": broker.settings.node_name,
        "capabilities": dict.fromkeys(CAPABILITIES, True),
    }


def credentials(mechanism: str, response: str | bytes) -> tuple[str, str]:
    """User and password from the response of PLAIN or AMQPLAIN."""
    raw = response.encode() if isinstance(response, str) else response
    if mechanism == "PLAIN":
        parts = raw.split(b"\x00")
        if len(parts) == 3:
            return _text(parts[1]), _text(parts[2])
    elif mechanism == "AMQPLAIN":
        table = decode_table(len(raw).to_bytes(4, "big") + raw)
        name, password = table.get("LOGIN"), table.get("PASSWORD")
        if isinstance(name, str) and isinstance(password, str):
            return name, password
    else:
        raise BrokerError(
            f"unknown authentication mechanism '{mechanism}'", ReplyCode.COMMAND_INVALID
        )
    return "", ""


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
