"""Whole pages of the file are damaged: R-11 tries all of them with a broker; here are the rules."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from leveret.model.definitions import (
    BindingDefinition,
    GroupOffset,
    PermissionDefinition,
    TopicPermissionDefinition,
    UserDefinition,
    VhostDefinition,
)
from leveret.model.history import EventKind, Keep
from leveret.model.message import PART_BYTES, PARTS_FROM, Address, LargeBody, Message, part_count
from leveret.model.run import Run
from leveret.model.store import RetentionRequest, StoreError, StoreState
from leveret.queues.storage.damage.btree import DamagedPage, Tree, TreeWalk
from leveret.queues.storage.damage.repair import DAMAGED_NAME, find_damage
from leveret.queues.storage.damage.salvage import read_schema, salvage_database
from leveret.queues.storage.damage.source_copy import copy_database
from leveret.queues.storage.damage.sqlite_file import SqliteFile
from leveret.queues.storage.statements import PAGE_SIZE
from leveret.queues.storage.trims import Trims
from tests.contract.stores import PROPERTIES, Harness, run_of_one
from tests.support.pack_pages import PageContent, content_by_page

SINGLE, MESSAGES = 3_000, 5_000
"""With bodies of 2.6 KB. Each of the first ones is a pack, so that there is more than one interior
page below the root of the table; the others are in packs of ten."""


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
        keep = Keep.METADATA if number < SINGLE and number % 2 else Keep.FULL
        harness.publish(b"%04d" % number * 650, [1 + number % 2], keep=keep)
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
    first, *others = pages_of(data, "message_packs", is_leaf=False)
    assert others, "the table needs three levels"
    contents = {
        "zeroes": bytes(PAGE_SIZE),
        "a leaf": content_of(data, pages_of(data, "message_packs", is_leaf=True)[0]),
        "another interior page": content_of(data, others[0]),
    }
    overwrite(data, first, contents[content])
    harness = Harness(data)
    assert await read_all(harness) == list(range(1, MESSAGES + 1))
    assert lost_texts(harness) == ""
    await harness.close()


@pytest.mark.parametrize("name", ["message_packs", "events", "bindings", "users"])
async def test_destroyed_root_loses_nothing_of_a_larger_table(data: Path, name: str):
    overwrite(data, tree_of(data, name).root)
    harness = Harness(data)
    assert await read_all(harness) == list(range(1, MESSAGES + 1))
    assert len(harness.query("SELECT 1 FROM users")) == 200
    assert len(harness.query("SELECT 1 FROM bindings")) == 200
    assert lost_texts(harness) == ""
    await harness.close()


async def test_destroyed_page_of_the_pointer_map_loses_nothing(data: Path):
    """The children of a page are on more than one page of the map."""
    with SqliteFile(data / "leveret.db") as file:
        first, _ = filter(file.is_map_page, range(2, file.page_count + 1))
    overwrite(data, first)
    harness = Harness(data)
    assert await read_all(harness) == list(range(1, MESSAGES + 1))
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


async def test_entries_of_another_index_are_not_taken_for_keys(data: Path):
    """Both indexes have entries of three values."""
    page = pages_of(data, "events_by_queue", is_leaf=True)[0]
    index = tree_of(data, "sqlite_autoindex_permissions_1")
    overwrite(data, index.root, content_of(data, page))
    harness = Harness(data)
    assert len(harness.query("SELECT 1 FROM permissions")) == 200
    assert lost_texts(harness) == ""
    await harness.close()


@pytest.mark.parametrize("other", ["sqlite_autoindex_group_offsets_1", "packs_with_parts"])
async def test_journal_is_not_looked_up_in_another_index(tmp_path: Path, other: str):
    """A short journal has an index of one page. The index of a table without rows is empty."""
    harness = Harness(tmp_path)
    harness.declare(1)
    harness.store.save(GroupOffset(2, "readers", 41, 1))
    harness.publish_many(3)
    await harness.durable()
    await harness.close()
    root = tree_of(tmp_path, "events_by_queue").root
    overwrite(tmp_path, root, content_of(tmp_path, tree_of(tmp_path, other).root))
    harness = Harness(tmp_path)
    assert harness.live(1) == [1, 2, 3]
    assert lost_texts(harness) == ""
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
    overwrite(data, pages_of(data, "message_packs", is_leaf=True)[5])
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


def overflow_page(data: Path) -> tuple[int, PageContent]:
    """In the middle of a pack: it has some of its messages, and others come before and after."""
    pages = content_by_page(data / "leveret.db", tree_of(data, "message_packs"))
    found = [
        (number, content)
        for number, content in pages.items()
        if 1 < len(content.touched) < 5 and 1 < len(content.behind) < 5
    ]
    return found[0]


CONTENTS = {
    "zeroes": bytes(PAGE_SIZE),
    "random bytes": random.Random(7).randbytes(PAGE_SIZE),
    "a chain that goes back": (3).to_bytes(4, "big") + bytes(PAGE_SIZE - 4),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())
async def test_repair_loses_only_messages_on_the_page_of_a_pack(data: Path, content: bytes):
    page, expected = overflow_page(data)
    overwrite(data, page, content)
    overwrite(data, tree_of(data, "users").root)
    harness = Harness(data)
    assert set(range(1, MESSAGES + 1)) - {*harness.live(1), *harness.live(2)} == expected.touched
    assert len(await read_all(harness)) == MESSAGES - len(expected.touched)
    for queue in (1, 2):
        ids = sorted(i for i in expected.touched if i % 2 == queue % 2)
        text = f"queue 'q{queue}' has lost {len(ids)} message"
        assert text in lost_texts(harness)
        assert all(str(message_id) in lost_texts(harness) for message_id in ids)
    ((trims,),) = harness.query("SELECT value FROM meta WHERE key = 'trimmed_messages'")
    assert Trims.from_json(trims).last_deleted_since(0) == max(expected.touched)
    await harness.close()


async def scatter(data: Path) -> None:
    """Leave free pages between others, so that the next pages of a pack are not consecutive."""
    await Harness(data).close()
    connection = sqlite3.connect(data / "leveret.db")
    for name in ("kept", "dropped"):
        connection.execute(f"CREATE TABLE {name} (content BLOB)")
    for _ in range(50):
        for name in ("kept", "dropped"):
            connection.execute(f"INSERT INTO {name} VALUES (zeroblob(?))", (PAGE_SIZE // 2 + 99,))
    connection.execute("DROP TABLE dropped")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())
@pytest.mark.parametrize("is_scattered", [False, True])
async def test_messages_before_the_damaged_page_of_a_pack_are_read(
    tmp_path: Path, content: bytes, is_scattered: bool
):
    """Without a repair: a start does not look at these pages."""
    if is_scattered:
        await scatter(tmp_path)
    harness = Harness(tmp_path)
    harness.declare(1)
    count = len(harness.publish_many(20, b"body" * 700))
    await harness.durable()
    await harness.close()
    page, expected = overflow_page(tmp_path)
    overwrite(tmp_path, page, content)
    harness = Harness(tmp_path)
    unreadable = set(await harness.unreadable(range(1, count + 1)))
    assert expected.touched <= unreadable <= expected.touched | expected.behind
    assert not (tmp_path / DAMAGED_NAME).exists()
    await harness.close()


@pytest.mark.parametrize("content", [*CONTENTS, "another leaf"])
@pytest.mark.parametrize("position", [40, -2])
async def test_messages_on_other_leaves_are_read(data: Path, content: str, position: int):
    """Without a repair. A search for the last pack of a leaf begins on the next leaf."""
    leaves = pages_of(data, "message_packs", is_leaf=True)
    page = leaves[position]
    expected = content_by_page(data / "leveret.db", tree_of(data, "message_packs"))[page].touched
    overwrite(data, page, CONTENTS.get(content) or content_of(data, leaves[7]))
    harness = Harness(data)
    assert set(await harness.unreadable(range(1, MESSAGES + 1))) == expected
    assert not (data / DAMAGED_NAME).exists()
    await harness.close()


async def test_lost_leaf_loses_the_packs_on_it(data: Path):
    tree = tree_of(data, "message_packs")
    page = pages_of(data, "message_packs", is_leaf=True)[-2]
    expected = content_by_page(data / "leveret.db", tree)[page].touched
    overwrite(data, page)
    overwrite(data, tree_of(data, "users").root)
    harness = Harness(data)
    assert expected
    assert set(range(1, MESSAGES + 1)) - {*harness.live(1), *harness.live(2)} == expected
    text = f"the content of messages {min(expected)} to {max(expected)} is lost"
    assert text in lost_texts(harness)
    await harness.close()


async def test_message_whose_body_has_lost_a_part_is_named(tmp_path: Path):
    data = tmp_path / "large"
    harness = Harness(data)
    harness.declare(1)
    store = harness.store
    body = LargeBody([bytes(PARTS_FROM + 1)])
    body.first_part = store.reserve_parts(part_count(len(body)))
    message = Message.build(Address.of("", "q1"), PROPERTIES, body)
    message.id = next(store.ids)
    store.append_parts(body.first_part, list(body.parts()))
    store.append(Run.of([message]))
    store.record(EventKind.ENQUEUED, 1, message.id, size=len(body))
    small = harness.publish(b"small")
    await harness.durable()
    await harness.close()
    overwrite(data, tree_of(data, "body_parts").root)
    harness = Harness(data)
    assert harness.live(1) == [small]
    assert f"(ids {message.id})" in lost_texts(harness)
    assert await harness.bodies([small]) == [b"small"]
    await harness.close()


@pytest.mark.parametrize("is_repaired", [False, True])
async def test_transaction_that_has_lost_a_part_has_the_other_messages(
    tmp_path: Path, is_repaired: bool
):
    harness = Harness(tmp_path)
    harness.declare(1)
    store, size = harness.store, 100_000
    runs = [run_of_one(0, 1, 0, "", "q1", PROPERTIES, bytes([n]) * size) for n in range(30)]
    staged = store.stage(runs)
    await harness.durable()
    for run in runs:
        run.ids = [next(store.ids)]
    store.append(staged)
    ids = [run.ids[0] for run in runs]
    store.record_many(EventKind.ENQUEUED, 1, ids, sizes=[size] * len(ids))
    await harness.durable()
    await harness.close()
    with closing(sqlite3.connect(tmp_path / "leveret.db")) as connection:
        connection.execute("DELETE FROM body_parts WHERE id = 2")
        connection.commit()
    if is_repaired:
        overwrite(tmp_path, tree_of(tmp_path, "users").root)
    length = len(runs[0].frames[0])
    expected = [
        message_id
        for at, message_id in enumerate(ids)
        if at * length < 2 * PART_BYTES and (at + 1) * length > PART_BYTES
    ]
    harness = Harness(tmp_path)
    lost = sorted(set(ids) - set(harness.live(1))) if is_repaired else await harness.unreadable(ids)
    assert lost == expected
    kept = [message_id for message_id in ids if message_id not in expected]
    assert await harness.bodies(kept) == [bytes([ids.index(one)]) * size for one in kept]
    await harness.close()


async def test_retention_skips_damaged_pages(data: Path):
    pages = pages_of(data, "message_packs", is_leaf=True)
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
        (b"CREATE TABLE message_packs (\n\tid ", 0x80),
        (b"tablemessage_packsmessage_packs", 0x80),
        (b"tablemessage_pack", 0x20),
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
    assert report.tables["message_packs"].rows > SINGLE
    assert (report.tables["users"].rows, report.lost) == (200, [])


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
