"""A consumer without a connection, for tests of queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from leveret.amqp_server.unacked_tags import UnackedTags
from leveret.model.clients import ConsumerInfo
from leveret.queues.delivery import Delivery
from leveret.queues.entry import Entry

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
    unacked: UnackedTags = field(default_factory=UnackedTags)
    delivered_ids: list[int] = field(default_factory=list)
    last_tag: int = 0
    tag_of: dict[int, int] = field(default_factory=dict)
    """The delivery tags of unacknowledged messages by message id."""

    def __repr__(self) -> str:
        return f"{self.tag}({self.priority})"

    def credit(self) -> int:
        return NO_ACK_CREDIT if self.no_ack else self.prefetch - len(self.unacked)

    def deliver(self, delivery: Delivery) -> None:
        assert len(delivery) <= self.credit()
        self.delivered_ids += delivery.ids
        if not self.no_ack:
            self.tag_of |= {
                number: tag for tag, number in enumerate(delivery.ids, self.last_tag + 1)
            }
            delivery.first_tag = self.last_tag + 1
            self.unacked.add(delivery, self.last_tag + 1)
            self.last_tag += len(delivery)

    def entries(self) -> list[Entry]:
        """What is unacknowledged, in the order of the tags."""
        return [entry for delivery in self.unacked for entry in delivery.entries()]

    def take(self, message_ids: Iterable[int]) -> list[Delivery]:
        """Remove unacknowledged messages, so that they can be settled."""
        tags = [self.tag_of.pop(number) for number in message_ids]
        taken, unknown = self.unacked.take_each(tags) if tags else ([], None)
        assert unknown is None
        return taken

    def take_to(self, tag: int) -> list[Delivery]:
        """`take` for all messages up to a tag."""
        self.tag_of = {number: other for number, other in self.tag_of.items() if other > tag}
        return self.unacked.take(0, tag)

    def info(self) -> ConsumerInfo:
        raise NotImplementedError

    def cancelled(self) -> None:
        self.was_cancelled = True
