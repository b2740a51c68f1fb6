"""The verdicts of torture rows can be otherwise: what a broken broker would show is told."""

import pytest

from tests.torture.security.strangers import EIGHT, Seen, Siege, Stay, judge
from tests.torture.security.weigh import Weight

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


@pytest.mark.parametrize("after", [Weight(9, 8, 0), Weight(9, 1, 6), Weight(9, 1, 30)])
def test_tasks_and_timers_that_stay_are_told_of(after):
    assert after.grew(Weight(9, 1, 0), 5)
    assert not after.grew(Weight(9, 3, after.timers - 5) if after.tasks == 8 else after, 5)
