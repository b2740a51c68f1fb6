"""R-23: the long soak, in a form of a dozen seconds: a life with an alarm, a kill, another life.

`make torture` runs the long form, which also judges whether memory grows. The judges of the soak
are judged here: each must see what it looks for.
"""

from collections import Counter

import pytest

from leveret.model.history import EventKind
from tests.torture.checker import make_body
from tests.torture.soak import soak
from tests.torture.soak_clients import DEAD, DYING, GRAVE, LOSSY, STRICT, Books
from tests.torture.soak_sums import Tally, differences, in_memory_balance, sums_of
from tests.torture.soak_verdict import judge, judge_memory

SEED = 20261116
pytestmark = pytest.mark.timeout(900)


async def test_r23_mixed_load_loses_nothing_and_counters_add_up(tmp_path):
    outcome = await soak(tmp_path, seconds=8, seed=SEED)
    assert outcome.safe, str(outcome)


def confirmed(books, kind, queue):
    sequence = books.ledgers[kind].will_send(queue, 1)
    books.ledgers[kind].was_confirmed(queue, 1, sequence)
    return make_body(1, sequence, 50)


@pytest.fixture
def books():
    return Books()


@pytest.fixture
def tally(tmp_path):
    return Tally(tmp_path / "leveret.db")


@pytest.mark.parametrize(("let_go", "problems"), [(0, 1), (1, 0)])
def test_what_the_journal_let_go_is_not_lost(books, tally, let_go, problems):
    confirmed(books, LOSSY, "expiring")
    tally.ever["expiring", EventKind.EXPIRED] = let_go
    judge(books, tally)
    assert len(books.problems) == problems


def test_confirmed_and_never_delivered_is_lost(books, tally):
    confirmed(books, STRICT, "work-a")
    assert "lost 1," in judge(books, tally)
    assert books.problems


@pytest.mark.parametrize("is_found", [True, False])
def test_what_came_out_of_the_dead_letter_queue_is_not_lost(books, tally, is_found):
    body = confirmed(books, DYING, "doomed")
    books.ledgers[DEAD].will_send(GRAVE, 1)
    if is_found:
        books.ledgers[DEAD].was_delivered(GRAVE, body, False)
    judge(books, tally)
    assert bool(books.problems) is not is_found


@pytest.mark.parametrize("kind", [STRICT, DEAD])
def test_an_unmarked_duplicate_is_seen(books, tally, kind):
    body = confirmed(books, kind, "queue")
    for _ in range(2):
        books.ledgers[kind].was_delivered("queue", body, False)
    assert "unmarked duplicates 1," in judge(books, tally)
    assert books.problems


ROW = {
    "messages_ready": 2,
    "messages_unacknowledged": 1,
    "message_stats": {"publish": 10, "ack": 4, "deliver_no_ack": 1, "get_no_ack": 2},
}


@pytest.mark.parametrize(("dropped", "balance"), [(0, 1), (1, 0), (2, -1)])
def test_what_came_in_is_there_or_has_left(tally, dropped, balance):
    for kind, count in ((EventKind.ENQUEUED, 11), (EventKind.ACKED, 7)):
        tally.ever["q", kind] = count
    tally.ever["q", EventKind.DROPPED] = dropped
    assert [one.balance for one in sums_of(tally, {"q": ROW}, ["q"])] == [balance]


def test_the_counters_of_a_life_are_compared_with_its_journal(tally):
    tally.life.update({("q", EventKind.ENQUEUED): 9, ("q", EventKind.ACKED): 7})
    assert differences(tally, {"q": ROW}, ["q"], Counter(q=1)) == []
    assert len(differences(tally, {"q": ROW}, ["q"], Counter())) == 1
    tally.life["q", EventKind.ACKED] = 8
    assert len(differences(tally, {"q": ROW}, ["q"], Counter(q=1))) == 1


def test_in_memory_all_that_came_is_there_or_was_delivered():
    assert in_memory_balance(ROW) == 0
    assert in_memory_balance({**ROW, "messages_ready": 1}) == 1


@pytest.mark.parametrize(("per_second", "problems"), [(0.001, 0), (0.002, 1)])
def test_memory_that_grows_is_seen_below_what_comes_and_goes(books, per_second, problems):
    samples = [
        (1500.0 + second, 100 + second * per_second + 20 * (second // 90 % 2))
        for second in range(1500)
    ]
    judge_memory(books, samples, 3000)
    assert len(books.problems) == problems


@pytest.mark.parametrize("window", [0, 5, 11])
@pytest.mark.parametrize(("per_second", "problems"), [(0.001, 0), (0.002, 1)])
def test_two_minutes_without_a_low_moment_have_no_say(books, per_second, problems, window):
    samples = [
        (1500.0 + second, 100 + second * per_second + 20 * (second // 120 == window))
        for second in range(1500)
    ]
    judge_memory(books, samples, 3000)
    assert len(books.problems) == problems


def test_a_short_run_does_not_judge_memory(books):
    assert judge_memory(books, [(5.0, 10.0), (6.0, 90.0)], 12) == "too short to judge memory"
    assert not books.problems
