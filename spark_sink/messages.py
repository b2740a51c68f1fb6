"""The table `messages`: content as stored, one row per message that history keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from leveret.model.history import Keep
from spark_sink.chunks import Tally, bounded
from spark_sink.database import Database
from spark_sink.names import QueueName, Republished, chosen_queues
from spark_sink.packed import Ints, times
from spark_sink.properties import TEXT_NAMES, PropertyColumns
from spark_sink.schemas import arrow_schema
from spark_sink.selection import Request, Selection
from spark_sink.stored import (
    StoredRows,
    Where,
    is_wanted_vhost,
    of_vhosts,
    time_conditions,
    with_own_vhosts,
)
from spark_sink.takers import Taken, Takers

_KEPT = f"AND keep > {int(Keep.NOTHING)}"


def read_messages(database: Database, request: Request, tally: Tally) -> Iterator[pa.RecordBatch]:
    """Batches of the columns asked for; bodies and properties are read only when asked for."""
    schema = arrow_schema("messages", request.columns)
    for chunk in _chunks(database, request, tally):
        batch = pa.record_batch([chunk.column(n) for n in request.columns], schema=schema)
        mask = _maybe_mask(database, request.selection, chunk)
        batch = batch if mask is None else batch.filter(pa.array(mask))
        tally.rows += batch.num_rows
        if batch.num_rows:
            yield batch


def _chunks(database: Database, request: Request, tally: Tally) -> Iterator[_Chunk]:
    needed = _needed(request)
    tally.columns = tuple(sorted(needed))
    where = _conditions(request.selection)
    weight = "size + length(properties)" if "body" in needed else "256"
    span = (request.from_id, request.to_id)
    republished, takers = Republished(database, lambda: span), Takers(database, request.to_id)
    for bounds in bounded(database, "messages", weight, span, where):
        chunk = _Chunk(database, needed, bounds, where)
        chunk.republished, chunk.takers = republished, takers
        tally.queries += 1
        tally.scanned += len(chunk.ids)
        tally.bytes += chunk.bytes
        yield chunk


def count_messages(database: Database, request: Request) -> dict[str, Any]:
    """Rows and bytes by plain SQL aggregates where they can tell, and rows by first queue."""
    selection, span = request.selection, (request.from_id, request.to_id)
    is_chosen = bool(selection.queues or selection.vhosts)
    columns = ("id", "body_bytes") if is_chosen else ("id",)
    firsts: Counter[int] = Counter()
    queues: dict[int, QueueName] = {}
    size = 0
    for chunk in _chunks(database, Request("messages", *span, columns, selection), Tally()):
        mask = _maybe_mask(database, selection, chunk)
        kept = slice(None) if mask is None else mask
        numbers, rows = np.unique(chunk.taken.firsts()[kept], return_counts=True)
        firsts.update(dict(zip(numbers.tolist(), rows.tolist(), strict=True)))
        queues |= chunk.taken.queues
        size += int(chunk.number("size")[kept].sum()) if is_chosen else 0
    groups = _groups(firsts, queues)
    if is_chosen:
        return {"rows": firsts.total(), "bytes": size, "groups": groups}
    condition, values = _conditions(selection)
    row = database.row(
        "SELECT count(*), coalesce(sum(size), 0) FROM messages"  # noqa: S608
        f" WHERE id >= ? AND id < ? {condition}",
        [*span, *values],
    )
    return {"rows": int(row[0]), "bytes": int(row[1]), "groups": groups}


def _groups(firsts: Counter[int], queues: dict[int, QueueName]) -> list[dict[str, Any]]:
    """Rows by the queue that took them first; without a queue, whatever their vhost."""
    return [
        {
            "vhost": queues[number].vhost if number else None,
            "queue": queues[number].name if number else None,
            "rows": rows,
        }
        for number, rows in sorted(firsts.items())
    ]


class _Chunk(StoredRows):
    """The stored rows of one id range, and the columns made from them."""

    table = "messages"
    number_columns = ("id", "time_ms", "origin", "size")
    bytes_columns = ("exchange", "routing_key", "properties", "body")
    origin_column = "origin"
    republished: Republished
    takers: Takers

    @property
    def ids(self) -> Ints:
        return self.number("id")

    def column(self, name: str) -> pa.Array:
        return _MAKERS[name](self)

    @cached_property
    def properties(self) -> PropertyColumns:
        return PropertyColumns(self.packed("properties"))

    @cached_property
    def taken(self) -> Taken:
        return self.takers.of(self.ids)

    def vhost(self) -> pa.Array:
        own = self.number("origin") == 0
        return with_own_vhosts(self.origin("vhost"), own, self.ids, self.republished)


def _text_property(name: str) -> Callable[[_Chunk], pa.Array]:
    return lambda chunk: chunk.properties.text(name)


_MAKERS: dict[str, Callable[[_Chunk], pa.Array]] = {
    "id": lambda chunk: pa.array(chunk.ids),
    "time": lambda chunk: times(chunk.number("time_ms")),
    "vhost": _Chunk.vhost,
    "user": lambda chunk: chunk.origin("user"),
    "connection": lambda chunk: chunk.origin("connection"),
    "exchange": lambda chunk: chunk.packed("exchange").array(pa.string()),
    "routing_key": lambda chunk: chunk.packed("routing_key").array(pa.string()),
    "delivery_mode": lambda chunk: chunk.properties.number("delivery_mode", pa.int32()),
    "priority": lambda chunk: chunk.properties.number("priority", pa.int32()),
    "timestamp": lambda chunk: chunk.properties.number("timestamp", pa.int64()),
    "headers": lambda chunk: chunk.properties.headers(),
    "body": lambda chunk: chunk.packed("body").array(pa.binary()),
    "body_bytes": lambda chunk: pa.array(chunk.number("size")),
    "queue": lambda chunk: chunk.taken.first_names(),
    "queues": lambda chunk: chunk.taken.all_names(),
} | {name: _text_property(name) for name in TEXT_NAMES}

_SOURCES = {
    "time": "time_ms", "vhost": "origin", "user": "origin", "connection": "origin",
    "exchange": "exchange", "routing_key": "routing_key", "body": "body", "body_bytes": "size",
    "id": "id", "queue": "id", "queues": "id",
}  # fmt: skip


def _needed(request: Request) -> set[str]:
    needed = {"id"} | {_SOURCES.get(name, "properties") for name in request.columns}
    return needed | {"origin"} if request.selection.vhosts else needed


def _conditions(selection: Selection) -> Where:
    condition, values = time_conditions(selection)
    parts = [_KEPT, condition]
    if selection.vhosts:
        # What the broker published itself has no origin; `_masks` looks closer.
        in_vhosts, names = of_vhosts("origin", selection)
        parts.append(f"AND (origin = 0 OR {in_vhosts})")
        values += names
    return " ".join(parts), values


def _maybe_mask(
    database: Database, selection: Selection, chunk: _Chunk
) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """What SQL could not decide."""
    if not selection.queues and not selection.vhosts:
        return None
    mask = np.ones(len(chunk.ids), bool)
    if selection.vhosts:
        mask &= is_wanted_vhost(chunk.vhost(), selection)
    if selection.queues:
        mask &= chunk.taken.by_any_of(chosen_queues(database, selection) or {})
    return mask
