"""A queue that has much to hand out does so in portions, and loses nothing by it."""

import pytest

from leveret.model.message import Address, Message
from queues import ClassicQueue, QueueSpec
from queues.classic import HANDED_OUT_AT_ONCE
from queues.port import Upward
from queues.shares import OCTETS_EACH, SLICE_BYTES
from tests.unit.holding.test_classic_model import Taker

COUNT = 6 * HANDED_OUT_AT_ONCE


@pytest.mark.parametrize("takers", [1, 3])
@pytest.mark.parametrize("arguments", [{}, {"x-max-length": 10}], ids=["plain", "limited"])
def test_much_is_handed_out_in_portions(takers, arguments):
    touched = list[object]()
    queue = ClassicQueue(QueueSpec("q", arguments=arguments), 1, Upward(touch=touched.append))
    consumers = [Taker(queue, 0, True, 0) for _ in range(takers)]
    for consumer in consumers:
        queue.add_consumer(consumer)
    for number in range(COUNT):
        message = Message.build(Address.of("", "q"), b"\x00\x00", b"x")
        message.id = number + 1
        queue.enqueue(message)
    handed = list[int]()
    while queue.ready_count:
        touched.clear()
        queue.dispatch()
        handed.append(sum(len(one.seen) for one in consumers) - sum(handed))
        assert bool(touched) == bool(queue.ready_count)
    assert max(handed) < HANDED_OUT_AT_ONCE + SLICE_BYTES / OCTETS_EACH
    assert sorted(number for one in consumers for number in one.seen) == [*range(1, COUNT + 1)]
