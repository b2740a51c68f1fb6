"""A queue with many ready messages delivers them over several turns, and loses none."""

import pytest

from leveret.model.message import Address, Message
from leveret.model.run import Run
from leveret.queues.classic.classic_queue import (
    MAX_DELIVERED_PER_TICK,
    ClassicQueue,
    QueueCallbacks,
)
from leveret.queues.classic.ready import BATCH_BYTES, BYTES_PER_MESSAGE
from leveret.queues.spec import QueueSpec
from tests.support.fake_consumer import FakeConsumer

COUNT = 6 * MAX_DELIVERED_PER_TICK


@pytest.mark.parametrize("consumer_count", [1, 3])
@pytest.mark.parametrize("arguments", [{}, {"x-max-length": 10}], ids=["plain", "limited"])
def test_many_messages_are_delivered_over_several_turns(consumer_count, arguments):
    marked = list[object]()
    queue = ClassicQueue(
        QueueSpec("q", arguments=arguments), 1, QueueCallbacks(mark_ready=marked.append)
    )
    consumers = [FakeConsumer(no_ack=True) for _ in range(consumer_count)]
    for consumer in consumers:
        queue.add_consumer(consumer)
    for number in range(COUNT):
        message = Message.build(Address.of("", "q"), b"\x00\x00", b"x")
        message.id = number + 1
        queue.enqueue(Run.of([message]))
    per_turn = list[int]()
    while queue.ready_count:
        marked.clear()
        queue.dispatch()
        delivered = sum(len(consumer.delivered_ids) for consumer in consumers)
        per_turn.append(delivered - sum(per_turn))
        assert bool(marked) == bool(queue.ready_count)
    assert max(per_turn) < MAX_DELIVERED_PER_TICK + BATCH_BYTES / BYTES_PER_MESSAGE
    all_ids = [number for consumer in consumers for number in consumer.delivered_ids]
    assert sorted(all_ids) == [*range(1, COUNT + 1)]


def test_more_messages_of_runs_are_delivered_in_a_turn():
    """A queue that delivered less than a publisher can send in a turn would spill to disk."""
    queue = ClassicQueue(QueueSpec("q"), 1, QueueCallbacks())
    consumer = FakeConsumer(no_ack=True)
    queue.add_consumer(consumer)
    for number in range(COUNT // 100):
        message = Message.build(Address.of("", "q"), b"\x00\x00", b"x")
        sizes = [message.header_size] * 100, [1] * 100
        run = Run(message.address, 1, [message.frames] * 100, *sizes, message.scan)
        run.ids = range(number * 100 + 1, number * 100 + 101)
        queue.enqueue(run)
    queue.dispatch()
    delivered = len(consumer.delivered_ids)
    assert 3 * MAX_DELIVERED_PER_TICK < delivered < 5 * MAX_DELIVERED_PER_TICK
