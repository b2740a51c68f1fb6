"""The keys of policy definitions, each with a description and a check of its value.

All keys of RabbitMQ 3.8 to 4.3 are accepted, so that its definitions can be imported. Those in
`WITHOUT_EFFECT` are stored and shown only: most of them mean nothing to a single broker. `history`
is a key of Leveret's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leveret.model.quantities import maybe_age_ms
from leveret.queues.options import is_short_string

Accepts = Callable[[Any], bool]


def _integer(minimum: int) -> tuple[str, Accepts]:
    def accepts(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= minimum

    return f"a whole number from {minimum}", accepts


def _one_of(*choices: str) -> tuple[str, Accepts]:
    return f"one of {', '.join(choices)}", lambda value: value in choices


_TEXT: tuple[str, Accepts] = ("a string", lambda value: isinstance(value, str))
_SHORT_TEXT: tuple[str, Accepts] = ("a string of at most 255 bytes", is_short_string)
_AGE_TEXT: tuple[str, Accepts] = (
    "a positive number with a unit (Y, M, D, h, m, s) such as 7D",
    lambda value: isinstance(value, str) and maybe_age_ms(value) is not None,
)
_ANY: tuple[str, Accepts] = ("anything", lambda value: True)

POLICY_KEYS: dict[str, tuple[str, Accepts]] = {
    "history": _one_of("full", "metadata", "off"),
    "alternate-exchange": _SHORT_TEXT,
    "consumer-disconnected-timeout": _integer(0),
    "consumer-timeout": _integer(0),
    "dead-letter-exchange": _SHORT_TEXT,
    "dead-letter-routing-key": _SHORT_TEXT,
    "dead-letter-strategy": _one_of("at-most-once", "at-least-once"),
    "delayed-retry-max": _integer(0),
    "delayed-retry-min": _integer(0),
    "delayed-retry-type": _TEXT,
    "delivery-limit": _integer(-1),
    "expires": _integer(1),
    "federation-upstream": _TEXT,
    "federation-upstream-pattern": _TEXT,
    "federation-upstream-set": _TEXT,
    "ha-mode": _TEXT,
    "ha-params": _ANY,
    "ha-promote-on-failure": _TEXT,
    "ha-promote-on-shutdown": _TEXT,
    "ha-sync-batch-size": _integer(0),
    "ha-sync-mode": _TEXT,
    "initial-cluster-size": _integer(0),
    "max-age": _AGE_TEXT,
    "max-in-memory-bytes": _integer(0),
    "max-in-memory-length": _integer(0),
    "max-length": _integer(0),
    "max-length-bytes": _integer(0),
    "max-priority": _integer(0),
    "message-ttl": _integer(0),
    "overflow": _one_of("drop-head", "reject-publish", "reject-publish-dlx"),
    "queue-leader-locator": _TEXT,
    "queue-master-locator": _TEXT,
    "queue-mode": _one_of("default", "lazy"),
    "queue-version": _integer(1),
    "routing-key": _TEXT,
    "shards-per-node": _integer(0),
    "stream-filter-size-bytes": _integer(16),
    "stream-max-segment-size-bytes": _integer(1),
    "target-group-size": _integer(0),
}

LEVERET_KEYS = frozenset({"history"})
"""Keys that RabbitMQ does not have."""

LIMITS = frozenset(
    {
        "delivery-limit", "expires", "max-in-memory-bytes", "max-in-memory-length", "max-length",
        "max-length-bytes", "message-ttl", "target-group-size",
    }
)  # fmt: skip
"""Keys whose smaller value applies if both a policy and an operator policy set them."""

WITHOUT_EFFECT = frozenset(
    {
        "consumer-disconnected-timeout", "delayed-retry-max", "delayed-retry-min",
        "delayed-retry-type", "federation-upstream", "federation-upstream-pattern",
        "federation-upstream-set", "ha-mode", "ha-params", "ha-promote-on-failure",
        "ha-promote-on-shutdown", "ha-sync-batch-size", "ha-sync-mode", "initial-cluster-size",
        "queue-leader-locator", "queue-master-locator", "routing-key", "shards-per-node",
        "target-group-size",
    }
)  # fmt: skip
"""Keys about mirroring, federation, sharding and placement, and of features of RabbitMQ 4.3."""

OPERATOR_KEYS = (
    LIMITS
    | LEVERET_KEYS
    | {
        "delayed-retry-max", "delayed-retry-min", "delayed-retry-type", "ha-mode", "ha-params",
        "ha-sync-mode", "overflow", "queue-master-locator", "queue-version",
    }
)  # fmt: skip
