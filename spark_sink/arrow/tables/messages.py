"""The table `messages`: content as stored, one row per message that history keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy import func, literal_column, or_, select

from leveret.model.history import Keep
from leveret.queues.storage import schema
from leveret.queues.storage.trims import MESSAGES_KEY
from leveret.spark_sink.arrow.chunking import chunk_ranges, weight_query
from leveret.spark_sink.arrow.lookups import BrokerPublishedVhosts, QueueRow, selected_queues
from leveret.spark_sink.arrow.packed_columns import BoolArray, IntArray, timestamp_array
from leveret.spark_sink.arrow.parents import read_parents
from leveret.spark_sink.arrow.properties import TEXT_NAMES, PropertyColumns
from leveret.spark_sink.arrow.routed_queues import RoutedQueues, RoutedQueuesReader
from leveret.spark_sink.arrow.schemas import MESSAGES, arrow_schema
from leveret.spark_sink.arrow.selection import Request, Selection, Split
from leveret.spark_sink.arrow.source import ReadStats
from leveret.spark_sink.arrow.sql import QUERY_CACHE, Database, Query, parameter
from leveret.spark_sink.arrow.stored_rows import (
    Conditions,
    LostRows,
    StoredColumns,
    StoredRows,
    fill_broker_vhosts,
    filter_batch,
    has_origin_in_vhosts,
    is_selected_vhost,
    time_conditions,
)

_NUMBER_COLUMNS = ("id", "time_ms", "origin", "size")
_BYTES_COLUMNS = ("exchange", "routing_key", "properties", "body")
_WEIGHT_WITHOUT_BODY = 256
_messages = schema.messages.c

_FIRST_ID = Query(
    select(_messages.id)
    .where(_messages.id >= parameter("low"), _messages.id < parameter("stop"))
    .order_by(_messages.id)
    .limit(literal_column("1"))
)


class MessagesTable:
    schema = MESSAGES

    def splits(self, database: Database, request: Request, rows: int) -> Iterator[Split]:
        """Parts of `rows` ids, skipping ids that are not stored: n ids are at most n rows."""
        low = request.from_id
        while low < request.to_id:
            first = database.number(_FIRST_ID, low=low, stop=request.to_id)
            if first is None:
                return
            high = min(first + rows, request.to_id)
            yield Split(first, high, high - first)
            low = high

    def read(
        self, database: Database, request: Request, stats: ReadStats
    ) -> Iterator[pa.RecordBatch]:
        """Bodies and properties are read only when a requested column needs them."""
        arrow = arrow_schema("messages", request.columns)
        for chunk in _chunks(database, request, stats):
            batch = pa.record_batch([chunk.column(n) for n in request.columns], schema=arrow)
            batch = filter_batch(batch, _maybe_mask(database, request.selection, chunk))
            stats.rows += batch.num_rows
            if batch.num_rows:
                yield batch

    def count(self, database: Database, request: Request) -> dict[str, Any]:
        """Rows and bytes, by SQL aggregates where possible, and rows by first queue."""
        selection, span = request.selection, (request.from_id, request.to_id)
        is_filtered = bool(selection.queues or selection.vhosts)
        columns = ("id", "body_bytes") if is_filtered else ("id",)
        first_ids: Counter[int] = Counter()
        queues: dict[int, QueueRow] = {}
        size = 0
        for chunk in _chunks(database, Request("messages", *span, columns, selection), ReadStats()):
            mask = _maybe_mask(database, selection, chunk)
            selected = slice(None) if mask is None else mask
            ids, rows = np.unique(chunk.routed.first_ids()[selected], return_counts=True)
            first_ids.update(dict(zip(ids.tolist(), rows.tolist(), strict=True)))
            queues |= chunk.routed.queues
            size += int(chunk.number("size")[selected].sum()) if is_filtered else 0
        groups = _groups(first_ids, queues)
        if is_filtered:
            return {"rows": first_ids.total(), "bytes": size, "groups": groups}
        total = Query(
            select(func.count(), func.coalesce(func.sum(_messages.size), 0)).where(
                _messages.id >= span[0], _messages.id < span[1], *_conditions(selection)
            )
        )
        row = database.row(total)
        return {"rows": int(row[0]), "bytes": int(row[1]), "groups": groups}


TABLE = MessagesTable()


def _chunks(database: Database, request: Request, stats: ReadStats) -> Iterator[_Chunk]:
    needed = _needed(request)
    stats.columns = tuple(sorted(needed))
    weights, columns = _queries(needed, request.selection)
    span = (request.from_id, request.to_id)
    broker_vhosts = BrokerPublishedVhosts(database, lambda: span)
    routed_queues = RoutedQueuesReader(database, request.to_id)
    lost_rows, reached = LostRows(database, request, stats, MESSAGES_KEY), request.from_id
    for bounds in chunk_ranges(database, weights, span):
        with database.snapshot():
            chunk = _Chunk(database, columns, bounds)
            lost_rows.note(bounds)
        reached = bounds[1]
        chunk.broker_vhosts, chunk.routed_queues = broker_vhosts, routed_queues
        stats.queries += 1
        stats.scanned += len(chunk.ids)
        stats.bytes += chunk.bytes
        yield chunk
    if reached < request.to_id:
        lost_rows.note((reached, request.to_id))


@lru_cache(maxsize=QUERY_CACHE)
def _queries(needed: frozenset[str], selection: Selection) -> tuple[Query, StoredColumns]:
    conditions = _conditions(selection)
    weight = (
        _messages.size + func.length(_messages.properties)
        if "body" in needed
        else literal_column(str(_WEIGHT_WITHOUT_BODY))
    )
    return (
        weight_query(schema.messages, weight, conditions),
        StoredColumns(schema.messages, needed, _NUMBER_COLUMNS, _BYTES_COLUMNS, conditions),
    )


def _groups(first_ids: Counter[int], queues: dict[int, QueueRow]) -> list[dict[str, Any]]:
    """Rows by first queue; messages without a queue are one group, whatever their vhost."""
    return [
        {
            "vhost": queues[number].vhost if number else None,
            "queue": queues[number].name if number else None,
            "rows": rows,
        }
        for number, rows in sorted(first_ids.items())
    ]


class _Chunk(StoredRows):
    """The stored rows of one id range, and the columns made from them."""

    origin_column = "origin"
    broker_vhosts: BrokerPublishedVhosts
    routed_queues: RoutedQueuesReader

    @property
    def ids(self) -> IntArray:
        return self.number("id")

    def column(self, name: str) -> pa.Array:
        return _COLUMN_BUILDERS[name](self)

    @cached_property
    def properties(self) -> PropertyColumns:
        return PropertyColumns(self.packed("properties"))

    @cached_property
    def routed(self) -> RoutedQueues:
        return self.routed_queues.lookup(self.ids)

    def parent(self) -> pa.Array:
        return read_parents(self._database, self.routed_queues, self.ids)

    def vhost(self) -> pa.Array:
        by_broker: BoolArray = self.number("origin") == 0
        return fill_broker_vhosts(self.origin("vhost"), by_broker, self.ids, self.broker_vhosts)


def _text_property(name: str) -> Callable[[_Chunk], pa.Array]:
    return lambda chunk: chunk.properties.text(name)


_COLUMN_BUILDERS: dict[str, Callable[[_Chunk], pa.Array]] = {
    "id": lambda chunk: pa.array(chunk.ids),
    "time": lambda chunk: timestamp_array(chunk.number("time_ms")),
    "vhost": _Chunk.vhost,
    "user": lambda chunk: chunk.origin("user"),
    "connection": lambda chunk: chunk.origin("connection"),
    "exchange": lambda chunk: chunk.packed("exchange").array(pa.string()),
    "routing_key": lambda chunk: chunk.packed("routing_key").array(pa.string()),
    "delivery_mode": lambda chunk: chunk.properties.number("delivery_mode", pa.int32()),
    "priority": lambda chunk: chunk.properties.number("priority", pa.int32()),
    "timestamp": lambda chunk: chunk.properties.number("timestamp", pa.int64()),
    "headers": lambda chunk: chunk.properties.headers(),
    "typed_headers": lambda chunk: chunk.properties.typed_headers(),
    "parent": _Chunk.parent,
    "body": lambda chunk: chunk.packed("body").array(pa.binary()),
    "body_bytes": lambda chunk: pa.array(chunk.number("size")),
    "queue": lambda chunk: chunk.routed.first_names(),
    "queues": lambda chunk: chunk.routed.all_names(),
} | {name: _text_property(name) for name in TEXT_NAMES}

# The stored column that each column is made from; `properties` for those not listed.
_STORED_COLUMNS = {
    "time": "time_ms", "vhost": "origin", "user": "origin", "connection": "origin",
    "exchange": "exchange", "routing_key": "routing_key", "body": "body", "body_bytes": "size",
    "id": "id", "queue": "id", "queues": "id", "parent": "id",
}  # fmt: skip


def _needed(request: Request) -> frozenset[str]:
    needed = frozenset(_STORED_COLUMNS.get(name, "properties") for name in request.columns)
    needed |= {"id"}
    return needed | {"origin"} if request.selection.vhosts else needed


def _conditions(selection: Selection) -> Conditions:
    conditions = [_messages.keep > int(Keep.NOTHING)]
    conditions += time_conditions(_messages.time_ms, selection)
    if selection.vhosts:
        # Messages that the broker published have no origin; `_maybe_mask` decides about them.
        in_vhosts = has_origin_in_vhosts(_messages.origin, selection)
        conditions.append(or_(_messages.origin == 0, in_vhosts))
    return conditions


def _maybe_mask(database: Database, selection: Selection, chunk: _Chunk) -> BoolArray | None:
    """The conditions that SQL cannot check."""
    if not selection.queues and not selection.vhosts:
        return None
    mask: BoolArray = np.ones(len(chunk.ids), bool)
    if selection.vhosts:
        mask &= is_selected_vhost(chunk.vhost(), selection)
    if selection.queues:
        mask &= chunk.routed.includes_any(selected_queues(database, selection) or {})
    return mask
