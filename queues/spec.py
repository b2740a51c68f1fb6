"""What a client declares a queue to be, and when a second declaration is the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from leveret.model.errors import PreconditionFailed
from queues.kinds import QUEUE_KINDS, REFUSED


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

    def of_kind(self, kind: str) -> QueueSpec:
        """The same, with its type named."""
        arguments = {**self.arguments, "x-queue-type": kind}
        return replace(
            self, arguments=arguments, type_names={**self.type_names, "x-queue-type": "longstr"}
        )


def check_default_kind(kind: object) -> None:
    """Refuse a default type for new queues that nobody has heard of."""
    if kind not in QUEUE_KINDS:
        raise PreconditionFailed(
            f"unknown default_queue_type {kind!r}; known are {', '.join(QUEUE_KINDS)}"
        )


def check_kind(spec: QueueSpec, where: str) -> None:
    """Refuse queue types nobody has heard of, and arguments that belong to another type."""
    kind = spec.arguments.get("x-queue-type", "classic")
    if kind not in QUEUE_KINDS:
        raise PreconditionFailed(
            f"invalid arg 'x-queue-type' for {where}: unknown type {kind!r}; "
            f"known are {', '.join(QUEUE_KINDS)}"
        )
    for name in sorted(REFUSED[kind] & spec.arguments.keys()):
        raise PreconditionFailed(
            f"invalid arg '{name}' for {where} of queue type rabbit_{kind}_queue"
        )
    if kind == "quorum":
        check_properties(spec, where)


def check_properties(spec: QueueSpec, where: str) -> None:
    """Refuse what quorum queues and logs cannot be: one client's, for a while, in memory."""
    if spec.name.startswith("amq.gen-"):
        raise PreconditionFailed(
            f"Cannot declare a server-named queue for type rabbit_{spec.kind}_queue"
        )
    wrong = (
        ("exclusive-owner", spec.exclusive),
        ("auto-delete", spec.auto_delete),
        ("non-durable", not spec.durable),
    )
    for name, is_so in wrong:
        if is_so:
            raise PreconditionFailed(f"invalid property '{name}' for {where}")
