"""Classic queues against a model of single messages: order, turns, nothing twice, nothing lost.

The same steps are applied to two queues. One gets each message alone; the other gets runs, and
settles them in ranges. Every consumer of one must receive what its twin receives.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leveret.model.message import Address, Message, content_frames, scan
from leveret.model.run import Run
from leveret.queues.classic.classic_queue import ClassicQueue, QueueCallbacks
from leveret.queues.delivery import Delivery
from leveret.queues.entry import Outcome
from leveret.queues.spec import QueueSpec
from tests.support.fake_consumer import FakeConsumer
from tests.torture.suites import size_or

ADDRESS = Address.of("", "q")
PERSISTENT = b"\x10\x00\x02"


def run_of(ids: Sequence[int]) -> Run:
    frames = content_frames(1, PERSISTENT, b"x", 4096)
    count = len(ids)
    size = 12 + len(PERSISTENT)
    run = Run(ADDRESS, 1, [frames] * count, [size] * count, [1] * count, scan(PERSISTENT))
    run.ids, run.time_ms = ids, ids[0]
    return run


class Twins:
    """A consumer of each of the two queues."""

    def __init__(self, prefetch: int, no_ack: bool, priority: int) -> None:
        self.single = FakeConsumer(prefetch, no_ack, priority)
        self.runs = FakeConsumer(prefetch, no_ack, priority)
        self.unacked: list[int] = []
        """In the order of delivery."""


class ClassicMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.single = ClassicQueue(QueueSpec("q"), 1, QueueCallbacks())
        self.runs = ClassicQueue(QueueSpec("q"), 1, QueueCallbacks())
        self.ready: list[int] = []
        self.done: set[int] = set()
        self.requeued: set[int] = set()
        self.twins: list[Twins] = []
        self.last_id = 0

    def dispatch(self) -> None:
        self.single.dispatch()
        self.runs.dispatch()
        delivered: list[int] = []
        for twins in self.twins:
            assert twins.runs.delivered_ids == twins.single.delivered_ids
            new = twins.single.delivered_ids.copy()
            delivered += new
            for consumer in (twins.single, twins.runs):
                consumer.delivered_ids.clear()
            if twins.single.no_ack:
                self.done.update(new)
            else:
                twins.unacked += new
        assert sorted(delivered) == self.ready[: len(delivered)]
        del self.ready[: len(delivered)]

    @rule(count=st.integers(1, 30))
    def publish(self, count: int) -> None:
        ids = range(self.last_id + 1, self.last_id + count + 1)
        for number in ids:
            self.single.enqueue(run_of([number]))
        self.runs.enqueue(run_of(ids))
        self.last_id += count
        self.ready += ids
        self.dispatch()

    @precondition(lambda self: len(self.twins) < 4)
    @rule(
        prefetch=st.sampled_from([1, 2, 3, 10, 100]),
        no_ack=st.booleans(),
        priority=st.integers(0, 1),
    )
    def consume(self, prefetch: int, no_ack: bool, priority: int) -> None:
        twins = Twins(prefetch, no_ack, priority)
        self.single.add_consumer(twins.single)
        self.runs.add_consumer(twins.runs)
        self.twins.append(twins)
        self.dispatch()

    def settle_ids(
        self, twins: Twins, ids: list[int], in_runs: list[Delivery], outcome: Outcome
    ) -> None:
        """`in_runs` are these messages of the queue with runs."""
        assert sorted(number for each in in_runs for number in each.ids) == sorted(ids)
        self.single.settle(twins.single.take(ids), outcome, 0)
        self.runs.settle(in_runs, outcome, 0)
        twins.unacked = [number for number in twins.unacked if number not in ids]
        if outcome is Outcome.REQUEUE:
            self.ready = sorted([*self.ready, *ids])
            self.requeued.update(ids)
        else:
            self.done.update(ids)

    @precondition(lambda self: any(twins.unacked for twins in self.twins))
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def settle_some(self, data: st.DataObject, outcome: Outcome) -> None:
        twins = data.draw(st.sampled_from([each for each in self.twins if each.unacked]))
        ids = data.draw(st.lists(st.sampled_from(twins.unacked), min_size=1, unique=True))
        self.settle_ids(twins, ids, twins.runs.take(ids), outcome)
        self.dispatch()

    @precondition(lambda self: any(twins.unacked for twins in self.twins))
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def settle_following(self, data: st.DataObject, outcome: Outcome) -> None:
        """Acks of single messages, one after the other, from anywhere on."""
        twins = data.draw(st.sampled_from([each for each in self.twins if each.unacked]))
        start = data.draw(st.integers(0, len(twins.unacked) - 1))
        ids = twins.unacked[start : start + data.draw(st.integers(1, len(twins.unacked)))]
        self.settle_ids(twins, ids, twins.runs.take(ids), outcome)
        self.dispatch()

    @precondition(lambda self: any(twins.unacked for twins in self.twins))
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def settle_multiple(self, data: st.DataObject, outcome: Outcome) -> None:
        twins = data.draw(st.sampled_from([each for each in self.twins if each.unacked]))
        ids = twins.unacked[: data.draw(st.integers(1, len(twins.unacked)))]
        in_runs = twins.runs.take_to(twins.runs.tag_of[ids[-1]])
        self.settle_ids(twins, ids, in_runs, outcome)
        self.dispatch()

    @precondition(lambda self: any(twins.unacked for twins in self.twins))
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        """Messages that a transaction settled are unacknowledged again."""
        twins = data.draw(st.sampled_from([each for each in self.twins if each.unacked]))
        tags = [twins.runs.tag_of[number] for number in twins.unacked]
        chosen = data.draw(st.lists(st.sampled_from(tags), min_size=1, unique=True))
        taken, unknown = twins.runs.unacked.take_each(chosen)
        assert unknown is None
        self.queues_hold_what_the_model_holds()
        twins.runs.unacked.restore(taken)

    @precondition(lambda self: self.twins)
    @rule(data=st.data())
    def recover_or_cancel(self, data: st.DataObject) -> None:
        twins = data.draw(st.sampled_from(self.twins))
        if data.draw(st.booleans()):
            self.twins.remove(twins)
            self.single.remove_consumer(twins.single)
            self.runs.remove_consumer(twins.runs)
        twins.runs.tag_of.clear()
        self.settle_ids(twins, twins.unacked.copy(), twins.runs.unacked.take_all(), Outcome.REQUEUE)
        self.dispatch()

    @rule(no_ack=st.booleans())
    def get(self, no_ack: bool) -> None:
        for queue in (self.single, self.runs):
            delivery = queue.basic_get(0, no_ack=no_ack)
            if self.ready:
                assert delivery is not None and delivery.ids == [self.ready[0]]
                if not no_ack:
                    queue.settle([delivery], Outcome.ACK, 0)
            else:
                assert delivery is None
        if self.ready:
            self.done.add(self.ready.pop(0))

    @rule()
    def purge(self) -> None:
        assert self.single.purge() == self.runs.purge() == len(self.ready)
        self.done.update(self.ready)
        self.ready.clear()

    @rule(offset=st.integers(0, 40), count=st.integers(0, 20))
    def browse(self, offset: int, count: int) -> None:
        unacked = sorted(number for twins in self.twins for number in twins.unacked)
        expected = [*unacked, *self.ready][offset : offset + count]
        for queue in (self.single, self.runs):
            peeked = queue.peek(offset, count)
            assert [entry.id for entry in peeked.entries] == expected
            assert peeked.unacked_count == len(unacked[offset : offset + count])

    @invariant()
    def queues_hold_what_the_model_holds(self) -> None:
        unacked = sorted(number for twins in self.twins for number in twins.unacked)
        for queue in (self.single, self.runs):
            assert [entry.id for entry in queue.ready] == self.ready
            assert sorted(number for each in queue.unacked for number in each.ids) == unacked
            assert queue.ready_count == queue.ready_bytes == len(self.ready)
            assert queue.unacked_count == queue.unacked_bytes == len(unacked)
            assert [*queue.live().ids] == sorted([*self.ready, *unacked])
            assert queue.oldest_unacked_ms() is None or unacked
        assert len(self.ready) + len(unacked) + len(self.done) == self.last_id

    @invariant()
    def what_was_requeued_is_redelivered(self) -> None:
        for twins in self.twins:
            for consumer in (twins.single, twins.runs):
                entries = consumer.entries()
                assert [entry.id for entry in entries] == twins.unacked
                assert [e.redelivered for e in entries] == [e.id in self.requeued for e in entries]
                tags = [tag for each in consumer.unacked for tag in _tags(each)]
                assert tags == [consumer.tag_of[number] for number in twins.unacked]

    @invariant()
    def no_consumer_with_credit_waits_while_messages_are_ready(self) -> None:
        if self.ready:
            assert not any(twins.runs.credit() > 0 for twins in self.twins)


def _tags(delivery: Delivery) -> list[int]:
    if delivery.part is None:
        return [tag for tag, _ in delivery.entries_by_tag()]
    return [*range(delivery.first_tag, delivery.first_tag + len(delivery))]


TestClassicQueue = ClassicMachine.TestCase
TestClassicQueue.settings = settings(
    max_examples=size_or(200), stateful_step_count=40, deadline=None
)


def test_messages_of_a_run_stay_together_while_they_are_acked_in_order() -> None:
    queue = ClassicQueue(QueueSpec("q"), 1, QueueCallbacks())
    consumer = FakeConsumer(100)
    queue.add_consumer(consumer)
    run = run_of(range(1, 41))
    queue.enqueue(run)
    queue.dispatch()
    (delivery,) = queue.unacked
    queue.settle(consumer.take([1]), Outcome.ACK, 0)
    queue.settle(consumer.take_to(20), Outcome.ACK, 0)
    queue.settle(consumer.take([39, 40]), Outcome.ACK, 0)
    assert run.is_packed and delivery.part is not None
    assert [*queue.unacked] == [*consumer.unacked] == [delivery]
    assert [*delivery.ids] == [*range(21, 39)]
    queue.settle(consumer.take([30]), Outcome.ACK, 0)
    assert delivery.part is None and run.is_packed
    assert queue.unacked_count == 17


def test_the_rest_of_a_run_is_freed_when_few_of_its_messages_are_unacked() -> None:
    queue = ClassicQueue(QueueSpec("q"), 1, QueueCallbacks())
    consumer = FakeConsumer(100)
    queue.add_consumer(consumer)
    run = run_of(range(1, 41))
    queue.enqueue(run)
    queue.dispatch()
    (delivery,) = queue.unacked
    queue.settle(consumer.take_to(20), Outcome.ACK, 0)
    assert delivery.part is not None and delivery.part.run is run
    queue.settle(consumer.take_to(36), Outcome.ACK, 0)
    assert len(delivery.part.run) == 4
    assert [entry.id for entry in delivery.entries()] == [37, 38, 39, 40]


def test_messages_are_built_from_the_frames_of_their_run() -> None:
    message = Message.build(ADDRESS, PERSISTENT, b"x")
    (made,) = run_of([5]).messages
    assert (made.frames, made.header_size) == (message.frames, message.header_size)
