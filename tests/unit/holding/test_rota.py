"""Whose turn it is, against a rota that is put in order at every change."""

import time
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from queues import ClassicQueue, QueueSpec
from queues.port import Upward
from queues.rota import Rota


class Taker:
    numbers = count()
    exclusive, no_ack, shares_credit, prefetch, actor = False, True, False, 0, 0

    def __init__(self, priority, is_able=True):
        self.tag = f"c{next(self.numbers)}"
        self.priority, self.is_able, self.arguments = priority, is_able, {}

    def __repr__(self):
        return f"{self.tag}({self.priority})"

    def credit(self):
        return 7 if self.is_able else 0

    def deliver(self, queue, entries):
        raise AssertionError("there is nothing")

    def describe(self):
        return {}

    def cancelled(self):
        pass


class PlainRota:
    """Lists only, as it is told."""

    def __init__(self):
        self.line, self.active = [], None

    def in_order(self):
        return sorted(self.line, key=lambda one: -one.priority)

    def remove(self, taker):
        self.line.remove(taker)
        if self.active is taker:
            self.active = None

    def takers(self):
        able = [one for one in self.in_order() if one.is_able]
        return [one for one in able if one.priority == able[0].priority]

    def only_first(self):
        self.active = self.active or next(iter(self.in_order()), None)
        return [self.active] if self.active is not None and self.active.is_able else []

    def served(self, taker):
        level = [one for one in self.line if one.priority == taker.priority]
        at = level.index(taker) + 1
        turned = iter(level[at:] + level[:at])
        self.line = [next(turned) if one.priority == taker.priority else one for one in self.line]


class RotaMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.rota, self.plain, self.left = Rota(), PlainRota(), []

    def any_of(self, data):
        return data.draw(st.sampled_from(self.plain.line))

    @rule(priorities=st.lists(st.integers(-1, 2), min_size=1, max_size=4), is_able=st.booleans())
    def add(self, priorities, is_able):
        for priority in priorities:
            taker = Taker(priority, is_able)
            self.rota.add(taker)
            self.plain.line.append(taker)

    @precondition(lambda self: self.plain.line)
    @rule(data=st.data(), many=st.integers(1, 4))
    def leave(self, data, many):
        for _ in range(min(many, len(self.plain.line))):
            taker = self.any_of(data)
            self.rota.remove(taker)
            self.plain.remove(taker)
            self.left.append(taker)

    @precondition(lambda self: self.left)
    @rule(data=st.data())
    def come_back(self, data):
        taker = data.draw(st.sampled_from(self.left))
        self.left.remove(taker)
        self.rota.add(taker)
        self.plain.line.append(taker)

    @precondition(lambda self: self.plain.line)
    @rule(data=st.data())
    def change_credit(self, data):
        taker = self.any_of(data)
        taker.is_able = not taker.is_able

    @rule()
    def serve(self):
        takers = self.rota.takers()
        assert takers == [(one, 7) for one in self.plain.takers()]
        if takers:
            self.rota.served(takers[0][0])
            self.plain.served(takers[0][0])

    @precondition(lambda self: self.plain.line)
    @rule(data=st.data())
    def serve_up_to_anybody(self, data):
        takers = [taker for taker, _ in self.rota.takers()]
        if takers:
            last = data.draw(st.sampled_from(takers))
            self.rota.served(last)
            self.plain.served(last)

    @rule()
    def serve_the_active(self):
        assert self.rota.only_first() == [(one, 7) for one in self.plain.only_first()]

    @rule()
    def look(self):
        assert list(self.rota) == self.plain.in_order()
        assert self.rota.active is (self.plain.active or next(iter(self.plain.in_order()), None))

    @invariant()
    def knows_who_is_here(self):
        assert len(self.rota) == len(self.plain.line)
        assert all(taker in self.rota for taker in self.plain.line)
        assert not any(taker in self.rota for taker in self.left)


TestRotaMachine = RotaMachine.TestCase
TestRotaMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_who_has_left_is_not_held_when_the_turn_is_over():
    queue = ClassicQueue(QueueSpec("q"), 1, Upward())
    stays, goes = Taker(0), Taker(0)
    queue.add_consumer(stays)
    queue.add_consumer(goes)
    queue.remove_consumer(goes)
    queue.dispatch()
    assert queue._rota._gone == set()
    assert [list(level) for level in queue._rota._levels.values()] == [[stays]]


def come_and_go(many, has_levels):
    """Processor time."""
    queue = ClassicQueue(QueueSpec("q"), 1, Upward())
    takers = [Taker(number if has_levels else 0) for number in range(many)]
    began = time.thread_time()
    for taker in takers:
        queue.add_consumer(taker)
    for taker in takers:
        assert taker in queue.consumers
        queue.remove_consumer(taker)
    queue.dispatch()
    assert not queue.consumers
    return time.thread_time() - began


@pytest.mark.parametrize("has_levels", [False, True])
def test_sixteen_times_as_many_take_not_much_more_than_sixteen_times_as_long(has_levels):
    few = min(come_and_go(500, has_levels) for _ in range(5))
    many = min(come_and_go(8_000, has_levels) for _ in range(3))
    assert many < 80 * few
