"""Cuts an id range into chunks, so that memory stays small and read transactions stay short.

`chunk_ranges` walks a range in chunks of at most CHUNK_ROWS rows and about CHUNK_BYTES bytes; the
weight of each row is read first, without its content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Table, select

from leveret.spark_sink.arrow.packed_columns import IntArray, pack_numbers, parse_numbers
from leveret.spark_sink.arrow.sql import Database, Query, parameter

CHUNK_ROWS = 8_192
CHUNK_BYTES = 8 << 20


def weight_query(
    table: Table,
    weight: ColumnElement[Any],
    conditions: Iterable[ColumnElement[bool]],
    first_row: ColumnElement[int] | None = None,
) -> Query:
    """Ids and weights of some rows, for `chunk_ranges`; `weight` is the size of a row in bytes.

    `first_row` is the id of the first row if a row is about more ids than its own.
    """
    id_column = table.c.id
    first = parameter("low") if first_row is None else first_row
    rows = (
        select(id_column, weight.label("weight"))
        .where(id_column >= first, id_column < parameter("stop"), *conditions)
        .order_by(id_column)
        .limit(parameter("max_rows"))
        .subquery()
    )
    return Query(select(pack_numbers(rows.c.id), pack_numbers(rows.c.weight)))


def chunk_ranges(
    database: Database, query: Query, span: tuple[int, int], **values: int
) -> Iterator[tuple[int, int]]:
    """Id ranges [low, high) that cover `span`; `values` are further parameters of the query."""
    low, stop = span
    while low < stop:
        row = database.row(query, low=low, stop=stop, max_rows=CHUNK_ROWS, **values)
        ids, weights = parse_numbers(row[0]), parse_numbers(row[1])
        if not len(ids):
            return
        high = stop if len(ids) < CHUNK_ROWS else int(ids[-1]) + 1
        for cut in _cuts(np.cumsum(weights)):
            edge = int(ids[cut])
            yield low, edge
            low = edge
        yield low, high
        low = high


def _cuts(total: IntArray) -> Iterator[int]:
    """Row indexes to cut before, so that no chunk is much heavier than CHUNK_BYTES.

    `total` is the running sum of the weights.
    """
    base, index = 0, 0
    while True:
        after = int(np.searchsorted(total, base + CHUNK_BYTES, side="right"))
        if after >= len(total):
            return
        index = max(after, index + 1)
        if index >= len(total):
            return
        yield index
        base = int(total[index - 1])
