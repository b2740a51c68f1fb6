"""Unacknowledged deliveries are found by tag, in bounded time and memory."""

from __future__ import annotations

from typing import Any

from leveret.amqp_server.unacked_tags import UnackedTags
from leveret.model.message import Address, Message
from leveret.queues.delivery import Delivery
from leveret.queues.entry import Entry


class FakeQueue:
    def on_split(self, delivery: Delivery) -> None:
        return None


QUEUE: Any = FakeQueue()


def add(unacked: UnackedTags, first: int, count: int) -> None:
    entries = [Entry(Message.build(Address.of("", "q"), b"\x00\x00", b"")) for _ in range(count)]
    delivery = Delivery(QUEUE, None, entries)
    delivery.first_tag = first
    unacked.add(delivery, first)


def tags(deliveries: list[Delivery]) -> list[int]:
    return [tag for each in deliveries for tag, _ in each.entries_by_tag()]


def test_memory_does_not_grow_while_the_oldest_delivery_stays() -> None:
    unacked = UnackedTags()
    for tag in range(1, 5_001):
        add(unacked, tag, 1)
        if tag > 1:
            assert tags(unacked.take(tag, tag)) == [tag]
    assert len(unacked) == 1
    assert len(unacked._deliveries) < 100


def test_acks_up_to_an_unknown_tag_count() -> None:
    unacked = UnackedTags()
    add(unacked, 1, 4)
    add(unacked, 6, 4)
    taken, unknown = unacked.take_each([2, 3, 4, 5, 6, 7])
    assert (tags(taken), unknown) == ([2, 3, 4], 5)
    assert tags([*unacked]) == [1, 6, 7, 8, 9]
    taken, unknown = unacked.take_each([7, 9, 7])
    assert (tags(taken), unknown) == ([7, 9], 7)
    assert (tags([*unacked]), len(unacked)) == ([1, 6, 8], 3)


def test_tags_of_several_deliveries_in_any_order() -> None:
    unacked = UnackedTags()
    add(unacked, 1, 4)
    add(unacked, 5, 4)
    taken, unknown = unacked.take_each([8, 1, 3, 5, 6])
    assert (sorted(tags(taken)), unknown) == ([1, 3, 5, 6, 8], None)
    assert len(taken) == 2
    assert 2 in unacked and 3 not in unacked and 9 not in unacked and 0 not in unacked
    unacked.restore(taken)
    assert tags([*unacked]) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert tags(unacked.take_all()) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(unacked) == 0 and unacked.take_each([1]) == ([], 1)
