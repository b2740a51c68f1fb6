"""Retention removes old content, keeps live messages, and works in slices."""

from __future__ import annotations

import asyncio
from array import array
from pathlib import Path

import pytest

from leveret.model.definitions import Origin
from leveret.model.history import EventKind, Keep, OriginKind
from leveret.model.store import LiveMessages, RetentionRequest, Snapshot, UnreadableMessage
from leveret.queues.storage.directory import DATABASE_NAME
from leveret.queues.storage.history import HistoryReader
from leveret.queues.storage.retention import SLICE
from leveret.queues.storage.writer import Writer
from tests.contract.stores import Harness
from tests.support.polling import wait_until_async

HOUR = 3_600_000


@pytest.fixture
async def harness(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.declare()
    return harness


def stored(harness: Harness) -> list[int]:
    return harness.stored_ids()


def rows(harness: Harness, table: str) -> list[int]:
    return [row_id for (row_id,) in harness.query(f"SELECT id FROM {table} ORDER BY id")]


def kinds(harness: Harness) -> list[int]:
    return [kind for (kind,) in harness.query("SELECT kind FROM events ORDER BY id")]


def retention(harness: Harness, live: list[int], **limits: int) -> RetentionRequest:
    upto = max(stored(harness), default=0)
    return RetentionRequest(upto, (array("Q", live),), **limits)


async def test_old_content_is_removed_and_new_content_kept(harness: Harness):
    harness.publish_many(5)
    await harness.durable()
    harness.clock.now_ms += HOUR
    harness.publish_many(5)
    await harness.durable()
    usage = await harness.store.apply_retention(retention(harness, [], before_ms=harness.clock()))
    assert stored(harness) == [6, 7, 8, 9, 10]
    assert (usage.first_id, usage.last_id, usage.first_ms) == (6, 10, harness.clock())
    await harness.close()


async def test_live_messages_are_kept_at_any_age(harness: Harness, tmp_path: Path):
    harness.publish_many(3 * SLICE)
    await harness.durable()
    live = [1, SLICE, SLICE + 1, 2 * SLICE + 7, 3 * SLICE]
    settled = sorted(set(range(1, 3 * SLICE + 1)) - set(live))
    harness.ack(settled)
    await harness.durable()
    await harness.store.apply_retention(retention(harness, live, before_ms=harness.clock() + 1))
    assert stored(harness) == live
    await harness.close()
    again = Harness(tmp_path)
    assert again.live() == live
    assert await again.unreadable(live) == []
    await again.close()


async def test_messages_settled_after_a_run_are_removed_by_the_next(harness: Harness):
    harness.publish_many(10)
    await harness.durable()
    later = harness.clock() + 1
    await harness.store.apply_retention(retention(harness, list(range(1, 11)), before_ms=later))
    assert stored(harness) == list(range(1, 11))
    harness.ack([2, 4])
    await harness.durable()
    live = [i for i in range(1, 11) if i not in (2, 4)]
    await harness.store.apply_retention(retention(harness, live, before_ms=later))
    assert stored(harness) == list(
        range(1, 11)
    )  # most of the pack is live: it is not written again
    harness.ack([1, 3, 5])
    await harness.durable()
    await harness.store.apply_retention(retention(harness, live[3:], before_ms=later))
    assert stored(harness) == [6, 7, 8, 9, 10]
    assert await harness.bodies([6, 10]) == [b"hello"] * 2
    harness.ack([6, 7, 8, 9, 10])
    await harness.durable()
    await harness.store.apply_retention(retention(harness, [], before_ms=later))
    assert stored(harness) == []
    await harness.close()


async def test_messages_above_upto_are_kept(harness: Harness):
    for _ in range(5):
        harness.publish_many(2)
        await harness.durable()
    await harness.store.apply_retention(RetentionRequest(upto=5, before_ms=harness.clock() + 1))
    assert stored(harness) == list(range(5, 11))
    await harness.close()


async def test_too_many_bytes_remove_the_oldest_first(harness: Harness):
    for _ in range(4):
        harness.publish_many(SLICE, bytes(500))
        harness.clock.now_ms += HOUR
        await harness.durable()
    harness.ack(range(1, 4 * SLICE + 1))
    await harness.durable()
    before = await harness.store.apply_retention(retention(harness, []))
    limit = before.bytes * 6 // 10
    after = await harness.store.apply_retention(retention(harness, [], max_bytes=limit))
    assert after.bytes <= limit
    assert after.last_id == 4 * SLICE
    assert 1 < after.first_id < 4 * SLICE
    assert stored(harness) == list(range(after.first_id, 4 * SLICE + 1))
    await harness.close()


async def test_live_bytes_do_not_count_as_history(harness: Harness):
    harness.publish_many(SLICE, bytes(500))
    await harness.durable()
    live_bytes = SLICE * 500 * 2
    request = retention(harness, [], max_bytes=1 << 20, live_bytes=live_bytes)
    await harness.store.apply_retention(request)
    assert len(stored(harness)) == SLICE
    await harness.close()


async def test_events_are_removed_with_their_content_unless_the_fold_needs_them(
    harness: Harness, tmp_path: Path
):
    ids = harness.publish_many(4)
    harness.store.record_many(EventKind.PUBLISHED, 0, ids)
    await harness.durable()
    harness.ack(ids[:3])
    await harness.durable()
    later = harness.clock() + HOUR
    await harness.store.apply_retention(retention(harness, ids[3:], before_ms=later))
    assert kinds(harness) == [EventKind.ENQUEUED, EventKind.ACKED]
    harness.clock.now_ms = later
    harness.store.save(Snapshot(1, (LiveMessages(array("Q", ids[3:]), array("I", [5])),)))
    await harness.durable()
    await harness.store.apply_retention(retention(harness, ids[3:], before_ms=later))
    assert kinds(harness) == [EventKind.SNAPSHOT]
    await harness.close()
    again = Harness(tmp_path)
    assert again.live() == ids[3:]
    await again.close()


async def test_deleted_queue_is_removed_after_its_history(harness: Harness):
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
    await harness.store.apply_retention(retention(harness, ids, before_ms=harness.clock()))
    assert rows(harness, "queues") == [1, 2, 3]
    assert rows(harness, "origins") == [1, 2]
    await harness.store.apply_retention(retention(harness, ids, before_ms=later))
    assert rows(harness, "queues") == [1, 3]
    assert rows(harness, "origins") == [2]
    await harness.close()


async def test_unkept_content_is_removed_once_no_queue_holds_it(harness: Harness):
    plain = harness.publish_many(3, keep=Keep.NOTHING)
    (metadata,) = harness.publish_many(1, keep=Keep.METADATA)
    (full,) = harness.publish_many(1)
    harness.ack([plain[0], plain[1], metadata, full])
    await harness.durable()
    await harness.store.apply_retention(retention(harness, [plain[2]]))
    assert stored(harness) == [plain[2], metadata, full]
    results = await harness.store.load([metadata, full])
    assert results[0] == UnreadableMessage(metadata, "its body was not kept")
    assert not isinstance(results[1], UnreadableMessage)
    await harness.close()


async def test_keep_metadata_drops_the_body_and_keeps_the_rest(harness: Harness, tmp_path: Path):
    (metadata,) = harness.publish_many(1, b"secret", keep=Keep.METADATA)
    (full,) = harness.publish_many(1)
    await harness.durable()
    harness.ack([metadata, full])
    await harness.durable()
    await harness.store.apply_retention(retention(harness, []))
    columns = "body_bytes, has_bodies, instr(data, 'secret')"
    assert harness.query(f"SELECT {columns} FROM message_packs WHERE id=?", metadata) == [(6, 0, 0)]
    history = await HistoryReader(tmp_path / DATABASE_NAME).message(metadata)
    assert history is not None
    assert (history.body, history.size, history.routing_key) == (None, 6, "q1")
    assert await harness.bodies([full]) == [b"hello"]
    await harness.close()


async def test_commits_continue_during_retention(harness: Harness):
    harness.publish_many(20 * SLICE, bytes(500))
    await harness.durable()
    harness.ack(range(1, 20 * SLICE + 1))
    await harness.durable()
    run = harness.store.apply_retention(retention(harness, [], before_ms=harness.clock() + 1))
    running = asyncio.ensure_future(run)
    commits = 0
    while not running.done():
        harness.publish()
        await harness.durable()
        commits += 1
    usage = await running
    assert commits > 5
    assert usage.removed >= 20 * SLICE
    assert len(stored(harness)) == commits
    await harness.close()


async def test_free_pages_return_to_the_file_system(harness: Harness, tmp_path: Path):
    harness.publish_many(100, bytes(250_000))
    await harness.durable()
    large = (await harness.store.apply_retention(retention(harness, list(range(1, 101))))).bytes
    harness.ack(range(1, 101))
    await harness.durable()
    await harness.store.apply_retention(retention(harness, [], before_ms=harness.clock() + 1))
    await harness.close()
    assert (tmp_path / "leveret.db").stat().st_size < large // 2


async def test_concurrent_retention_requests_share_one_run(harness: Harness):
    harness.publish_many(5)
    await harness.durable()
    request = retention(harness, [], before_ms=harness.clock() + 1)
    first, second = await asyncio.gather(
        harness.store.apply_retention(request), harness.store.apply_retention(request)
    )
    assert first is second
    assert stored(harness) == []
    await harness.close()


async def test_live_ids_may_be_unordered(harness: Harness):
    harness.publish_many(10)
    await harness.durable()
    request = RetentionRequest(10, (array("Q", [9, 2, 5]),), before_ms=harness.clock() + 1)
    await harness.store.apply_retention(request)
    assert stored(harness) == [2, 5, 9]
    await harness.close()


# A full volume -----------------------------------------------------------------------------------


def writer(harness: Harness) -> Writer:
    assert harness.sql._writer is not None
    return harness.sql._writer


MIB = 1 << 20
BODY = bytes(MIB // 4)


async def test_history_gives_way_to_free_space_oldest_first_and_live_messages_stay(
    harness: Harness, tmp_path: Path
):
    """The volume has 8 MiB beside the database: free space depends on the size of the file."""
    for _ in range(10):
        harness.publish_many(4 * SLICE // 8, BODY[:1024])
        await harness.durable()
    harness.ack(sorted(set(stored(harness)) - {5}))
    await harness.durable()
    await wait_until_async(lambda: writer(harness)._wal_pages == 0)  # all is in the file
    database = tmp_path / "leveret.db"
    before = database.stat().st_size
    volume = before + 8 * MIB
    writer(harness)._free_bytes = lambda: volume - database.stat().st_size
    request = retention(harness, [5], max_bytes=1 << 40, min_free_bytes=12 * MIB)
    usage = await harness.store.apply_retention(request)
    left = stored(harness)
    assert usage.removed > 0
    assert left[0] == 5
    assert left[1:] == list(range(left[1], 10 * 4 * SLICE // 8 + 1))
    assert volume - database.stat().st_size >= 12 * MIB  # pages went back to the file system
    assert harness.store.database_size.used > 0
    usage = await harness.store.apply_retention(request)
    assert usage.removed == 0
    await harness.close()


async def test_free_pages_count_as_free_space(harness: Harness):
    harness.publish_many(100, BODY)
    await harness.durable()
    harness.ack(stored(harness))
    await harness.durable()
    await harness.store.apply_retention(retention(harness, [], before_ms=harness.clock() + 1))
    harness.publish_many(4, BODY)
    await harness.durable()
    free_pages = harness.store.database_size.free
    assert free_pages > 2 * MIB
    writer(harness)._free_bytes = lambda: 0
    request = retention(harness, [], max_bytes=1 << 40, min_free_bytes=free_pages - MIB)
    await harness.store.apply_retention(request)
    assert len(stored(harness)) == 4
    await harness.close()
