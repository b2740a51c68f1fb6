"""Timers wake queues once, at the earliest time they asked for, and drop cancelled entries."""

from typing import Any

import pytest

from leveret.broker.runtime.timers import MAX_CANCELLED, Timers
from leveret.model.clock import ManualClock


class FakeQueue:
    def __init__(self):
        self.wakes = 0


@pytest.fixture
async def clock():
    return ManualClock()


@pytest.fixture
async def timers(clock):
    def wake(queue: Any):
        queue.wakes += 1

    timers = Timers(clock, wake)
    yield timers
    timers.stop()


async def test_queue_is_woken_once_at_the_earliest_time(clock, timers):
    queue, now = FakeQueue(), clock.wall_ms()
    for after in (3_000, 1_000, 2_000):
        timers.wake_at(now + after, queue)
    clock.advance(1)
    timers.run()
    assert queue.wakes == 1
    clock.advance(5)
    timers.run()
    assert queue.wakes == 1


async def test_cancelled_queue_is_not_woken_and_may_ask_again(clock, timers):
    cancelled, other, now = FakeQueue(), FakeQueue(), clock.wall_ms()
    for queue in (cancelled, other):
        timers.wake_at(now + 1_000, queue)
    timers.cancel(cancelled)
    clock.advance(1)
    timers.run()
    assert (cancelled.wakes, other.wakes) == (0, 1)
    timers.wake_at(clock.wall_ms() + 1_000, cancelled)
    clock.advance(1)
    timers.run()
    assert cancelled.wakes == 1


async def test_cancelled_entries_do_not_accumulate(clock, timers):
    active, later = FakeQueue(), clock.wall_ms() + 3_600_000
    timers.wake_at(later, active)
    for _ in range(3 * MAX_CANCELLED):
        queue = FakeQueue()
        timers.wake_at(later, queue)
        timers.cancel(queue)
    assert len(timers._heap) <= MAX_CANCELLED + 2
    clock.advance(3_600)
    timers.run()
    assert active.wakes == 1
