"""The table `logs`: records of log-mode queues, from the columns of their segment files.

Offsets are the log's own; consumer groups and their offsets are not touched. Only whole batches
with valid checksums, up to the last sync, are read. A partition of a log is a queue; the id of
that queue names its directory under `<data directory>/logs`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from leveret.queues.log.files.batch import Batch
from leveret.queues.log.files.errors import LogError
from leveret.queues.log.files.reader import LogReader
from leveret.spark_sink.arrow.chunking import CHUNK_BYTES, CHUNK_ROWS
from leveret.spark_sink.arrow.lookups import (
    LOG_KIND,
    QueueRow,
    read_queue,
    read_queues,
    read_queues_named,
)
from leveret.spark_sink.arrow.packed_columns import (
    IntArray,
    PackedColumn,
    constant_text,
    timestamp_array,
)
from leveret.spark_sink.arrow.properties import PropertyColumns
from leveret.spark_sink.arrow.schemas import LOGS, arrow_schema
from leveret.spark_sink.arrow.selection import Request, Selection, Split, split_offsets
from leveret.spark_sink.arrow.source import LogPartition, ReadStats
from leveret.spark_sink.arrow.sql import Database

logger = logging.getLogger("leveret.spark")

_PARTITIONS = "x-partitions"
_CLEANUP_POLICY = "x-cleanup-policy"
_EXCHANGE, _ROUTING_KEY, _PROPERTIES, _BODY = range(4)


class LogsTable:
    schema = LOGS

    def splits(self, database: Database, request: Request, rows: int) -> Iterator[Split]:
        for part in _requested_partitions(database, request):
            span = (max(request.from_id, part.first), min(request.to_id, part.next))
            yield from split_offsets(part.queue_id, span, rows)

    def read(
        self, database: Database, request: Request, stats: ReadStats
    ) -> Iterator[pa.RecordBatch]:
        """Records of one partition; without `queue_id`, of every partition of the selection."""
        stats.columns = request.columns
        partitions = _requested_partitions(database, request)
        if not partitions and request.trims is not None:  # the log was deleted
            stats.lost.append((request.from_id, request.to_id))
        for part in partitions:
            with _opened(database, part.queue_id) as reader:
                if reader is not None:
                    yield from _read_partition(reader, part, request, stats)
                elif request.trims is not None:
                    stats.lost.append((request.from_id, request.to_id))

    def count(self, database: Database, request: Request) -> dict[str, Any]:
        """Rows per partition, by walking over the stored batches."""
        groups: list[dict[str, Any]] = []
        for part in _requested_partitions(database, request):
            with _opened(database, part.queue_id) as reader:
                slices = _slices(reader, part, request, ReadStats()) if reader is not None else ()
                rows = sum(piece.rows for piece in slices)
            names = {"vhost": part.vhost, "log": part.log, "partition": part.partition}
            groups.append(names | {"rows": rows})
        return {"rows": sum(int(group["rows"]) for group in groups), "groups": groups}


TABLE = LogsTable()


def read_partitions(
    database: Database, selection: Selection, queue_id: int | None = None
) -> list[LogPartition]:
    """The partitions of the selected logs (all logs if none is named), with their ranges.

    With `queue_id` that partition only: then no file of another one is opened.
    """
    if queue_id is not None:
        return _read_partition_of(database, selection, queue_id)
    queues = [queue for queue in read_queues(database).values() if _is_log(queue)]
    counts = {(queue.vhost, queue.name): _partition_count(queue) for queue in queues}
    partitions = (_maybe_partition(database, selection, queue, counts) for queue in queues)
    return [partition for partition in partitions if partition is not None]


def _requested_partitions(database: Database, request: Request) -> list[LogPartition]:
    return read_partitions(database, request.selection, request.queue_id)


def _read_partition_of(
    database: Database, selection: Selection, queue_id: int
) -> list[LogPartition]:
    queue = read_queue(database, queue_id)
    if queue is None or not _is_log(queue):
        return []
    parent = queue.name.rpartition("-")[0]
    counts = {
        (log.vhost, log.name): _partition_count(log)
        for log in read_queues_named(database, queue.vhost, parent)
        if _is_log(log)
    }
    partition = _maybe_partition(database, selection, queue, counts)
    return [] if partition is None else [partition]


def _maybe_partition(
    database: Database,
    selection: Selection,
    queue: QueueRow,
    counts: Mapping[tuple[str, str], int],
) -> LogPartition | None:
    """None if the queue is not selected or has no files; `counts` as for `log_of`."""
    log, number = log_of(queue, counts)
    if selection.queues and not {log, queue.name}.intersection(selection.queues):
        return None
    if selection.vhosts and queue.vhost not in selection.vhosts:
        return None
    with _opened(database, queue.id) as reader:
        if reader is None:
            return None
        span = (reader.first_offset, reader.next_offset)
        start = _start(reader, is_compacted=_is_compacted(queue))
        return LogPartition(queue.id, queue.vhost, log, number, *span, start)


def _start(reader: LogReader, *, is_compacted: bool) -> int:
    """The offset below which retention has deleted records by now."""
    start = reader.start
    if start is None:  # deleted by an older version, or by compaction
        return 0 if is_compacted else reader.first_offset
    return min(start, reader.first_offset)


def _is_compacted(queue: QueueRow) -> bool:
    return bool(json.loads(queue.arguments or "{}").get(_CLEANUP_POLICY) == "compact")


def _is_log(queue: QueueRow) -> bool:
    return queue.kind == LOG_KIND and queue.deleted_ms is None


def log_of(queue: QueueRow, counts: Mapping[tuple[str, str], int]) -> tuple[str, int]:
    """The name of the log that a queue is a partition of, and the number of the partition.

    The partitions of a log are queues named `<log>-<number>`; `counts` is the number of
    partitions by vhost and log.
    """
    log, _, number = queue.name.rpartition("-")
    if number.isdecimal() and int(number) < counts.get((queue.vhost, log), 0):
        return log, int(number)
    return queue.name, 0


def _partition_count(queue: QueueRow) -> int:
    count = json.loads(queue.arguments or "{}").get(_PARTITIONS)
    return count if isinstance(count, int) else 0


def _read_partition(
    reader: LogReader, part: LogPartition, request: Request, stats: ReadStats
) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema("logs", request.columns)
    for slices in _bundled(_slices(reader, part, request, stats)):
        chunk = _Chunk(slices, part)
        arrays = [_COLUMN_BUILDERS[name](chunk) for name in request.columns]
        stats.rows += chunk.rows
        stats.bytes += chunk.bytes
        yield pa.record_batch(arrays, schema=schema)
    _warn_of_lost(reader, part, request)


def _warn_of_lost(reader: LogReader, part: LogPartition, request: Request) -> None:
    """Damaged batches and missing files; the broker reports the same."""
    span = (max(request.from_id, part.first), min(request.to_id, part.next))
    for first, after in reader.lost_between(*span):
        logger.warning(
            "log '%s' in vhost '%s', partition %d: the offsets %d to %d are lost and skipped",
            part.log,
            part.vhost,
            part.partition,
            first,
            after - 1,
        )


@dataclass(frozen=True, slots=True)
class _Slice:
    """The requested records of piece stored batch: indexes [low, high)."""

    batch: Batch
    low: int
    high: int

    @property
    def rows(self) -> int:
        return self.high - self.low

    def ints(self, column: memoryview) -> IntArray:
        return np.frombuffer(column, "<u4")[self.low : self.high].astype(np.int64)


def _slices(
    reader: LogReader, part: LogPartition, request: Request, stats: ReadStats
) -> Iterator[_Slice]:
    """The requested part of each stored batch that has one."""
    start, until = max(request.from_id, part.first), request.selection.until_ms
    if request.selection.since_ms is not None:
        start = max(start, reader.offset_for_time(request.selection.since_ms))
    batches = reader.batches(start, request.to_id)
    if request.trims is not None:
        batches = _noting_lost(batches, reader, request, stats)
    for batch in batches:
        stats.queries += 1
        stats.scanned += batch.header.record_count
        if until is not None and batch.header.first_time_ms >= until:
            return
        low, high = batch.index_of(start), batch.index_of(request.to_id)
        if until is not None:
            high = min(high, batch.index_of_time(until))
        if low < high:
            yield _Slice(batch, low, high)


def _noting_lost(
    batches: Iterator[Batch], reader: LogReader, request: Request, stats: ReadStats
) -> Iterator[Batch]:
    """The batches; holes between them that retention has made are noted."""
    reached = request.from_id
    for batch in batches:
        _note_hole(reader, (reached, batch.header.base_offset), stats)
        reached = max(reached, batch.header.next_offset)
        yield batch
    _note_hole(reader, (reached, request.to_id), stats)


def _note_hole(reader: LogReader, hole: tuple[int, int], stats: ReadStats) -> None:
    low, high = hole
    deleted_to = (reader.start or 0) if low < high else 0
    if deleted_to > low:
        stats.lost.append((low, min(deleted_to, high)))


def _bundled(slices: Iterator[_Slice]) -> Iterator[list[_Slice]]:
    """Slices in bundles that fill an Arrow batch: a log written slowly has small batches."""
    bundle: list[_Slice] = []
    rows = size = 0
    for piece in slices:
        bundle.append(piece)
        rows += piece.rows
        size += piece.batch.header.length
        if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield bundle
            bundle, rows, size = [], 0, 0
    if bundle:
        yield bundle


@contextmanager
def _opened(database: Database, queue_id: int) -> Iterator[LogReader | None]:
    """The log of a queue; None if its files do not exist yet, or were deleted meanwhile."""
    try:
        reader = LogReader(database.data_dir / "logs" / str(queue_id))
    except (LogError, FileNotFoundError):
        yield None
        return
    with reader:
        yield reader


class _Chunk:
    """Some slices in a row; each column is the batches' own columns, piece after another."""

    def __init__(self, slices: list[_Slice], part: LogPartition) -> None:
        self.part = part
        self.rows = sum(piece.rows for piece in slices)
        self.bytes = 0
        self._slices = slices

    def offsets(self) -> pa.Array:
        return pa.array(
            np.concatenate(
                [piece.ints(piece.batch.offset_deltas) + piece.batch.header.base_offset
                 for piece in self._slices]
            )
        )  # fmt: skip

    def times(self) -> pa.Array:
        return timestamp_array(
            np.concatenate(
                [piece.ints(piece.batch.time_deltas) + piece.batch.header.first_time_ms
                 for piece in self._slices]
            )
        )  # fmt: skip

    def values(self, column: int, kind: pa.DataType) -> pa.Array:
        packed = self._packed(column)
        self.bytes += len(packed.data)
        return packed.array(kind)

    def sizes(self) -> pa.Array:
        return pa.array(np.concatenate([self._widths(piece, _BODY) for piece in self._slices]))

    @cached_property
    def properties(self) -> PropertyColumns:
        packed = self._packed(_PROPERTIES)
        return PropertyColumns(packed.data, packed.starts, packed.widths)

    def _packed(self, column: int) -> PackedColumn:
        areas = []
        for piece in self._slices:
            ends = piece.batch.ends(column)
            areas.append(piece.batch.area(column)[ends[piece.low] : ends[piece.high]])
        widths = np.concatenate([self._widths(piece, column) for piece in self._slices])
        return PackedColumn.from_widths(b"".join(areas), widths)

    @staticmethod
    def _widths(piece: _Slice, column: int) -> IntArray:
        ends = np.frombuffer(piece.batch.ends(column), "<i4")[piece.low : piece.high + 1]
        return np.diff(ends).astype(np.int64)


_COLUMN_BUILDERS: dict[str, Callable[[_Chunk], pa.Array]] = {
    "vhost": lambda chunk: constant_text(chunk.part.vhost, chunk.rows),
    "log": lambda chunk: constant_text(chunk.part.log, chunk.rows),
    "partition": lambda chunk: pa.repeat(pa.scalar(chunk.part.partition, pa.int32()), chunk.rows),
    "offset": _Chunk.offsets,
    "time": _Chunk.times,
    "exchange": lambda chunk: chunk.values(_EXCHANGE, pa.string()),
    "routing_key": lambda chunk: chunk.values(_ROUTING_KEY, pa.string()),
    "headers": lambda chunk: chunk.properties.headers(),
    "typed_headers": lambda chunk: chunk.properties.typed_headers(),
    "properties": lambda chunk: chunk.properties.others(),
    "body": lambda chunk: chunk.values(_BODY, pa.binary()),
    "body_bytes": _Chunk.sizes,
}
