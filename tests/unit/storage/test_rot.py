"""Flipped bits in the file: reported as rot, never served as content."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from leveret.model.store import Rotten, StoredMessage, StoreError
from tests.contract.stores import PROPERTIES, Harness

COUNT = 300
FLIPS = 40


def body_of(message_id: int) -> bytes:
    return b"body %d:" % message_id + bytes(random.Random(message_id).randbytes(200))


@pytest.fixture
async def sound(tmp_path: Path) -> Path:
    directory = tmp_path / "sound"
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
async def test_damaged_content_is_rotten_and_alone(sound: Path, change: str):
    damage(sound, change)
    harness = Harness(sound)
    assert await harness.rotten(range(11, COUNT + 1)) == [20]
    await harness.close()


async def test_content_under_another_id_is_rotten(sound: Path):
    damage(sound, "DELETE FROM messages WHERE id=20")
    damage(sound, "UPDATE messages SET id=20 WHERE id=21")
    harness = Harness(sound)
    assert await harness.rotten([19, 20, 21, 22]) == [20, 21]
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
async def test_a_damaged_journal_names_its_queue(sound: Path, change: str):
    damage(sound, change.replace("NULL || 'text'", "CAST('te' AS BLOB)"))
    harness = Harness(sound)
    assert set(harness.recovered.damaged) == {1}
    assert "checksum" in harness.recovered.damaged[1]
    # What the sound rows say is still there.
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
                        message.routing_key) == expected, "rot was served"  # fmt: skip
            else:
                assert isinstance(message, Rotten)
        if not harness.recovered.damaged:
            assert live == list(range(11, COUNT + 1)), "a queue changed and nobody was told"
    finally:
        await harness.close()


async def test_flipped_bits_are_never_served(sound: Path, tmp_path: Path):
    pristine = (sound / "leveret.db").read_bytes()
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
def test_name_that_has_rotted_is_told_at_the_start(sound: Path, table: str, column: str):
    damage(sound, f"ALTER TABLE {table} RENAME COLUMN {column} TO rotted")
    for _ in range(2):
        with pytest.raises(StoreError, match=f"damaged: its table {table} has no column {column};"):
            Harness(sound)


async def test_name_that_has_become_large_is_still_the_name(sound: Path):
    damage(sound, "ALTER TABLE messages RENAME COLUMN exchange TO Exchange")
    await serve(sound)
