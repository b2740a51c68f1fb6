"""Where to cut a table so that each part has at most so many rows.

`messages` and logs are cut by arithmetic: a range of n ids holds at most n rows. `events` are cut
by the counts in their rows; a single stored row larger than the limit is a part of its own.
Cutting the same range twice gives the same parts as long as nothing in it was trimmed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spark_sink.database import Database
from spark_sink.packed import Ints, number_sql, numbers
from spark_sink.selection import Split

_SCAN_ROWS = 20_000


def message_splits(database: Database, from_id: int, to_id: int, rows: int) -> Iterator[Split]:
    """Parts of `rows` ids, stepping over ids that are not stored."""
    low = from_id
    while low < to_id:
        first = database.number(
            "SELECT id FROM messages WHERE id >= ? AND id < ? ORDER BY id LIMIT 1", [low, to_id]
        )
        if first is None:
            return
        high = min(first + rows, to_id)
        yield Split(first, high, high - first)
        low = high


def event_splits(database: Database, from_id: int, to_id: int, rows: int) -> Iterator[Split]:
    """Parts of stored rows whose counts add up to at most `rows`."""
    start, weight = from_id, 0
    for ids, counts in _counts(database, from_id, to_id):
        place, base = 0, 0
        totals = np.cumsum(counts)
        while True:
            fits = int(np.searchsorted(totals, base + rows - weight, side="right"))
            if fits >= len(ids):
                weight += int(totals[-1]) - base
                break
            at = max(fits, place + 1) if weight == 0 else fits
            if at >= len(ids):
                weight += int(totals[-1]) - base
                break
            done = int(totals[at - 1]) if at else 0
            yield Split(start, int(ids[at]), weight + done - base)
            start, weight, place, base = int(ids[at]), 0, at, done
    if weight:
        yield Split(start, to_id, weight)


def _counts(database: Database, from_id: int, to_id: int) -> Iterator[tuple[Ints, Ints]]:
    low = from_id
    while low < to_id:
        row = database.row(
            f"SELECT {number_sql('id')}, {number_sql('count')} FROM (SELECT id, count FROM events"  # noqa: S608
            f" WHERE id >= ? AND id < ? ORDER BY id LIMIT {_SCAN_ROWS})",
            [low, to_id],
        )
        ids = numbers(row[0])
        if not len(ids):
            return
        yield ids, numbers(row[1])
        low = int(ids[-1]) + 1


def span_splits(from_id: int, to_id: int, rows: int, queue_id: int) -> Iterator[Split]:
    """Parts of a log partition: offsets are dense, except where compaction left holes."""
    for low in range(from_id, to_id, rows):
        high = min(low + rows, to_id)
        yield Split(low, high, high - low, queue_id)
