"""Reads a broker's data directory, also while the broker is running: it only reads (see `sql`).

A `LocalSource` belongs to one thread. The HTTP API uses two functions:

- `history_ranges(data_dir, params)` returns the JSON of `GET /api/history/ranges`;
- `history_export(data_dir, params)` yields the Arrow IPC stream of `GET /api/history/export`.

Both take the query string as a mapping, and the vhosts the user may see (None: all). Both raise
SourceError, the text of a 400 response, before anything is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from sqlalchemy import func, literal_column, select

from leveret.queues.storage import schema
from leveret.queues.storage.trims import EVENTS_KEY, MESSAGES_KEY, Trims
from leveret.spark_sink.arrow.lookups import require_queues, require_vhosts
from leveret.spark_sink.arrow.schemas import SCHEMAS, arrow_schema
from leveret.spark_sink.arrow.selection import (
    Request,
    Selection,
    Split,
    parse_number,
    parse_request,
    parse_selection,
)
from leveret.spark_sink.arrow.source import LOST, SPLIT_ROWS, Ranges, ReadStats
from leveret.spark_sink.arrow.sql import Database, Query
from leveret.spark_sink.arrow.tables import table_named
from leveret.spark_sink.arrow.tables.events import EventFilter

_packs, _events, _meta = schema.message_packs.c, schema.events.c, schema.meta.c


def _meta_value(key: str) -> Any:
    return select(_meta.value).where(_meta.key == key).scalar_subquery()


# One statement, so that both tables are seen as of the same commit.
_ID_RANGES = Query(
    select(
        select(func.min(_packs.id)).scalar_subquery(),
        select(_packs.last_id)
        .order_by(_packs.id.desc())
        .limit(literal_column("1"))
        .scalar_subquery(),
        select(func.min(_events.id)).scalar_subquery(),
        select(func.max(_events.id)).scalar_subquery(),
        _meta_value("last_message_id"),
        _meta_value("last_event_id"),
        _meta_value(MESSAGES_KEY),
        _meta_value(EVENTS_KEY),
    )
)
_identity = (
    select(_meta.key, _meta.value)
    .where(_meta.key.in_(("id", "created_ms", "node", "cluster")))
    .order_by(_meta.key)
    .subquery()
    .c
)
_IDENTITY = Query(
    select(func.group_concat(_identity.key + "=" + _identity.value, literal_column("' '")))
)


class LocalSource:
    """A data directory, read in place."""

    def __init__(self, data_dir: str | Path) -> None:
        self._database = Database(data_dir)

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
        return f"<LocalSource {self._database.data_dir}>"

    def close(self) -> None:
        self._database.close()

    def check(self, selection: Selection, table: str | None = None) -> None:
        require_vhosts(self._database, selection)
        require_queues(self._database, selection, table)
        EventFilter.of(self._database, selection)

    def ranges(self, selection: Selection, queue_id: int | None = None) -> Ranges:
        """With `queue_id`, of this partition of a log only."""
        from leveret.spark_sink.arrow.tables.logs import read_partitions

        row = self._database.row(_ID_RANGES)
        partitions = read_partitions(self._database, selection, queue_id)
        # The newest rows may be deleted, but their ids are not used again.
        last_message, last_event = (max(row[at] or 0, int(row[at_meta] or 0))
                                    for at, at_meta in ((1, 4), (3, 5)))  # fmt: skip
        return Ranges(
            identity=(self._database.row(_IDENTITY)[0] or b"").decode(),
            messages=_span(row[0], last_message),
            events=_span(row[2], last_event),
            partitions={part.queue_id: part for part in partitions},
            trims={"messages": Trims.from_json(row[6]), "events": Trims.from_json(row[7])},
        )

    def splits(self, request: Request, rows: int, limit: int | None = None) -> list[Split]:
        table = table_named(request.table)
        return list(islice(table.splits(self._database, request, rows), limit))

    def read(self, request: Request, stats: ReadStats) -> Iterator[pa.RecordBatch]:
        return table_named(request.table).read(self._database, request, stats)

    def count(self, request: Request) -> dict[str, Any]:
        return table_named(request.table).count(self._database, request)


def history_ranges(
    data_dir: str | Path, params: Mapping[str, str], vhosts: frozenset[str] | None = None
) -> dict[str, Any]:
    """Ranges of every table; with `table`, also what a reader of that table needs.

    `rows`: cut [from_id, to_id) into parts of that many rows, at most `limit` parts.
    `count`: count the rows of [from_id, to_id). `check`: reject names that do not exist.
    `queue_id`: of logs only this partition, without opening any other.
    """
    selection = _visible(parse_selection(params), vhosts)
    with LocalSource(data_dir) as source:
        if params.get("check"):
            source.check(selection, params.get("table") or None)
        response: dict[str, Any] = {"tables": list(SCHEMAS)}
        queue_id = parse_number(params, "queue_id", 0) if params.get("queue_id") else None
        ranges = source.ranges(selection, queue_id)
        response |= {"identity": ranges.identity, "messages": ranges.messages}
        response |= {"events": ranges.events, "logs": ranges.logs}
        response["partitions"] = [asdict(part) for part in ranges.partitions.values()]
        response["trims"] = {table: asdict(trims) for table, trims in ranges.trims.items()}
        if not params.get("table"):
            return response
        request = replace(parse_request(params), selection=selection)
        if params.get("rows"):
            rows = max(1, parse_number(params, "rows", SPLIT_ROWS))
            limit = parse_number(params, "limit", 0) or None
            response["splits"] = [asdict(split) for split in source.splits(request, rows, limit)]
        if params.get("count"):
            response["count"] = source.count(request)
        return response


def history_export(
    data_dir: str | Path, params: Mapping[str, str], vhosts: frozenset[str] | None = None
) -> Iterator[bytes]:
    """The requested rows as an Arrow IPC stream, one batch in memory at a time."""
    request = parse_request(params)
    request = replace(request, selection=_visible(request.selection, vhosts))
    source = LocalSource(data_dir)
    return _ipc_stream(source, request)


def _ipc_stream(source: LocalSource, request: Request) -> Iterator[bytes]:
    """What the reader has lost is the metadata of a last batch without rows (see `remote`)."""
    sink, stats = _BufferFile(), ReadStats()
    schema = arrow_schema(request.table, request.columns)
    try:
        with pa.ipc.new_stream(pa.PythonFile(sink, "w"), schema) as writer:
            for batch in source.read(request, stats):
                writer.write_batch(batch)
                yield sink.take()
            if stats.lost:
                empty = pa.RecordBatch.from_pylist([], schema)
                writer.write_batch(empty, {LOST: json.dumps(stats.lost)})
        yield sink.take()
    finally:
        source.close()


class _BufferFile:
    """A file that collects what is written until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(self._parts[-1])

    def flush(self) -> None:
        """Does nothing: `take` empties the buffer."""

    def close(self) -> None:
        """Stays open, so that the end of the stream can still be taken."""

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data


def _visible(selection: Selection, vhosts: frozenset[str] | None) -> Selection:
    return selection if vhosts is None else selection.within(vhosts)


def _span(first: Any, last: Any) -> tuple[int, int]:
    end = int(last) + 1 if last else 0
    return (end if first is None else int(first), end)
