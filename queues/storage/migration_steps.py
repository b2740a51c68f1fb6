"""The migrations: what changes from one schema version to the next, in SQLAlchemy Core.

A step gets a connection in an open transaction, changes tables and rows, and leaves the commit and
the version number to `migrations`. A step that changes many rows is a generator: whenever it
yields, what it has done is committed, and it must be able to continue from there after a crash. A
released step is never edited. A step must not use the tables
of `schema`, which are those of the newest version: it defines the tables it reads or changes as
they were (`table("vhosts", column("name"), …)`).

To change the schema: change `schema`, increment `statements.SCHEMA_VERSION`, add the step here,
regenerate (see `core_statements`), and add data of the old version to `tests/data`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from sqlalchemy import BigInteger, Column, Connection, Integer, LargeBinary, MetaData, Table
from sqlalchemy.schema import CreateColumn

from leveret.queues.storage.migration_to_packs import pack_messages

Migration: TypeAlias = Callable[[Connection], Iterator[None] | None]


def add_column(connection: Connection, table: str, new: Column[Any]) -> None:
    """The column must be nullable or have a server default: there may be rows."""
    quoted = connection.dialect.identifier_preparer.quote(table)
    definition = CreateColumn(new).compile(dialect=connection.dialect)
    connection.exec_driver_sql(f"ALTER TABLE {quoted} ADD COLUMN {definition}")


def _add_log_ends(connection: Connection) -> None:
    """Where the logs end; until a log is written, the offsets of its groups tell."""
    Table(
        "log_ends",
        MetaData(),
        Column("queue_id", Integer, primary_key=True, autoincrement=False, nullable=False),
        Column("next_offset", BigInteger, nullable=False, server_default="0"),
        Column("reserved_to", BigInteger, nullable=False, server_default="0"),
    ).create(connection)


def _add_body_parts(connection: Connection) -> None:
    """Large bodies are stored in parts."""
    add_column(connection, "messages", Column("first_part", BigInteger, nullable=True))
    connection.exec_driver_sql(
        "CREATE INDEX large_messages ON messages (first_part) WHERE first_part IS NOT NULL"
    )
    Table(
        "body_parts",
        MetaData(),
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("data", LargeBinary, nullable=False),
    ).create(connection)


MIGRATIONS: Final[Mapping[int, Migration]] = {
    2: _add_log_ends,
    3: _add_body_parts,
    4: pack_messages,
}
"""The step that leads to each version, from 2 on."""
