"""What may be done with a name: the server's own, reserved, the default and internal exchanges.

Plain functions without state. Fronts ask them before rights where RabbitMQ does; the virtual host
asks again, so that no way round exists.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from bindings import Destination, DestinationKind
from leveret.model.errors import AccessRefused, PreconditionFailed

if TYPE_CHECKING:
    from exchange import Exchange

RESERVED = "amq."
SHORT = 255
"""Most octets of a short string of AMQP: a name, a routing key."""


def server_name() -> str:
    """A queue name nobody can guess."""
    return f"amq.gen-{secrets.token_urlsafe(16)}"


def check_name(kind: str, name: str) -> None:
    if "\x00" in name:
        raise PreconditionFailed(f"{kind} name must not contain a NUL character")
    check_length(f"{kind} name", name)


def check_length(what: str, text: str) -> None:
    """Over AMQP nothing longer could be said; over HTTP, in files and in arguments it could."""
    if len(text.encode()) > SHORT:
        raise PreconditionFailed(f"{what} is longer than {SHORT} octets")


def require_unreserved(kind: str, name: str) -> None:
    if name.startswith(RESERVED):
        raise AccessRefused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def require_not_default(*exchanges: str) -> None:
    if "" in exchanges:
        raise AccessRefused("operation not permitted on the default exchange")


def require_named(source: str, destination: Destination) -> None:
    """Of a binding: neither end is the default exchange."""
    require_not_default(source)
    if destination.kind is DestinationKind.EXCHANGE:
        require_not_default(destination.name)


def require_open(exchange: Exchange, vhost: str) -> None:
    """Clients may not publish to an internal exchange: it is fed by others, and by dead letters."""
    if exchange.spec.internal:
        raise AccessRefused(
            f"cannot publish to internal exchange '{exchange.name}' in vhost '{vhost}'"
        )


def require_deletable(exchange: str, vhost: str) -> None:
    require_not_default(exchange)
    if exchange.startswith(RESERVED):
        raise AccessRefused(
            f"deletion of system exchange '{exchange}' in vhost '{vhost}' not allowed"
        )
