"""Finds damage in the database when the broker starts, and replaces the database by a sound one.

Every start checks the structure of the definitions completely, and of messages and events all but
their leaves, which are read when they are needed. If something is damaged, `salvage` makes a new
database. The damaged one is kept in `damaged/<time>`, with a report of what is lost; the broker
shows that report until somebody removes the folder.

Runs on the starting thread, which holds the lock of the directory. A crash leaves either the
damaged database, which the next start repairs, or the new one.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Final

from leveret.model.store import LostData, StoreError
from leveret.queues.storage import statements
from leveret.queues.storage.damage.btree import (
    FREELIST,
    POINTER_MAP,
    DamagedPage,
    Tree,
    TreeWalk,
)
from leveret.queues.storage.damage.salvage import (
    SalvageReport,
    Schema,
    read_schema,
    salvage_database,
)
from leveret.queues.storage.damage.sqlite_file import Malformed, Node, SqliteFile
from leveret.queues.storage.damage.table_reader import TableReader, read_columns
from leveret.queues.storage.directory import (
    DATABASE_NAME,
    LOGS_NAME,
    NEW_SUFFIX,
    WAL_NAME,
    DataDirectory,
    advice,
)

log = logging.getLogger("leveret.store")

DAMAGED_NAME: Final = "damaged"
REPORT_NAME: Final = "report.json"
_LAZY: Final = frozenset({"messages", "message_packs", "body_parts", "events"})
_JOURNAL_INDEX: Final = "events_by_queue"
_INDEX_WIDTHS: Final = {_JOURNAL_INDEX: 3, "packs_with_parts": 2, "large_messages": 2}
"""How many numbers an entry has, with the rowid."""
_SPACE: Final = 1.1


def find_damage(connection: sqlite3.Connection, database: Path) -> list[str]:
    """Name the damaged pages and tables; empty if a process that reads holds up the check."""
    busy, frames, moved = connection.execute(statements.CHECKPOINT).fetchone()
    if busy or frames != moved:
        return []  # the file alone is not the whole database
    try:
        schema = read_schema(connection)
    except Malformed as error:
        return [str(error)]
    with SqliteFile(database) as file:
        pages = list(_damaged_pages(file, schema))
        for tree in schema.tables:
            if schema.maybe_key_index(tree.name) is None:
                columns = read_columns(connection, tree.name)
                reader = TableReader(file, tree, columns, None, frozenset())
                pages += reader.foreign_pages(leaves=tree.name not in _LAZY)
    found = list(dict.fromkeys(map(str, pages)))
    return found or _inconsistent_tables(connection, schema)


def _damaged_pages(file: SqliteFile, schema: Schema) -> Iterator[DamagedPage]:
    yield from (DamagedPage(number, POINTER_MAP) for number in file.malformed_map_pages())
    free_page = file.maybe_damaged_freelist_page()
    if free_page is not None:
        yield DamagedPage(free_page, FREELIST)
    for tree in schema.trees:
        if tree.table in _LAZY:
            for page in TreeWalk(file, tree, leaves=not tree.is_table).pages():
                if isinstance(page, DamagedPage):
                    yield page
                elif not tree.is_table and _is_foreign(file, schema, tree, page.node):
                    yield DamagedPage(page.node.number, tree.name)


def _is_foreign(file: SqliteFile, schema: Schema, index: Tree, node: Node) -> bool:
    """Whether a page has the content of another index."""
    if not node.cells:
        # Only a partial index is empty while its table is not.
        table = schema.maybe_tree(index.table)
        root = file.maybe_node(table.root) if table and index.name == _JOURNAL_INDEX else None
        return root is not None and bool(root.cells)
    first = next(file.rows(node))
    width = _INDEX_WIDTHS[index.name]
    return first is None or [*map(type, first.values)] != [int] * width


def _inconsistent_tables(connection: sqlite3.Connection, schema: Schema) -> list[str]:
    found = []
    for tree in schema.tables:
        if tree.name not in _LAZY:
            try:
                (result,) = connection.execute(statements.check_table(tree.name)).fetchone()
            except sqlite3.DatabaseError as error:
                result = str(error)
            if result != "ok":
                found.append(f"table {tree.name} ({' '.join(result.split())})")
    return found


def repair(directory: DataDirectory, found: list[str]) -> None:
    """Replace the database by one with everything that can be read. No connection is open."""
    database = directory.path / DATABASE_NAME
    log.error("leveret.db is damaged: %s; making a new one from what can be read", found[0])
    _require_space(directory, database)
    _require_no_reader(database)
    new = database.with_name(DATABASE_NAME + NEW_SUFFIX)
    new.unlink(missing_ok=True)
    try:
        report = salvage_database(database, new, log_ids(directory.path))
    except (sqlite3.Error, Malformed, OSError) as error:
        new.unlink(missing_ok=True)
        raise StoreError(
            f"leveret.db is damaged and cannot be repaired: {error}; {advice(directory.path)}"
        ) from error
    report.pages = list(dict.fromkeys([*found, *report.pages]))
    kept = keep_report(directory.path, report)
    _keep_damaged(database, kept)
    database.with_name(WAL_NAME).unlink(missing_ok=True)  # it was checkpointed
    database.with_name(DATABASE_NAME + "-shm").unlink(missing_ok=True)
    os.replace(new, database)
    directory.sync()
    rows = sum(table.rows for table in report.tables.values())
    log.error("leveret.db is repaired: %d rows kept; the damaged file is in %s", rows, kept)


def _require_space(directory: DataDirectory, database: Path) -> None:
    needed = int(database.stat().st_size * _SPACE)
    free = directory.free_bytes()
    if free < needed:
        raise StoreError(
            f"leveret.db is damaged, and a repair needs {needed} bytes of disk space ({free} are"
            f" free): free some, or run `leveret salvage {directory.path} NEW` onto another disk"
        )


def _require_no_reader(database: Path) -> None:
    """The last connection that closes removes the write-ahead log. A log that is left may hold
    commits that the repair, which reads the database file alone, would miss."""
    log_file = database.with_name(WAL_NAME)
    if log_file.exists() and log_file.stat().st_size:
        raise StoreError(
            "leveret.db is damaged, and another program reads it, which prevents a repair: end that"
            " program and start the broker again"
        )


def keep_report(path: Path, report: SalvageReport) -> Path:
    """Write the report to a new folder of the data directory; return the folder."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    kept = path / DAMAGED_NAME / stamp
    number = 1
    while kept.exists():
        number += 1
        kept = path / DAMAGED_NAME / f"{stamp}-{number}"
    kept.mkdir(mode=0o700, parents=True)
    (kept / REPORT_NAME).write_text(report_json(report), encoding="utf-8")
    return kept


def _keep_damaged(database: Path, folder: Path) -> None:
    try:
        os.link(database, folder / DATABASE_NAME)
    except OSError:  # not on every file system
        shutil.copy2(database, folder / DATABASE_NAME)


def log_ids(path: Path) -> frozenset[int]:
    """The queue ids of the logs that have files."""
    home = path / LOGS_NAME
    names = [entry.name for entry in home.iterdir()] if home.is_dir() else []
    return frozenset(int(name) for name in names if name.isdecimal())


def report_json(report: SalvageReport) -> str:
    return json.dumps(
        {
            "damaged": report.pages,
            "tables": {name: asdict(table) for name, table in report.tables.items()},
            "lost": [astuple(lost) for lost in report.lost],
        },
        indent=2,
    )


def read_lost(path: Path) -> tuple[LostData, ...]:
    """What earlier repairs could not save, as long as their folders exist."""
    found: list[LostData] = []
    for file in sorted((path / DAMAGED_NAME).glob(f"*/{REPORT_NAME}")):
        with suppress(OSError, ValueError, TypeError, KeyError):
            report = json.loads(file.read_text(encoding="utf-8"))
            found += [LostData(*map(str, lost)) for lost in report["lost"]]
    return tuple(found)
