"""Rules for names: server-generated and reserved names, the default and internal exchanges.

Plain functions without state. The AMQP and HTTP servers call them before the permission checks
where RabbitMQ does; the virtual host calls them again, so that they cannot be bypassed.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from leveret.bindings import Destination, DestinationKind
from leveret.model.errors import AccessRefused, PreconditionFailed

if TYPE_CHECKING:
    from leveret.exchange import Exchange

RESERVED = "amq."
MAX_SHORT_STRING = 255
"""Bytes of a short string of AMQP: a name or a routing key."""


def server_name() -> str:
    """A queue name that cannot be guessed."""
    return f"amq.gen-{secrets.token_urlsafe(16)}"


def check_name(kind: str, name: str) -> None:
    if "\x00" in name:
        raise PreconditionFailed(f"{kind} name must not contain a NUL character")
    check_length(f"{kind} name", name)


def check_length(label: str, text: str) -> None:
    """AMQP frames cannot carry more; HTTP requests, files and arguments could."""
    if len(text.encode()) > MAX_SHORT_STRING:
        raise PreconditionFailed(f"{label} is longer than {MAX_SHORT_STRING} bytes")


def fit_short_string(text: str) -> str:
    """The part of a text that fits into a short string."""
    return text.encode()[:MAX_SHORT_STRING].decode(errors="ignore")


def require_unreserved(kind: str, name: str) -> None:
    if name.startswith(RESERVED):
        raise AccessRefused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def require_not_default(*exchanges: str) -> None:
    if "" in exchanges:
        raise AccessRefused("operation not permitted on the default exchange")


def reject_default_exchange(source: str, destination: Destination) -> None:
    """Neither end of a binding may be the default exchange."""
    require_not_default(source)
    if destination.kind is DestinationKind.EXCHANGE:
        require_not_default(destination.name)


def require_not_internal(exchange: Exchange, vhost: str) -> None:
    """Clients may not publish to an internal exchange; bindings and dead letters may lead to it."""
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
