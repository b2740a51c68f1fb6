"""The table `messages`: content as stored, one row per message that history keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy import and_, func, not_, select

from leveret.model.history import Keep
from leveret.queues.storage import schema
from leveret.queues.storage.trims import MESSAGES_KEY
from leveret.spark_sink.arrow.chunking import chunk_ranges
from leveret.spark_sink.arrow.lookups import BrokerPublishedVhosts, QueueRow, selected_queues
from leveret.spark_sink.arrow.packed_columns import BoolArray, timestamp_array
from leveret.spark_sink.arrow.parents import read_parents
from leveret.spark_sink.arrow.properties import TEXT_NAMES, PropertyColumns
from leveret.spark_sink.arrow.routed_queues import RoutedQueues, RoutedQueuesReader
from leveret.spark_sink.arrow.schemas import MESSAGES, arrow_schema
from leveret.spark_sink.arrow.selection import Request, Selection, Split
from leveret.spark_sink.arrow.source import ReadStats
from leveret.spark_sink.arrow.sql import QUERY_CACHE, Database, Query
from leveret.spark_sink.arrow.stored_packs import PackQueries, StoredMessages, first_message
from leveret.spark_sink.arrow.stored_rows import (
    Conditions,
    LostRows,
    fill_broker_vhosts,
    filter_batch,
    is_selected_vhost,
    time_conditions,
)

_packs = schema.message_packs.c


class MessagesTable:
    schema = MESSAGES

    def splits(self, database: Database, request: Request, rows: int) -> Iterator[Split]:
        """Parts of `rows` ids, skipping ids that are not stored: n ids are at most n rows."""
        low = request.from_id
        while low < request.to_id:
            first = first_message(database, low, request.to_id)
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
        selection = request.selection
        is_filtered = bool(selection.queues or selection.vhosts)
        first_ids: Counter[int] = Counter()
        queues: dict[int, QueueRow] = {}
        size = 0
        columns = ("id", "body_bytes") if is_filtered else ("id",)
        for chunk in _chunks(database, replace(request, columns=columns), ReadStats()):
            mask = _maybe_mask(database, selection, chunk)
            selected = slice(None) if mask is None else mask
            ids, rows = np.unique(chunk.routed.first_ids()[selected], return_counts=True)
            first_ids.update(dict(zip(ids.tolist(), rows.tolist(), strict=True)))
            queues |= chunk.routed.queues
            size += int(chunk.body_bytes()[selected].sum()) if is_filtered else 0
        total = first_ids.total()
        if not is_filtered:
            total, size = _totals(database, request)
        return {"rows": total, "bytes": size, "groups": _groups(first_ids, queues)}


TABLE = MessagesTable()


def _chunks(
    database: Database, request: Request, stats: ReadStats, *, cut_packs_only: bool = False
) -> Iterator[_Chunk]:
    needed = _needed(request)
    stats.columns = tuple(sorted(needed))
    span = (request.from_id, request.to_id)
    queries = _queries(needed, request.selection, span if cut_packs_only else None)
    broker_vhosts = BrokerPublishedVhosts(database, lambda: span)
    routed_queues = RoutedQueuesReader(database, request.to_id)
    lost_rows, reached = LostRows(database, request, stats, MESSAGES_KEY), request.from_id
    for bounds in chunk_ranges(database, queries.weights, span):
        with database.snapshot():
            chunk = _Chunk(database, queries, bounds, request.selection)
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
def _queries(
    needed: frozenset[str], selection: Selection, cut_by: tuple[int, int] | None
) -> PackQueries:
    """With `cut_by`, of packs that this range or the time of the selection cuts."""
    conditions = _conditions(selection)
    if cut_by is not None:
        conditions.append(not_(and_(*_are_whole(cut_by, selection))))
    return PackQueries(needed, conditions)


def _totals(database: Database, request: Request) -> tuple[int, int]:
    """Rows and bytes. Only the packs that are cut are looked into, independently of `read`."""
    span = (request.from_id, request.to_id)
    conditions = [*_conditions(request.selection), *_are_whole(span, request.selection)]
    sums = (func.coalesce(func.sum(column), 0) for column in (_packs["count"], _packs.body_bytes))
    rows, size = map(int, database.row(Query(select(*sums).where(*conditions))))
    cut = replace(request, columns=("id", "body_bytes"))
    for chunk in _chunks(database, cut, ReadStats(), cut_packs_only=True):
        rows += len(chunk.ids)
        size += int(chunk.body_bytes().sum())
    return rows, size


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


class _Chunk(StoredMessages):
    """The messages of one id range, and the columns made from them."""

    broker_vhosts: BrokerPublishedVhosts
    routed_queues: RoutedQueuesReader

    def column(self, name: str) -> pa.Array:
        return _COLUMN_BUILDERS[name](self)

    @cached_property
    def property_columns(self) -> PropertyColumns:
        return PropertyColumns(*self.properties())

    @cached_property
    def routed(self) -> RoutedQueues:
        return self.routed_queues.lookup(self.ids)

    def parent(self) -> pa.Array:
        return read_parents(self._database, self.routed_queues, self.ids)

    def vhost(self) -> pa.Array:
        by_broker: BoolArray = self.origins() == 0
        return fill_broker_vhosts(self.origin("vhost"), by_broker, self.ids, self.broker_vhosts)


def _text_property(name: str) -> Callable[[_Chunk], pa.Array]:
    return lambda chunk: chunk.property_columns.text(name)


_COLUMN_BUILDERS: dict[str, Callable[[_Chunk], pa.Array]] = {
    "id": lambda chunk: pa.array(chunk.ids),
    "time": lambda chunk: timestamp_array(chunk.times()),
    "vhost": _Chunk.vhost,
    "user": lambda chunk: chunk.origin("user"),
    "connection": lambda chunk: chunk.origin("connection"),
    "exchange": _Chunk.exchanges,
    "routing_key": _Chunk.routing_keys,
    "delivery_mode": lambda chunk: chunk.property_columns.number("delivery_mode", pa.int32()),
    "priority": lambda chunk: chunk.property_columns.number("priority", pa.int32()),
    "timestamp": lambda chunk: chunk.property_columns.number("timestamp", pa.int64()),
    "headers": lambda chunk: chunk.property_columns.headers(),
    "typed_headers": lambda chunk: chunk.property_columns.typed_headers(),
    "parent": _Chunk.parent,
    "body": _Chunk.bodies,
    "body_bytes": lambda chunk: pa.array(chunk.body_bytes()),
    "queue": lambda chunk: chunk.routed.first_names(),
    "queues": lambda chunk: chunk.routed.all_names(),
} | {name: _text_property(name) for name in TEXT_NAMES}

# What each column is made from (see `PackQueries`); `properties` for those not listed.
_STORED_COLUMNS = {
    "time": "runs", "vhost": "runs", "user": "runs", "connection": "runs", "exchange": "runs",
    "routing_key": "runs", "body": "body", "body_bytes": "body_bytes",
    "id": "id", "queue": "id", "queues": "id", "parent": "id",
}  # fmt: skip


def _needed(request: Request) -> frozenset[str]:
    needed = frozenset(_STORED_COLUMNS.get(name, "properties") for name in request.columns) | {"id"}
    selection = request.selection
    selects_runs = (
        selection.vhosts or selection.since_ms is not None or selection.until_ms is not None
    )
    return needed | {"runs"} if selects_runs else needed


def _conditions(selection: Selection) -> Conditions:
    """Conditions of packs that may have selected messages."""
    return [
        _packs.keep > int(Keep.NOTHING),
        *time_conditions(_packs.last_ms, _packs.first_ms, selection),
    ]


def _are_whole(span: tuple[int, int], selection: Selection) -> Conditions:
    """Conditions of packs that are cut neither by this range nor by time."""
    return [
        _packs.id >= span[0],
        _packs.last_id < span[1],
        *time_conditions(_packs.first_ms, _packs.last_ms, selection),
    ]


def _maybe_mask(database: Database, selection: Selection, chunk: _Chunk) -> BoolArray | None:
    """The conditions that the content of the packs does not show."""
    if not selection.queues and not selection.vhosts:
        return None
    mask: BoolArray = np.ones(len(chunk.ids), bool)
    if selection.vhosts:
        mask &= is_selected_vhost(chunk.vhost(), selection)
    if selection.queues:
        mask &= chunk.routed.includes_any(selected_queues(database, selection) or {})
    return mask
