"""Stored rows of one id range as columns: the common part of the tables `messages` and `events`.

One statement per range; only the columns needed are read from disk. Belongs to the reader's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import ColumnElement, Table, select

from leveret.queues.storage import schema
from leveret.queues.storage.core_statements import body_of_message
from leveret.queues.storage.trims import EVENTS_KEY, MESSAGES_KEY, Trims
from leveret.spark_sink.arrow.lookups import BrokerPublishedVhosts, Origins, read_origins
from leveret.spark_sink.arrow.packed_columns import (
    BoolArray,
    IntArray,
    PackedColumn,
    pack_bytes,
    pack_numbers,
    parse_numbers,
    text_array,
)
from leveret.spark_sink.arrow.selection import Request, Selection
from leveret.spark_sink.arrow.source import ReadStats
from leveret.spark_sink.arrow.sql import Database, Query, parameter

Conditions = list[ColumnElement[bool]]
_TRIMS = {
    key: Query(select(schema.meta.c.value).where(schema.meta.c.key == key))
    for key in (MESSAGES_KEY, EVENTS_KEY)
}


class StoredColumns:
    """The query for some columns of a stored table, compiled once."""

    def __init__(
        self,
        table: Table,
        needed: frozenset[str],
        number_columns: Sequence[str],
        bytes_columns: Sequence[str],
        conditions: Iterable[ColumnElement[bool]],
    ) -> None:
        self.numbers = [name for name in number_columns if name in needed]
        self.bytes = [name for name in bytes_columns if name in needed]
        rows = (
            select(*(_column(table, name) for name in self.numbers + self.bytes))
            .where(table.c.id >= parameter("low"), table.c.id < parameter("stop"), *conditions)
            .order_by(table.c.id)
            .subquery()
        )
        packed = [pack_numbers(rows.c[name]) for name in self.numbers]
        for name in self.bytes:
            packed += pack_bytes(rows.c[name])
        self.query = Query(select(*packed))


def _column(table: Table, name: str) -> ColumnElement[Any]:
    """A column; a body may be stored in parts."""
    return body_of_message.label(name) if name == "body" else table.c[name]


class StoredRows:
    """The rows of one id range. `origin_column` names the column with the id of the origin."""

    origin_column: str

    def __init__(self, database: Database, columns: StoredColumns, span: tuple[int, int]) -> None:
        row = database.row(columns.query, low=span[0], stop=span[1])
        numbers = len(columns.numbers)
        self._database = database
        self._numbers = {name: parse_numbers(row[i]) for i, name in enumerate(columns.numbers)}
        self._packed = {
            name: PackedColumn(row[numbers + 2 * i], row[numbers + 2 * i + 1])
            for i, name in enumerate(columns.bytes)
        }
        self._origins: Origins | None = None
        self.bytes = sum(len(packed.data) for packed in self._packed.values())

    def number(self, name: str) -> IntArray:
        return self._numbers[name]

    def packed(self, name: str) -> PackedColumn:
        return self._packed[name]

    def origin(self, name: str) -> pa.Array:
        """A column of the origins, per stored row; null where the broker itself acted."""
        origin_ids = self._numbers[self.origin_column]
        if self._origins is None:
            self._origins = read_origins(self._database, origin_ids)
        return getattr(self._origins, name).take(self._origins.index_of(origin_ids))


class LostRows:
    """Looks for rows of a planned read that retention deletes before they are read."""

    def __init__(self, database: Database, request: Request, stats: ReadStats, key: str) -> None:
        self._database = database
        self._trims = request.trims
        self._stats = stats
        self._query = _TRIMS[key]

    def note(self, span: tuple[int, int]) -> None:
        """Call it in the snapshot in which the rows of `span` were read."""
        if self._trims is None:
            return
        row = self._database.row(self._query)
        deleted = Trims.from_json(row[0] if row else None).last_deleted_since(self._trims)
        if deleted is not None and deleted >= span[0]:
            self._stats.lost.append((span[0], min(deleted + 1, span[1])))


def fill_broker_vhosts(
    vhosts: pa.Array, by_broker: BoolArray, ids: IntArray, broker_vhosts: BrokerPublishedVhosts
) -> pa.Array:
    """The column with the vhosts of messages that the broker published filled in."""
    if not by_broker.any():
        return vhosts
    missing = text_array(broker_vhosts.of(ids[by_broker]))
    return pc.replace_with_mask(vhosts, pa.array(by_broker), missing)


def time_conditions(column: ColumnElement[int], selection: Selection) -> Conditions:
    conditions: Conditions = []
    if selection.since_ms is not None:
        conditions.append(column >= selection.since_ms)
    if selection.until_ms is not None:
        conditions.append(column < selection.until_ms)
    return conditions


def has_origin_in_vhosts(column: ColumnElement[int], selection: Selection) -> ColumnElement[bool]:
    """SQL that is true where the origin belongs to a vhost of the selection."""
    origins = schema.origins.c
    return column.in_(select(origins.id).where(origins.vhost.in_(selection.vhosts)))


def is_selected_vhost(vhosts: pa.Array, selection: Selection) -> BoolArray:
    selected = pa.array(selection.vhosts, pa.string())
    mask: BoolArray = pc.is_in(vhosts, value_set=selected).to_numpy(zero_copy_only=False)
    return mask


def filter_batch(batch: pa.RecordBatch, maybe_mask: Any) -> pa.RecordBatch:
    return batch if maybe_mask is None else batch.filter(pa.array(maybe_mask))
