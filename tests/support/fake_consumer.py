"""A consumer without a connection, for tests of queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from leveret.model.clients import ConsumerInfo
from leveret.queues.entry import Entry, RunPart
from leveret.queues.port import Queue

NO_ACK_CREDIT = 1000


@dataclass(eq=False)
class FakeConsumer:
    """Takes as many entries as its prefetch allows; without acks, always `NO_ACK_CREDIT` more."""

    prefetch: int = 0
    no_ack: bool = False
    priority: int = 0
    tag: str = "consumer"
    exclusive: bool = False
    actor: int = 0
    shares_credit: bool = False
    is_writable: bool = True
    takes_turns: bool = False
    was_cancelled: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    unacked: list[Entry] = field(default_factory=list)
    delivered_ids: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"{self.tag}({self.priority})"

    def credit(self) -> int:
        return NO_ACK_CREDIT if self.no_ack else self.prefetch - len(self.unacked)

    def deliver(self, queue: Queue, entries: Sequence[Entry]) -> None:
        assert len(entries) <= self.credit()
        self.delivered_ids += [entry.id for entry in entries]
        if not self.no_ack:
            self.unacked += entries

    def deliver_part(self, queue: Queue, part: RunPart) -> None:
        self.deliver(queue, part.entries())

    def info(self) -> ConsumerInfo:
        raise NotImplementedError

    def cancelled(self) -> None:
        self.was_cancelled = True
