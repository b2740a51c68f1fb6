"""The table `messages`: content as stored, one row per message that history keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leveret.model.history import EventKind, Keep
from spark_sink.chunks import Tally, bounded
from spark_sink.database import Database
from spark_sink.names import Republished, chosen_queues
from spark_sink.packed import Ints, times
from spark_sink.properties import TEXT_NAMES, PropertyColumns
from spark_sink.schemas import arrow_schema
from spark_sink.selection import Request, Selection
from spark_sink.stored import (
    StoredRows,
    Where,
    is_wanted_vhost,
    numbers_sql,
    of_vhosts,
    time_conditions,
    with_own_vhosts,
)

_KEPT = f"AND keep > {int(Keep.NOTHING)}"


def read_messages(database: Database, request: Request, tally: Tally) -> Iterator[pa.RecordBatch]:
    """Batches of the columns asked for; bodies and properties are read only when asked for."""
    needed = _needed(request)
    tally.columns = tuple(sorted(needed))
    where = _conditions(request.selection)
    weight = "size + length(properties)" if "body" in needed else "256"
    schema = arrow_schema("messages", request.columns)
    span = (request.from_id, request.to_id)
    republished = Republished(database, lambda: span)
    for low, high in bounded(database, "messages", weight, span, where):
        chunk = _Chunk(database, needed, (low, high), where)
        chunk.republished = republished
        tally.queries += 1
        tally.scanned += len(chunk.ids)
        tally.bytes += chunk.bytes
        batch = pa.record_batch([chunk.column(n) for n in request.columns], schema=schema)
        for mask in _masks(database, request.selection, chunk):
            batch = batch.filter(mask)
        tally.rows += batch.num_rows
        if batch.num_rows:
            yield batch


def count_messages(database: Database, request: Request) -> dict[str, int]:
    """Rows and bytes by plain SQL aggregates: the source's own word."""
    condition, values = _conditions(request.selection)
    sql = (
        "SELECT count(*), coalesce(sum(size), 0) FROM messages"  # noqa: S608
        f" WHERE id >= ? AND id < ? {condition}"
    )
    if not request.selection.queues and not request.selection.vhosts:
        row = database.row(sql, [request.from_id, request.to_id, *values])
        return {"rows": int(row[0]), "bytes": int(row[1])}
    rows = size = 0
    counted = Request("messages", request.from_id, request.to_id, ("body_bytes",),
                      request.selection)  # fmt: skip
    for batch in read_messages(database, counted, Tally()):
        rows += batch.num_rows
        size += int(batch.column(0).to_numpy().sum())
    return {"rows": rows, "bytes": size}


class _Chunk(StoredRows):
    """The stored rows of one id range, and the columns made from them."""

    table = "messages"
    number_columns = ("id", "time_ms", "origin", "size")
    bytes_columns = ("exchange", "routing_key", "properties", "body")
    origin_column = "origin"
    republished: Republished

    @property
    def ids(self) -> Ints:
        return self.number("id")

    def column(self, name: str) -> pa.Array:
        return _MAKERS[name](self)

    @cached_property
    def properties(self) -> PropertyColumns:
        return PropertyColumns(self.packed("properties"))

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
} | {name: _text_property(name) for name in TEXT_NAMES}

_SOURCES = {
    "time": "time_ms", "vhost": "origin", "user": "origin", "connection": "origin",
    "exchange": "exchange", "routing_key": "routing_key", "body": "body", "body_bytes": "size",
    "id": "id",
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


def _masks(database: Database, selection: Selection, chunk: _Chunk) -> Iterator[pa.Array]:
    """What SQL could not decide; at most one mask, for it is applied to the whole chunk."""
    if not selection.queues and not selection.vhosts:
        return
    mask = np.ones(len(chunk.ids), bool)
    if selection.vhosts:
        mask &= is_wanted_vhost(chunk.vhost(), selection)
    if selection.queues:
        mask &= _in_queues(database, selection, chunk.ids)
    yield pa.array(mask)


def _in_queues(database: Database, selection: Selection, ids: Ints) -> npt.NDArray[np.bool_]:
    """Which of these messages ever stood in the chosen queues."""
    chosen = chosen_queues(database, selection) or {}
    if not chosen or not len(ids):
        return np.zeros(len(ids), bool)
    kinds = (EventKind.ENQUEUED, EventKind.ENQUEUED_TRANSIENT, EventKind.SNAPSHOT)
    row = database.row(
        "SELECT group_concat(cast(ids as text), '') FROM events"  # noqa: S608
        f" WHERE queue_id IN ({numbers_sql(chosen)}) AND kind IN ({numbers_sql(kinds)})"
        " AND last_id >= ? AND first_id <= ?",
        [int(ids[0]), int(ids[-1])],
    )
    return np.isin(ids, np.frombuffer(row[0] or b"", "<u8").astype(np.int64))
