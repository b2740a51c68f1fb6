"""From nothing, or from any older schema, to the current one.

A new database gets the compiled schema in one transaction. Older data goes one numbered step at a
time, each in its own transaction together with its version stamp, so a crash between steps leaves
a whole older version that the next start continues from. A newer version than ours is refused: we
do not know what its rows mean.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from leveret.model.store import SchemaTooNew, StoreError
from queues.storage import statements

if TYPE_CHECKING:
    from sqlalchemy import Connection

SCHEMA_FILE: Final = Path(__file__).with_name("schema.sql")

Migration: TypeAlias = "Callable[[Connection], None]"

MIGRATIONS: Final[Mapping[int, Migration]] = {}
"""The version each step leads to, from 2 on. A released step is never edited."""


def migrate(
    connection: sqlite3.Connection,
    steps: Mapping[int, Migration] = MIGRATIONS,
    newest: int = statements.SCHEMA_VERSION,
) -> int:
    """Bring the database to the newest version; returns the version it had (0: it was empty)."""
    found = stored_version(connection)
    if found > newest:
        raise SchemaTooNew(
            f"the data was written by a newer version (schema {found}, this one knows {newest});"
            " start the newer version, or use another data directory"
        )
    if not found:
        _create(connection, newest)
    elif found < newest:
        _upgrade(connection, {version: steps[version] for version in range(found + 1, newest + 1)})
    return found


def stored_version(connection: sqlite3.Connection) -> int:
    names = {name for (name,) in connection.execute(statements.TABLE_NAMES)}
    if not names:
        return 0
    if "meta" not in names:
        raise StoreError("leveret.db holds tables that are not ours; use another data directory")
    row = connection.execute(statements.GET_SCHEMA_VERSION).fetchone()
    if row is None or not str(row[0]).isdigit():
        raise StoreError("leveret.db carries no schema version; restore it from a backup")
    return int(row[0])


def check_columns(connection: sqlite3.Connection) -> None:
    """A flipped bit in a name leaves a file that opens, and contents that nobody can read."""
    names = connection.execute(statements.COLUMN_NAMES)
    found = {(table.lower(), column.lower()) for table, column in names}  # SQLite ignores case
    for table, columns in statements.columns_by_table().items():
        for column in columns:
            if (table, column) not in found:
                raise StoreError(
                    f"leveret.db is damaged: its table {table} has no column {column};"
                    " restore it from a backup"
                )


def _create(connection: sqlite3.Connection, version: int) -> None:
    connection.execute(statements.BEGIN)
    for statement in SCHEMA_FILE.read_text(encoding="utf-8").split(";\n")[:-1]:
        connection.execute(statement)
    connection.execute(statements.SET_META, ("schema_version", str(version)))
    connection.execute(statements.COMMIT)


def _upgrade(connection: sqlite3.Connection, steps: Mapping[int, Migration]) -> None:
    # Only here, where seconds do not matter: see `schema`.
    from sqlalchemy import StaticPool, create_engine

    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    for version, step in steps.items():
        with engine.begin() as core:
            core.exec_driver_sql(statements.BEGIN)
            step(core)
            core.exec_driver_sql(statements.SET_META, ("schema_version", str(version)))
