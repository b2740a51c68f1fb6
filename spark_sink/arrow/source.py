"""Where Spark, exports and the HTTP API read message history: a data directory, or HTTP.

`open_source` chooses between `local.LocalSource` and `remote.RemoteSource`. Importing this module
needs pyarrow only: SQLAlchemy is imported for a data directory, httpx for a URL, Spark never.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from leveret.queues.storage.trims import Trims
from leveret.spark_sink.arrow.schemas import SCHEMAS, schema_of
from leveret.spark_sink.arrow.selection import (
    END_OF_IDS,
    SINGLE_RANGE,
    Request,
    Selection,
    Split,
)
from leveret.spark_sink.errors import SourceError

SPLIT_ROWS = 200_000
LOST = "lost"
"""In an Arrow stream over HTTP, the metadata of a batch that carries `ReadStats.lost`."""


@dataclass(slots=True)
class ReadStats:
    """What one reader has read so far. `columns` tells what it has read of the stored rows.

    `lost` are ranges of ids in which rows were deleted after the read was planned and before this
    reader came to them; only reads that were planned (`Request.trims`) know of them.
    """

    rows: int = 0
    scanned: int = 0
    bytes: int = 0
    queries: int = 0
    columns: tuple[str, ...] = ()
    lost: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LogPartition:
    """One partition of a log; it holds the offsets from `first` to before `next`.

    Retention has deleted what was below `start`. `first` may be higher: compaction removes
    records that later ones replace.
    """

    queue_id: int
    vhost: str
    log: str
    partition: int
    first: int
    next: int
    start: int

    @property
    def full_name(self) -> str:
        return f"partition {self.partition} of log {self.log!r} in vhost {self.vhost!r}"


@dataclass(frozen=True, slots=True)
class Ranges:
    """The stored ids as of one moment: `messages` and `events` are of the same commit.

    A range is [first, next). `partitions` has the partitions of logs by queue id; `trims` tells
    what retention has deleted of the tables.
    """

    identity: str
    messages: tuple[int, int]
    events: tuple[int, int]
    partitions: Mapping[int, LogPartition]
    trims: Mapping[str, Trims] = field(default_factory=dict)

    @property
    def logs(self) -> dict[int, tuple[int, int]]:
        return {number: (part.first, part.next) for number, part in self.partitions.items()}

    def trims_of(self, table: str) -> Trims:
        return self.trims.get(table, Trims())

    def of(self, table: str) -> dict[str, tuple[int, int]]:
        """Ranges by key: SINGLE_RANGE for a table with one id, else one per partition."""
        return {
            "messages": {SINGLE_RANGE: self.messages},
            "events": {SINGLE_RANGE: self.events},
            "logs": {str(queue_id): span for queue_id, span in self.logs.items()},
            "queues": {SINGLE_RANGE: (0, END_OF_IDS)},
        }[table]


class Source(Protocol):
    """A broker's history, from its directory or over HTTP."""

    def ranges(self, selection: Selection) -> Ranges: ...

    def splits(self, request: Request, rows: int, limit: int | None = None) -> list[Split]:
        """Parts of at most `rows` rows; at most `limit` parts."""

    def read(self, request: Request, stats: ReadStats) -> Iterator[pa.RecordBatch]: ...

    def count(self, request: Request) -> dict[str, Any]:
        """`rows`, and other counts that the source makes itself."""

    def check(self, selection: Selection, table: str | None = None) -> None:
        """Raise SourceError if the selection names something that does not exist.

        In `table` if it is given, otherwise in any table.
        """

    def close(self) -> None: ...


def open_source(data_dir: str | None, url: str | None, user: str, password: str) -> Source:
    """Open a broker's history; exactly one of `data_dir` and `url` is given."""
    if bool(data_dir) == bool(url):
        raise SourceError("Say where to read: either the data directory or the URL of a broker.")
    if data_dir:
        from leveret.spark_sink.arrow.local import LocalSource

        return LocalSource(data_dir)
    from leveret.spark_sink.arrow.remote import RemoteSource

    return RemoteSource(str(url), user, password)


def require_tables(names: Iterable[str]) -> tuple[str, ...]:
    """The distinct table names; SourceError if there is none, or one does not exist."""
    tables = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    for name in tables:
        schema_of(name)
    if not tables:
        raise SourceError(f"Name at least one table: {', '.join(SCHEMAS)}.")
    return tables
