"""The stored events of one id range as columns; one element per row, which is about many messages.

One statement per range; only the columns needed are read from disk. Belongs to the reader's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import pyarrow as pa
from sqlalchemy import ColumnElement, select

from leveret.queues.storage import schema
from leveret.spark_sink.arrow.lookups import Origins, read_origins
from leveret.spark_sink.arrow.packed_columns import (
    IntArray,
    PackedColumn,
    pack_bytes,
    pack_numbers,
    parse_numbers,
)
from leveret.spark_sink.arrow.sql import Database, Query, parameter

_NUMBERS = ("id", "time_ms", "kind", "queue_id", "actor", "count")
_BYTES = ("ids", "sizes", "detail")
_events = schema.events.c


class EventColumns:
    """The query for some columns, compiled once."""

    def __init__(self, needed: frozenset[str], conditions: Iterable[ColumnElement[bool]]) -> None:
        self.numbers = [name for name in _NUMBERS if name in needed]
        self.bytes = [name for name in _BYTES if name in needed]
        rows = (
            select(*(_events[name] for name in self.numbers + self.bytes))
            .where(_events.id >= parameter("low"), _events.id < parameter("stop"), *conditions)
            .order_by(_events.id)
            .subquery()
        )
        packed = [pack_numbers(rows.c[name]) for name in self.numbers]
        for name in self.bytes:
            packed += pack_bytes(rows.c[name])
        self.query = Query(select(*packed))


class StoredEvents:
    """The rows of one id range."""

    def __init__(self, database: Database, columns: EventColumns, span: tuple[int, int]) -> None:
        row = database.row(columns.query, low=span[0], stop=span[1])
        numbers = len(columns.numbers)
        self._database = database
        self._numbers = {name: parse_numbers(row[i]) for i, name in enumerate(columns.numbers)}
        self._packed = {
            name: PackedColumn(row[numbers + 2 * i], row[numbers + 2 * i + 1])
            for i, name in enumerate(columns.bytes)
        }
        self.bytes = sum(len(packed.data) for packed in self._packed.values())

    def number(self, name: str) -> IntArray:
        return self._numbers[name]

    def packed(self, name: str) -> PackedColumn:
        return self._packed[name]

    def origin(self, name: str) -> pa.Array:
        """A column of the origins; null where the broker itself acted."""
        return getattr(self._origins, name).take(self._origins.index_of(self.number("actor")))

    @cached_property
    def _origins(self) -> Origins:
        return read_origins(self._database, self.number("actor"))
