"""Flipped bits in the file: reported as damage, never delivered as content."""

from __future__ import annotations

import random
import shutil
import sqlite3
from array import array
from pathlib import Path

import pytest

from leveret.model.store import (
    LiveMessages,
    Snapshot,
    StoredMessage,
    StoreError,
    UnreadableMessage,
)
from tests.contract.stores import PROPERTIES, Harness

COUNT = 300
FLIPS = 40


def body_of(message_id: int) -> bytes:
    return b"body %d:" % message_id + bytes(random.Random(message_id).randbytes(200))


@pytest.fixture
async def intact(tmp_path: Path) -> Path:
    directory = tmp_path / "intact"
    harness = Harness(directory)
    harness.declare()
    for message_id in range(1, COUNT + 1):
        harness.publish(body_of(message_id))
    await harness.durable()
    harness.ack(range(1, 11))
    await harness.close()
    return directory


def damage(directory: Path, change: str, *values: object) -> None:
    connection = sqlite3.connect(directory / "leveret.db")
    connection.execute(change, values)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE messages SET body=CAST('other' AS BLOB) WHERE id=20",
        "UPDATE messages SET properties=x'00' WHERE id=20",
        "UPDATE messages SET exchange='elsewhere' WHERE id=20",
        "UPDATE messages SET routing_key=routing_key || 'x' WHERE id=20",
        "UPDATE messages SET body_crc=body_crc+1 WHERE id=20",
        "UPDATE messages SET body=NULL WHERE id=20",
        "UPDATE messages SET size=size+1 WHERE id=20",
        "UPDATE messages SET head_crc='text' WHERE id=20",
        "UPDATE messages SET time_ms=x'00ff' WHERE id=20",
        "UPDATE messages SET size=1.5 WHERE id=20",
        "DELETE FROM messages WHERE id=20",
    ],
)
async def test_only_damaged_content_is_unreadable(intact: Path, change: str):
    damage(intact, change)
    harness = Harness(intact)
    assert await harness.unreadable(range(11, COUNT + 1)) == [20]
    await harness.close()


async def test_content_under_another_id_is_unreadable(intact: Path):
    damage(intact, "DELETE FROM messages WHERE id=20")
    damage(intact, "UPDATE messages SET id=20 WHERE id=21")
    harness = Harness(intact)
    assert await harness.unreadable([19, 20, 21, 22]) == [20, 21]
    await harness.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE events SET ids=zeroblob(length(ids)) WHERE kind=10",
        "UPDATE events SET ids=NULL || 'text', crc=1 WHERE kind=10",
        "UPDATE events SET kind=11 WHERE kind=10",
        'UPDATE events SET "count"=1 WHERE kind=10',
    ],
)
async def test_damaged_journal_names_its_queue(intact: Path, change: str):
    damage(intact, change.replace("NULL || 'text'", "CAST('te' AS BLOB)"))
    harness = Harness(intact)
    assert any(lost.queue == "q1" for lost in harness.recovered.lost)
    assert "queue 'q1' has lost 1 row of its journal" in harness.recovered.lost[0].text
    # The intact rows are still used.
    assert harness.live() == list(range(1, COUNT + 1))
    await harness.close()


async def serve(directory: Path) -> None:
    harness = Harness(directory)
    try:
        live = harness.live()
        for message in await harness.store.load(live):
            if isinstance(message, StoredMessage):
                expected = (body_of(message.id), PROPERTIES, "", "q1")
                assert (message.body, message.properties, message.exchange,
                        message.routing_key) == expected, "returned damaged content"  # fmt: skip
            else:
                assert isinstance(message, UnreadableMessage)
        if not harness.recovered.lost:
            assert live == list(range(11, COUNT + 1)), "a queue changed without a report of damage"
    finally:
        await harness.close()


async def test_flipped_bits_are_never_served(intact: Path, tmp_path: Path):
    pristine = (intact / "leveret.db").read_bytes()
    chance = random.Random(20)
    refused = 0
    target = tmp_path / "flipped"
    for _ in range(FLIPS):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        data = bytearray(pristine)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (target / "leveret.db").write_bytes(data)
        try:
            await serve(target)
        except StoreError:
            refused += 1
    assert refused < FLIPS // 3


@pytest.mark.parametrize(
    ("table", "column"),
    [("messages", "exchange"), ("messages", "body_crc"), ("events", "ids"), ("origins", "user")],
)
def test_damaged_column_name_is_reported_at_start(intact: Path, table: str, column: str):
    damage(intact, f"ALTER TABLE {table} RENAME COLUMN {column} TO damaged")
    for _ in range(2):
        with pytest.raises(StoreError, match=f"damaged: its table {table} has no column {column};"):
            Harness(intact)


async def test_column_names_are_case_insensitive(intact: Path):
    damage(intact, "ALTER TABLE messages RENAME COLUMN exchange TO Exchange")
    await serve(intact)


async def test_queue_without_its_snapshot_is_replayed_from_older_events(intact: Path):
    """A clean stop writes all ids of a queue in one row; history still has the events before it."""
    harness = Harness(intact)
    sizes = array("I", [1] * (COUNT - 10))
    live = LiveMessages(array("Q", range(11, COUNT + 1)), sizes)
    harness.store.save(Snapshot(1, (live,)))
    await harness.close()
    damage(intact, "UPDATE events SET ids=zeroblob(length(ids)) WHERE kind=30")
    harness = Harness(intact)
    assert harness.live() == list(range(11, COUNT + 1))
    await harness.close()
