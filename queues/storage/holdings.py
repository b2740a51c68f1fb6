"""How much history there is: sizes and the span of time, by aggregates alone.

Own read-only connection on a borrowed thread. Counting walks whole tables (not their contents), so
an answer is kept for a while: twenty times as long as it took, and at least a second.
"""

import asyncio
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from leveret.model.history import EventKind
from leveret.model.store import StoreError
from queues.storage import statements
from queues.storage.directory import DATABASE_NAME

KEPT_SECONDS = 1.0
KEPT_TIMES = 20

_COUNT_MESSAGES = "SELECT count(*) FROM messages"
_COUNT_EVENTS = f"SELECT coalesce(sum(count), 0) FROM events WHERE kind<>{int(EventKind.SNAPSHOT)}"  # noqa: S608
_EVENT_TIMES = (
    "SELECT a.time_ms, b.time_ms FROM (SELECT min(id) AS low, max(id) AS high FROM events)"
    " LEFT JOIN events a ON a.id=low LEFT JOIN events b ON b.id=high"
)


@dataclass(frozen=True, slots=True)
class Holdings:
    """What is stored now; times are None while nothing is."""

    bytes: int = 0
    messages: int = 0
    events: int = 0
    first_ms: int | None = None
    last_ms: int | None = None


class HoldingsReader:
    def __init__(self, data_dir: Path) -> None:
        self._database = data_dir / DATABASE_NAME
        self._held = Holdings()
        self._good_until = 0.0
        self._reading = asyncio.Lock()

    async def read(self) -> Holdings:
        async with self._reading:
            if time.monotonic() >= self._good_until:
                started = time.monotonic()
                self._held = await asyncio.to_thread(_read, self._database)
                took = time.monotonic() - started
                self._good_until = time.monotonic() + max(KEPT_SECONDS, took * KEPT_TIMES)
            return self._held


def _read(database: Path) -> Holdings:
    address = f"file:{quote(str(database))}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as connection:
            for statement in statements.AT_READER_START:
                connection.execute(statement).fetchall()
            pages, free, size = connection.execute(statements.PAGE_COUNTS).fetchone()
            first, last = connection.execute(_EVENT_TIMES).fetchone()
            return Holdings(
                bytes=(pages - free) * size,
                messages=connection.execute(_COUNT_MESSAGES).fetchone()[0],
                events=connection.execute(_COUNT_EVENTS).fetchone()[0],
                first_ms=first,
                last_ms=last,
            )
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the history in {database}: {error}") from error
