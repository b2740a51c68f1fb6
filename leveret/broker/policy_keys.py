"""What a policy may ask for: every key, what it must be, and a check.

RabbitMQ's keys are all known, so that its definitions import; those about mirrors, federation and
placement mean nothing to a single broker and are kept and shown only. `history` is Leveret's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from queues.options import is_short

Accepts = Callable[[Any], bool]
_AGE = re.compile(r"(?=.{2,13}\Z)0*[1-9][0-9]*[YMDhms]\Z")


def _whole(least: int) -> tuple[str, Accepts]:
    def accepts(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    return f"a whole number from {least}", accepts


def _one_of(*choices: str) -> tuple[str, Accepts]:
    return f"one of {', '.join(choices)}", lambda value: value in choices


_TEXT: tuple[str, Accepts] = ("a string", lambda value: isinstance(value, str))
_SHORT_TEXT: tuple[str, Accepts] = ("a string of at most 255 octets", is_short)
_AGE_TEXT: tuple[str, Accepts] = (
    "a positive number with a unit (Y, M, D, h, m, s) such as 7D",
    lambda value: isinstance(value, str) and _AGE.match(value) is not None,
)
_ANY: tuple[str, Accepts] = ("anything", lambda value: True)

POLICY_KEYS: dict[str, tuple[str, Accepts]] = {
    "history": _one_of("full", "metadata", "off"),
    "alternate-exchange": _SHORT_TEXT,
    "consumer-timeout": _whole(0),
    "dead-letter-exchange": _SHORT_TEXT,
    "dead-letter-routing-key": _SHORT_TEXT,
    "dead-letter-strategy": _one_of("at-most-once", "at-least-once"),
    "delivery-limit": _whole(-1),
    "expires": _whole(1),
    "federation-upstream": _TEXT,
    "federation-upstream-pattern": _TEXT,
    "federation-upstream-set": _TEXT,
    "ha-mode": _TEXT,
    "ha-params": _ANY,
    "ha-promote-on-failure": _TEXT,
    "ha-promote-on-shutdown": _TEXT,
    "ha-sync-batch-size": _whole(0),
    "ha-sync-mode": _TEXT,
    "initial-cluster-size": _whole(0),
    "max-age": _AGE_TEXT,
    "max-in-memory-bytes": _whole(0),
    "max-in-memory-length": _whole(0),
    "max-length": _whole(0),
    "max-length-bytes": _whole(0),
    "max-priority": _whole(0),
    "message-ttl": _whole(0),
    "overflow": _one_of("drop-head", "reject-publish", "reject-publish-dlx"),
    "queue-leader-locator": _TEXT,
    "queue-master-locator": _TEXT,
    "queue-mode": _one_of("default", "lazy"),
    "queue-version": _whole(1),
    "stream-filter-size-bytes": _whole(16),
    "stream-max-segment-size-bytes": _whole(1),
    "target-group-size": _whole(0),
}

OWN_KEYS = frozenset({"history"})
"""Keys that RabbitMQ does not know."""

LIMITS = frozenset(
    {
        "delivery-limit", "expires", "max-in-memory-bytes", "max-in-memory-length", "max-length",
        "max-length-bytes", "message-ttl", "target-group-size",
    }
)  # fmt: skip
"""Keys of which the smaller value holds where a policy and an operator policy both name one."""

OPERATOR_KEYS = LIMITS | OWN_KEYS
