"""What both sides say while a connection is opened. Functions without state.

The connection (connection.py) handles connection.start-ok, connection.tune-ok and connection.open
in this order and keeps the results; what the server offers and what it accepts is decided here.
"""

from __future__ import annotations

import platform
from typing import Any

from leveret import __version__
from leveret.amqp_server.tls_info import TlsInfo
from leveret.broker import Broker, User, VirtualHost
from leveret.broker.access.limits import require_connection_limit
from leveret.model.compatibility import RABBITMQ_VERSION
from leveret.model.errors import BrokerError, NotAllowed, ReplyCode
from leveret.model.tables import decode_table

MIN_FRAME_MAX = 4096
MECHANISMS = "PLAIN AMQPLAIN"
EXTERNAL = "EXTERNAL"

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
        "information": f"Leveret, compatible with RabbitMQ {RABBITMQ_VERSION}",
        "cluster_name": broker.cluster_name,
        "capabilities": dict.fromkeys(CAPABILITIES, True),
    }


def certificate_user(broker: Broker, tls: TlsInfo | None) -> str:
    """The user that the client's certificate names; empty without a certificate."""
    return "" if tls is None else tls.user(broker.settings.tls_login)


def mechanisms(broker: Broker, tls: TlsInfo | None) -> str:
    """Login mechanisms offered: EXTERNAL only if the client's certificate names a user."""
    return f"{MECHANISMS} {EXTERNAL}" if certificate_user(broker, tls) else MECHANISMS


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


def check_tuning(broker: Broker, channel_max: int, frame_max: int) -> None:
    """connection.tune-ok must not exceed what connection.tune offered."""
    settings = broker.settings
    _check_negotiated("channel_max", channel_max, 1, settings.channel_max)
    _check_negotiated("frame_max", frame_max, MIN_FRAME_MAX, settings.frame_max)


def _check_negotiated(name: str, value: int, lowest: int, offered: int) -> None:
    if value < lowest or value > offered:
        raise NotAllowed(f"negotiated {name} {value} is outside {lowest} to {offered}")


def require_current_user(broker: Broker, user: User) -> User:
    """The user as stored now: it may have been deleted or changed since the login."""
    current = broker.users.by_name.get(user.name)
    if current is None or current.password_id != user.password_id:
        raise NotAllowed(f"user '{user.name}' was deleted or has another password: log in again")
    return current


def require_vhost(broker: Broker, user: User, name: str) -> VirtualHost:
    """The virtual host of connection.open, if the user may open one more connection to it."""
    vhost = broker.vhosts.get(name)
    if vhost is None:
        raise NotAllowed(f"vhost {name} not found")
    if not broker.users.can_access_vhost(user.name, name):
        raise NotAllowed(f"access to vhost '{name}' refused for user '{user.name}'")
    require_connection_limit(broker, user, vhost)
    return vhost
