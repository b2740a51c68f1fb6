"""The migration from one row per message to packs, on made rows and on stored directories."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import sqlite3
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.launch import RunningBroker, in_process_settings
from leveret.model.message import PARTS_FROM, encode_properties
from leveret.model.store import StoreError
from leveret.queues.storage import migration_to_packs, statements
from leveret.queues.storage.damage.repair import DAMAGED_NAME
from leveret.queues.storage.directory import WAL_NAME
from leveret.queues.storage.migrations import migrate, stored_version
from leveret.queues.storage.old_messages import RowsOutOfOrder
from leveret.queues.storage.packs import PACK_BYTES
from leveret.queues.storage.statements import AT_WRITER_START, PAGE_SIZE
from tests.contract.stores import Harness
from tests.support.old_rows import (
    OldRow,
    assert_same_messages,
    create_old,
    insert_old,
    old_row,
    read_old,
    read_packs,
    unreadable_in,
)
from tests.unit.storage.make_old_directory import LARGE, MESSAGES, RECORDS, TAKEN

OLD_DATA = Path(__file__).parents[2] / "data"
STORED = ["leveret-0.1.0", "leveret-schema-3"]
MIB = 1024 * 1024


@pytest.fixture(params=STORED)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A data directory of an older version, with messages, history and a log."""
    with tarfile.open(OLD_DATA / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "data"


def events_of(connection: sqlite3.Connection) -> list[Any]:
    return connection.execute("SELECT * FROM events ORDER BY id").fetchall()


# -- stored directories --------------------------------------------------------------------------


def test_stored_directory_keeps_every_message_and_event(stored: Path):
    with closing(sqlite3.connect(stored / "leveret.db", isolation_level=None)) as connection:
        migrate(connection, newest=3)
        old, events = read_old(connection), events_of(connection)
        assert {row.keep for row in old.values()} == {0, 1, 2}
        assert any(row.body is None for row in old.values())
        migrate(connection)
        assert_same_messages(old, read_packs(connection))
        assert events_of(connection) == events
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    assert not names & {"messages", "large_messages"}


async def test_broker_serves_a_stored_directory(stored: Path):
    records = {path: path.read_bytes() for path in (stored / "logs").rglob("*.log")}
    async with (
        RunningBroker(in_process_settings(data_dir=stored)) as running,
        await aio_pika.connect(running.url) as connection,
    ):
        channel = await connection.channel()
        for name in ("orders", "audit", "scratch"):
            await check_queue(await channel.get_queue(name), name)
        await check_log(channel)
    assert {path: path.read_bytes() for path in records} == records


async def check_queue(queue: aio_pika.abc.AbstractQueue, name: str) -> None:
    for number in range(TAKEN, MESSAGES):
        message = await queue.get()
        assert message.message_id == f"{name}-{number}"
        assert message.body == b"%d:" % number * (number * number // 30)
        assert message.headers == ({"number": number} if number % 3 else {})
        assert message.routing_key == (f"eu.{name}.{number % 4}" if number % 2 else name)
        assert message.redelivered == (name == "orders" and number == TAKEN)
    rest = [(await queue.get()).body for _ in range(3 + (name == "orders"))]
    assert rest[:3] == [b"", b"\x00\xce\xff", b"x" * 70_000]
    assert rest[3:] == [b"large" * (LARGE // 5)] * (name == "orders")
    assert await queue.get(fail=False) is None


async def check_log(channel: aio_pika.abc.AbstractChannel) -> None:
    log = await channel.get_queue("clicks")
    await channel.set_qos(prefetch_count=RECORDS)
    bodies = []
    async with log.iterator(arguments={"x-stream-offset": "first"}) as records:
        async for record in records:
            await record.ack()
            bodies.append(record.body)
            if len(bodies) == RECORDS:
                break
    assert bodies == [b"click %d" % number for number in range(RECORDS)]


# -- made rows -----------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = create_old(tmp_path / "leveret.db", [])
    yield connection
    connection.close()


def migrated(connection: sqlite3.Connection, rows: list[OldRow]) -> None:
    insert_old(connection, rows)
    migrate(connection)
    assert_same_messages({row.id: row for row in rows}, read_packs(connection))


names = st.sampled_from(["", "amq.topic", "ünïcode", "k" * 255])
bodies = st.one_of(
    st.none(), st.binary(max_size=40), st.sampled_from([b"x" * 30_000, b"y" * (PACK_BYTES + 1)])
)


@st.composite
def rows_of_messages(draw: st.DrawFn) -> list[OldRow]:
    rows: list[OldRow] = []
    message_id = 0
    for _ in range(draw(st.integers(0, 30))):
        message_id += draw(st.sampled_from([1, 1, 1, 2, 1000]))
        body = draw(bodies)
        is_in_parts = body is None and draw(st.booleans())
        properties = {"delivery_mode": 2, "message_id": draw(st.text(max_size=8))}
        row = old_row(
            message_id,
            body,
            time_ms=draw(st.sampled_from([0, 1_700_000_000_000, 1_700_000_000_001])),
            origin=draw(st.integers(0, 2)),
            keep=draw(st.sampled_from([2, 2, 2, 1, 0])),
            exchange=draw(names),
            routing_key=draw(names),
            properties=encode_properties(properties),
            size=PARTS_FROM + 9 if is_in_parts else draw(st.integers(0, 9)) if not body else None,
            first_part=message_id * 10 if is_in_parts else None,
        )
        if draw(st.integers(0, 9)) == 0:
            row = row._replace(head_crc=row.head_crc ^ 1)
        rows.append(row)
    return rows


@given(rows_of_messages())
def test_packs_have_what_the_rows_had(rows: list[OldRow]):
    with closing(create_old(":memory:", [])) as connection:
        migrated(connection, rows)


@given(rows_of_messages())
def test_packs_of_several_portions_have_what_the_rows_had(rows: list[OldRow]):
    with closing(create_old(":memory:", [])) as connection, pytest.MonkeyPatch.context() as patch:
        patch.setattr(migration_to_packs, "PORTION_BYTES", 100)
        migrated(connection, rows)


def test_body_in_parts_keeps_its_parts_and_its_checksum(database: sqlite3.Connection):
    migrated(database, [old_row(1, b"a"), old_row(2, None, size=5 * MIB + 1, first_part=7)])
    _, large = read_packs(database)
    assert (large.row.first_part, large.row.parts, large.row.body_crc) == (7, 6, 17)
    assert (large.row.body_bytes, large.row.has_bodies) == (5 * MIB + 1, 1)


def test_pack_without_bodies_is_marked(database: sqlite3.Connection):
    rows = [old_row(i, None, size=10, keep=1) for i in (1, 2)] + [old_row(3, b"body")]
    migrated(database, rows)
    packs = read_packs(database)
    assert [(pack.row.has_bodies, pack.row.body_bytes) for pack in packs] == [(0, 20), (1, 4)]


@pytest.mark.parametrize(
    "change",
    [
        {"head_crc": 1}, {"body_crc": 1}, {"body": b"other"}, {"body": "text"}, {"size": 5},
        {"size": 1.5}, {"size": -1}, {"size": "text"}, {"properties": b"\0"}, {"properties": "a"},
        {"properties": 7}, {"exchange": "other"}, {"exchange": 7}, {"routing_key": b"\xff\xfe"},
        {"routing_key": "long" * 20_000}, {"time_ms": b"\0"}, {"origin": "text"},
        {"body": None, "first_part": "text"}, {"body": None, "first_part": -1},
    ],
)  # fmt: skip
def test_damaged_row_stays_unreadable(database: sqlite3.Connection, change: dict[str, Any]):
    row = old_row(2, b"body")._replace(**change)
    insert_old(database, [old_row(1, b"first"), row, old_row(3, b"third")])
    migrate(database)
    packs = read_packs(database)
    assert list(unreadable_in(packs)) == [2]
    assert [message_id for pack in packs for message_id in pack.ids] == [1, 2, 3]
    assert all(pack.row.has_bodies for pack in packs)


@pytest.mark.parametrize(
    "change", [{"keep": 77}, {"keep": "text"}, {"time_ms": -1}, {"origin": -1}]
)
def test_message_with_damaged_details_is_still_delivered(
    database: sqlite3.Connection, change: dict[str, Any]
):
    """No checksum included these, and no delivery needs them."""
    insert_old(database, [old_row(1, b"body")._replace(**change)])
    migrate(database)
    assert unreadable_in(read_packs(database)) == {}


def test_empty_database_gets_an_empty_table(database: sqlite3.Connection):
    assert migrate(database) == 3
    assert (read_packs(database), stored_version(database)) == ([], 4)


def test_rows_out_of_order_are_damage():
    portion = migration_to_packs._Portion(0)
    with pytest.raises(RowsOutOfOrder, match="message 1 comes after message 2"):
        portion.add([old_row(2, b""), old_row(1, b"")])


def test_progress_is_logged(
    database: sqlite3.Connection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(migration_to_packs, "LOG_SECONDS", 0)
    monkeypatch.setattr(migration_to_packs, "PORTION_BYTES", 1000)
    caplog.set_level(logging.INFO, "leveret.store")
    migrated(database, [old_row(number, bytes(600)) for number in range(1, 5)])
    first, half, all_, last = caplog.messages
    assert first == "Upgrading the data to schema 4: up to 4 messages"
    assert half == "Upgrading the data to schema 4: 2 messages, 50 %"
    assert all_ == "Upgrading the data to schema 4: 4 messages, 100 %"
    assert last.startswith("The data has schema 4: 4 messages upgraded in ")


# -- space, crashes, damage ----------------------------------------------------------------------


def test_neither_the_file_nor_its_log_grows_with_the_data(tmp_path: Path):
    path = tmp_path / "leveret.db"
    rows = [old_row(number, os.urandom(1000)) for number in range(1, 40_000)]
    create_old(path, rows).close()
    before = path.stat().st_size
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in AT_WRITER_START:
            connection.execute(statement).fetchall()
        migrate(connection)
        assert (tmp_path / WAL_NAME).stat().st_size < 5 * migration_to_packs.PORTION_BYTES
    assert path.stat().st_size < before + 3 * migration_to_packs.PORTION_BYTES


def both_tables(path: Path) -> tuple[list[int], list[int]]:
    """The ids of the rows, and of the messages in packs."""
    with closing(sqlite3.connect(path)) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
        rows = list(read_old(connection)) if "messages" in names else []
        packs = read_packs(connection) if "message_packs" in names else []
    return rows, [message_id for pack in packs for message_id in pack.ids]


@pytest.fixture
def many(tmp_path: Path) -> tuple[Path, dict[int, OldRow]]:
    """A stored directory with more messages."""
    with tarfile.open(OLD_DATA / "leveret-schema-3.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    with closing(sqlite3.connect(tmp_path / "data/leveret.db", isolation_level=None)) as connection:
        insert_old(connection, [old_row(number, b"b" * 300) for number in range(1000, 11_000)])
        return tmp_path / "data", read_old(connection)


async def test_killed_migration_continues(many: tuple[Path, dict[int, OldRow]]):
    data, rows = many
    chance, states = random.Random(11), set()
    for _ in range(6):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.unit.storage.migration_child", str(data),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert child.stdout is not None
        for _ in range(chance.randrange(40)):
            assert await child.stdout.readline()
        child.kill()
        await child.wait()
        left, packed = both_tables(data / "leveret.db")
        assert packed + left == list(rows), "a message is in both tables, or in none"
        states.add(len(left))
    assert len(states) > 2, "no migration was killed on its way"
    harness = Harness(data)
    with closing(sqlite3.connect(data / "leveret.db")) as connection:
        assert_same_messages(rows, read_packs(connection))
    assert len(harness.live(1)) == MESSAGES - TAKEN + 4
    await harness.close()
    assert not (data / DAMAGED_NAME).exists()


async def test_full_disk_is_an_error_that_loses_nothing(
    many: tuple[Path, dict[int, OldRow]], monkeypatch: pytest.MonkeyPatch
):
    data, rows = many
    pages = (data / "leveret.db").stat().st_size // PAGE_SIZE
    limit = (*AT_WRITER_START, f"PRAGMA max_page_count={pages + 20}")
    with monkeypatch.context() as patch:
        patch.setattr(statements, "AT_WRITER_START", limit)
        with pytest.raises(StoreError, match=r"cannot open the data in .*: .*disk is full"):
            Harness(data)
    left, packed = both_tables(data / "leveret.db")
    assert packed + left == list(rows)
    await Harness(data).close()
    with closing(sqlite3.connect(data / "leveret.db")) as connection:
        assert_same_messages(rows, read_packs(connection))


def leaf_with(data: Path, content: bytes) -> int:
    return (data / "leveret.db").read_bytes().index(content) // PAGE_SIZE


@pytest.mark.parametrize("content", ["zeroes", "another leaf"])
@pytest.mark.parametrize("is_interrupted", [False, True])
async def test_damaged_page_is_repaired_before_the_migration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, is_interrupted: bool
):
    with tarfile.open(OLD_DATA / "leveret-schema-3.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    data = tmp_path / "data"
    with closing(sqlite3.connect(data / "leveret.db")) as connection:
        rows = read_old(connection)
    if is_interrupted:
        interrupt(data, monkeypatch)
    file = bytearray((data / "leveret.db").read_bytes())
    leaf, other = (leaf_with(data, b"%d:" % number * 600) for number in (145, 170))
    page = bytes(PAGE_SIZE)
    if content == "another leaf":
        page = bytes(file[other * PAGE_SIZE : (other + 1) * PAGE_SIZE])
    file[leaf * PAGE_SIZE : (leaf + 1) * PAGE_SIZE] = page
    (data / "leveret.db").write_bytes(file)
    harness = Harness(data)
    assert (data / DAMAGED_NAME).exists()
    assert ", whose content cannot be read (ids " in str(harness.store.lost)
    live = [*harness.live(1), *harness.live(2), *harness.live(3)]
    assert await harness.unreadable(sorted(set(live))) == []
    with closing(sqlite3.connect(data / "leveret.db")) as connection:
        packs = read_packs(connection)
    kept = [message_id for pack in packs for message_id in pack.ids]
    assert 0 < len(set(rows) - set(kept)) < 10
    assert unreadable_in(packs).keys() == {i for i in kept if is_stripped(rows[i])}
    await harness.close()


def is_stripped(row: OldRow) -> bool:
    return row.body is None and row.size > 0 and row.first_part is None


def interrupt(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave some of the messages in packs."""
    with monkeypatch.context() as patch:
        patch.setattr(migration_to_packs, "PORTION_BYTES", 100_000)
        patch.setattr(migration_to_packs._Progress, "report", fail)
        with pytest.raises(StoreError, match="power failure"):
            Harness(data)
    left, packed = both_tables(data / "leveret.db")
    assert left
    assert packed


def fail(_self: object, _last: int, _count: int) -> None:
    raise OSError("power failure")


async def test_interrupted_migration_is_salvaged_with_both_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with tarfile.open(OLD_DATA / "leveret-schema-3.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    data, copy = tmp_path / "data", tmp_path / "copy"
    with closing(sqlite3.connect(data / "leveret.db")) as connection:
        rows = read_old(connection)
    interrupt(data, monkeypatch)
    shutil.copytree(data, copy)
    with closing(sqlite3.connect(copy / "leveret.db")) as connection:
        sql = "SELECT rootpage FROM sqlite_schema WHERE name = 'meta'"
        (meta,) = connection.execute(sql).fetchone()
    with (copy / "leveret.db").open("r+b") as file:
        file.seek((meta - 1) * PAGE_SIZE)
        file.write(bytes(PAGE_SIZE))
    for directory in (data, copy):
        harness = Harness(directory)
        assert len(harness.live(1)) == MESSAGES - TAKEN + 4
        with closing(sqlite3.connect(directory / "leveret.db")) as connection:
            assert_same_messages(rows, read_packs(connection))
        await harness.close()
    assert (copy / DAMAGED_NAME).exists()
