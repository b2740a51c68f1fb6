"""The verdicts of torture rows report what a broken broker would show."""

import asyncio

import pytest

from tests.torture.security.object_counts import ObjectCounts, count_own_objects
from tests.torture.security.split_input import SplitCounts
from tests.torture.security.splits import split_problems
from tests.torture.security.unauthenticated import (
    EIGHT_ADDRESSES,
    Lifetime,
    LoadPlan,
    Results,
    judge,
)

PLAN = LoadPlan(EIGHT_ADDRESSES, 200, 100, 50, 10.0, 1)
AT_ONCE = [Lifetime(0.1, 0.0)] * 100
KEPT = [Lifetime(0.0, 10.2)] * 100


def judged(lifetimes: list[Lifetime], canaries: int = 5) -> Results:
    results = Results(0.01)
    judge(PLAN, lifetimes, canaries, results)
    return results


def test_connections_kept_until_the_timeout_are_no_problem():
    results = judged(AT_ONCE + KEPT)
    assert (results.problems, results.late, results.at_once) == ([], [], 100)


def test_canaries_may_take_places_of_connections():
    assert judged(AT_ONCE + KEPT[5:] + [Lifetime(0.0, 6.0)] * 5).problems == []


@pytest.mark.parametrize(
    ("lifetimes", "words"),
    [
        (AT_ONCE * 2, "only 0 of 100"),
        (AT_ONCE + KEPT[20:], "only 80 of 100"),
        (AT_ONCE + KEPT + [Lifetime(0.0, 5.0)] * 6, "6 connections were closed before the timeout"),
        (KEPT * 2, "200 connections were kept at once"),
    ],
    ids=["all dropped", "some dropped", "dropped early", "too many"],
)
def test_connections_dropped_early_or_over_the_limit_are_reported(lifetimes, words):
    assert any(words in problem for problem in judged(lifetimes).problems)


def test_connections_kept_beyond_the_timeout_are_reported_as_late():
    assert judged(AT_ONCE + [Lifetime(0.0, 11.1)] * 100).late == ["dropped after 11.1 s"]


@pytest.mark.parametrize(
    "after", [ObjectCounts(9, 7, 9), ObjectCounts(9, 1, 15), ObjectCounts(9, 1, 3)]
)
def test_added_or_missing_tasks_and_timers_are_reported(after):
    assert after.differs(ObjectCounts(9, 1, 9), 5)


def test_a_few_more_or_fewer_tasks_and_timers_are_allowed():
    assert not ObjectCounts(20, 6, 4).differs(ObjectCounts(9, 1, 9), 5)


async def test_tasks_and_timers_are_counted():
    before, loop = count_own_objects(), asyncio.get_running_loop()
    timers = [loop.call_later(600, print) for _ in range(10)]
    tasks = [asyncio.create_task(asyncio.Event().wait()) for _ in range(7)]
    assert count_own_objects().difference(before) == "+7 tasks, +10 timers"
    for timer in timers:
        timer.cancel()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not count_own_objects().differs(before, 0)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (SplitCounts(23_000, 6, 23_000, 23_000), "23000 bytes in 6 pieces only"),
        (SplitCounts(23_000, 40, 23_000, 5), "23000 single bytes in 5 pieces"),
        (SplitCounts(23_000, 40), "0 single bytes"),
        (SplitCounts(23, 23, 23, 23), "only 46 bytes in 2 sessions"),
    ],
    ids=["joined", "single bytes joined", "none single", "nothing sent"],
)
def test_input_that_was_not_split_is_reported(counts, words):
    assert any(words in problem for problem in split_problems(counts, 2))


def test_input_that_was_split_is_no_problem():
    assert split_problems(SplitCounts(23_000, 40, 23_000, 23_000), 2) == []
