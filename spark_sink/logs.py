"""The table `logs`: records of log-mode queues, as slices of their segment files.

Offsets are the log's own; consumer groups and their offsets are not touched. Only whole batches
whose checksums hold, up to what the broker has synced, are seen. A partition of a log is a queue;
the number of that queue names its directory under `<data directory>/logs`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from queues.log.batch import Batch
from queues.log.errors import LogError
from queues.log.reader import LogReader
from spark_sink.chunks import Tally
from spark_sink.database import Database
from spark_sink.names import LOG_KIND, QueueName, queue_names
from spark_sink.packed import Packed, one_text, times
from spark_sink.properties import PropertyColumns
from spark_sink.schemas import arrow_schema
from spark_sink.selection import Request, Selection

_PARTITION_OF = "x-partition-of"
_EXCHANGE, _ROUTING_KEY, _PROPERTIES, _BODY = range(4)


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of a log and what it holds: offsets `first` to before `next`."""

    queue_id: int
    vhost: str
    log: str
    partition: int
    first: int
    next: int


def partitions(database: Database, selection: Selection) -> list[Partition]:
    """The logs a selection names (all of them if none), each with its range as of now."""
    found = []
    for queue in queue_names(database).values():
        if queue.kind != LOG_KIND or queue.deleted_ms is not None:
            continue
        log, number = log_of(queue)
        if selection.queues and not {log, queue.name}.intersection(selection.queues):
            continue
        if selection.vhosts and queue.vhost not in selection.vhosts:
            continue
        with _opened(database, queue.id) as reader:
            if reader is not None:
                span = (reader.first_offset, reader.next_offset)
                found.append(Partition(queue.id, queue.vhost, log, number, *span))
    return found


def log_of(queue: QueueName) -> tuple[str, int]:
    """Name of the log and number of the partition that a queue is."""
    log, _, number = queue.name.rpartition("-")
    if number.isdecimal() and json.loads(queue.arguments or "{}").get(_PARTITION_OF) == log:
        return log, int(number)
    return queue.name, 0


def read_logs(database: Database, request: Request, tally: Tally) -> Iterator[pa.RecordBatch]:
    """Records of one partition, or of every partition of the selection when none is named."""
    tally.columns = request.columns
    for part in partitions(database, request.selection):
        if request.queue_id in (None, part.queue_id):
            with _opened(database, part.queue_id) as reader:
                if reader is not None:
                    yield from _read_partition(reader, part, request, tally)


def count_logs(database: Database, request: Request) -> list[dict[str, Any]]:
    """Rows per partition, by walking over the stored batches: the source's own word."""
    groups = []
    for part in partitions(database, request.selection):
        if request.queue_id in (None, part.queue_id):
            with _opened(database, part.queue_id) as reader:
                pieces = _pieces(reader, part, request, Tally()) if reader is not None else ()
                rows = sum(piece.rows for piece in pieces)
            named = {"vhost": part.vhost, "log": part.log, "partition": part.partition}
            groups.append(named | {"rows": rows})
    return groups


def _read_partition(
    reader: LogReader, part: Partition, request: Request, tally: Tally
) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema("logs", request.columns)
    for piece in _pieces(reader, part, request, tally):
        arrays = [_MAKERS[name](piece) for name in request.columns]
        tally.rows += piece.rows
        tally.bytes += piece.bytes
        yield pa.record_batch(arrays, schema=schema)


def _pieces(reader: LogReader, part: Partition, request: Request, tally: Tally) -> Iterator[_Piece]:
    """The wanted part of each stored batch that has one."""
    start = max(request.from_id, part.first)
    if request.selection.since_ms is not None:
        start = max(start, reader.offset_for_time(request.selection.since_ms))
    for batch in reader.batches(start, request.to_id):
        tally.queries += 1
        tally.scanned += batch.header.record_count
        until = request.selection.until_ms
        if until is not None and batch.header.first_time_ms >= until:
            return
        piece = _Piece(batch, part, start, request)
        if piece.rows:
            yield piece


@contextmanager
def _opened(database: Database, queue_id: int) -> Iterator[LogReader | None]:
    """The log of a queue; None while it has no file yet, or when it is gone again."""
    try:
        reader = LogReader(database.data_dir / "logs" / str(queue_id))
    except (LogError, FileNotFoundError):
        yield None
        return
    with reader:
        yield reader


class _Piece:
    """The wanted records of one stored batch; each column is a slice of the batch's own."""

    def __init__(self, batch: Batch, part: Partition, start: int, request: Request) -> None:
        header = batch.header
        self.part = part
        self._batch = batch
        self._low = batch.index_of(start)
        self._high = batch.index_of(request.to_id)
        if request.selection.until_ms is not None:
            self._high = min(self._high, batch.index_of_time(request.selection.until_ms))
        self.rows = max(self._high - self._low, 0)
        self.bytes = 0
        self._base, self._time = header.base_offset, header.first_time_ms
        self._properties: PropertyColumns | None = None

    def offsets(self) -> pa.Array:
        deltas = np.frombuffer(self._batch.offset_deltas, "<u4")[self._low : self._high]
        return pa.array(deltas.astype(np.int64) + self._base)

    def times(self) -> pa.Array:
        deltas = np.frombuffer(self._batch.time_deltas, "<u4")[self._low : self._high]
        return times(deltas.astype(np.int64) + self._time)

    def values(self, column: int, kind: pa.DataType) -> pa.Array:
        ends, area = self._batch.ends(column), self._batch.area(column)
        self.bytes += ends[self._high] - ends[self._low]
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(area)]
        array = pa.Array.from_buffers(kind, self.rows, buffers, 0, self._low)
        if kind != pa.binary():
            array.validate(full=True)
        return array

    def sizes(self) -> pa.Array:
        edges = np.frombuffer(self._batch.ends(_BODY), "<i4")[self._low : self._high + 1]
        return pa.array(np.diff(edges).astype(np.int64))

    @property
    def properties(self) -> PropertyColumns:
        if self._properties is None:
            ends, area = self._batch.ends(_PROPERTIES), self._batch.area(_PROPERTIES)
            edges = np.frombuffer(ends, "<i4")[self._low : self._high + 1].astype(np.int64)
            self._properties = PropertyColumns(Packed.sliced(bytes(area), edges))
        return self._properties


_MAKERS: dict[str, Callable[[_Piece], pa.Array]] = {
    "vhost": lambda piece: one_text(piece.part.vhost, piece.rows),
    "log": lambda piece: one_text(piece.part.log, piece.rows),
    "partition": lambda piece: pa.repeat(pa.scalar(piece.part.partition, pa.int32()), piece.rows),
    "offset": _Piece.offsets,
    "time": _Piece.times,
    "exchange": lambda piece: piece.values(_EXCHANGE, pa.string()),
    "routing_key": lambda piece: piece.values(_ROUTING_KEY, pa.string()),
    "headers": lambda piece: piece.properties.headers(),
    "properties": lambda piece: piece.properties.others(),
    "body": lambda piece: piece.values(_BODY, pa.binary()),
    "body_bytes": _Piece.sizes,
}
