"""What the broker calls itself, and which RabbitMQ its API is shaped after."""

from __future__ import annotations

import platform

from leveret import __version__

PRODUCT = "Leveret"
RABBITMQ_VERSION = "3.13.7"
"""Tools choose what they send by this: queues may be transient, global prefetch is honoured."""
EXCHANGE_TYPES = {
    "direct": "to bindings whose key equals the routing key",
    "fanout": "to every binding",
    "headers": "to bindings whose arguments match the message's headers",
    "topic": "to bindings whose pattern matches the routing key",
    "x-consistent-hash": "to one binding by hash; the binding key is its weight",
    "x-delayed-message": "as x-delayed-type says, so many ms later as the header x-delay says",
    "x-local-random": "to one binding by chance",
    "x-message-deduplication": "to every binding, once per x-deduplication-header",
    "x-modulus-hash": "to one binding by the remainder of a hash of the routing key",
    "x-random": "to one binding by chance",
    "x-recent-history": "to every binding, and the last messages to every new one",
}
"""What is said of a kind of exchange; kinds without a text are listed all the same."""


def product_version() -> str:
    return __version__


def runtime_version() -> str:
    return platform.python_version()
