"""The name and version of the broker as the HTTP API tells them."""

from __future__ import annotations

import platform

from leveret import __version__

PRODUCT = "Leveret"
EXCHANGE_TYPES = {
    "direct": "routes to bindings whose key equals the routing key",
    "fanout": "routes to all bindings",
    "headers": "routes to bindings whose arguments match the headers of the message",
    "topic": "routes to bindings whose pattern matches the routing key",
    "x-consistent-hash": "routes to one binding by hash; the binding key is its weight",
    "x-delayed-message": "routes like x-delayed-type, after as many ms as the header x-delay says",
    "x-local-random": "routes to one binding at random",
    "x-message-deduplication": "routes to all bindings, once per x-deduplication-header",
    "x-modulus-hash": "routes to one binding by the hash of the routing key",
    "x-random": "routes to one binding at random",
    "x-recent-history": "routes to all bindings, and recent messages to every new one",
}
"""Descriptions of exchange types; types without one are listed nevertheless."""


def product_version() -> str:
    return __version__


def runtime_version() -> str:
    return platform.python_version()
