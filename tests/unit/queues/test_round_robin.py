"""Round robin against a model that sorts its consumers at every change."""

import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leveret.queues.classic.classic_queue import ClassicQueue, QueueCallbacks
from leveret.queues.classic.round_robin import RoundRobin
from leveret.queues.spec import QueueSpec
from tests.support.fake_consumer import FakeConsumer

PREFETCH = 7


class RoundRobinModel:
    """Lists only, in the order of the calls."""

    def __init__(self):
        self.consumers, self.active = [], None

    def sorted(self):
        return sorted(self.consumers, key=lambda consumer: -consumer.priority)

    def remove(self, consumer):
        self.consumers.remove(consumer)
        if self.active is consumer:
            self.active = None

    def with_credit(self):
        ready = [consumer for consumer in self.sorted() if consumer.prefetch]
        return [consumer for consumer in ready if consumer.priority == ready[0].priority]

    def active_with_credit(self):
        self.active = self.active or next(iter(self.sorted()), None)
        return [self.active] if self.active is not None and self.active.prefetch else []

    def rotate_past(self, consumer):
        level = [other for other in self.consumers if other.priority == consumer.priority]
        index = level.index(consumer) + 1
        rotated = iter(level[index:] + level[:index])
        self.consumers = [
            next(rotated) if other.priority == consumer.priority else other
            for other in self.consumers
        ]


class RoundRobinMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.round_robin, self.model, self.removed = RoundRobin(), RoundRobinModel(), []

    def any_consumer(self, data):
        return data.draw(st.sampled_from(self.model.consumers))

    @rule(priorities=st.lists(st.integers(-1, 2), min_size=1, max_size=4), is_able=st.booleans())
    def add(self, priorities, is_able):
        for priority in priorities:
            consumer = FakeConsumer(PREFETCH if is_able else 0, priority=priority)
            self.round_robin.add(consumer)
            self.model.consumers.append(consumer)

    @precondition(lambda self: self.model.consumers)
    @rule(data=st.data(), count=st.integers(1, 4))
    def remove(self, data, count):
        for _ in range(min(count, len(self.model.consumers))):
            consumer = self.any_consumer(data)
            self.round_robin.remove(consumer)
            self.model.remove(consumer)
            self.removed.append(consumer)

    @precondition(lambda self: self.removed)
    @rule(data=st.data())
    def add_again(self, data):
        consumer = data.draw(st.sampled_from(self.removed))
        self.removed.remove(consumer)
        self.round_robin.add(consumer)
        self.model.consumers.append(consumer)

    @precondition(lambda self: self.model.consumers)
    @rule(data=st.data())
    def change_credit(self, data):
        consumer = self.any_consumer(data)
        consumer.prefetch = PREFETCH - consumer.prefetch

    @rule()
    def serve_first(self):
        able = self.round_robin.with_credit()
        assert able == [(consumer, PREFETCH) for consumer in self.model.with_credit()]
        if able:
            self.round_robin.rotate_past(able[0][0])
            self.model.rotate_past(able[0][0])

    @precondition(lambda self: self.model.consumers)
    @rule(data=st.data())
    def serve_several(self, data):
        able = [consumer for consumer, _ in self.round_robin.with_credit()]
        if able:
            last = data.draw(st.sampled_from(able))
            self.round_robin.rotate_past(last)
            self.model.rotate_past(last)

    @rule()
    def serve_active(self):
        able = self.round_robin.active_with_credit()
        assert able == [(consumer, PREFETCH) for consumer in self.model.active_with_credit()]

    @rule()
    def iterate(self):
        assert list(self.round_robin) == self.model.sorted()
        active = self.model.active or next(iter(self.model.sorted()), None)
        assert self.round_robin.active is active

    @invariant()
    def contains_exactly_the_added_consumers(self):
        assert len(self.round_robin) == len(self.model.consumers)
        assert all(consumer in self.round_robin for consumer in self.model.consumers)
        assert not any(consumer in self.round_robin for consumer in self.removed)


TestRoundRobinMachine = RoundRobinMachine.TestCase
TestRoundRobinMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_removed_consumer_is_released_at_the_end_of_the_turn():
    queue = ClassicQueue(QueueSpec("q"), 1, QueueCallbacks())
    remaining, removed = FakeConsumer(PREFETCH), FakeConsumer(PREFETCH)
    queue.add_consumer(remaining)
    queue.add_consumer(removed)
    queue.remove_consumer(removed)
    queue.dispatch()
    assert queue._consumers._removed == set()
    assert [list(level) for level in queue._consumers._levels.values()] == [[remaining]]


def seconds_to_add_and_remove(count, has_priorities):
    """Processor time."""
    queue = ClassicQueue(QueueSpec("q"), 1, QueueCallbacks())
    consumers = [
        FakeConsumer(PREFETCH, priority=number if has_priorities else 0) for number in range(count)
    ]
    start = time.thread_time()
    for consumer in consumers:
        queue.add_consumer(consumer)
    for consumer in consumers:
        assert consumer in queue.consumers
        queue.remove_consumer(consumer)
    queue.dispatch()
    seconds = time.thread_time() - start
    assert not queue.consumers
    assert not any(consumer.delivered_ids for consumer in consumers)
    return seconds


@pytest.mark.parametrize("has_priorities", [False, True])
def test_time_to_remove_consumers_grows_linearly(has_priorities):
    few = min(seconds_to_add_and_remove(500, has_priorities) for _ in range(5))
    many = min(seconds_to_add_and_remove(8_000, has_priorities) for _ in range(3))
    assert many < 80 * few
