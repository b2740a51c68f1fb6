"""Reading in pieces: how an id range is cut so that memory stays small and reads stay short.

`bounded` walks a range in chunks of at most so many rows and about so many bytes; the weight of
each row is read first, without its content. `Tally` counts what was really read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from spark_sink.database import Database
from spark_sink.packed import number_sql, numbers

CHUNK_ROWS = 8_192
CHUNK_BYTES = 8 << 20


@dataclass(slots=True)
class Tally:
    """What one reader has read; grows while it reads. `columns` are those of the database."""

    rows: int = 0
    scanned: int = 0
    bytes: int = 0
    queries: int = 0
    columns: tuple[str, ...] = ()


def bounded(
    database: Database, table: str, weight: str, span: tuple[int, int], where: tuple[str, list[int]]
) -> Iterator[tuple[int, int]]:
    """Id ranges [low, high) covering `span`; `weight` is SQL for the bytes of one row."""
    low, stop = span
    condition, values = where
    while low < stop:
        row = database.row(
            f"SELECT {number_sql('id')}, {number_sql('w')} FROM (SELECT id, {weight} AS w"  # noqa: S608
            f" FROM {table} WHERE id >= ? AND id < ? {condition} ORDER BY id LIMIT {CHUNK_ROWS})",
            [low, stop, *values],
        )
        ids, weights = numbers(row[0]), numbers(row[1])
        if not len(ids):
            return
        high = stop if len(ids) < CHUNK_ROWS else int(ids[-1]) + 1
        for cut in _cuts(np.cumsum(weights)):
            edge = int(ids[cut])
            yield low, edge
            low = edge
        yield low, high
        low = high


def _cuts(total: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Iterator[int]:
    """Places to cut before, so that no piece is much heavier than CHUNK_BYTES."""
    base, place = 0, 0
    while True:
        after = int(np.searchsorted(total, base + CHUNK_BYTES, side="right"))
        if after >= len(total):
            return
        place = max(after, place + 1)
        if place >= len(total):
            return
        yield place
        base = int(total[place - 1])
