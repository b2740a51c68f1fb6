"""What is executed beside `compiled_statements`: pragmas, transactions, statements of many rows.

While the event loop is busy, the driver re-acquires the GIL for every statement it steps, so the
writer uses few, large statements (one INSERT of many rows, never `executemany`). The statement for
one row is compiled from SQLAlchemy Core like the others; here its row of parameters is repeated.
SQLAlchemy would build and cache such a statement for every number of rows; here the sizes are few
and fixed, so each is prepared once.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter
from typing import Final

from leveret.model.definitions import DEFINITION_TABLES, Definition
from leveret.queues.storage import compiled_statements as compiled

SCHEMA_VERSION: Final = 4
PAGE_SIZE: Final = 8192

# 1536 rows of 17 columns stay below SQLite's default limit of 32766 parameters.
MAX_ROWS: Final = 1536

AT_CREATION: Final = (f"PRAGMA page_size={PAGE_SIZE}", "PRAGMA auto_vacuum=INCREMENTAL")

WITHOUT_JOURNAL: Final = ("PRAGMA journal_mode=OFF", "PRAGMA synchronous=OFF")
"""For a database that gets its name only when it is complete and synced."""

AT_WRITER_START: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA fullfsync=ON",
    "PRAGMA checkpoint_fullfsync=ON",
    "PRAGMA secure_delete=OFF",
    "PRAGMA wal_autocheckpoint=0",
    "PRAGMA journal_size_limit=67108864",
    "PRAGMA cache_size=-16384",
    "PRAGMA temp_store=MEMORY",
)
WEAKER_SYNC: Final = {level: (f"PRAGMA synchronous={level}",) for level in ("NORMAL", "OFF")}
"""Only for the negative control of the power-loss tests."""

AT_READER_START: Final = (
    "PRAGMA wal_autocheckpoint=0",
    "PRAGMA query_only=ON",
    "PRAGMA cache_size=-8192",
)

BEGIN: Final = "BEGIN IMMEDIATE"
COMMIT: Final = "COMMIT"
ROLLBACK: Final = "ROLLBACK"
SYNC_LEVEL: Final = "PRAGMA synchronous"
SYNC_LATER: Final = "PRAGMA synchronous=NORMAL"
CHECKPOINT: Final = "PRAGMA wal_checkpoint(PASSIVE)"
CHECKPOINT_AND_TRUNCATE: Final = "PRAGMA wal_checkpoint(TRUNCATE)"
SHORT_BUSY_TIMEOUT: Final = "PRAGMA busy_timeout=100"
FREE_CACHE: Final = "PRAGMA shrink_memory"
FREE_PAGES: Final = "PRAGMA incremental_vacuum({pages})"


def check_table(table: str) -> str:
    """Checks a table with its indexes: one row "ok", or what is wrong."""
    return f"PRAGMA integrity_check({table})"


def insert_unknown(table: str, columns: int) -> str:
    """Inserts a row of any version of a table, unless there is one with its key."""
    return f"INSERT OR IGNORE INTO {table} VALUES ({','.join('?' * columns)})"  # noqa: S608


LOAD_NUMBERS: Final = 12
LOAD_BLOBS: Final = 5
"""The columns of `LOAD`: lists of numbers, lists of lengths of blobs, and the joined blobs."""

KEY_COLUMNS: Final = {
    kind: compiled.PRIMARY_KEYS[table] for kind, table in DEFINITION_TABLES.items()
}
"""The fields that identify a definition."""
_KEYS: Final[dict[type[object], Callable[[object], object]]] = {
    kind: attrgetter(*columns) for kind, columns in KEY_COLUMNS.items()
}


def key_of(definition: Definition) -> tuple[object, ...]:
    """The values of `KEY_COLUMNS`."""
    key = _KEYS[type(definition)](definition)
    return key if isinstance(key, tuple) else (key,)


MAX_EXACT_ROWS: Final = 32
"""There is a statement for every number of rows up to this one."""
STATEMENT_SIZES: Final = sorted(
    {
        *range(1, MAX_EXACT_ROWS + 1),
        *(n << k for k in range(5, 12) for n in (1, 3) if n << k <= MAX_ROWS),
    }
)

_ROW: Final = re.compile(r"(?<=VALUES)\s+\(([?,\s]+)\)")


def statement_sizes(rows: int) -> Iterator[int]:
    """Split a number of rows into the sizes for which statements exist, largest first."""
    while rows:
        size = STATEMENT_SIZES[bisect_right(STATEMENT_SIZES, rows) - 1]
        yield size
        rows -= size


def for_rows(statement: str, rows: int) -> str:
    """A statement compiled for one row (`VALUES (?, ?)`), with that many rows of parameters."""
    return _ROW.sub(lambda row: " " + ",".join([_parameters(row[1])] * rows), statement, count=1)


def _parameters(row: str) -> str:
    return "(" + ",".join("?" * row.count("?")) + ")"


@cache
def insert_packs(rows: int) -> str:
    return for_rows(compiled.INSERT_PACKS, rows)


@cache
def insert_events(rows: int) -> str:
    return for_rows(compiled.INSERT_EVENTS, rows)


def upsert(kind: type[object], rows: int) -> str:
    return for_rows(compiled.UPSERT_DEFINITIONS[DEFINITION_TABLES[kind]], rows)


def delete(kind: type[object], rows: int) -> str:
    return for_rows(compiled.DELETE_DEFINITIONS[DEFINITION_TABLES[kind]], rows)


def insert_missing_queues(rows: int) -> str:
    return for_rows(compiled.INSERT_MISSING_QUEUES, rows)
