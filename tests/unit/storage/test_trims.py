"""Readers learn whether retention has deleted rows that they have not read."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.history import Keep
from leveret.model.store import RetentionRequest, Snapshot
from leveret.queues.storage.retention import SLICE
from leveret.queues.storage.trims import EVENTS_KEY, MAX_MARKS, MESSAGES_KEY, Trims
from tests.contract.stores import Harness

HOUR = 3_600_000


@given(st.lists(st.integers(1, 100), max_size=MAX_MARKS))
def test_highest_id_deleted_since_any_deletion(deletions):
    trims = Trims()
    for last_id in deletions:
        trims = trims.after_deleting(last_id)
    assert trims.number == len(deletions)
    for number in range(len(deletions) + 1):
        assert trims.last_deleted_since(number) == max(deletions[number:], default=None)
    assert Trims.from_json(trims.to_json()) == trims


@given(st.lists(st.integers(1, 1000), max_size=5 * MAX_MARKS))
def test_number_of_marks_is_limited_and_no_deletion_is_forgotten(deletions):
    trims = Trims()
    for last_id in [*range(5 * MAX_MARKS, 0, -1), *deletions]:
        trims = trims.after_deleting(last_id)
    assert len(trims.marks) <= MAX_MARKS
    for number in range(len(deletions) + 1):
        exact = max(deletions[number:], default=0)
        assert (trims.last_deleted_since(5 * MAX_MARKS + number) or 0) >= exact


@pytest.fixture
async def harness(tmp_path):
    harness = Harness(tmp_path)
    harness.declare()
    yield harness
    await harness.close()


def trims(harness, key=MESSAGES_KEY):
    stored = dict(harness.query("SELECT key, value FROM meta"))
    return Trims.from_json(stored.get(key))


def retention(harness, live, **limits):
    return RetentionRequest(max(harness.stored_ids()), (array("Q", live),), **limits)


async def test_retention_notes_the_highest_message_and_event_it_deletes(harness):
    harness.publish_many(SLICE + 5)
    harness.ack(list(range(1, SLICE + 6)))
    await harness.durable()
    assert trims(harness) == trims(harness, EVENTS_KEY) == Trims()
    harness.clock.now_ms += HOUR
    harness.store.save(Snapshot(1, ()))
    harness.publish_many(1)
    await harness.durable()
    (events,) = harness.query("SELECT max(id) FROM events WHERE time_ms < ?", harness.clock())[0]
    await harness.store.apply_retention(retention(harness, [], before_ms=harness.clock()))
    assert trims(harness).last_deleted_since(0) == SLICE + 5
    assert trims(harness, EVENTS_KEY).last_deleted_since(0) == events


async def test_message_deleted_late_is_noted_although_younger_ones_went_before(harness):
    harness.publish_many(10)
    await harness.durable()
    later = harness.clock() + 1
    await harness.store.apply_retention(retention(harness, [4], before_ms=later))
    before = trims(harness)
    assert before.last_deleted_since(0) == 10
    harness.ack([4])
    await harness.durable()
    await harness.store.apply_retention(retention(harness, [], before_ms=later))
    assert trims(harness).last_deleted_since(before.number) == 4
    assert trims(harness).last_deleted_since(0) == 10


async def test_ids_of_events_are_not_used_again_after_a_queue_without_history_is_trimmed(tmp_path):
    """Its last snapshot is empty, so the newest event of all is deleted."""
    harness = Harness(tmp_path)
    harness.declare()
    harness.publish_many(1, keep=Keep.NOTHING)
    await harness.durable()
    harness.ack([1])
    await harness.durable()
    (newest,) = harness.query("SELECT max(id) FROM events")[0]
    harness.store.save(Snapshot(1, (), trim=True))
    await harness.durable()
    assert harness.query("SELECT max(id) FROM events") == [(None,)]
    await harness.close()
    again = Harness(tmp_path)
    again.publish_many(1)
    await again.durable()
    assert again.query("SELECT id FROM events") == [(newest + 1,)]
    await again.close()


async def test_content_that_history_never_kept_does_not_count(harness):
    harness.publish_many(3, keep=Keep.NOTHING)
    harness.ack([1, 2, 3])
    await harness.durable()
    await harness.store.apply_retention(retention(harness, [], before_ms=harness.clock() + 1))
    assert harness.stored_ids() == []
    assert trims(harness) == Trims()
