"""Retention: what goes, what stays, and that it goes in slices."""

from __future__ import annotations

import asyncio
from array import array
from pathlib import Path

import pytest

from leveret.model.history import EventKind, Keep, OriginKind
from leveret.model.store import Live, Origin, Retention, Rotten, Snapshot
from queues.storage.sweeper import SLICE
from tests.contract.stores import Harness

HOUR = 3_600_000


@pytest.fixture
async def harness(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.declare()
    return harness


def stored(harness: Harness) -> list[int]:
    return rows(harness, "messages")


def rows(harness: Harness, table: str) -> list[int]:
    return [row_id for (row_id,) in harness.query(f"SELECT id FROM {table} ORDER BY id")]


def kinds(harness: Harness) -> list[int]:
    return [kind for (kind,) in harness.query("SELECT kind FROM events ORDER BY id")]


def retention(harness: Harness, live: list[int], **limits: int) -> Retention:
    upto = max(stored(harness), default=0)
    return Retention(upto, (array("Q", live),), **limits)


async def test_old_content_goes_and_new_content_stays(harness: Harness):
    harness.publish_many(5)
    await harness.durable()
    harness.clock.now_ms += HOUR
    harness.publish_many(5)
    await harness.durable()
    usage = await harness.store.sweep(retention(harness, [], before_ms=harness.clock()))
    assert stored(harness) == [6, 7, 8, 9, 10]
    assert (usage.first_id, usage.last_id, usage.first_ms) == (6, 10, harness.clock())
    await harness.close()


async def test_live_messages_stay_however_old(harness: Harness, tmp_path: Path):
    harness.publish_many(3 * SLICE)
    await harness.durable()
    live = [1, SLICE, SLICE + 1, 2 * SLICE + 7, 3 * SLICE]
    settled = sorted(set(range(1, 3 * SLICE + 1)) - set(live))
    harness.ack(settled)
    await harness.durable()
    await harness.store.sweep(retention(harness, live, before_ms=harness.clock() + 1))
    assert stored(harness) == live
    await harness.close()
    again = Harness(tmp_path)
    assert again.live() == live
    assert await again.rotten(live) == []
    await again.close()


async def test_what_is_settled_after_the_sweep_went_by_goes_next_time(harness: Harness):
    harness.publish_many(10)
    await harness.durable()
    later = harness.clock() + 1
    await harness.store.sweep(retention(harness, list(range(1, 11)), before_ms=later))
    assert stored(harness) == list(range(1, 11))
    harness.ack([2, 4])
    await harness.durable()
    live = [i for i in range(1, 11) if i not in (2, 4)]
    await harness.store.sweep(retention(harness, live, before_ms=later))
    assert stored(harness) == live
    await harness.close()


async def test_messages_above_the_limit_given_are_left_alone(harness: Harness):
    harness.publish_many(10)
    await harness.durable()
    await harness.store.sweep(Retention(upto=4, before_ms=harness.clock() + 1))
    assert stored(harness) == list(range(5, 11))
    await harness.close()


async def test_too_many_bytes_drop_the_oldest_first(harness: Harness):
    for _ in range(4):
        harness.publish_many(SLICE, bytes(500))
        harness.clock.now_ms += HOUR
        await harness.durable()
    harness.ack(range(1, 4 * SLICE + 1))
    await harness.durable()
    before = await harness.store.sweep(retention(harness, []))
    limit = before.bytes * 6 // 10
    after = await harness.store.sweep(retention(harness, [], max_bytes=limit))
    assert after.bytes <= limit
    assert after.last_id == 4 * SLICE
    assert 1 < after.first_id < 4 * SLICE
    assert stored(harness) == list(range(after.first_id, 4 * SLICE + 1))
    await harness.close()


async def test_live_bytes_do_not_count_against_history(harness: Harness):
    harness.publish_many(SLICE, bytes(500))
    await harness.durable()
    live_bytes = SLICE * 500 * 2
    plan = retention(harness, [], max_bytes=1 << 20, live_bytes=live_bytes)
    await harness.store.sweep(plan)
    assert len(stored(harness)) == SLICE
    await harness.close()


async def test_events_go_with_their_content_unless_the_fold_needs_them(
    harness: Harness, tmp_path: Path
):
    ids = harness.publish_many(4)
    harness.store.record_many(EventKind.PUBLISHED, 0, ids)
    await harness.durable()
    harness.ack(ids[:3])
    await harness.durable()
    later = harness.clock() + HOUR
    await harness.store.sweep(retention(harness, ids[3:], before_ms=later))
    assert kinds(harness) == [EventKind.ENQUEUED, EventKind.ACKED]
    harness.clock.now_ms = later
    harness.store.save(Snapshot(1, (Live(array("Q", ids[3:]), array("I", [5])),)))
    await harness.durable()
    await harness.store.sweep(retention(harness, ids[3:], before_ms=later))
    assert kinds(harness) == [EventKind.SNAPSHOT]
    await harness.close()
    again = Harness(tmp_path)
    assert again.live() == ids[3:]
    await again.close()


async def test_a_deleted_queue_leaves_when_its_history_has(harness: Harness):
    queue = harness.declare(2)
    harness.declare(3)
    ids = harness.publish_many(2)
    harness.store.record_many(EventKind.QUEUE_DELETED, 2, ids)
    harness.store.delete(queue)
    harness.store.save(Origin(1, OriginKind.PUBLISHER, closed_ms=harness.clock()))
    harness.store.save(Origin(2, OriginKind.PUBLISHER))
    harness.store.record(EventKind.DELIVERED, 3, ids[0])
    await harness.durable()
    later = harness.clock() + 1
    await harness.store.sweep(retention(harness, ids, before_ms=harness.clock()))
    assert rows(harness, "queues") == [1, 2, 3]
    assert rows(harness, "origins") == [1, 2]
    await harness.store.sweep(retention(harness, ids, before_ms=later))
    assert rows(harness, "queues") == [1, 3]
    assert rows(harness, "origins") == [2]
    await harness.close()


async def test_content_without_history_goes_once_no_queue_holds_it(harness: Harness):
    plain = harness.publish_many(3, keep=Keep.NOTHING)
    (told,) = harness.publish_many(1, keep=Keep.METADATA)
    (full,) = harness.publish_many(1)
    harness.ack([plain[0], plain[1], told, full])
    await harness.durable()
    await harness.store.sweep(retention(harness, [plain[2]]))
    assert stored(harness) == [plain[2], told, full]
    found = await harness.store.load([told, full])
    assert found[0] == Rotten(told, "its body was not kept")
    assert not isinstance(found[1], Rotten)
    await harness.close()


async def test_discarding_to_metadata_drops_the_body_and_keeps_the_rest(harness: Harness):
    (told,) = harness.publish_many(1, b"secret", keep=Keep.METADATA)
    (full,) = harness.publish_many(1)
    await harness.durable()
    harness.store.discard([told, full], Keep.METADATA)
    await harness.durable()
    told_of = harness.query("SELECT body, size, routing_key FROM messages WHERE id=?", told)
    assert told_of == [(None, 6, "q1")]
    assert await harness.bodies([full]) == [b"hello"]
    await harness.close()


async def test_commits_go_on_during_a_sweep(harness: Harness):
    harness.publish_many(20 * SLICE)
    await harness.durable()
    harness.ack(range(1, 20 * SLICE + 1))
    await harness.durable()
    sweep = harness.store.sweep(retention(harness, [], before_ms=harness.clock() + 1))
    sweeping = asyncio.ensure_future(sweep)
    commits = 0
    while not sweeping.done():
        harness.publish()
        await harness.durable()
        commits += 1
    usage = await sweeping
    assert commits > 5
    assert usage.removed >= 20 * SLICE
    assert len(stored(harness)) == commits
    await harness.close()


async def test_space_given_up_returns_to_the_file_system(harness: Harness, tmp_path: Path):
    harness.publish_many(100, bytes(250_000))
    await harness.durable()
    large = (await harness.store.sweep(retention(harness, list(range(1, 101))))).bytes
    harness.ack(range(1, 101))
    await harness.durable()
    await harness.store.sweep(retention(harness, [], before_ms=harness.clock() + 1))
    await harness.close()
    assert (tmp_path / "leveret.db").stat().st_size < large // 2


async def test_two_sweeps_at_once_are_one(harness: Harness):
    harness.publish_many(5)
    await harness.durable()
    plan = retention(harness, [], before_ms=harness.clock() + 1)
    first, second = await asyncio.gather(harness.store.sweep(plan), harness.store.sweep(plan))
    assert first is second
    assert stored(harness) == []
    await harness.close()


async def test_ids_given_out_of_order_protect_all_the_same(harness: Harness):
    harness.publish_many(10)
    await harness.durable()
    plan = Retention(10, (array("Q", [9, 2, 5]),), before_ms=harness.clock() + 1)
    await harness.store.sweep(plan)
    assert stored(harness) == [2, 5, 9]
    await harness.close()
