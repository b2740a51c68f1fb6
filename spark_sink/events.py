"""The table `events`: one row per message and thing that happened to it.

Stored rows hold arrays of message ids; they are opened here with numpy, without a Python step per
message. Snapshots are the journal's own bookkeeping and no event of any message, and queues whose
policy says `history: off` have a journal but no history: neither is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from leveret.model.history import EventKind
from spark_sink.chunks import Tally, bounded
from spark_sink.database import Database
from spark_sink.errors import SourceError
from spark_sink.names import (
    Origins,
    QueueName,
    chosen_queues,
    origins,
    queue_names,
    queues_without_history,
)
from spark_sink.packed import Ints, Packed, bytes_sql, looked_up, number_sql, numbers, times
from spark_sink.schemas import arrow_schema
from spark_sink.selection import NOTHING, Request, Selection

BATCH_ROWS = 65_536
_ROW_WEIGHT = 128
_LABELS = {int(kind): kind.label for kind in EventKind}
EVENT_NAMES = tuple(sorted({kind.label for kind in EventKind if kind is not EventKind.SNAPSHOT}))
_NUMBER_COLUMNS: tuple[str, ...] = ("id", "time_ms", "kind", "queue_id", "actor", "count")
_BYTES_COLUMNS: tuple[str, ...] = ("ids", "sizes", "detail")
_ORIGIN_NAMES = ("user", "connection", "consumer_tag")


def read_events(database: Database, request: Request, tally: Tally) -> Iterator[pa.RecordBatch]:
    """Batches of the columns asked for."""
    needed = _needed(request.columns)
    tally.columns = tuple(sorted(needed))
    where = event_conditions(database, request.selection)
    schema = arrow_schema("events", request.columns)
    span = (request.from_id, request.to_id)
    for bounds in bounded(database, "events", f"count * {_ROW_WEIGHT}", span, where):
        chunk = _Chunk(database, needed, bounds, where)
        tally.queries += 1
        tally.scanned += len(chunk.counts)
        tally.bytes += chunk.bytes
        batch = pa.record_batch([chunk.column(n) for n in request.columns], schema=schema)
        tally.rows += batch.num_rows
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(start, BATCH_ROWS)


def count_events(database: Database, request: Request) -> list[dict[str, Any]]:
    """Rows per vhost, queue and event by plain SQL aggregates: the source's own word."""
    condition, values = event_conditions(database, request.selection)
    row = database.row(
        f"SELECT {number_sql('queue_id')}, {number_sql('kind')}, {number_sql('actor')},"  # noqa: S608
        f" {number_sql('total')} FROM (SELECT queue_id, kind,"
        " CASE queue_id WHEN 0 THEN actor ELSE 0 END AS actor, sum(count) AS total"
        f" FROM events WHERE id >= ? AND id < ? {condition} GROUP BY 1, 2, 3)",
        [request.from_id, request.to_id, *values],
    )
    queue_ids, kinds, actors, totals = (numbers(text) for text in row)
    found = origins(database, actors)
    vhosts = found.vhost.take(found.index_of(actors)).to_pylist()
    queues = queue_names(database)
    groups: dict[tuple[str | None, str | None, str], int] = {}
    for place, queue_id in enumerate(queue_ids.tolist()):
        queue = queues.get(queue_id)
        key = (
            queue.vhost if queue else vhosts[place],
            queue.name if queue else None,
            _LABELS.get(int(kinds[place]), "unknown"),
        )
        groups[key] = groups.get(key, 0) + int(totals[place])
    return [
        {"vhost": vhost, "queue": name, "event": event, "rows": rows}
        for (vhost, name, event), rows in sorted(groups.items(), key=str)
    ]


def event_conditions(database: Database, selection: Selection) -> tuple[str, list[Any]]:
    """SQL that keeps the stored rows of a selection, to follow a WHERE."""
    parts = [f"AND kind <> {int(EventKind.SNAPSHOT)}"]
    values: list[Any] = []
    if selection.since_ms is not None:
        parts.append("AND time_ms >= ?")
        values.append(selection.since_ms)
    if selection.until_ms is not None:
        parts.append("AND time_ms < ?")
        values.append(selection.until_ms)
    if selection.kinds:
        parts.append(f"AND kind IN ({_numbers_sql(_kind_numbers(selection.kinds))})")
    hidden = queues_without_history(database)
    if hidden:
        parts.append(f"AND queue_id NOT IN ({_numbers_sql(hidden)})")
    chosen = chosen_queues(database, selection)
    if chosen is not None:
        in_queues = f"queue_id IN ({_numbers_sql(chosen)})"
        if selection.queues:
            parts.append(f"AND {in_queues}")
        else:
            marks = ", ".join("?" * len(selection.vhosts))
            actors = f"SELECT id FROM origins WHERE vhost IN ({marks})"  # noqa: S608
            parts.append(f"AND ({in_queues} OR (queue_id = 0 AND actor IN ({actors})))")
            values.extend(selection.vhosts)
    return " ".join(parts), values


def _kind_numbers(names: tuple[str, ...]) -> list[int]:
    for name in names:
        if name not in (*EVENT_NAMES, NOTHING):
            raise SourceError(f"There is no event {name!r}: choose from {', '.join(EVENT_NAMES)}.")
    return [number for number, label in _LABELS.items() if label in names]


def _numbers_sql(values: Any) -> str:
    return ", ".join(str(int(value)) for value in values)


class _Chunk:
    """Stored rows of one id range; `spread` repeats a value per stored row for each message."""

    def __init__(
        self, database: Database, needed: set[str], span: tuple[int, int],
        where: tuple[str, list[Any]],
    ) -> None:  # fmt: skip
        singles = [name for name in _NUMBER_COLUMNS if name in needed]
        pairs = [name for name in _BYTES_COLUMNS if name in needed]
        selected = [number_sql(name) for name in singles] + [bytes_sql(name) for name in pairs]
        row = database.row(
            f"SELECT {', '.join(selected)} FROM (SELECT {', '.join(singles + pairs)}"  # noqa: S608
            f" FROM events WHERE id >= ? AND id < ? {where[0]} ORDER BY id)",
            [*span, *where[1]],
        )
        self._database = database
        self._numbers = {name: numbers(row[i]) for i, name in enumerate(singles)}
        self._packed = {
            name: Packed(row[len(singles) + 2 * i], row[len(singles) + 2 * i + 1])
            for i, name in enumerate(pairs)
        }
        self.counts = self._numbers["count"]
        self._rows: Ints = np.repeat(np.arange(len(self.counts)), self.counts)
        self._origins: Origins | None = None
        self._queues: dict[int, QueueName] | None = None
        self.bytes = sum(len(packed.data) for packed in self._packed.values())

    def column(self, name: str) -> pa.Array:
        return _MAKERS[name](self)

    def spread(self, per_row: pa.Array) -> pa.Array:
        return per_row.take(pa.array(self._rows))

    def number(self, name: str) -> Ints:
        return self._numbers[name]

    def messages(self) -> pa.Array:
        data = self._packed["ids"].data
        if len(data) != 8 * len(self._rows):
            raise SourceError("An event has fewer message ids than it says: the file is damaged.")
        return pa.array(np.frombuffer(data, "<u8").astype(np.int64))

    def positions(self) -> pa.Array:
        firsts = np.cumsum(self.counts) - self.counts
        return pa.array((np.arange(len(self._rows)) - firsts[self._rows]).astype(np.int32))

    def sizes(self) -> pa.Array:
        packed = self._packed["sizes"]
        known = (packed.widths == 4 * self.counts)[self._rows]
        values = np.zeros(len(self._rows), np.int64)
        values[known] = np.frombuffer(packed.data, "<u4")
        return pa.array(values, mask=~known)

    def labels(self) -> pa.Array:
        kinds = self._numbers["kind"]
        return self.spread(looked_up(kinds, lambda kind: _LABELS.get(kind, "unknown")))

    def redelivered(self) -> pa.Array:
        again = self._numbers["kind"] == int(EventKind.REDELIVERED)
        return pa.array(again[self._rows])

    def detail(self) -> pa.Array:
        return self.spread(self._packed["detail"].array(pa.string()))

    def queue(self) -> pa.Array:
        return self.spread(self._queue_rows(lambda queue: queue.name))

    def vhost(self) -> pa.Array:
        by_queue = self._queue_rows(lambda queue: queue.vhost)
        return self.spread(pc.coalesce(by_queue, self.origin_rows("vhost")))

    def origin_rows(self, name: str) -> pa.Array:
        actors = self._numbers["actor"]
        if self._origins is None:
            self._origins = origins(self._database, actors)
        return getattr(self._origins, name).take(self._origins.index_of(actors))

    def _queue_rows(self, part: Callable[[QueueName], str]) -> pa.Array:
        if self._queues is None:
            self._queues = queue_names(self._database)
        queues = self._queues
        return looked_up(
            self._numbers["queue_id"],
            lambda number: part(queues[number]) if number in queues else None,
        )


def _origin_column(name: str) -> Callable[[_Chunk], pa.Array]:
    return lambda chunk: chunk.spread(chunk.origin_rows(name))


_MAKERS: dict[str, Callable[[_Chunk], pa.Array]] = {
    "event_id": lambda chunk: chunk.spread(pa.array(chunk.number("id"))),
    "position": _Chunk.positions,
    "time": lambda chunk: chunk.spread(times(chunk.number("time_ms"))),
    "event": _Chunk.labels,
    "vhost": _Chunk.vhost,
    "queue": _Chunk.queue,
    "message": _Chunk.messages,
    "detail": _Chunk.detail,
    "redelivered": _Chunk.redelivered,
    "body_bytes": _Chunk.sizes,
} | {name: _origin_column(name) for name in _ORIGIN_NAMES}

_SOURCES = {
    "event_id": {"id"}, "position": set(), "time": {"time_ms"}, "event": {"kind"},
    "vhost": {"queue_id", "actor"}, "queue": {"queue_id"}, "message": {"ids"},
    "detail": {"detail"}, "redelivered": {"kind"}, "body_bytes": {"sizes"},
}  # fmt: skip


def _needed(columns: tuple[str, ...]) -> set[str]:
    needed = {"count"}
    for name in columns:
        needed |= _SOURCES.get(name, {"actor"})
    return needed
