"""The table `events`: one row per message and thing that happened to it.

Stored rows hold arrays of message ids; they are opened here with numpy, without a Python step per
message. Snapshots are the journal's own bookkeeping and no event of any message, and queues whose
policy says `history: off` have a journal but no history: neither is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leveret.model.history import EventKind
from spark_sink.chunks import Tally, bounded
from spark_sink.database import Database
from spark_sink.errors import SourceError
from spark_sink.names import (
    DELAYED_KIND,
    QueueName,
    Republished,
    chosen_queues,
    origins,
    queue_names,
    queues_without_history,
)
from spark_sink.packed import Ints, looked_up, number_sql, numbers, times
from spark_sink.schemas import arrow_schema
from spark_sink.selection import NOTHING, Request, Selection
from spark_sink.stored import (
    StoredRows,
    Where,
    is_wanted_vhost,
    numbers_sql,
    of_vhosts,
    time_conditions,
    with_own_vhosts,
)

BATCH_ROWS = 65_536
_ROW_WEIGHT = 128
_LABELS = {int(kind): kind.label for kind in EventKind}
EVENT_NAMES = tuple(sorted({kind.label for kind in EventKind if kind is not EventKind.SNAPSHOT}))
_ORIGIN_NAMES = ("user", "connection", "consumer_tag")
# What the broker itself published: in no queue, by nobody.
_OWN = "queue_id = 0 AND actor = 0"


def read_events(database: Database, request: Request, tally: Tally) -> Iterator[pa.RecordBatch]:
    """Batches of the columns asked for."""
    needed = _needed(request)
    tally.columns = tuple(sorted(needed))
    schema = arrow_schema("events", request.columns)
    for chunk in _chunks(database, request, needed):
        tally.queries += 1
        tally.scanned += len(chunk.counts)
        tally.bytes += chunk.bytes
        batch = pa.record_batch([chunk.column(n) for n in request.columns], schema=schema)
        mask = chunk.maybe_mask(request.selection)
        batch = batch if mask is None else batch.filter(pa.array(mask))
        tally.rows += batch.num_rows
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(start, BATCH_ROWS)


def _chunks(
    database: Database, request: Request, needed: set[str], only: str = ""
) -> Iterator[_Chunk]:
    condition, values = event_conditions(database, request.selection)
    where = (f"{condition} {only}", values)
    span = (request.from_id, request.to_id)
    republished = Republished(database, lambda: _own_ids(database, span))
    for bounds in bounded(database, "events", f"count * {_ROW_WEIGHT}", span, where):
        chunk = _Chunk(database, needed, bounds, where)
        chunk.republished = republished
        yield chunk


def _own_ids(database: Database, span: tuple[int, int]) -> tuple[int, int]:
    """The range of messages that the broker itself published in a range of events."""
    first, last = database.row(
        f"SELECT min(first_id), max(last_id) FROM events WHERE id >= ? AND id < ? AND {_OWN}",  # noqa: S608
        span,
    )
    return (0, 0) if first is None else (int(first), int(last) + 1)


def count_events(database: Database, request: Request) -> list[dict[str, Any]]:
    """Rows per vhost, queue and event by plain SQL aggregates: the source's own word.

    Only the broker's own publishes, whose vhost no stored row tells, are looked at one by one.
    """
    condition, values = event_conditions(database, request.selection)
    row = database.row(
        f"SELECT {number_sql('queue_id')}, {number_sql('kind')}, {number_sql('actor')},"  # noqa: S608
        f" {number_sql('total')} FROM (SELECT queue_id, kind,"
        " CASE queue_id WHEN 0 THEN actor ELSE 0 END AS actor, sum(count) AS total"
        f" FROM events WHERE id >= ? AND id < ? {condition} AND NOT ({_OWN}) GROUP BY 1, 2, 3)",
        [request.from_id, request.to_id, *values],
    )
    queue_ids, kinds, actors, totals = (numbers(text) for text in row)
    found = origins(database, actors)
    vhosts = found.vhost.take(found.index_of(actors)).to_pylist()
    queues = queue_names(database)
    groups: Counter[tuple[str | None, str | None, str]] = Counter()
    for place, queue_id in enumerate(queue_ids.tolist()):
        queue = queues.get(queue_id)
        key = (
            queue.vhost if queue else vhosts[place],
            queue.name if queue else None,
            _LABELS.get(int(kinds[place]), "unknown"),
        )
        groups[key] += int(totals[place])
    groups.update(_own_groups(database, request))
    return [
        {"vhost": vhost, "queue": name, "event": event, "rows": rows}
        for (vhost, name, event), rows in sorted(groups.items(), key=str)
    ]


def _own_groups(
    database: Database, request: Request
) -> Counter[tuple[str | None, str | None, str]]:
    needed = {"count", "kind", "queue_id", "actor", "ids"}
    groups: Counter[tuple[str | None, str | None, str]] = Counter()
    for chunk in _chunks(database, request, needed, f"AND {_OWN}"):
        mask = chunk.maybe_mask(request.selection)
        rows = zip(chunk.vhost().to_pylist(), chunk.labels().to_pylist(), strict=True)
        for place, (vhost, label) in enumerate(rows):
            if mask is None or mask[place]:
                groups[vhost, None, label] += 1
    return groups


def event_conditions(database: Database, selection: Selection) -> Where:
    """SQL that keeps the stored rows of a selection, to follow a WHERE."""
    condition, values = time_conditions(selection)
    parts = [f"AND kind <> {int(EventKind.SNAPSHOT)}", condition]
    if selection.kinds:
        parts.append(f"AND kind IN ({numbers_sql(_kind_numbers(selection.kinds))})")
    hidden = queues_without_history(database)
    if hidden:
        parts.append(f"AND queue_id NOT IN ({numbers_sql(hidden)})")
    chosen = chosen_queues(database, selection)
    if chosen is not None:
        in_queues = f"queue_id IN ({numbers_sql(chosen)})"
        if selection.queues:
            parts.append(f"AND {in_queues}")
        else:
            # Of what the broker published itself, `maybe_mask` takes its part.
            in_vhosts, names = of_vhosts("actor", selection)
            parts.append(f"AND ({in_queues} OR (queue_id = 0 AND {in_vhosts}) OR ({_OWN}))")
            values += names
    return " ".join(parts), values


def _kind_numbers(names: tuple[str, ...]) -> list[int]:
    for name in names:
        if name not in (*EVENT_NAMES, NOTHING):
            raise SourceError(f"There is no event {name!r}: choose from {', '.join(EVENT_NAMES)}.")
    return [number for number, label in _LABELS.items() if label in names]


class _Chunk(StoredRows):
    """Stored rows of one id range; `spread` repeats a value per stored row for each message."""

    table = "events"
    number_columns = ("id", "time_ms", "kind", "queue_id", "actor", "count")
    bytes_columns = ("ids", "sizes", "detail")
    origin_column = "actor"
    republished: Republished

    def __init__(
        self, database: Database, needed: set[str], span: tuple[int, int], where: Where
    ) -> None:
        super().__init__(database, needed, span, where)
        self.counts = self.number("count")
        self._rows: Ints = np.repeat(np.arange(len(self.counts)), self.counts)
        self._queues: dict[int, QueueName] | None = None

    def column(self, name: str) -> pa.Array:
        return _MAKERS[name](self)

    def spread(self, per_row: pa.Array) -> pa.Array:
        return per_row.take(pa.array(self._rows))

    def messages(self) -> Ints:
        data = self.packed("ids").data
        if len(data) != 8 * len(self._rows):
            raise SourceError("An event has fewer message ids than it says: the file is damaged.")
        return np.frombuffer(data, "<u8").astype(np.int64)

    def positions(self) -> pa.Array:
        firsts = np.cumsum(self.counts) - self.counts
        return pa.array((np.arange(len(self._rows)) - firsts[self._rows]).astype(np.int32))

    def sizes(self) -> pa.Array:
        packed = self.packed("sizes")
        known = (packed.widths == 4 * self.counts)[self._rows]
        values = np.zeros(len(self._rows), np.int64)
        values[known] = np.frombuffer(packed.data, "<u4")
        return pa.array(values, mask=~known)

    def labels(self) -> pa.Array:
        kinds = self.number("kind")
        return self.spread(looked_up(kinds, lambda kind: _LABELS.get(kind, "unknown")))

    def redelivered(self) -> pa.Array:
        again = self.number("kind") == int(EventKind.REDELIVERED)
        return pa.array(again[self._rows])

    def detail(self) -> pa.Array:
        return self.spread(self._open_details(self.packed("detail").array(pa.string())))

    def _open_details(self, details: pa.Array) -> pa.Array:
        """Behind the due time of what is delayed are keys of blind copies: they are for nobody."""
        enqueued = pa.array(self.number("kind") == int(EventKind.ENQUEUED))
        delayed = pc.equal(self._queue_rows(lambda queue: queue.kind), DELAYED_KIND)
        scheduled = pc.and_(enqueued, pc.fill_null(delayed, False))
        if not pc.any(scheduled).as_py():
            return details
        due = pc.replace_substring_regex(details, pattern="(?s) .*", replacement="")
        return pc.if_else(scheduled, due, details)

    def queue(self) -> pa.Array:
        return self.spread(self._queue_rows(lambda queue: queue.name))

    def vhost(self) -> pa.Array:
        by_queue = self._queue_rows(lambda queue: queue.vhost)
        vhosts = self.spread(pc.coalesce(by_queue, self.origin("vhost")))
        return with_own_vhosts(vhosts, self._own(), self.messages(), self.republished)

    def maybe_mask(self, selection: Selection) -> npt.NDArray[np.bool_] | None:
        """What SQL could not decide: the broker's own publishes when vhosts are chosen."""
        if not selection.vhosts or selection.queues:
            return None
        own = self._own()
        return ~own | is_wanted_vhost(self.vhost(), selection) if own.any() else None

    def _own(self) -> npt.NDArray[np.bool_]:
        own: npt.NDArray[np.bool_] = (self.number("queue_id") == 0) & (self.number("actor") == 0)
        return own[self._rows]

    def _queue_rows(self, part: Callable[[QueueName], str]) -> pa.Array:
        if self._queues is None:
            self._queues = queue_names(self._database)
        queues = self._queues
        return looked_up(
            self.number("queue_id"),
            lambda number: part(queues[number]) if number in queues else None,
        )


def _origin_column(name: str) -> Callable[[_Chunk], pa.Array]:
    return lambda chunk: chunk.spread(chunk.origin(name))


_MAKERS: dict[str, Callable[[_Chunk], pa.Array]] = {
    "event_id": lambda chunk: chunk.spread(pa.array(chunk.number("id"))),
    "position": _Chunk.positions,
    "time": lambda chunk: chunk.spread(times(chunk.number("time_ms"))),
    "event": _Chunk.labels,
    "vhost": _Chunk.vhost,
    "queue": _Chunk.queue,
    "message": lambda chunk: pa.array(chunk.messages()),
    "detail": _Chunk.detail,
    "redelivered": _Chunk.redelivered,
    "body_bytes": _Chunk.sizes,
} | {name: _origin_column(name) for name in _ORIGIN_NAMES}

_SOURCES = {
    "event_id": {"id"}, "position": set(), "time": {"time_ms"}, "event": {"kind"},
    "vhost": {"queue_id", "actor", "ids"}, "queue": {"queue_id"}, "message": {"ids"},
    "detail": {"detail", "kind", "queue_id"}, "redelivered": {"kind"}, "body_bytes": {"sizes"},
}  # fmt: skip


def _needed(request: Request) -> set[str]:
    needed = {"count"}
    for name in request.columns:
        needed |= _SOURCES.get(name, {"actor"})
    return needed | _SOURCES["vhost"] if request.selection.vhosts else needed
