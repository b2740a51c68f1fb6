"""The table `messages`: content as stored, one row per message that history keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from leveret.model.history import EventKind, Keep
from spark_sink.chunks import Tally, bounded
from spark_sink.database import Database
from spark_sink.names import Origins, Republished, chosen_queues, origins
from spark_sink.packed import Packed, bytes_sql, number_sql, numbers, texts, times
from spark_sink.properties import TEXT_NAMES, PropertyColumns
from spark_sink.schemas import arrow_schema
from spark_sink.selection import Request, Selection

_NUMBER_COLUMNS: tuple[str, ...] = ("id", "time_ms", "origin", "size")
_BYTES_COLUMNS: tuple[str, ...] = ("exchange", "routing_key", "properties", "body")
_ORIGIN_NAMES = ("vhost", "user", "connection")
_KEPT = f"AND keep > {int(Keep.NOTHING)}"


def read_messages(database: Database, request: Request, tally: Tally) -> Iterator[pa.RecordBatch]:
    """Batches of the columns asked for; bodies and properties are read only when asked for."""
    needed = _needed(request)
    tally.columns = tuple(sorted(needed))
    where = _conditions(request.selection)
    weight = "size + length(properties)" if "body" in needed else "256"
    schema = arrow_schema("messages", request.columns)
    span = (request.from_id, request.to_id)
    republished = Republished(database, span)
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


class _Chunk:
    """The stored rows of one id range, and the columns made from them."""

    def __init__(
        self, database: Database, needed: set[str], span: tuple[int, int],
        where: tuple[str, list[Any]],
    ) -> None:  # fmt: skip
        singles = [name for name in _NUMBER_COLUMNS if name in needed]
        pairs = [name for name in _BYTES_COLUMNS if name in needed]
        selected = [number_sql(name) for name in singles] + [bytes_sql(name) for name in pairs]
        row = database.row(
            f"SELECT {', '.join(selected)} FROM (SELECT {', '.join(singles + pairs)}"  # noqa: S608
            f" FROM messages WHERE id >= ? AND id < ? {where[0]} ORDER BY id)",
            [*span, *where[1]],
        )
        self._database = database
        self._numbers = {name: numbers(row[i]) for i, name in enumerate(singles)}
        self._packed = {
            name: Packed(row[len(singles) + 2 * i], row[len(singles) + 2 * i + 1])
            for i, name in enumerate(pairs)
        }
        self._properties: PropertyColumns | None = None
        self._origins: Origins | None = None
        self.republished = Republished(database, span)
        self.ids = self._numbers["id"]
        self.bytes = sum(len(packed.data) for packed in self._packed.values())

    def column(self, name: str) -> pa.Array:
        if name in _ORIGIN_NAMES:
            return self._origin(name)
        return _MAKERS[name](self)

    def bytes_column(self, name: str, kind: pa.DataType) -> pa.Array:
        return self._packed[name].array(kind)

    def number_column(self, name: str) -> pa.Array:
        return pa.array(self._numbers[name])

    def time(self) -> pa.Array:
        return times(self._numbers["time_ms"])

    @property
    def properties(self) -> PropertyColumns:
        if self._properties is None:
            self._properties = PropertyColumns(self._packed["properties"])
        return self._properties

    def _origin(self, name: str) -> pa.Array:
        wanted = self._numbers["origin"]
        if self._origins is None:
            self._origins = origins(self._database, wanted)
        found = getattr(self._origins, name).take(self._origins.index_of(wanted))
        own = np.flatnonzero(wanted == 0)
        if name != "vhost" or not len(own):
            return found
        mask = pa.array(wanted == 0)
        return pc.replace_with_mask(found, mask, texts(self.republished.vhosts(self.ids[own])))


def _text_property(name: str) -> Callable[[_Chunk], pa.Array]:
    return lambda chunk: chunk.properties.text(name)


_MAKERS: dict[str, Callable[[_Chunk], pa.Array]] = {
    "id": lambda chunk: chunk.number_column("id"),
    "time": lambda chunk: chunk.time(),
    "exchange": lambda chunk: chunk.bytes_column("exchange", pa.string()),
    "routing_key": lambda chunk: chunk.bytes_column("routing_key", pa.string()),
    "delivery_mode": lambda chunk: chunk.properties.number("delivery_mode", pa.int32()),
    "priority": lambda chunk: chunk.properties.number("priority", pa.int32()),
    "timestamp": lambda chunk: chunk.properties.number("timestamp", pa.int64()),
    "headers": lambda chunk: chunk.properties.headers(),
    "body": lambda chunk: chunk.bytes_column("body", pa.binary()),
    "body_bytes": lambda chunk: chunk.number_column("size"),
} | {name: _text_property(name) for name in TEXT_NAMES}

_SOURCES = {
    "time": "time_ms", "vhost": "origin", "user": "origin", "connection": "origin",
    "exchange": "exchange", "routing_key": "routing_key", "body": "body", "body_bytes": "size",
    "id": "id",
}  # fmt: skip


def _needed(request: Request) -> set[str]:
    needed = {"id"} | {_SOURCES.get(name, "properties") for name in request.columns}
    return needed | {"origin"} if request.selection.vhosts else needed


def _conditions(selection: Selection) -> tuple[str, list[Any]]:
    parts: list[str] = [_KEPT]
    values: list[Any] = []
    if selection.since_ms is not None:
        parts.append("AND time_ms >= ?")
        values.append(selection.since_ms)
    if selection.until_ms is not None:
        parts.append("AND time_ms < ?")
        values.append(selection.until_ms)
    if selection.vhosts:
        marks = ", ".join("?" * len(selection.vhosts))
        # What the broker published itself has no origin; `_masks` looks closer.
        origins_sql = f"SELECT id FROM origins WHERE vhost IN ({marks})"  # noqa: S608
        parts.append(f"AND (origin = 0 OR origin IN ({origins_sql}))")
        values.extend(selection.vhosts)
    return " ".join(parts), values


def _masks(database: Database, selection: Selection, chunk: _Chunk) -> Iterator[pa.Array]:
    """What SQL could not decide; at most one mask, for it is applied to the whole chunk."""
    if not selection.queues and not selection.vhosts:
        return
    mask = np.ones(len(chunk.ids), bool)
    if selection.vhosts:
        wanted = pa.array(selection.vhosts, pa.string())
        mask &= pc.is_in(chunk.column("vhost"), value_set=wanted).to_numpy(zero_copy_only=False)
    if selection.queues:
        mask &= _in_queues(database, selection, chunk.ids)
    yield pa.array(mask)


def _in_queues(
    database: Database, selection: Selection, ids: np.ndarray[Any, Any]
) -> npt.NDArray[np.bool_]:
    """Which of these messages ever stood in the chosen queues."""
    chosen = chosen_queues(database, selection) or {}
    if not chosen or not len(ids):
        return np.zeros(len(ids), bool)
    kinds = (EventKind.ENQUEUED, EventKind.ENQUEUED_TRANSIENT, EventKind.SNAPSHOT)
    row = database.row(
        "SELECT group_concat(cast(ids as text), '') FROM events"  # noqa: S608
        f" WHERE queue_id IN ({', '.join('?' * len(chosen))}) AND kind IN (?, ?, ?)"
        " AND last_id >= ? AND first_id <= ?",
        [*chosen, *map(int, kinds), int(ids[0]), int(ids[-1])],
    )
    return np.isin(ids, np.frombuffer(row[0] or b"", "<u8").astype(np.int64))
