"""Flipped bits in the file: reported as damage, never delivered as content."""

from __future__ import annotations

import random
import shutil
import sqlite3
from array import array
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from leveret.model.store import (
    LiveMessages,
    Snapshot,
    StoredMessage,
    StoreError,
    UnreadableMessage,
)
from leveret.queues.storage.packing import pack_sizes, unpack_sizes
from leveret.queues.storage.packs import PackRow, index_checksum
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


def packs_of(directory: Path) -> list[PackRow]:
    with closing(sqlite3.connect(directory / "leveret.db")) as connection:
        rows = connection.execute("SELECT * FROM message_packs ORDER BY id").fetchall()
    return [PackRow._make(row) for row in rows]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE message_packs SET last_id=last_id+1 WHERE id=1",
        'UPDATE message_packs SET "count"="count"+1 WHERE id=1',
        "UPDATE message_packs SET first_ms=first_ms+1 WHERE id=1",
        "UPDATE message_packs SET last_ms=x'00ff' WHERE id=1",
        "UPDATE message_packs SET keep=1.5 WHERE id=1",
        "UPDATE message_packs SET body_bytes=0 WHERE id=1",
        "UPDATE message_packs SET has_bodies='text' WHERE id=1",
        "UPDATE message_packs SET first_part=7 WHERE id=1",
        "UPDATE message_packs SET parts=1 WHERE id=1",
        "UPDATE message_packs SET runs=zeroblob(length(runs)) WHERE id=1",
        "UPDATE message_packs SET ids=zeroblob(16) WHERE id=1",
        "UPDATE message_packs SET sizes=substr(sizes, 5) WHERE id=1",
        "UPDATE message_packs SET crcs=CAST('text' AS BLOB) WHERE id=1",
        "UPDATE message_packs SET body_crc=1 WHERE id=1",
        "UPDATE message_packs SET crc=crc+1 WHERE id=1",
        "UPDATE message_packs SET data=NULL WHERE id=1",
        "UPDATE message_packs SET id=2 WHERE id=1",
        "DELETE FROM message_packs WHERE id=1",
    ],
)
async def test_only_the_pack_with_a_damaged_index_is_unreadable(intact: Path, change: str):
    first, second, *_ = packs_of(intact)
    damage(intact, change)
    harness = Harness(intact)
    assert second.id == first.last_id + 1
    assert await harness.unreadable(range(11, COUNT + 1)) == list(range(11, second.id))
    await harness.close()


def of_message_20(row: PackRow) -> tuple[int, int]:
    """Where its frames are in the data of the first pack."""
    start = sum(unpack_sizes(row.sizes)[:19])
    return start, start + unpack_sizes(row.sizes)[19]


def flip_body(row: PackRow) -> PackRow:
    at = of_message_20(row)[1] - 50
    assert row.data is not None
    return row._replace(data=row.data[:at] + bytes([row.data[at] ^ 1]) + row.data[at + 1 :])


def flip_properties(row: PackRow) -> PackRow:
    at = of_message_20(row)[0] + 20
    assert row.data is not None
    return row._replace(data=row.data[:at] + bytes([row.data[at] ^ 1]) + row.data[at + 1 :])


def change_checksum(row: PackRow) -> PackRow:
    crcs = unpack_sizes(row.crcs)
    crcs[19] ^= 1
    row = row._replace(crcs=pack_sizes(crcs))
    return row._replace(crc=index_checksum(row))


@pytest.mark.parametrize("change", [flip_body, flip_properties, change_checksum])
async def test_only_the_damaged_message_is_unreadable(
    intact: Path, change: Callable[[PackRow], PackRow]
):
    row = change(packs_of(intact)[0])
    damage(
        intact, "UPDATE message_packs SET crcs=?, crc=?, data=? WHERE id=1",
        row.crcs, row.crc, row.data,
    )  # fmt: skip
    harness = Harness(intact)
    assert await harness.unreadable(range(11, COUNT + 1)) == [20]
    await harness.close()


async def test_data_that_ends_too_early_has_the_messages_before_its_end(intact: Path):
    row = packs_of(intact)[0]
    end = of_message_20(row)[1] - 1
    damage(intact, "UPDATE message_packs SET data=substr(data, 1, ?) WHERE id=1", end)
    harness = Harness(intact)
    assert await harness.unreadable(range(11, COUNT + 1)) == list(range(20, row.last_id + 1))
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
    [
        ("message_packs", "runs"),
        ("message_packs", "crcs"),
        ("events", "ids"),
        ("origins", "user"),
    ],
)
def test_damaged_column_name_is_reported_at_start(intact: Path, table: str, column: str):
    damage(intact, f"ALTER TABLE {table} RENAME COLUMN {column} TO damaged")
    for _ in range(2):
        with pytest.raises(StoreError, match=f"damaged: its table {table} has no column {column};"):
            Harness(intact)


async def test_column_names_are_case_insensitive(intact: Path):
    damage(intact, "ALTER TABLE message_packs RENAME COLUMN runs TO Runs")
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
