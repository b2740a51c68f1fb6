"""Copies a damaged database with its write-ahead log, so that the original is never changed.

SQLite brings the copy up to date from the write-ahead log. If SQLite cannot even open it, because
the first page with the header and the schema is damaged, the copy gets the first page of a new
database: the tables of both are on the same pages, unless the database began with an older schema.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from leveret.model.store import StoreError
from leveret.queues.storage import statements
from leveret.queues.storage.damage.salvage import read_schema
from leveret.queues.storage.damage.sqlite_file import Malformed
from leveret.queues.storage.directory import DATABASE_NAME, WAL_NAME
from leveret.queues.storage.migrations import check_columns, migrate, stored_version

_WAL_VERSION: Final = b"\x02\x02"


def copy_database(source: Path, folder: Path) -> tuple[Path, list[str]]:
    """Return the copy in `folder`, and what was damaged so much that it was replaced."""
    copy = folder / DATABASE_NAME
    shutil.copyfile(source / DATABASE_NAME, copy)
    if (source / WAL_NAME).exists():
        shutil.copyfile(source / WAL_NAME, folder / WAL_NAME)
    damaged = []
    if not _is_readable(copy):
        if (source / WAL_NAME).exists():  # SQLite deletes what it cannot use
            shutil.copyfile(source / WAL_NAME, folder / WAL_NAME)
        _replace_first_page(copy, folder)
        damaged.append("page 1, with the header and the schema")
    _include_write_ahead_log(copy)
    return copy, damaged


def _is_readable(database: Path) -> bool:
    """Whether the schema can be read, and is one of ours."""
    try:
        with closing(sqlite3.connect(database, isolation_level=None)) as connection:
            read_schema(connection)
            if _version(connection) == statements.SCHEMA_VERSION:
                check_columns(connection)
    except (sqlite3.DatabaseError, StoreError, Malformed):
        return False
    return True


def _version(connection: sqlite3.Connection) -> int:
    try:
        return stored_version(connection)
    except (sqlite3.DatabaseError, StoreError):
        return 0  # the table is damaged, not the schema


def _replace_first_page(database: Path, folder: Path) -> None:
    sample = folder / "sample.db"
    with closing(sqlite3.connect(sample, isolation_level=None)) as connection:
        for statement in statements.AT_CREATION:
            connection.execute(statement)
        migrate(connection)
    page = bytearray(sample.read_bytes()[: statements.PAGE_SIZE])
    sample.unlink()
    count = database.stat().st_size // statements.PAGE_SIZE
    if database.with_name(WAL_NAME).exists():
        page[18:20] = _WAL_VERSION
    page[28:32] = count.to_bytes(4, "big")
    page[32:40] = bytes(8)  # no free pages
    with database.open("r+b") as file:
        file.write(page)


def _include_write_ahead_log(database: Path) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute(statements.CHECKPOINT_AND_TRUNCATE).fetchall()
