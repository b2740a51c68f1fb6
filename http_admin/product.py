"""What the broker calls itself, and which RabbitMQ its API is shaped after."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

PRODUCT = "Leveret"
RABBITMQ_VERSION = "3.13.7"
"""Tools choose what they send by this: queues may be transient, global prefetch is honoured."""
EXCHANGE_TYPES = (
    ("direct", "to bindings whose key equals the routing key"),
    ("fanout", "to every binding"),
    ("headers", "to bindings whose arguments match the message's headers"),
    ("topic", "to bindings whose pattern matches the routing key"),
)


@cache
def product_version() -> str:
    try:
        return version("leveret")
    except PackageNotFoundError:
        return "0.1.0"


def runtime_version() -> str:
    return platform.python_version()
