"""From any older schema to the current one, one numbered step at a time.

Each step runs in its own transaction together with its version stamp, so a crash between steps
leaves a whole older version that the next start continues from. A newer version than ours is
refused: we do not know what its rows mean.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from sqlalchemy import Connection, Engine, inspect, select, text

from leveret.model.store import SchemaTooNew, StoreError
from queues.storage import schema, statements

Migration: TypeAlias = Callable[[Connection], None]


def _create(connection: Connection) -> None:
    schema.metadata.create_all(connection)


MIGRATIONS: Final[Mapping[int, Migration]] = {1: _create}
"""The version each step leads to. A released step is never edited."""


def migrate(engine: Engine, steps: Mapping[int, Migration] = MIGRATIONS) -> int:
    """Bring the database to the newest version; returns the version it had (0: it was empty)."""
    newest = max(steps)
    with engine.connect() as connection:
        found = stored_version(connection)
    if found > newest:
        raise SchemaTooNew(
            f"the data was written by a newer version (schema {found}, this one knows {newest});"
            " start the newer version, or use another data directory"
        )
    for version in range(found + 1, newest + 1):
        with engine.begin() as connection:
            connection.exec_driver_sql(statements.BEGIN)
            steps[version](connection)
            _stamp(connection, version)
    return found


def stored_version(connection: Connection) -> int:
    names = inspect(connection).get_table_names()
    if not names:
        return 0
    if "meta" not in names:
        raise StoreError("leveret.db holds tables that are not ours; use another data directory")
    row = connection.execute(
        select(schema.meta.c.value).where(schema.meta.c.key == "schema_version")
    ).first()
    if row is None or not str(row[0]).isdigit():
        raise StoreError("leveret.db carries no schema version; restore it from a backup")
    return int(row[0])


def _stamp(connection: Connection, version: int) -> None:
    connection.execute(
        text(statements.SET_META.replace("?, ?", ":key, :value")),
        {"key": "schema_version", "value": str(version)},
    )
