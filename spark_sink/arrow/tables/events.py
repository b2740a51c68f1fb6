"""The table `events`: one row per message and thing that happened to it.

A stored row holds an array of message ids; numpy expands it, without a Python step per message.
Two kinds of stored rows are left out: internal ones, such as snapshots for recovery, and those of
queues whose policy says `history: off`, which have a journal but no history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import and_, case, func, literal_column, not_, or_, select

from leveret.model.history import INTERNAL_KINDS, EventKind
from leveret.queues.storage import schema
from leveret.queues.storage.trims import EVENTS_KEY
from leveret.spark_sink.arrow.chunking import chunk_ranges, weight_query
from leveret.spark_sink.arrow.lookups import (
    DELAYED_KIND,
    BrokerPublishedVhosts,
    QueueRow,
    queues_without_history,
    read_origins,
    read_queues,
    selected_queues,
)
from leveret.spark_sink.arrow.packed_columns import (
    BoolArray,
    IntArray,
    map_to_text,
    pack_numbers,
    parse_numbers,
    timestamp_array,
)
from leveret.spark_sink.arrow.schemas import EVENTS, arrow_schema
from leveret.spark_sink.arrow.selection import EVENT_NAMES, NO_MATCH, Request, Selection, Split
from leveret.spark_sink.arrow.source import ReadStats
from leveret.spark_sink.arrow.sql import QUERY_CACHE, Database, Query, is_one_of, parameter
from leveret.spark_sink.arrow.stored_events import EventColumns, StoredEvents
from leveret.spark_sink.arrow.stored_rows import (
    Conditions,
    LostRows,
    fill_broker_vhosts,
    filter_batch,
    has_origin_in_vhosts,
    is_selected_vhost,
    time_conditions,
)
from leveret.spark_sink.errors import SourceError

BATCH_ROWS = 65_536
_SPLIT_SCAN_ROWS = 20_000
_EVENT_WEIGHT = 128
_LABELS = {int(kind): kind.label for kind in EventKind}
_ORIGIN_NAMES = ("user", "connection", "consumer_tag")
_events = schema.events.c
_BY_BROKER = and_(_events.queue_id == 0, _events.actor == 0)
"""Published by the broker itself: in no queue, without an origin."""

_next_counts = (
    select(_events.id, _events["count"])
    .where(_events.id >= parameter("low"), _events.id < parameter("stop"))
    .order_by(_events.id)
    .limit(literal_column(str(_SPLIT_SCAN_ROWS)))
    .subquery()
    .c
)
_NEXT_COUNTS = Query(select(pack_numbers(_next_counts.id), pack_numbers(_next_counts["count"])))
_BROKER_PUBLISHED_SPAN = Query(
    select(func.min(_events.first_id), func.max(_events.last_id)).where(
        _events.id >= parameter("low"), _events.id < parameter("stop"), _BY_BROKER
    )
)

Group = tuple[str | None, str | None, str]
"""Vhost, queue and event."""


class EventsTable:
    schema = EVENTS

    def splits(self, database: Database, request: Request, rows: int) -> Iterator[Split]:
        """Parts of stored rows whose counts add up to at most `rows`.

        A stored row with more events than that is a part of its own.
        """
        start, weight = request.from_id, 0
        for ids, counts in _read_counts(database, request.from_id, request.to_id):
            index, base = 0, 0
            totals = np.cumsum(counts)
            while True:
                fits = int(np.searchsorted(totals, base + rows - weight, side="right"))
                if fits >= len(ids):
                    weight += int(totals[-1]) - base
                    break
                cut = max(fits, index + 1) if weight == 0 else fits
                if cut >= len(ids):
                    weight += int(totals[-1]) - base
                    break
                done = int(totals[cut - 1]) if cut else 0
                yield Split(start, int(ids[cut]), weight + done - base)
                start, weight, index, base = int(ids[cut]), 0, cut, done
        if weight:
            yield Split(start, request.to_id, weight)

    def read(
        self, database: Database, request: Request, stats: ReadStats
    ) -> Iterator[pa.RecordBatch]:
        needed = _needed(request)
        stats.columns = tuple(sorted(needed))
        arrow = arrow_schema("events", request.columns)
        for chunk in _chunks(database, request, needed, stats):
            stats.queries += 1
            stats.scanned += len(chunk.counts)
            stats.bytes += chunk.bytes
            batch = pa.record_batch([chunk.column(n) for n in request.columns], schema=arrow)
            batch = filter_batch(batch, chunk.maybe_mask(request.selection))
            stats.rows += batch.num_rows
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)

    def count(self, database: Database, request: Request) -> dict[str, Any]:
        groups = _count_groups(database, request)
        return {"rows": sum(int(group["rows"]) for group in groups), "groups": groups}


TABLE = EventsTable()


def _read_counts(
    database: Database, from_id: int, to_id: int
) -> Iterator[tuple[IntArray, IntArray]]:
    low = from_id
    while low < to_id:
        row = database.row(_NEXT_COUNTS, low=low, stop=to_id)
        ids = parse_numbers(row[0])
        if not len(ids):
            return
        yield ids, parse_numbers(row[1])
        low = int(ids[-1]) + 1


def _chunks(
    database: Database,
    request: Request,
    needed: frozenset[str],
    stats: ReadStats,
    by_broker_only: bool = False,
) -> Iterator[_Chunk]:
    event_filter = EventFilter.of(database, request.selection)
    weights, columns = _queries(needed, event_filter, by_broker_only)
    span = (request.from_id, request.to_id)
    broker_vhosts = BrokerPublishedVhosts(database, lambda: _broker_published(database, span))
    lost_rows, reached = LostRows(database, request, stats, EVENTS_KEY), request.from_id
    for bounds in chunk_ranges(database, weights, span):
        with database.snapshot():
            chunk = _Chunk(database, columns, bounds)
            lost_rows.note(bounds)
        reached = bounds[1]
        chunk.broker_vhosts = broker_vhosts
        yield chunk
    if reached < request.to_id:
        lost_rows.note((reached, request.to_id))


@lru_cache(maxsize=QUERY_CACHE)
def _queries(
    needed: frozenset[str], event_filter: EventFilter, by_broker_only: bool
) -> tuple[Query, EventColumns]:
    conditions = event_filter.conditions()
    if by_broker_only:
        conditions.append(_BY_BROKER)
    weight = _events["count"] * literal_column(str(_EVENT_WEIGHT))
    return (
        weight_query(schema.events, weight, conditions),
        EventColumns(needed, conditions),
    )


def _broker_published(database: Database, span: tuple[int, int]) -> tuple[int, int]:
    """The id range of the messages that the broker itself published in a range of events."""
    first, last = database.row(_BROKER_PUBLISHED_SPAN, low=span[0], stop=span[1])
    return (0, 0) if first is None else (int(first), int(last) + 1)


def _count_groups(database: Database, request: Request) -> list[dict[str, Any]]:
    """Rows per vhost, queue and event by SQL aggregates, independently of `read`.

    Only messages that the broker published are looked at one by one: no stored row has their vhost.
    """
    totals = (
        select(
            _events.queue_id,
            _events.kind,
            case((_events.queue_id == 0, _events.actor), else_=literal_column("0")).label(
                "publisher"
            ),
            func.sum(_events["count"]).label("total"),
        )
        .where(
            _events.id >= request.from_id,
            _events.id < request.to_id,
            *EventFilter.of(database, request.selection).conditions(),
            not_(_BY_BROKER),
        )
        .group_by(_events.queue_id, _events.kind, "publisher")
        .subquery()
    )
    row = database.row(Query(select(*(pack_numbers(column) for column in totals.c))))
    queue_ids, kinds, publishers, counts = (parse_numbers(text) for text in row)
    origins = read_origins(database, publishers)
    vhosts = origins.vhost.take(origins.index_of(publishers)).to_pylist()
    queues = read_queues(database)
    groups: Counter[Group] = Counter()
    for index, queue_id in enumerate(queue_ids.tolist()):
        queue = queues.get(queue_id)
        key = (
            queue.vhost if queue else vhosts[index],
            queue.name if queue else None,
            _LABELS.get(int(kinds[index]), "unknown"),
        )
        groups[key] += int(counts[index])
    groups.update(_broker_published_groups(database, request))
    return [
        {"vhost": vhost, "queue": name, "event": event, "rows": rows}
        for (vhost, name, event), rows in sorted(groups.items(), key=str)
    ]


def _broker_published_groups(database: Database, request: Request) -> Counter[Group]:
    needed = frozenset({"count", "kind", "queue_id", "actor", "ids"})
    groups: Counter[Group] = Counter()
    for chunk in _chunks(database, request, needed, ReadStats(), by_broker_only=True):
        mask = chunk.maybe_mask(request.selection)
        rows = zip(chunk.vhost().to_pylist(), chunk.labels().to_pylist(), strict=True)
        for index, (vhost, label) in enumerate(rows):
            if mask is None or mask[index]:
                groups[vhost, None, label] += 1
    return groups


@dataclass(frozen=True, slots=True)
class EventFilter:
    """A selection of events, with the ids of the queues it selects (None: all) and hides."""

    selection: Selection
    kinds: tuple[int, ...]
    queue_ids: tuple[int, ...] | None
    hidden_ids: tuple[int, ...]

    @classmethod
    def of(cls, database: Database, selection: Selection) -> EventFilter:
        """SourceError for an unknown event."""
        queues = selected_queues(database, selection)
        return cls(
            selection,
            tuple(_kind_numbers(selection.kinds)),
            None if queues is None else tuple(queues),
            tuple(queues_without_history(database)),
        )

    def conditions(self) -> Conditions:
        """SQL conditions for the stored rows."""
        conditions = [not_(is_one_of(_events.kind, INTERNAL_KINDS))]
        conditions += time_conditions(_events.time_ms, _events.time_ms, self.selection)
        if self.selection.kinds:
            conditions.append(is_one_of(_events.kind, self.kinds))
        if self.hidden_ids:
            conditions.append(not_(is_one_of(_events.queue_id, self.hidden_ids)))
        if self.queue_ids is not None:
            in_queues = is_one_of(_events.queue_id, self.queue_ids)
            if self.selection.queues:
                conditions.append(in_queues)
            else:
                # `maybe_mask` selects among the messages that the broker published itself.
                in_vhosts = has_origin_in_vhosts(_events.actor, self.selection)
                conditions.append(
                    or_(in_queues, and_(_events.queue_id == 0, in_vhosts), _BY_BROKER)
                )
        return conditions


def _kind_numbers(names: tuple[str, ...]) -> list[int]:
    for name in names:
        if name not in (*EVENT_NAMES, NO_MATCH):
            raise SourceError(f"There is no event {name!r}: choose from {', '.join(EVENT_NAMES)}.")
    return [number for number, label in _LABELS.items() if label in names]


class _Chunk(StoredEvents):
    """Stored rows of one id range; `expand` repeats a stored row's value for each message."""

    broker_vhosts: BrokerPublishedVhosts

    def __init__(self, database: Database, columns: EventColumns, span: tuple[int, int]) -> None:
        super().__init__(database, columns, span)
        self.counts = self.number("count")
        self._row_indexes: IntArray = np.repeat(np.arange(len(self.counts)), self.counts)
        self._queues: dict[int, QueueRow] | None = None

    def column(self, name: str) -> pa.Array:
        return _COLUMN_BUILDERS[name](self)

    def expand(self, per_row: pa.Array) -> pa.Array:
        return per_row.take(pa.array(self._row_indexes))

    def messages(self) -> IntArray:
        data = self.packed("ids").data
        if len(data) != 8 * len(self._row_indexes):
            raise SourceError(
                "An event has fewer message ids than its count: the database file is damaged."
            )
        return np.frombuffer(data, "<u8").astype(np.int64)

    def positions(self) -> pa.Array:
        first = np.cumsum(self.counts) - self.counts
        indexes = np.arange(len(self._row_indexes))
        return pa.array((indexes - first[self._row_indexes]).astype(np.int32))

    def sizes(self) -> pa.Array:
        packed = self.packed("sizes")
        known = (packed.widths == 4 * self.counts)[self._row_indexes]
        values = np.zeros(len(self._row_indexes), np.int64)
        values[known] = np.frombuffer(packed.data, "<u4")
        return pa.array(values, mask=~known)

    def labels(self) -> pa.Array:
        kinds = self.number("kind")
        return self.expand(map_to_text(kinds, lambda kind: _LABELS.get(kind, "unknown")))

    def redelivered(self) -> pa.Array:
        redelivered = self.number("kind") == int(EventKind.REDELIVERED)
        return pa.array(redelivered[self._row_indexes])

    def detail(self) -> pa.Array:
        return self.expand(self._public_details(self.packed("detail").array(pa.string())))

    def _public_details(self, details: pa.Array) -> pa.Array:
        """Cut the routing keys of BCC off the details of delayed messages: they are secret.

        They follow the due time.
        """
        enqueued = pa.array(self.number("kind") == int(EventKind.ENQUEUED))
        delayed = pc.equal(self._queue_column(lambda queue: queue.kind), DELAYED_KIND)
        scheduled = pc.and_(enqueued, pc.fill_null(delayed, False))
        if not pc.any(scheduled).as_py():
            return details
        due = pc.replace_substring_regex(details, pattern="(?s) .*", replacement="")
        return pc.if_else(scheduled, due, details)

    def queue(self) -> pa.Array:
        return self.expand(self._queue_column(lambda queue: queue.name))

    def vhost(self) -> pa.Array:
        by_queue = self._queue_column(lambda queue: queue.vhost)
        vhosts = self.expand(pc.coalesce(by_queue, self.origin("vhost")))
        return fill_broker_vhosts(vhosts, self._by_broker(), self.messages(), self.broker_vhosts)

    def maybe_mask(self, selection: Selection) -> BoolArray | None:
        """What SQL cannot decide: which messages of the broker are in the selected vhosts."""
        if not selection.vhosts or selection.queues:
            return None
        by_broker = self._by_broker()
        if not by_broker.any():
            return None
        mask: BoolArray = ~by_broker | is_selected_vhost(self.vhost(), selection)
        return mask

    def _by_broker(self) -> BoolArray:
        by_broker: BoolArray = (self.number("queue_id") == 0) & (self.number("actor") == 0)
        return by_broker[self._row_indexes]

    def _queue_column(self, value_of: Callable[[QueueRow], str]) -> pa.Array:
        if self._queues is None:
            self._queues = read_queues(self._database)
        queues = self._queues
        return map_to_text(
            self.number("queue_id"),
            lambda number: value_of(queues[number]) if number in queues else None,
        )


def _origin_column(name: str) -> Callable[[_Chunk], pa.Array]:
    return lambda chunk: chunk.expand(chunk.origin(name))


_COLUMN_BUILDERS: dict[str, Callable[[_Chunk], pa.Array]] = {
    "event_id": lambda chunk: chunk.expand(pa.array(chunk.number("id"))),
    "position": _Chunk.positions,
    "time": lambda chunk: chunk.expand(timestamp_array(chunk.number("time_ms"))),
    "event": _Chunk.labels,
    "vhost": _Chunk.vhost,
    "queue": _Chunk.queue,
    "message": lambda chunk: pa.array(chunk.messages()),
    "detail": _Chunk.detail,
    "redelivered": _Chunk.redelivered,
    "body_bytes": _Chunk.sizes,
} | {name: _origin_column(name) for name in _ORIGIN_NAMES}

# The stored columns that each column is made from; `actor` for those not listed.
_STORED_COLUMNS = {
    "event_id": {"id"}, "position": set(), "time": {"time_ms"}, "event": {"kind"},
    "vhost": {"queue_id", "actor", "ids"}, "queue": {"queue_id"}, "message": {"ids"},
    "detail": {"detail", "kind", "queue_id"}, "redelivered": {"kind"}, "body_bytes": {"sizes"},
}  # fmt: skip


def _needed(request: Request) -> frozenset[str]:
    needed = frozenset({"count"})
    for name in request.columns:
        needed |= _STORED_COLUMNS.get(name, {"actor"})
    return needed | _STORED_COLUMNS["vhost"] if request.selection.vhosts else needed
