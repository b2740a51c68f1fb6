"""The table `logs`: records of log-mode queues, from the columns of their segment files.

Offsets are the log's own; consumer groups and their offsets are not touched. Only whole batches
whose checksums hold, up to what the broker has synced, are seen. A partition of a log is a queue;
the number of that queue names its directory under `<data directory>/logs`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from queues.log.batch import Batch
from queues.log.errors import LogError
from queues.log.reader import LogReader
from spark_sink.chunks import CHUNK_BYTES, CHUNK_ROWS, Tally
from spark_sink.database import Database
from spark_sink.names import LOG_KIND, QueueName, queue_names
from spark_sink.packed import Ints, Packed, one_text, times
from spark_sink.properties import PropertyColumns
from spark_sink.schemas import arrow_schema
from spark_sink.selection import Request, Selection

_PARTITIONS = "x-partitions"
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
    logs = [one for one in queue_names(database).values() if one.kind == LOG_KIND]
    logs = [one for one in logs if one.deleted_ms is None]
    counts = {(one.vhost, one.name): _partition_count(one) for one in logs}
    for queue in logs:
        log, number = log_of(queue, counts)
        if selection.queues and not {log, queue.name}.intersection(selection.queues):
            continue
        if selection.vhosts and queue.vhost not in selection.vhosts:
            continue
        with _opened(database, queue.id) as reader:
            if reader is not None:
                span = (reader.first_offset, reader.next_offset)
                found.append(Partition(queue.id, queue.vhost, log, number, *span))
    return found


def log_of(queue: QueueName, counts: Mapping[tuple[str, str], int]) -> tuple[str, int]:
    """Name of the log and number of the partition that a queue is.

    Partitions of a log are queues of their own, `<log>-<number>`; `counts` says of each log how
    many it has.
    """
    log, _, number = queue.name.rpartition("-")
    if number.isdecimal() and int(number) < counts.get((queue.vhost, log), 0):
        return log, int(number)
    return queue.name, 0


def _partition_count(queue: QueueName) -> int:
    count = json.loads(queue.arguments or "{}").get(_PARTITIONS)
    return count if isinstance(count, int) else 0


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
                slices = _slices(reader, part, request, Tally()) if reader is not None else ()
                rows = sum(one.rows for one in slices)
            named = {"vhost": part.vhost, "log": part.log, "partition": part.partition}
            groups.append(named | {"rows": rows})
    return groups


def _read_partition(
    reader: LogReader, part: Partition, request: Request, tally: Tally
) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema("logs", request.columns)
    for slices in _joined(_slices(reader, part, request, tally)):
        piece = _Piece(slices, part)
        arrays = [_MAKERS[name](piece) for name in request.columns]
        tally.rows += piece.rows
        tally.bytes += piece.bytes
        yield pa.record_batch(arrays, schema=schema)


@dataclass(frozen=True, slots=True)
class _Slice:
    """The wanted records of one stored batch: [low, high)."""

    batch: Batch
    low: int
    high: int

    @property
    def rows(self) -> int:
        return self.high - self.low

    def ints(self, column: memoryview) -> Ints:
        return np.frombuffer(column, "<u4")[self.low : self.high].astype(np.int64)


def _slices(reader: LogReader, part: Partition, request: Request, tally: Tally) -> Iterator[_Slice]:
    """The wanted part of each stored batch that has one."""
    start, until = max(request.from_id, part.first), request.selection.until_ms
    if request.selection.since_ms is not None:
        start = max(start, reader.offset_for_time(request.selection.since_ms))
    for batch in reader.batches(start, request.to_id):
        tally.queries += 1
        tally.scanned += batch.header.record_count
        if until is not None and batch.header.first_time_ms >= until:
            return
        low, high = batch.index_of(start), batch.index_of(request.to_id)
        if until is not None:
            high = min(high, batch.index_of_time(until))
        if low < high:
            yield _Slice(batch, low, high)


def _joined(slices: Iterator[_Slice]) -> Iterator[list[_Slice]]:
    """Slices in bundles that are worth an Arrow batch: a log written slowly has small ones."""
    bundle: list[_Slice] = []
    rows = size = 0
    for one in slices:
        bundle.append(one)
        rows += one.rows
        size += one.batch.header.length
        if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield bundle
            bundle, rows, size = [], 0, 0
    if bundle:
        yield bundle


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
    """Some slices in a row; each column is the batches' own columns, one after another."""

    def __init__(self, slices: list[_Slice], part: Partition) -> None:
        self.part = part
        self.rows = sum(one.rows for one in slices)
        self.bytes = 0
        self._slices = slices

    def offsets(self) -> pa.Array:
        return pa.array(
            np.concatenate(
                [one.ints(one.batch.offset_deltas) + one.batch.header.base_offset
                 for one in self._slices]
            )
        )  # fmt: skip

    def times(self) -> pa.Array:
        return times(
            np.concatenate(
                [one.ints(one.batch.time_deltas) + one.batch.header.first_time_ms
                 for one in self._slices]
            )
        )  # fmt: skip

    def values(self, column: int, kind: pa.DataType) -> pa.Array:
        packed = self._packed(column)
        self.bytes += len(packed.data)
        return packed.array(kind)

    def sizes(self) -> pa.Array:
        return pa.array(np.concatenate([self._widths(one, _BODY) for one in self._slices]))

    @cached_property
    def properties(self) -> PropertyColumns:
        return PropertyColumns(self._packed(_PROPERTIES))

    def _packed(self, column: int) -> Packed:
        areas = []
        for one in self._slices:
            ends = one.batch.ends(column)
            areas.append(one.batch.area(column)[ends[one.low] : ends[one.high]])
        widths = np.concatenate([self._widths(one, column) for one in self._slices])
        return Packed.joined(b"".join(areas), widths)

    @staticmethod
    def _widths(one: _Slice, column: int) -> Ints:
        ends = np.frombuffer(one.batch.ends(column), "<i4")[one.low : one.high + 1]
        return np.diff(ends).astype(np.int64)


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
