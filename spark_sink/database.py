"""A read-only look at a broker's SQLite file, beside a running broker or without one.

Rules: the file is opened `mode=ro` with `query_only`; every statement is its own short read
transaction, so the writer is never blocked and its write-ahead log can always be reset; nothing
is ever checkpointed. One `Database` belongs to one thread. A crash of the reader leaves nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from spark_sink.errors import SourceError

FILE_NAME = "leveret.db"
BUSY_SECONDS = 10.0


class Database:
    """Runs queries that return one row of `bytes` (see `packed`)."""

    def __init__(self, data_dir: str | Path) -> None:
        self.data_dir = Path(data_dir)
        self._connection = _open(self.data_dir / FILE_NAME)

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

    def row(self, sql: str, parameters: Iterable[Any] = ()) -> tuple[Any, ...]:
        """The first row; texts are bytes."""
        try:
            with closing(self._connection.execute(sql, tuple(parameters))) as cursor:
                found = cursor.fetchone()
        except sqlite3.Error as error:
            raise SourceError(f"Cannot read {self.data_dir / FILE_NAME}: {error}.") from error
        return found if found is not None else ()

    def number(self, sql: str, parameters: Iterable[Any] = ()) -> int | None:
        row = self.row(sql, parameters)
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
    connection = _connect(path, "mode=ro")
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.OperationalError:
        # A stopped broker leaves no write-ahead log, and in a directory that may not be written
        # to none can be made: then nobody writes, and the file is complete as it is.
        connection.close()
        if Path(f"{path}-wal").exists():
            raise SourceError(
                f"Cannot read {path}: its write-ahead log is not readable by this user."
            ) from None
        connection = _connect(path, "immutable=1")
    except sqlite3.DatabaseError as error:
        connection.close()
        raise SourceError(
            f"{path} is no database of a broker ({error}): give the data directory of one."
        ) from error
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?{mode}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.text_factory = bytes
    connection.execute("PRAGMA query_only=ON")
    return connection
