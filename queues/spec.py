"""What a client declares a queue to be, and which arguments each type of queue accepts.

RabbitMQ 3.10 refuses an argument that belongs to another type of queue, and ignores an argument
that it does not know. So does Leveret, except that some arguments work on more types here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from leveret.model.errors import PreconditionFailed

QUEUE_KINDS = ("classic", "quorum", "stream")

_EVERY_KIND = frozenset({"x-queue-type", "x-max-length-bytes"})
_CLASSIC_AND_QUORUM = _EVERY_KIND | {
    "x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key",
    "x-max-length", "x-overflow", "x-single-active-consumer",
}  # fmt: skip
RABBITMQ_ARGUMENTS: dict[str, frozenset[str]] = {
    "classic": _CLASSIC_AND_QUORUM
    | {"x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator"},
    "quorum": _CLASSIC_AND_QUORUM
    | {
        "x-dead-letter-strategy", "x-delivery-limit", "x-quorum-initial-group-size",
        "x-max-in-memory-length", "x-max-in-memory-bytes", "x-quorum-target-group-size",
        "x-queue-leader-locator",
    },
    "stream": _EVERY_KIND
    | {
        "x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size",
        "x-stream-filter-size-bytes", "x-queue-leader-locator",
    },
}  # fmt: skip
_LEVERET_ARGUMENTS: dict[str, frozenset[str]] = {
    "classic": frozenset({"x-delivery-limit", "x-dead-letter-strategy", "x-queue-leader-locator"}),
    "quorum": frozenset({"x-max-priority"}),
    "stream": frozenset(),
}
"""RabbitMQ's arguments of other types that Leveret accepts for this type."""
_ONLY_STREAM = frozenset(
    {"x-partitions", "x-cleanup-policy", "x-delete-retention", "x-sync-interval"}
)
_NEVER_STREAM = frozenset({"x-message-deduplication", "x-cache-size", "x-cache-ttl"})
_ALL_RABBITMQ_ARGUMENTS = frozenset[str]().union(*RABBITMQ_ARGUMENTS.values())

REFUSED_BY_RABBITMQ = {
    kind: _ALL_RABBITMQ_ARGUMENTS - accepted for kind, accepted in RABBITMQ_ARGUMENTS.items()
}
REFUSED_ARGUMENTS = {
    kind: names - _LEVERET_ARGUMENTS[kind] | (_NEVER_STREAM if kind == "stream" else _ONLY_STREAM)
    for kind, names in REFUSED_BY_RABBITMQ.items()
}


@dataclass(frozen=True, slots=True)
class QueueSpec:
    name: str
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    type_names: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def kind(self) -> str:
        return str(self.arguments.get("x-queue-type", "classic"))

    def with_kind(self, kind: str) -> QueueSpec:
        """A copy with this queue type as an explicit argument."""
        arguments = {**self.arguments, "x-queue-type": kind}
        return replace(
            self, arguments=arguments, type_names={**self.type_names, "x-queue-type": "longstr"}
        )


def check_default_kind(kind: object) -> None:
    """Refuse an unknown default queue type."""
    if kind not in QUEUE_KINDS:
        raise PreconditionFailed(
            f"unknown default_queue_type {kind!r}; known are {', '.join(QUEUE_KINDS)}"
        )


def check_kind(spec: QueueSpec, where: str) -> None:
    """Refuse unknown queue types, and arguments that belong to another type."""
    kind = spec.arguments.get("x-queue-type", "classic")
    if kind not in QUEUE_KINDS:
        raise PreconditionFailed(
            f"invalid arg 'x-queue-type' for {where}: unknown type {kind!r}; "
            f"known are {', '.join(QUEUE_KINDS)}"
        )
    for name in sorted(REFUSED_ARGUMENTS[kind] & spec.arguments.keys()):
        raise PreconditionFailed(
            f"invalid arg '{name}' for {where} of queue type rabbit_{kind}_queue"
        )
    if kind == "quorum":
        check_properties(spec, where)


def check_properties(spec: QueueSpec, where: str) -> None:
    """Refuse exclusive, auto-delete and transient quorum queues and streams."""
    if spec.name.startswith("amq.gen-"):
        raise PreconditionFailed(
            f"Cannot declare a server-named queue for type rabbit_{spec.kind}_queue"
        )
    refused = (
        ("exclusive-owner", spec.exclusive),
        ("auto-delete", spec.auto_delete),
        ("non-durable", not spec.durable),
    )
    for name, is_set in refused:
        if is_set:
            raise PreconditionFailed(f"invalid property '{name}' for {where}")
