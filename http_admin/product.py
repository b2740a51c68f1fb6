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
}
"""What is said of a kind of exchange; kinds without a text are listed all the same."""


def product_version() -> str:
    return __version__


def runtime_version() -> str:
    return platform.python_version()
