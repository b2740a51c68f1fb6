"""The options of a queue as typed values, from its arguments and its policy.

Parsed when a queue is declared or its policy changes, never per message. If an argument and a
policy both set a limit, the smaller one applies; a dead-letter target in the arguments takes
precedence over the policy's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from leveret.model.arguments import require_same, require_same_arguments
from leveret.model.errors import PreconditionFailed, ResourceLocked
from leveret.queues.spec import QueueSpec

MAX_MS = 315_360_000_000
QUORUM_DELIVERY_LIMIT = 20

COMPARED_ARGUMENTS = (
    "x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key",
    "x-max-length", "x-max-length-bytes", "x-max-priority", "x-overflow",
    "x-single-active-consumer", "x-delivery-limit", "x-max-age",
    "x-stream-max-segment-size-bytes", "x-partitions", "x-cleanup-policy",
    "x-delete-retention", "x-sync-interval", "x-message-deduplication", "x-cache-size",
    "x-cache-ttl", "x-dead-letter-strategy",
)  # fmt: skip
"""Arguments that must be equal when a queue is declared again; others may differ."""


def require_same_queue(what: str, current: QueueSpec, spec: QueueSpec) -> None:
    """Refuse to declare an existing queue again with other properties."""
    if spec.exclusive != current.exclusive:
        raise ResourceLocked(
            f"cannot obtain exclusive access to locked {what}. It could be originally declared "
            "on another connection or the exclusive property value does not match that of the "
            "original declaration."
        )
    require_same(what, "durable", spec.durable, current.durable)
    require_same(what, "auto_delete", spec.auto_delete, current.auto_delete)
    if spec.kind != current.kind:
        require_same_arguments(
            what,
            ("x-queue-type",),
            ({"x-queue-type": spec.kind}, {"x-queue-type": "longstr"}),
            ({"x-queue-type": current.kind}, {"x-queue-type": "longstr"}),
        )
    require_same_arguments(
        what,
        COMPARED_ARGUMENTS,
        (spec.arguments, spec.type_names),
        (current.arguments, current.type_names),
    )


class Overflow(StrEnum):
    DROP_HEAD = "drop-head"
    REJECT_PUBLISH = "reject-publish"
    REJECT_PUBLISH_DLX = "reject-publish-dlx"


@dataclass(frozen=True, slots=True)
class QueueOptions:
    message_ttl: int | None = None
    expires: int | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: Overflow = Overflow.DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    max_priority: int | None = None
    single_active: bool = False
    delivery_limit: int | None = None
    consumer_timeout: int | None = None
    deduplicates: bool = False
    is_quorum: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether messages can be enqueued without checking any option."""
        return (
            self.message_ttl is None
            and self.max_length is None
            and self.max_bytes is None
            and self.max_priority is None
            and not self.deduplicates
        )

    @property
    def counts_deliveries(self) -> bool:
        """Whether messages carry `x-delivery-count`."""
        return self.is_quorum or self.delivery_limit is not None

    @property
    def has_length_limit(self) -> bool:
        return self.max_length is not None or self.max_bytes is not None


def _integer(minimum: int, maximum: int = MAX_MS) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum
    )


def is_short_string(value: Any) -> bool:
    """Whether the value can be an exchange name or a routing key."""
    return isinstance(value, str) and len(value.encode()) <= 255


def _one_of(*allowed: str) -> Callable[[Any], bool]:
    return lambda value: value in allowed


_CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "x-message-ttl": ("a whole number of milliseconds from 0", _integer(0)),
    "x-expires": ("a whole number of milliseconds from 1", _integer(1)),
    "x-max-length": ("a whole number from 0", _integer(0, 1 << 62)),
    "x-max-length-bytes": ("a whole number from 0", _integer(0, 1 << 62)),
    "x-overflow": (f"one of {', '.join(Overflow)}", _one_of(*Overflow)),
    "x-dead-letter-exchange": ("a string of at most 255 bytes", is_short_string),
    "x-dead-letter-routing-key": ("a string of at most 255 bytes", is_short_string),
    "x-dead-letter-strategy": (
        "at-most-once or at-least-once",
        _one_of("at-most-once", "at-least-once"),
    ),
    "x-max-priority": ("a whole number from 0 to 255", _integer(0, 255)),
    "x-single-active-consumer": ("a boolean", lambda value: isinstance(value, bool)),
    "x-consumer-timeout": ("a whole number of milliseconds from 0", _integer(0)),
    "x-message-deduplication": ("a boolean", lambda value: isinstance(value, bool)),
    "x-cache-size": ("a whole number from 1", _integer(1, 1 << 31)),
    "x-cache-ttl": ("a whole number of milliseconds from 1", _integer(1)),
    "x-delivery-limit": ("a whole number from -1", _integer(-1, 1 << 62)),
    "x-queue-mode": ("default or lazy", _one_of("default", "lazy")),
    "x-queue-version": ("1 or 2", _integer(1, 2)),
    "x-queue-master-locator": (
        "one of min-masters, client-local, random",
        _one_of("min-masters", "client-local", "random"),
    ),
    "x-queue-leader-locator": (
        "one of client-local, balanced, least-leaders, random",
        _one_of("client-local", "balanced", "least-leaders", "random"),
    ),
    "x-initial-cluster-size": ("a whole number from 1", _integer(1, 1 << 31)),
    "x-quorum-initial-group-size": ("a whole number from 1", _integer(1, 1 << 31)),
    "x-quorum-target-group-size": ("a whole number from 1", _integer(1, 1 << 31)),
    "x-max-in-memory-length": ("a whole number from 0", _integer(0, 1 << 62)),
    "x-max-in-memory-bytes": ("a whole number from 0", _integer(0, 1 << 62)),
    "x-stream-filter-size-bytes": ("a whole number from 16 to 255", _integer(16, 255)),
}


def check_arguments(arguments: Mapping[str, Any], where: str) -> None:
    """Refuse invalid values of arguments, with RabbitMQ's wording."""
    for name, (allowed, is_valid) in _CHECKS.items():
        if name in arguments and not is_valid(arguments[name]):
            raise PreconditionFailed(
                f"invalid arg '{name}' for {where}: {arguments[name]!r} is not {allowed}"
            )
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        raise PreconditionFailed(
            f"invalid arg 'x-dead-letter-routing-key' for {where}: routing_key_but_no_dlx_defined"
        )


def options_of(arguments: Mapping[str, Any], policy: Mapping[str, Any]) -> QueueOptions:
    """The options of a queue with these checked arguments and this policy."""
    is_quorum = arguments.get("x-queue-type") == "quorum"
    has_target = "x-dead-letter-exchange" in arguments
    target = arguments if has_target else _as_arguments(policy)
    limit = _smaller(arguments, policy, "delivery-limit")
    if limit is None and is_quorum:
        limit = QUORUM_DELIVERY_LIMIT
    return QueueOptions(
        message_ttl=_smaller(arguments, policy, "message-ttl"),
        expires=_smaller(arguments, policy, "expires"),
        max_length=_smaller(arguments, policy, "max-length"),
        max_bytes=_smaller(arguments, policy, "max-length-bytes"),
        overflow=Overflow(arguments.get("x-overflow", policy.get("overflow", "drop-head"))),
        dead_letter_exchange=target.get("x-dead-letter-exchange"),
        dead_letter_routing_key=target.get("x-dead-letter-routing-key"),
        max_priority=arguments.get("x-max-priority"),
        single_active=arguments.get("x-single-active-consumer") is True,
        delivery_limit=None if limit is None or limit < 0 else limit,
        consumer_timeout=_smaller(arguments, policy, "consumer-timeout"),
        deduplicates=arguments.get("x-message-deduplication") is True,
        is_quorum=is_quorum,
    )


def _as_arguments(policy: Mapping[str, Any]) -> dict[str, Any]:
    return {f"x-{key}": value for key, value in policy.items()}


def _smaller(arguments: Mapping[str, Any], policy: Mapping[str, Any], name: str) -> int | None:
    values = [
        source[key] for source, key in ((arguments, f"x-{name}"), (policy, name)) if key in source
    ]
    return min((value for value in values if value >= 0), default=min(values, default=None))
