"""Whole pages of the file are damaged: R-11 tries all of them with a broker; here are the rules."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from leveret.model.definitions import (
    BindingDefinition,
    PermissionDefinition,
    TopicPermissionDefinition,
    UserDefinition,
    VhostDefinition,
)
from leveret.model.store import RetentionRequest, StoreError, StoreState
from leveret.queues.storage.damage.btree import DamagedPage, Tree, TreeWalk
from leveret.queues.storage.damage.repair import DAMAGED_NAME, find_damage
from leveret.queues.storage.damage.salvage import read_schema, salvage_database
from leveret.queues.storage.damage.source_copy import copy_database
from leveret.queues.storage.damage.sqlite_file import SqliteFile
from leveret.queues.storage.statements import PAGE_SIZE
from leveret.queues.storage.trims import Trims
from tests.contract.stores import Harness

MESSAGES = 4_000
"""With bodies of 2.6 KB, more than one interior page below the root of the table of messages."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sound")
    asyncio.run(fill(directory))
    return directory


async def fill(directory: Path) -> None:
    harness = Harness(directory)
    harness.store.save(VhostDefinition("/"))
    for number in range(200):
        name = f"user-{number:03}"
        harness.store.save(UserDefinition(name, "hash" * 20, "sha256"))
        harness.store.save(PermissionDefinition(name, "/", "c" * 40, "w" * 40, "r"))
        harness.store.save(BindingDefinition("/", "amq.topic", "q1", "queue", f"key.{name}" * 9))
    harness.store.save(TopicPermissionDefinition("user-001", "/", "amq.topic", "w", "r"))
    harness.declare(1)
    harness.declare(2)
    for number in range(MESSAGES):
        harness.publish(b"%04d" % number * 650, [1 + number % 2])
        if not number % 10:
            await harness.durable()
    await harness.durable()
    await harness.close()


@pytest.fixture
def data(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "data"))


def tree_of(data: Path, name: str) -> Tree:
    connection = sqlite3.connect(data / "leveret.db")
    tree = read_schema(connection).maybe_tree(name)
    connection.close()
    assert tree is not None
    return tree


def pages_of(data: Path, name: str, is_leaf: bool) -> list[int]:
    """The root is not among them."""
    tree = tree_of(data, name)
    with SqliteFile(data / "leveret.db") as file:
        pages = list(TreeWalk(file, tree).pages())
    assert not any(isinstance(page, DamagedPage) for page in pages)
    nodes = [page.node for page in pages if not isinstance(page, DamagedPage)]
    return [node.number for node in nodes[1:] if node.is_leaf == is_leaf]


def overwrite(data: Path, page: int, content: bytes = bytes(PAGE_SIZE)) -> None:
    with (data / "leveret.db").open("r+b") as file:
        file.seek((page - 1) * PAGE_SIZE)
        file.write(content)


def content_of(data: Path, page: int) -> bytes:
    return (data / "leveret.db").read_bytes()[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]


def lost_texts(harness: Harness) -> str:
    return "\n".join(lost.text for lost in harness.store.lost)


async def read_all(harness: Harness) -> list[int]:
    live = [*harness.live(1), *harness.live(2)]
    unreadable = set(await harness.unreadable(live))
    return sorted(message_id for message_id in live if message_id not in unreadable)


def test_sound_database_has_no_damage(data: Path):
    connection = sqlite3.connect(data / "leveret.db", isolation_level=None)
    assert find_damage(connection, data / "leveret.db") == []
    connection.close()


@pytest.mark.parametrize("content", ["zeroes", "a leaf", "another interior page"])
async def test_pages_below_a_destroyed_interior_page_are_found(data: Path, content: str):
    first, *others = pages_of(data, "messages", is_leaf=False)
    assert others, "the table needs three levels"
    contents = {
        "zeroes": bytes(PAGE_SIZE),
        "a leaf": content_of(data, pages_of(data, "messages", is_leaf=True)[0]),
        "another interior page": content_of(data, others[0]),
    }
    overwrite(data, first, contents[content])
    harness = Harness(data)
    assert await read_all(harness) == list(range(1, MESSAGES + 1))
    assert lost_texts(harness) == ""
    await harness.close()


@pytest.mark.parametrize("name", ["messages", "events", "bindings", "users"])
async def test_destroyed_root_loses_nothing_of_a_larger_table(data: Path, name: str):
    overwrite(data, tree_of(data, name).root)
    harness = Harness(data)
    assert await read_all(harness) == list(range(1, MESSAGES + 1))
    assert len(harness.query("SELECT 1 FROM users")) == 200
    assert len(harness.query("SELECT 1 FROM bindings")) == 200
    assert lost_texts(harness) == ""
    await harness.close()


async def test_damaged_file_is_kept_with_a_report(data: Path):
    overwrite(data, tree_of(data, "users").root)
    damaged = (data / "leveret.db").read_bytes()
    await Harness(data).close()
    (kept,) = (data / DAMAGED_NAME).iterdir()
    assert (kept / "leveret.db").read_bytes() == damaged
    assert "sqlite_autoindex_users" not in (kept / "report.json").read_text()
    again = Harness(data)
    assert len(list((data / DAMAGED_NAME).iterdir())) == 1
    await again.close()


async def test_bindings_are_restored_from_their_index(data: Path):
    overwrite(data, pages_of(data, "bindings", is_leaf=True)[0])
    harness = Harness(data)
    assert len(harness.query("SELECT 1 FROM bindings")) == 200
    assert lost_texts(harness) == ""
    await harness.close()


async def test_lost_users_are_named(data: Path):
    overwrite(data, pages_of(data, "users", is_leaf=True)[0])
    harness = Harness(data)
    kept = {name for (name,) in harness.query("SELECT name FROM users")}
    missing = {f"user-{number:03}" for number in range(200)} - kept
    assert missing
    assert all(f"user '{name}' is lost" in lost_texts(harness) for name in missing)
    await harness.close()
    again = Harness(data)
    assert again.store.lost, "the report is shown until its folder is removed"
    await again.close()


async def test_rows_of_another_table_are_not_taken_for_permissions(data: Path):
    """Both tables have five columns of text: only the index tells which rows belong here."""
    page = pages_of(data, "permissions", is_leaf=True)[0]
    overwrite(data, page, content_of(data, tree_of(data, "topic_permissions").root))
    harness = Harness(data)
    assert not harness.query("SELECT 1 FROM permissions WHERE configure = 'amq.topic'")
    assert "the permissions of user" in lost_texts(harness)
    await harness.close()


async def test_messages_of_a_lost_queue_are_in_a_recovered_queue(data: Path):
    overwrite(data, tree_of(data, "queues").root)
    harness = Harness(data)
    names = [name for (name,) in harness.query("SELECT name FROM queues ORDER BY id")]
    assert names == ["leveret.recovered.1", "leveret.recovered.2"]
    assert await read_all(harness) == list(range(1, MESSAGES + 1))
    assert "probably 'q1'" in lost_texts(harness)
    await harness.close()


@pytest.mark.parametrize("table", ["vhosts", "meta", "bindings"])
async def test_rows_of_another_table_are_not_taken_for_queues(data: Path, table: str):
    """Short rows are valid: SQLite fills columns that were added later with their defaults."""
    page = [tree_of(data, table).root, *pages_of(data, table, is_leaf=True)][-1]
    overwrite(data, tree_of(data, "queues").root, content_of(data, page))
    harness = Harness(data)
    assert await read_all(harness) == list(range(1, MESSAGES + 1))
    await harness.close()


async def test_queue_names_the_rows_of_its_journal_that_are_lost(data: Path):
    overwrite(data, pages_of(data, "events", is_leaf=True)[1])
    harness = Harness(data)
    assert "queue 'q1' has lost" in lost_texts(harness)
    assert len(await read_all(harness)) < MESSAGES
    await harness.close()


async def test_lost_content_is_dropped_at_a_repair(data: Path):
    """The pages of messages are not looked at by a start, but a repair looks at all of them."""
    overwrite(data, pages_of(data, "messages", is_leaf=True)[5])
    overwrite(data, tree_of(data, "users").root)
    harness = Harness(data)
    live = sorted([*harness.live(1), *harness.live(2)])
    assert await harness.unreadable(live) == []
    assert 0 < MESSAGES - len(live) < 10
    assert "whose content cannot be read" in lost_texts(harness)
    ((trims,),) = harness.query("SELECT value FROM meta WHERE key = 'trimmed_messages'")
    lost = set(range(1, MESSAGES + 1)) - set(live)
    assert Trims.from_json(trims).last_deleted_since(0) == max(lost), "readers are told"
    await harness.close()


async def test_retention_skips_damaged_pages(data: Path):
    pages = pages_of(data, "messages", is_leaf=True)
    overwrite(data, pages[0])
    overwrite(data, pages[50])
    overwrite(data, pages_of(data, "events", is_leaf=True)[0])
    connection = sqlite3.connect(data / "leveret.db")
    connection.execute("UPDATE queues SET deleted_ms = 1")
    connection.commit()
    connection.close()
    harness = Harness(data)
    usage = await harness.store.apply_retention(RetentionRequest(MESSAGES, max_bytes=0))
    assert usage.removed
    assert harness.store.state is StoreState.RUNNING
    assert len(harness.query("SELECT 1 FROM sqlite_schema")) > 5
    await harness.close()
    again = Harness(data)  # the damage was found while it ran: now it is repaired
    assert list((data / DAMAGED_NAME).iterdir())
    await again.close()


@pytest.mark.parametrize("content", [bytes(PAGE_SIZE), b"x" * PAGE_SIZE])
def test_without_the_first_page_the_options_are_named(data: Path, content: bytes):
    overwrite(data, 1, content)
    with pytest.raises(StoreError, match=r"backup, or copy what is readable .*`leveret salvage"):
        Harness(data)


async def test_repair_needs_space(data: Path, monkeypatch: pytest.MonkeyPatch):
    overwrite(data, tree_of(data, "users").root)
    free: Callable[[object], int] = lambda _self: 1000  # noqa: E731
    path = "leveret.queues.storage.directory.DataDirectory.free_bytes"
    monkeypatch.setattr(path, free)
    with pytest.raises(StoreError, match=r"a repair needs .* bytes of disk space"):
        Harness(data)


async def test_repair_waits_until_nobody_else_reads(data: Path):
    """The commits in the write-ahead log would be missing in the new database."""
    broken = sqlite3.connect(data / "leveret.db")
    broken.execute("UPDATE users SET password_hash = CAST(x'ff' AS TEXT) WHERE name = 'user-007'")
    broken.commit()
    broken.execute("BEGIN")
    broken.execute("SELECT count(*) FROM users").fetchone()
    with pytest.raises(StoreError, match="another program reads it"):
        Harness(data)
    broken.close()
    harness = Harness(data)
    assert "user 'user-007'" in str(harness.store.lost)
    await harness.close()


@pytest.mark.parametrize(
    ("before", "lost"),
    [
        (b"user-100" + b"hash", "user 'user-100'"),
        (b"user-100/" + b"c" * 40, "the permissions of user 'user-100' in vhost '/'"),
    ],
)
async def test_row_with_a_text_that_is_not_utf8_is_lost_alone(data: Path, before: bytes, lost: str):
    content = bytearray((data / "leveret.db").read_bytes())
    position = content.index(before) + len(before)
    content[position] |= 0x80
    (data / "leveret.db").write_bytes(content)
    harness = Harness(data)
    assert lost in str(harness.store.lost)
    users = [row for row in harness.recovered.definitions if isinstance(row, UserDefinition)]
    permissions = [
        row for row in harness.recovered.definitions if isinstance(row, PermissionDefinition)
    ]
    assert len(users) + len(permissions) == 399
    await harness.close()


@pytest.mark.parametrize(
    ("before", "mask"),
    [
        (b"CREATE TABLE meta (\n\t", 0x80),
        (b"CREATE TABLE messages (\n\tid ", 0x80),
        (b"tablemessagesmessages", 0x80),
        (b"tablemessage", 0x20),
        (b"tableusers", 0x20),
    ],
)
def test_damaged_schema_is_refused_in_one_sentence_and_can_be_salvaged(
    data: Path, tmp_path: Path, before: bytes, mask: int
):
    content = bytearray((data / "leveret.db").read_bytes())
    content[content.index(before) + len(before) - (mask == 0x20)] ^= mask
    (data / "leveret.db").write_bytes(content)
    with pytest.raises(StoreError, match="`leveret salvage") as caught:
        Harness(data)
    assert "\n" not in str(caught.value)
    copy, damaged = copy_database(data, tmp_path)
    assert damaged == ["page 1, with the header and the schema"]
    report = salvage_database(copy, tmp_path / "new.db")
    assert (report.tables["messages"].rows, report.tables["users"].rows) == (MESSAGES, 200)


@pytest.mark.parametrize(
    ("offset", "value"),
    [(1, 0x1F), (1, 0x01), (5, 0x3F), (6, 0xFF), (7, 0xFF)],
    ids=[
        "free block outside",
        "free block among pointers",
        "content outside",
        "cells",
        "fragments",
    ],
)
async def test_header_of_a_page_that_only_writes_look_at_is_checked_at_the_start(
    data: Path, offset: int, value: int
):
    """SQLite reads such a page, and fails when it has to find space on it."""
    page = tree_of(data, "events_by_queue").root
    content = bytearray((data / "leveret.db").read_bytes())
    content[(page - 1) * PAGE_SIZE + offset] = value
    (data / "leveret.db").write_bytes(content)
    harness = Harness(data)
    assert (data / DAMAGED_NAME).exists()
    harness.publish(b"after the repair", [1])
    await harness.durable()
    await harness.close()
