"""R-11: whole pages of a stopped broker's database are damaged, in every table and every index.

A page is filled with zeroes, with random bytes, with the content of another page of the same tree,
or of another tree. The broker must start, except without its first page; it must deliver no wrong
message; it must keep every message and definition that was not on the page; it must name what is
missing; and the next start must find nothing to repair. A pack of messages continues on other
pages: the messages on the damaged one may be lost, and those after it in the same pack.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leveret.launch import LaunchError, RunningBroker, in_process_settings
from leveret.model.definitions import (
    BindingDefinition,
    ExchangeDefinition,
    ParameterDefinition,
    PermissionDefinition,
    PolicyDefinition,
    TopicPermissionDefinition,
    UserDefinition,
    VhostDefinition,
)
from leveret.model.history import FIRST_SETTLING, LAST_SETTLING
from leveret.model.message import PARTS_FROM
from leveret.queues.storage.compiled_statements import PRIMARY_KEYS
from leveret.queues.storage.damage.btree import DamagedPage, TreeWalk
from leveret.queues.storage.damage.repair import DAMAGED_NAME
from leveret.queues.storage.damage.salvage import Schema, read_schema
from leveret.queues.storage.damage.sqlite_file import (
    FREE,
    OVERFLOW_FIRST,
    OVERFLOW_NEXT,
    Row,
    SqliteFile,
)
from leveret.queues.storage.directory import DATABASE_NAME
from leveret.queues.storage.packing import unpack_ids
from leveret.queues.storage.packs import Pack, PackRow
from tests.support.pack_pages import content_by_page
from tests.support.polling import wait_until_async
from tests.torture.checker import Ledger, read_body
from tests.torture.client import PROPERTIES, Client, ConnectionGone
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.publisher import Publisher

QUEUES = ("page-a", "page-b", "page-c")
LOG = "page-log"
MESSAGES, TAKEN, LARGE = 120, 40, 6
RECORDS = 20
OBJECTS = 90
DEFINITIONS = (
    "vhosts", "users", "permissions", "topic_permissions", "exchanges", "bindings", "policies",
    "parameters", "queues", "origins", "group_offsets", "meta",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """A page to damage. `tree`: a table, an index, or what the page belongs to."""

    page: int
    tree: str
    role: str

    def __str__(self) -> str:
        return f"page {self.page} ({self.role} of {self.tree})"


@dataclass(frozen=True, slots=True)
class Content:
    """What the sound database holds, and what of it is on each page."""

    live: dict[int, tuple[int, int]]
    """Publisher and sequence in the body of every message in a queue."""
    messages_on: dict[int, set[int]]
    """Messages with a part of their content on the page or after it in their pack, or named in a
    journal row on it."""
    definitions: dict[str, set[tuple[Any, ...]]]
    """The primary keys of every table."""
    definitions_on: dict[int, set[tuple[Any, ...]]]


async def damage_pages(
    directory: Path,
    cases: int,
    seed: int,
    messages: int = MESSAGES,
    progress: Progress = silent,
) -> Outcome:
    """`messages` in each queue; with 1,500 the table of messages has three levels of pages."""
    rng, ledger = random.Random(seed), Ledger()
    source = directory / "sound"
    await make_data(source, ledger, messages)
    content = read_content(source / DATABASE_NAME)
    chosen = choose_cases(source / DATABASE_NAME, rng)[:cases]
    counts: Counter[str] = Counter()
    problems: list[str] = []
    for done, (target, kind, data) in enumerate(chosen):
        damaged = directory / "damaged"
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(source, damaged)
        write_page(damaged / DATABASE_NAME, target.page, data)
        found = await Case(damaged, ledger, content, target, counts).run()
        problems += [f"{target}, {kind}: {problem}" for problem in found]
        progress(done + 1, len(chosen))
    trees = {target.tree for target, _, _ in chosen}
    figures = (
        f"{len(chosen)} pages of {len(trees)} tables, indexes and lists: {counts['started']} "
        f"starts, {counts['repaired']} repairs, {counts['refused']} refused without the first "
        f"page, {counts['missing']} messages lost with their pages, {counts['wrong']} wrong bodies"
    )
    return Outcome("R-11", "damaged pages", figures, tuple(problems))


# The data ----------------------------------------------------------------------------------------


async def make_data(directory: Path, ledger: Ledger, messages: int) -> None:
    """A little of everything, and enough of it for several pages in most tables."""
    settings = in_process_settings(data_dir=directory, frame_max=16 * 1024 * 1024)
    async with RunningBroker(settings) as running:
        for number, queue in enumerate(QUEUES):
            publisher = Publisher(ledger, queue, number, 1_700)
            await publisher.start(running.amqp_address)
            for _ in range(messages // 4):
                await publisher.send_many(4)  # many batches: many rows in the journal
            publisher.client.close()
            large = Publisher(ledger, queue, 10 + number, 30_000, declare=False)
            await large.start(running.amqp_address)
            await large.send_many(LARGE)
            large.client.close()
        in_parts = Publisher(ledger, QUEUES[1], 20, PARTS_FROM + 9, declare=False)
        await in_parts.start(running.amqp_address)
        await in_parts.send_many(1)
        in_parts.client.close()
        await _take(running, QUEUES[0], TAKEN)
        await _make_log(running)
        for definition in _definitions():
            running.broker.store.save(definition)
        await running.broker.commit_waiters.committed()
    _make_free_pages(directory / DATABASE_NAME)


async def _take(running: RunningBroker, queue: str, count: int) -> None:
    tags: list[int] = []
    client = await Client.connect(
        running.amqp_address, on_delivery=lambda tag, _r, _b: tags.append(tag)
    )
    await client.consume(queue, count)
    await wait_until_async(lambda: len(tags) >= count)
    for tag in range(1, count + 1):
        client.ack(tag, False)
        await client.sync()
    client.close()


async def _make_log(running: RunningBroker) -> None:
    client = await Client.connect(
        running.amqp_address, on_delivery=lambda tag, _r, _b: client.ack(tag, False)
    )
    await client.declare(LOG, arguments={"x-queue-type": "stream"})
    client.publish_all("", LOG, [b"record"] * RECORDS, PROPERTIES["persistent"])
    await client.consume(LOG, 10, arguments={"x-group": "readers", "x-stream-offset": "first"})
    log: Any = running.broker.vhosts["/"].queues[LOG]
    await wait_until_async(
        lambda: any(group.committed(0) == RECORDS for group in log.readers.groups.values())
    )
    client.close()


def _definitions() -> Iterator[Any]:
    for number in range(OBJECTS):
        name, text = f"object-{number:03}", "x" * 60
        yield VhostDefinition(name, json.dumps({"description": text}))
        yield UserDefinition(name, text * 2, "sha256", "monitoring")
        yield PermissionDefinition(name, name, ".*", "w" * 40, "r" * 40)
        yield TopicPermissionDefinition(name, name, "amq.topic", "w" * 40, "r" * 40)
        yield PolicyDefinition(name, name, False, f"^{text}", "all", 1, '{"max-length": 5}')
        yield ParameterDefinition(name, "test", name, json.dumps({"value": text}))
        yield ExchangeDefinition(name, name, "topic", False, False, json.dumps({"x-note": text}))
        yield BindingDefinition("/", "amq.topic", QUEUES[number % 3], "queue", f"{name}.{text}.#")


def _make_free_pages(database: Path) -> None:
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE scratch (content BLOB)")
    connection.execute("INSERT INTO scratch VALUES (zeroblob(200000))")
    connection.execute("DROP TABLE scratch")
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def read_content(database: Path) -> Content:
    connection = sqlite3.connect(database)
    schema = read_schema(connection)
    bodies, large = _read_bodies(connection)
    keys = {table: _keys(connection, table) for table in DEFINITIONS}
    rows = {id_: row for id_, *row in connection.execute("SELECT id, ids, kind FROM events")}
    connection.close()
    packs = schema.maybe_tree("message_packs")
    assert packs is not None
    messages_on = {
        page: content.touched | content.behind
        for page, content in content_by_page(database, packs).items()
    }
    definitions_on: dict[int, set[tuple[Any, ...]]] = {}
    settled: set[int] = set()
    for ids, kind in rows.values():
        settled |= set(unpack_ids(ids)) if FIRST_SETTLING <= kind <= LAST_SETTLING else set()
    with SqliteFile(database) as file:
        for page, tree, row in _rows_by_page(file, schema):
            if tree == "body_parts":
                messages_on.setdefault(page, set()).add(large[row.rowid])
            elif tree == "events":
                messages_on.setdefault(page, set()).update(unpack_ids(rows[row.rowid][0]))
            elif tree in DEFINITIONS:
                definitions_on.setdefault(page, set()).add(
                    (tree, *_key_of(keys[tree], row.values, row.rowid))
                )
        for page, leaf in _overflow_pages(file):
            messages_on.setdefault(page, messages_on.get(leaf, set()))
    live = {
        message_id: known
        for message_id, body in bodies.items()
        if message_id not in settled and (known := read_body(body)) is not None
    }
    return Content(live, messages_on, keys, definitions_on)


def _read_bodies(connection: sqlite3.Connection) -> tuple[dict[int, bytes], dict[int, int]]:
    """The body of every message; and for each part of a large body, its message."""
    parts = dict(connection.execute("SELECT id, data FROM body_parts"))
    bodies: dict[int, bytes] = {}
    large: dict[int, int] = {}
    for row in map(PackRow._make, connection.execute("SELECT * FROM message_packs")):
        pack = Pack(row)
        for message_id, (_, body, _) in zip(pack.ids, pack.contents(), strict=True):
            bodies[message_id] = body or b""
        if row.first_part is not None:
            numbers = range(row.first_part, row.first_part + row.parts)
            large.update(dict.fromkeys(numbers, row.id))
            bodies[row.id] = b"".join(parts[number] for number in numbers)
    return bodies, large


def _keys(connection: sqlite3.Connection, table: str) -> set[tuple[Any, ...]]:
    names = ", ".join(f'"{name}"' for name in PRIMARY_KEYS[table])
    return set(connection.execute(f"SELECT {names} FROM {table}"))


def _key_of(keys: set[tuple[Any, ...]], values: tuple[Any, ...], rowid: int) -> tuple[Any, ...]:
    width = len(next(iter(keys)))
    key = values[:width]
    return key if key in keys else (rowid,)


def _rows_by_page(file: SqliteFile, schema: Schema) -> Iterator[tuple[int, str, Row]]:
    for tree in schema.tables:
        for page in TreeWalk(file, tree).pages():
            assert not isinstance(page, DamagedPage), page
            if page.node.is_leaf:
                for row in file.rows(page.node):
                    assert row is not None
                    yield page.node.number, tree.name, row


def _overflow_pages(file: SqliteFile) -> Iterator[tuple[int, int]]:
    """Pages with the rest of a row, and the leaf with its beginning, by the pointer map."""
    for number, (kind, parent) in file.pointers.items():
        if kind in (OVERFLOW_FIRST, OVERFLOW_NEXT):
            while file.pointers[parent][0] == OVERFLOW_NEXT:
                parent = file.pointers[parent][1]
            if file.pointers[parent][0] == OVERFLOW_FIRST:
                parent = file.pointers[parent][1]
            yield number, parent


# Damage ------------------------------------------------------------------------------------------


def choose_cases(database: Path, rng: random.Random) -> list[tuple[Target, str, bytes]]:
    """All kinds of damage for all kinds of pages, so that each tree comes early."""
    connection = sqlite3.connect(database)
    schema = read_schema(connection)
    connection.close()
    cases: list[tuple[Target, str, bytes]] = []
    with SqliteFile(database) as file:
        pages = dict(_pages_of_trees(file, schema))
        others = [number for numbers in pages.values() for number in numbers]
        for target in _targets(file, pages):
            contents = {
                "zeroes": bytes(file.page_size),
                "random bytes": rng.randbytes(file.page_size),
                "a page of another tree": file.page(rng.choice(others)),
            }
            same = [number for number in pages.get(target.tree, []) if number != target.page]
            if same:
                contents["another page of the tree"] = file.page(rng.choice(same))
            sound = file.page(target.page)
            cases += [(target, kind, data) for kind, data in contents.items() if data != sound]
    rng.shuffle(cases)
    rank: Counter[str] = Counter()
    ranks = []
    for target, _, _ in cases:
        rank[target.tree] += 1
        ranks.append(rank[target.tree])
    return [case for _, case in sorted(zip(ranks, cases, strict=True), key=lambda pair: pair[0])]


def _pages_of_trees(file: SqliteFile, schema: Schema) -> Iterator[tuple[str, list[int]]]:
    for tree in schema.trees:
        yield (
            tree.name,
            [
                page.node.number
                for page in TreeWalk(file, tree).pages()
                if not isinstance(page, DamagedPage)
            ],
        )


def _targets(file: SqliteFile, pages: dict[str, list[int]]) -> Iterator[Target]:
    yield Target(1, "the header and schema", "first page")
    for number in filter(file.is_map_page, range(2, file.page_count + 1)):
        yield Target(number, "the pointer map", "page")
    for tree, (root, *rest) in pages.items():
        yield Target(root, tree, "root")
        nodes = {number: file.maybe_node(number) for number in rest}
        leaves = [number for number, node in nodes.items() if node is not None and node.is_leaf]
        for number in rest:
            if number not in leaves:
                yield Target(number, tree, "interior page")
        for number in {*leaves[:1], *leaves[len(leaves) // 2 : len(leaves) // 2 + 1], *leaves[-1:]}:
            yield Target(number, tree, "leaf")
    free = [number for number, (kind, _) in file.pointers.items() if kind == FREE]
    others: dict[str, list[int]] = {"the list of free pages": free}
    trees = {number: tree for tree, numbers in pages.items() for number in numbers}
    for number, leaf in _overflow_pages(file):
        others.setdefault(f"the rest of rows of {trees[leaf]}", []).append(number)
    for name, found in others.items():
        step = max(1, len(found) // 8)
        for number in {*found[::step], found[-1]}:
            yield Target(number, name, "page")


def write_page(database: Path, number: int, data: bytes) -> None:
    with database.open("r+b") as file:
        file.seek((number - 1) * len(data))
        file.write(data)


# One damaged page --------------------------------------------------------------------------------


@dataclass(slots=True)
class Case:
    data: Path
    ledger: Ledger
    content: Content
    target: Target
    counts: Counter[str]
    problems: list[str] = field(default_factory=list)
    lost_texts: list[str] = field(default_factory=list)

    async def run(self) -> list[str]:
        first = await self._serve(must_name=True)
        if first is None:
            return self.problems
        repairs = self._repairs()
        self.counts["repaired"] += repairs
        self._check_definitions()
        second = await self._serve()
        if self._repairs() != repairs:
            self.problems.append("the second start repaired again")
        if second is not None and second != first:
            self.problems.append(f"the second start has {len(second)} messages, not {len(first)}")
        return self.problems

    def _repairs(self) -> int:
        return len(list((self.data / DAMAGED_NAME).glob("*")))

    async def _serve(self, *, must_name: bool = False) -> set[tuple[int, int]] | None:
        """Start and read everything; None if the start was refused."""
        running = RunningBroker(in_process_settings(data_dir=self.data))
        try:
            await running.start()
        except LaunchError as error:
            self._check_refusal(str(error))
            return None
        except Exception as error:  # noqa: BLE001 - any exception is a problem
            self.problems.append(f"did not start: {error!r}")
            return None
        self.counts["started"] += 1
        try:
            self.lost_texts = [lost.text for lost in running.broker.store.lost]
            seen = await self._read_queues(running)
            self._check_messages(running, seen, must_name)
            self._check_log(running)
            return seen
        except Exception as error:  # noqa: BLE001 - any exception is a problem
            self.problems.append(f"while serving: {error!r}")
            return None
        finally:
            await running.stop()

    def _check_refusal(self, text: str) -> None:
        self.counts["refused"] += 1
        if self.target.page != 1:
            self.problems.append(f"refused: {text}")
        elif "leveret salvage" not in text or "backup" not in text:
            self.problems.append(f"the refusal does not name the options: {text}")

    async def _read_queues(self, running: RunningBroker) -> set[tuple[int, int]]:
        """Consume without acks, so that the data stays for the next start."""
        await self._ensure_login(running)
        seen: set[tuple[int, int]] = set()

        def on_delivery(_tag: int, _redelivered: bool, body: bytes) -> None:
            known = read_body(body)
            if known is None:
                self.counts["wrong"] += 1
                self.problems.append("a wrong body was delivered")
            else:
                seen.add(known)

        for name, queue in list(running.broker.vhosts["/"].queues.items()):
            if queue.spec.kind == "classic":
                client = await Client.connect(running.amqp_address, on_delivery=on_delivery)
                await client.consume(name, 0)
                await wait_until_async(lambda queue=queue: not queue.ready_count)  # type: ignore[misc]
                await client.sync()
                client.close()
        return seen

    async def _ensure_login(self, running: RunningBroker) -> None:
        try:
            (await Client.connect(running.amqp_address)).close()
        except ConnectionGone:
            if not self.lost_texts:
                self.problems.append("login refused, but nothing is named as lost")
            running.broker.make_default_user()

    def _check_messages(
        self, running: RunningBroker, seen: set[tuple[int, int]], must_name: bool
    ) -> None:
        live = self.content.live
        missing = {message_id for message_id, known in live.items() if known not in seen}
        self.counts["missing"] += len(missing)
        not_on_page = missing - self.content.messages_on.get(self.target.page, set())
        if not_on_page:
            self.problems.append(f"{len(not_on_page)} messages lost that were not on the page")
        queues = running.broker.vhosts["/"].queues.values()
        unreadable = sum(queue.counters.unreadable for queue in queues)
        if must_name and missing and not self.lost_texts and not unreadable:
            self.problems.append(f"{len(missing)} messages are missing and not named")
        if seen - set(live.values()) and not self.target.tree.endswith("events"):
            self.problems.append("settled messages came again")

    def _check_log(self, running: RunningBroker) -> None:
        queues = running.broker.vhosts["/"].queues
        logs: list[Any] = [queue for queue in queues.values() if queue.spec.kind == "stream"]
        if [log.next_offset for log in logs] != [RECORDS]:
            self.problems.append(f"the log is {logs}")
        groups = [group.committed(0) for log in logs for group in log.readers.groups.values()]
        if groups != [RECORDS] and not self.lost_texts:
            self.problems.append(f"the group is at {groups}")

    def _check_definitions(self) -> None:
        """What is on no other page may be missing, if it is named."""
        connection = sqlite3.connect(self.data / DATABASE_NAME)
        on_page = self.content.definitions_on.get(self.target.page, set())
        for table, sound in self.content.definitions.items():
            found = _keys(connection, table)
            missing = {(table, *key) for key in sound - found}
            if self.target.tree == "queues" and table == "bindings":
                continue  # bindings go with their queues
            if missing - on_page:
                self.problems.append(f"{len(missing - on_page)} rows of {table} were not on it")
            if missing and not self.lost_texts:
                self.problems.append(f"{len(missing)} rows of {table} are not named")
            if found - sound and table not in ("meta", "queues", "origins"):
                self.problems.append(f"{table} has {found - sound}")
        connection.close()
