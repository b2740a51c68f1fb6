"""R-23: the long soak in a form of a dozen seconds: a run with an alarm, a kill, another run.

`make torture` runs the long form, which also judges whether memory grows. The other tests check
that the judges of the soak find each kind of problem.
"""

import sqlite3
from collections import Counter
from contextlib import closing

import pytest

from leveret.launch import RunningBroker
from leveret.model.history import EventKind
from leveret.queues.storage.trims import EVENTS_KEY, Trims
from tests.torture.checker import make_body
from tests.torture.client import Client
from tests.torture.soak import soak
from tests.torture.soak_clients import (
    DEAD_LETTER_QUEUE,
    DEAD_LETTERED,
    DEAD_LETTERING,
    LOSSY,
    PERSISTENT,
    STRICT,
    Observations,
)
from tests.torture.soak_sums import EventCounts, differences, in_memory_balance, sums_of
from tests.torture.soak_verdict import judge, judge_memory

SEED = 20261116
pytestmark = pytest.mark.timeout(900)


async def test_r23_mixed_load_loses_nothing_and_counters_add_up(tmp_path):
    outcome = await soak(tmp_path, seconds=8, seed=SEED)
    assert outcome.safe, str(outcome)


def confirmed(observations, kind, queue):
    sequence = observations.ledgers[kind].will_send(queue, 1)
    observations.ledgers[kind].was_confirmed(queue, 1, sequence)
    return make_body(1, sequence, 50)


@pytest.fixture
def observations():
    return Observations()


@pytest.fixture
def event_counts(tmp_path):
    return EventCounts(tmp_path / "leveret.db")


@pytest.mark.parametrize(("removed", "problems"), [(0, 1), (1, 0)])
def test_message_removed_according_to_the_journal_is_not_lost(
    observations, event_counts, removed, problems
):
    confirmed(observations, LOSSY, "expiring")
    event_counts.ever["expiring", EventKind.EXPIRED] = removed
    judge(observations, event_counts)
    assert len(observations.problems) == problems


def test_confirmed_message_never_delivered_is_lost(observations, event_counts):
    confirmed(observations, STRICT, "work-a")
    assert "lost 1," in judge(observations, event_counts)
    assert observations.problems


@pytest.mark.parametrize("is_delivered", [True, False])
def test_message_from_the_dead_letter_queue_is_not_lost(observations, event_counts, is_delivered):
    body = confirmed(observations, DEAD_LETTERING, "dead-lettering")
    observations.ledgers[DEAD_LETTERED].will_send(DEAD_LETTER_QUEUE, 1)
    if is_delivered:
        observations.ledgers[DEAD_LETTERED].was_delivered(DEAD_LETTER_QUEUE, body, False)
    judge(observations, event_counts)
    assert bool(observations.problems) is not is_delivered


@pytest.mark.parametrize("kind", [STRICT, DEAD_LETTERED])
def test_unmarked_duplicate_is_reported(observations, event_counts, kind):
    body = confirmed(observations, kind, "queue")
    for _ in range(2):
        observations.ledgers[kind].was_delivered("queue", body, False)
    assert "unmarked duplicates 1," in judge(observations, event_counts)
    assert observations.problems


ROW = {
    "messages_ready": 2,
    "messages_unacknowledged": 1,
    "message_stats": {"publish": 10, "ack": 4, "deliver_no_ack": 1, "get_no_ack": 2},
}


@pytest.mark.parametrize(("dropped", "balance"), [(0, 1), (1, 0), (2, -1)])
def test_published_messages_are_present_or_have_left(event_counts, dropped, balance):
    for kind, count in ((EventKind.ENQUEUED, 11), (EventKind.ACKED, 7)):
        event_counts.ever["q", kind] = count
    event_counts.ever["q", EventKind.DROPPED] = dropped
    assert [sums.balance for sums in sums_of(event_counts, {"q": ROW}, ["q"])] == [balance]


def test_counters_of_a_run_are_compared_with_its_journal(event_counts):
    event_counts.broker_run.update({("q", EventKind.ENQUEUED): 9, ("q", EventKind.ACKED): 7})
    assert differences(event_counts, {"q": ROW}, ["q"], Counter(q=1)) == []
    assert len(differences(event_counts, {"q": ROW}, ["q"], Counter())) == 1
    event_counts.broker_run["q", EventKind.ACKED] = 8
    assert len(differences(event_counts, {"q": ROW}, ["q"], Counter(q=1))) == 1


def test_messages_in_memory_are_present_or_were_delivered():
    assert in_memory_balance(ROW) == 0
    assert in_memory_balance({**ROW, "messages_ready": 1}) == 1


@pytest.mark.parametrize(("per_second", "problems"), [(0.001, 0), (0.002, 1)])
def test_growing_memory_is_reported_despite_fluctuation(observations, per_second, problems):
    samples = [
        (1500.0 + second, 100 + second * per_second + 20 * (second // 90 % 2))
        for second in range(1500)
    ]
    judge_memory(observations, samples, 3000)
    assert len(observations.problems) == problems


@pytest.mark.parametrize("window", [0, 5, 11])
@pytest.mark.parametrize(("per_second", "problems"), [(0.001, 0), (0.002, 1)])
def test_two_minutes_without_a_low_sample_are_ignored(observations, per_second, problems, window):
    samples = [
        (1500.0 + second, 100 + second * per_second + 20 * (second // 120 == window))
        for second in range(1500)
    ]
    judge_memory(observations, samples, 3000)
    assert len(observations.problems) == problems


def test_short_run_does_not_judge_memory(observations):
    assert judge_memory(observations, [(5.0, 10.0), (6.0, 90.0)], 12) == "too short to judge memory"
    assert not observations.problems


async def test_events_deleted_before_they_are_read_are_noticed(tmp_path):
    async with RunningBroker(data_dir=tmp_path) as running:
        path = running.settings.data_dir / "leveret.db"
        counts = EventCounts(path)
        client = await Client.connect(running.amqp_address)
        await client.declare("q")
        client.publish_all("", "q", [b"x"] * 10, PERSISTENT)
        await client.declare("barrier")
        counts.update()
        assert (counts.ever["q", EventKind.ENQUEUED], counts.is_complete) == (10, True)
        client.close()
    first, second = Trims().after_deleting(1), Trims().after_deleting(1_000)
    for trims, is_complete in ((first, True), (second, False)):
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)", (EVENTS_KEY, trims.to_json())
            )
        counts._deletions = 0
        counts.update()
        assert counts.is_complete is is_complete
