"""Bodies in parts: read back whole, verified, and deleted with their message."""

from __future__ import annotations

import random
import sqlite3
from array import array
from contextlib import closing
from pathlib import Path

import pytest

from leveret.model.history import Keep
from leveret.model.message import PART_BYTES, Body, LargeBody, part_count
from leveret.model.store import RetentionRequest, StoredMessage, UnreadableMessage
from leveret.queues.storage.directory import DATABASE_NAME
from leveret.queues.storage.history import HistoryReader
from tests.contract.stores import PROPERTIES, Harness, run_of_one

BODY = random.Random(1).randbytes(3 * PART_BYTES + 5)


@pytest.fixture
async def harness(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.declare()
    return harness


def publish(harness: Harness, body: Body, keep: Keep = Keep.FULL) -> int:
    message_id = next(harness.store.ids)
    content = ("x", "key", PROPERTIES, body, keep)
    harness.store.append(run_of_one(message_id, harness.clock(), 0, *content))
    return message_id


def store_parts(harness: Harness) -> LargeBody:
    body = LargeBody([BODY[:10], BODY[10:]])
    body.first_part = harness.store.reserve_parts(part_count(len(body)))
    harness.store.append_parts(body.first_part, list(body.parts()))
    return body


def part_ids(harness: Harness) -> list[int]:
    return [row_id for (row_id,) in harness.query("SELECT id FROM body_parts ORDER BY id")]


async def trim(harness: Harness, *live: int) -> None:
    await harness.durable()
    request = RetentionRequest(100, (array("Q", live),), before_ms=0)
    await harness.store.apply_retention(request)


async def test_a_body_in_parts_is_read_whole(harness: Harness, tmp_path: Path) -> None:
    first = store_parts(harness)
    await harness.durable()
    second = store_parts(harness)
    assert (first.first_part, first.end_part, second.first_part) == (1, 5, 5)
    ids = [publish(harness, body) for body in (first, b"small", second)]
    await harness.durable()
    for _ in range(2):
        loaded = await harness.store.load(ids)
        bodies = [bytes(result.body) for result in loaded if isinstance(result, StoredMessage)]
        assert bodies == [BODY, b"small", BODY]
        life = await HistoryReader(tmp_path / DATABASE_NAME).message(ids[0])
        assert life is not None and life.body == BODY
        await harness.close()
        harness = Harness(tmp_path)
    third = store_parts(harness)
    assert third.first_part == 9
    await harness.close()


async def test_parts_are_deleted_with_their_message(harness: Harness) -> None:
    kept = publish(harness, store_parts(harness), Keep.NOTHING)
    publish(harness, store_parts(harness), Keep.NOTHING)
    publish(harness, store_parts(harness), Keep.METADATA)
    waiting = store_parts(harness)
    await trim(harness, kept)
    assert part_ids(harness) == [1, 2, 3, 4, 13, 14, 15, 16]
    late = publish(harness, waiting)
    await trim(harness, kept, late)
    assert part_ids(harness) == [1, 2, 3, 4, 13, 14, 15, 16]
    await harness.close()


async def test_parts_that_a_crash_left_behind_are_deleted(harness: Harness, tmp_path: Path) -> None:
    store_parts(harness)
    await harness.durable()
    await harness.close()
    harness = Harness(tmp_path)
    assert part_ids(harness) == [1, 2, 3, 4]
    await trim(harness)
    assert part_ids(harness) == []
    await harness.close()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("DELETE FROM body_parts WHERE id = 2", "a part of its body is missing"),
        ("UPDATE body_parts SET data = zeroblob(9) WHERE id = 4", "does not match its checksum"),
        ("UPDATE message_packs SET parts = parts + 1", "its index does not match its checksum"),
    ],
)
async def test_damaged_parts_are_not_delivered(
    harness: Harness, tmp_path: Path, damage: str, reason: str
) -> None:
    message_id = publish(harness, store_parts(harness))
    await harness.durable()
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as connection:
        connection.execute(damage)
        connection.commit()
    (loaded,) = await harness.store.load([message_id])
    assert isinstance(loaded, UnreadableMessage)
    assert reason in loaded.reason
    await harness.close()
