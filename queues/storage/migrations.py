"""Creates the schema in an empty database, or upgrades an older schema to the current one.

An empty database gets `schema.sql` in one transaction. Older data is upgraded one version at a
time, each step in its own transaction together with its version number, so a crash between steps
leaves a complete older version from which the next start continues. A step that changes many rows
has several transactions, the last of them with the version number; after each of them the
write-ahead log is copied into the file, so that it stays short. A version newer than ours is
refused: we do not know what its rows mean.

Runs on the starting thread before the store is open. SQLAlchemy is imported only when there is
something to upgrade.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from leveret.model.store import SchemaTooNew, StoreError
from leveret.queues.storage import compiled_statements as compiled
from leveret.queues.storage import statements
from leveret.queues.storage.directory import SCHEMA_FILE

if TYPE_CHECKING:
    from leveret.queues.storage.migration_steps import Migration

VERSION_KEY: Final = "schema_version"


def migrate(
    connection: sqlite3.Connection,
    steps: Mapping[int, Migration] | None = None,
    newest: int = statements.SCHEMA_VERSION,
) -> int:
    """Bring the database to the newest version; returns the version it had (0: it was empty).

    `steps`: the migration to each version, `migration_steps.MIGRATIONS` unless given.
    """
    version = stored_version(connection)
    if version > newest:
        raise SchemaTooNew(
            f"the data was written by a newer version (its schema is {version}, this version"
            f" supports {newest}); start the newer version, or use another data directory"
        )
    if not version:
        _create(connection, newest)
    elif version < newest:
        _upgrade(connection, version, newest, steps)
    return version


def stored_version(connection: sqlite3.Connection) -> int:
    names = {name for (name,) in connection.execute(compiled.TABLE_NAMES)}
    if not names:
        return 0
    if "meta" not in names:
        raise StoreError("leveret.db holds tables of another program; use another data directory")
    row = connection.execute(compiled.GET_SCHEMA_VERSION).fetchone()
    if row is None or not str(row[0]).isdigit():
        raise StoreError("leveret.db has no schema version; restore it from a backup")
    return int(row[0])


def check_columns(connection: sqlite3.Connection) -> None:
    """A flipped bit in a column's name leaves a file that opens but cannot be read."""
    rows = connection.execute(compiled.COLUMN_NAMES)
    stored = {(table.lower(), column.lower()) for table, column in rows}  # SQLite ignores case
    for table, columns in compiled.COLUMNS.items():
        for column in columns:
            if (table, column) not in stored:
                raise StoreError(
                    f"leveret.db is damaged: its table {table} has no column {column};"
                    " restore it from a backup"
                )


def _create(connection: sqlite3.Connection, version: int) -> None:
    connection.execute(statements.BEGIN)
    for statement in SCHEMA_FILE.read_text(encoding="utf-8").split(";\n")[:-1]:
        connection.execute(statement)
    connection.execute(compiled.SET_META, (VERSION_KEY, str(version)))
    connection.execute(statements.COMMIT)


def _upgrade(
    connection: sqlite3.Connection,
    version: int,
    newest: int,
    steps: Mapping[int, Migration] | None,
) -> None:
    from sqlalchemy import StaticPool, create_engine
    from sqlalchemy.exc import DBAPIError

    from leveret.queues.storage.core_statements import SET_META
    from leveret.queues.storage.migration_steps import MIGRATIONS

    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    for target in range(version + 1, newest + 1):
        step = (MIGRATIONS if steps is None else steps)[target]
        try:
            with engine.connect() as core:
                core.exec_driver_sql(statements.BEGIN)
                for _ in step(core) or ():
                    core.commit()
                    connection.execute(statements.CHECKPOINT).fetchall()
                    core.exec_driver_sql(statements.BEGIN)
                core.execute(SET_META, {"new_key": VERSION_KEY, "new_value": str(target)})
                core.commit()
        except DBAPIError as error:
            raise error.orig or error from error
        connection.execute(statements.CHECKPOINT).fetchall()
