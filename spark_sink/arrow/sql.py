"""Read-only access to a broker's SQLite file, with or without a running broker.

The connection never writes and never blocks the writer (see `leveret.queues.storage.read_only`).
A `Database` belongs to one thread. A crash of the reader leaves nothing behind.

Statements are SQLAlchemy Core over the tables of `leveret.queues.storage.schema`, compiled once
and run on a plain sqlite3 connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import ColumnElement, Select, bindparam
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.compiler import SQLCompiler

from leveret.queues.storage import compiled_statements, statements
from leveret.queues.storage.directory import DATABASE_NAME
from leveret.queues.storage.read_only import open_read_only
from leveret.spark_sink.errors import SourceError

QUERY_CACHE = 16
"""How many compiled queries of a table are kept for the next request with the same conditions."""
_DIALECT = sqlite.dialect(paramstyle="named")


class Query:
    """A SELECT, compiled on first use. Bind parameters with names are given values by `row`."""

    def __init__(self, statement: Select[Any]) -> None:
        self._statement = statement

    @cached_property
    def _compiled(self) -> SQLCompiler:
        compiled = self._statement.compile(
            dialect=_DIALECT, compile_kwargs={"render_postcompile": True}
        )
        assert isinstance(compiled, SQLCompiler)
        return compiled

    @cached_property
    def sql(self) -> str:
        return str(self._compiled)

    def parameters(self, values: dict[str, Any]) -> dict[str, Any]:
        return {**self._compiled.params, **values}


def parameter(name: str) -> Any:
    """A bind parameter for `Database.row` to fill in."""
    return bindparam(name, 0)


def is_one_of(column: ColumnElement[int], numbers: Iterable[int]) -> ColumnElement[bool]:
    """`column IN (1, 2, …)` with literal numbers: SQLite limits the number of parameters."""
    return column.in_(
        bindparam(None, [int(number) for number in numbers], expanding=True, literal_execute=True)
    )


class Database:
    """Runs queries that return one row, whose texts are `bytes` (see `packed_columns`)."""

    def __init__(self, data_dir: str | Path) -> None:
        self.data_dir = Path(data_dir)
        path = self.data_dir / DATABASE_NAME
        self._connection = _open(path)
        try:
            _check_version(self._connection, path)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Database {self.data_dir}>"

    def close(self) -> None:
        self._connection.close()

    def row(self, query: Query, **values: Any) -> tuple[Any, ...]:
        """The first row, empty if there is none."""
        try:
            with closing(self._connection.execute(query.sql, query.parameters(values))) as cursor:
                row = cursor.fetchone()
        except sqlite3.Error as error:
            raise SourceError(f"Cannot read {self.data_dir / DATABASE_NAME}: {error}.") from error
        return row if row is not None else ()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """One read transaction for several queries; it must be short, like a single query."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    def number(self, query: Query, **values: Any) -> int | None:
        """The first column of the first row; None if there is no row or it is NULL."""
        row = self.row(query, **values)
        return None if not row or row[0] is None else int(row[0])


def _open(path: Path) -> sqlite3.Connection:
    try:
        with path.open("rb") as file:
            file.read(16)
    except OSError as error:
        raise SourceError(
            f"Cannot read {path} ({error.strerror}): give the data directory of a broker, "
            "as a user who may read it."
        ) from error
    try:
        return _probed(open_read_only(path, as_bytes=True))
    except sqlite3.OperationalError:
        # A stopped broker leaves no write-ahead log, and SQLite cannot create one in a read-only
        # directory. Then there is no writer, and the file is complete as it is.
        if Path(f"{path}-wal").exists():
            raise SourceError(
                f"Cannot read {path}: its write-ahead log is not readable by this user."
            ) from None
        return open_read_only(path, as_bytes=True, immutable=True)
    except sqlite3.DatabaseError as error:
        raise SourceError(
            f"{path} is not the database of a broker ({error}): give a broker's data directory."
        ) from error


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    try:
        row = connection.execute(compiled_statements.GET_SCHEMA_VERSION).fetchone()
    except sqlite3.DatabaseError as error:
        raise SourceError(f"Cannot read {path}: {error}.") from error
    version = int(row[0]) if row else statements.SCHEMA_VERSION
    if version < statements.SCHEMA_VERSION:
        raise SourceError(
            f"{path} was written by an older version of Leveret: start the broker, which converts "
            "it, and try again."
        )
    if version > statements.SCHEMA_VERSION:
        raise SourceError(f"{path} was written by a newer version of Leveret: update this one.")


def _probed(connection: sqlite3.Connection) -> sqlite3.Connection:
    """The connection, or an error if the file cannot be read: SQLite opens it on first use."""
    try:
        connection.execute(compiled_statements.TABLE_NAMES).fetchall()
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection
