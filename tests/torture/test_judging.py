"""The verdicts of torture rows can be otherwise: what a broken broker would show is told."""

import asyncio

import pytest

from tests.torture.security.cutting import Cuts
from tests.torture.security.splits import too_few
from tests.torture.security.strangers import EIGHT, Seen, Siege, Stay, judge
from tests.torture.security.weigh import Weight, count

SIEGE = Siege(EIGHT, 200, 100, 50, 10.0, 1)
AT_ONCE = [Stay(0.1, 0.0)] * 100
KEPT = [Stay(0.0, 10.2)] * 100


def judged(stays: list[Stay], canaries: int = 5) -> Seen:
    seen = Seen(0.01)
    judge(SIEGE, stays, canaries, seen)
    return seen


def test_strangers_who_are_kept_for_their_time_are_as_promised():
    seen = judged(AT_ONCE + KEPT)
    assert (seen.problems, seen.late, seen.at_once) == ([], [], 100)


def test_canaries_may_take_places():
    assert judged(AT_ONCE + KEPT[5:] + [Stay(0.0, 6.0)] * 5).problems == []


@pytest.mark.parametrize(
    ("stays", "words"),
    [
        (AT_ONCE * 2, "only 0 of 100"),
        (AT_ONCE + KEPT[20:], "only 80 of 100"),
        (AT_ONCE + KEPT + [Stay(0.0, 5.0)] * 6, "6 strangers were cut off in between"),
        (KEPT * 2, "200 strangers were kept at once"),
    ],
    ids=["all dropped", "some dropped", "dropped early", "too many"],
)
def test_strangers_who_are_not_are_told_of(stays, words):
    assert any(words in problem for problem in judged(stays).problems)


def test_strangers_who_stay_too_long_are_late():
    assert judged(AT_ONCE + [Stay(0.0, 11.1)] * 100).late == ["dropped after 11.1 s"]


@pytest.mark.parametrize("after", [Weight(9, 7, 9), Weight(9, 1, 15), Weight(9, 1, 3)])
def test_tasks_and_timers_that_stay_or_vanish_are_told_of(after):
    assert after.grew(Weight(9, 1, 9), 5)


def test_some_tasks_and_timers_come_and_go():
    assert not Weight(20, 6, 4).grew(Weight(9, 1, 9), 5)


async def test_tasks_and_timers_are_counted():
    before, loop = count(), asyncio.get_running_loop()
    timers = [loop.call_later(600, print) for _ in range(10)]
    tasks = [asyncio.create_task(asyncio.Event().wait()) for _ in range(7)]
    assert count().more_than(before) == "+7 tasks, +10 timers"
    for timer in timers:
        timer.cancel()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not count().grew(before, 0)


@pytest.mark.parametrize(
    ("cuts", "words"),
    [
        (Cuts(23_000, 6, 23_000, 23_000), "23000 octets in 6 pieces only"),
        (Cuts(23_000, 40, 23_000, 5), "23000 single octets in 5 pieces"),
        (Cuts(23_000, 40), "0 single octets"),
        (Cuts(23, 23, 23, 23), "only 46 octets in 2 sessions"),
    ],
    ids=["joined", "single ones joined", "none single", "nothing sent"],
)
def test_octets_that_were_not_cut_are_told_of(cuts, words):
    assert any(words in problem for problem in too_few(cuts, 2))


def test_octets_that_were_cut_are_as_promised():
    assert too_few(Cuts(23_000, 40, 23_000, 23_000), 2) == []
