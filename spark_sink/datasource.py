"""`spark.read.format("leveret")` and `spark.readStream.format("leveret")`.

Options: `table` (messages, events, logs, queues), and the source: `data_dir`, or `url` with
`user` and `password`. Conditions for batch and stream alike: `since`, `until`, `queue`, `vhost`,
`kind`. Spark does not tell a Python source which columns a query needs, so name them with
`columns` ("id,time") or with `.schema(...)`; then nothing else is read. `partition_rows` is the
number of rows a task reads, `max_rows` the number of rows of a streaming batch, `to_id` an end
that a stream does not pass, `read_log` a directory in which each task records what it has read.
`failOnDataLoss` says what happens if retention deletes rows before they are read (`data_loss`).

A task reads message history with `arrow.local.LocalSource` from SQLite and the log segments, or
with `arrow.remote.RemoteSource` over HTTP. `positions` has the offsets of a stream.
Objects here are pickled to other processes; they open their source when they need it.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from leveret.spark_sink.admission import admit
from leveret.spark_sink.arrow.schemas import schema_of, spark_ddl
from leveret.spark_sink.arrow.selection import (
    SINGLE_RANGE,
    Request,
    Selection,
    Split,
    parse_number,
    parse_selection,
    split_offsets,
)
from leveret.spark_sink.arrow.source import SPLIT_ROWS, Ranges, ReadStats, Source, open_source
from leveret.spark_sink.data_loss import continue_after, find_gaps, lost_gaps, place_of, report
from leveret.spark_sink.errors import SourceError
from leveret.spark_sink.filters import PushedFilters
from leveret.spark_sink.positions import Offset, Position

OPTION_NAMES = (
    "table", "data_dir", "url", "user", "password", "columns", "since", "until", "queue", "vhost",
    "kind", "partition_rows", "max_rows", "failOnDataLoss", "to_id", "read_log",
)  # fmt: skip
PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"


@dataclass(frozen=True, slots=True)
class Options:
    """The checked options of one DataFrame."""

    table: str
    data_dir: str | None
    url: str | None
    user: str
    password: str
    selection: Selection
    partition_rows: int
    max_rows: int | None
    to_id: Mapping[str, int] | None
    read_log: str | None
    fail_on_data_loss: bool

    @contextmanager
    def source(self) -> Iterator[Source]:
        opened = open_source(self.data_dir, self.url, self.user, self.password)
        try:
            yield opened
        finally:
            opened.close()

    def check_names(self) -> None:
        """Raise SourceError if the selection names something that does not exist."""
        with self.source() as source:
            source.check(self.selection, self.table)


def parse_options(given: Mapping[str, str]) -> Options:
    known = {name.lower() for name in OPTION_NAMES}
    for name in given:
        if name.lower() not in known:
            raise SourceError(
                f"There is no option {name!r}: the options are {', '.join(OPTION_NAMES)}."
            )
    to_id = given.get("to_id")
    return Options(
        table=schema_of(given.get("table", "")).name,
        data_dir=given.get("data_dir"),
        url=given.get("url"),
        user=given.get("user", "guest"),
        password=given.get("password", "guest"),
        selection=parse_selection(given),
        partition_rows=max(1, parse_number(given, "partition_rows", SPLIT_ROWS)),
        max_rows=parse_number(given, "max_rows", 0) or None,
        to_id=json.loads(to_id) if to_id else None,
        read_log=given.get("read_log"),
        fail_on_data_loss=_parse_flag(given, "failOnDataLoss", default=True),
    )


def _parse_flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise SourceError(f"{name} must be true or false, not {text!r}.")
    return text == "true"


class LeveretDataSource(DataSource):
    """The data source `leveret`, for sessions in which filter pushdown may be off."""

    @classmethod
    def name(cls) -> str:
        return "leveret"

    def schema(self) -> str:
        options = parse_options(self.options)
        columns = self.options.get("columns")
        chosen = [name.strip() for name in columns.split(",")] if columns else None
        return spark_ddl(options.table, chosen)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self._checked_options(), _columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader(self._checked_options(), _columns(schema))

    def _checked_options(self) -> Options:
        options = parse_options(self.options)
        options.check_names()
        return options


class PushdownDataSource(LeveretDataSource):
    """The same with filter pushdown; Spark rejects it while PUSHDOWN_SETTING is off."""

    def reader(self, schema: StructType) -> DataSourceReader:
        return PushdownReader(self._checked_options(), _columns(schema))


class SplitPartition(InputPartition):
    """What one task reads: a part of `place`, as errors name it. `trims`: as in `Request`."""

    def __init__(self, split: Split, selection: Selection, trims: int, place: str) -> None:
        super().__init__(split)
        self.split = split
        self.selection = selection
        self.trims = trims
        self.place = place


class BatchReader(DataSourceReader):
    """Reads everything that is stored at planning time, split by id range."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._selection = options.selection

    def partitions(self) -> Sequence[InputPartition]:
        table = self._options.table
        with self._options.source() as source:
            ranges = source.ranges(self._selection)
            trims = ranges.trims_of(table).number
            plan = _Plan(source, self._options, self._selection, ranges, trims)
            return plan.partitions(ranges.of(table))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._columns, partition)


class PushdownReader(BatchReader):
    """The same, reading only rows that match the query's filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        pushed = PushedFilters(self._options.table, self._selection)
        remaining = list(pushed.push(filters))
        self._selection = pushed.selection
        return iter(remaining)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads rows in id order, up to the limit per batch."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        if not schema_of(options.table).is_stream:
            raise SourceError(
                f"Table {options.table!r} cannot be read as a stream: read it with spark.read."
            )
        self._options = options
        self._columns = columns
        self._available_now: dict[str, int] | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        table, ranges = self._options.table, self._ranges()
        first_ids = {key: low for key, (low, _) in ranges.of(table).items()}
        return Position.at(first_ids, table, ranges).to_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows = self._options.max_rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._available_now = self._ends(self._ranges())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        table, ranges, position = self._options.table, self._ranges(), Position.from_offset(start)
        gaps = find_gaps(table, position, ranges)
        report(gaps, fail=self._options.fail_on_data_loss)
        if gaps:
            position = continue_after(gaps, table, position, ranges)
        ends = self._available_now if self._available_now is not None else self._ends(ranges)
        starts = {key: position.next_ids.get(key, 0) for key in {*ends, *position.next_ids}}
        # Offsets never go back, even if the newest rows have been trimmed since.
        ends = {key: max(ends.get(key, 0), low) for key, low in starts.items()}
        if isinstance(limit, ReadMaxRows):
            ends = self._limited(starts, ends, limit.max_rows)
        if not gaps and ends == position.next_ids:
            return start  # nothing is new, so Spark must not run a batch
        return Position.at(ends, table, ranges).to_offset()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Spark also calls it to repeat a batch after a restart, when data may be gone."""
        options, table = self._options, self._options.table
        position, after = Position.from_offset(start), Position.from_offset(end)
        next_ids = {key: position.next_ids.get(key, 0) for key in after.next_ids}
        with options.source() as source:
            ranges = source.ranges(options.selection)
            if options.fail_on_data_loss:
                planned = Position(next_ids, after.broker, after.trims)
                report(find_gaps(table, planned, ranges), fail=True)
            known = ranges.of(table)
            if position.broker and position.broker != after.broker:
                next_ids = {key: known[key][0] for key in after.next_ids if key in known}
            spans = {key: (low, after.next_ids[key]) for key, low in sorted(next_ids.items())}
            plan = _Plan(source, options, options.selection, ranges, after.trims)
            return plan.partitions(spans)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._columns, partition)

    def commit(self, end: Offset) -> None:
        """Does nothing: the position is in Spark's checkpoint, not at the source."""

    def stop(self) -> None:
        """Does nothing: no source is open between calls."""

    def _ranges(self) -> Ranges:
        with self._options.source() as source:
            return source.ranges(self._options.selection)

    def _ends(self, ranges: Ranges) -> dict[str, int]:
        to_id = self._options.to_id
        ends = {key: high for key, (_, high) in ranges.of(self._options.table).items()}
        if to_id is None:
            return ends
        return {key: min(high, int(to_id.get(key, 0))) for key, high in ends.items()}

    def _limited(self, starts: dict[str, int], ends: dict[str, int], rows: int) -> dict[str, int]:
        """The ids after at most `rows` more rows, shared among the partitions of logs."""
        if SINGLE_RANGE in ends:
            return {SINGLE_RANGE: self._limited_end(starts[SINGLE_RANGE], ends[SINGLE_RANGE], rows)}
        admitted = admit({key: end - starts[key] for key, end in ends.items()}, rows)
        return {key: starts[key] + admitted.get(key, 0) for key in ends}

    def _limited_end(self, low: int, high: int, rows: int) -> int:
        """The furthest id with at most `rows` rows between `low` and it."""
        if low >= high:
            return low
        options = self._options
        request = Request(options.table, low, high, (), options.selection)
        with options.source() as source:
            splits = source.splits(request, rows, limit=2)
        return splits[0].to_id if len(splits) > 1 else high


@dataclass(frozen=True, slots=True)
class _Plan:
    """Cuts ranges into the parts that tasks read. `trims`: as in `Request`."""

    source: Source
    options: Options
    selection: Selection
    ranges: Ranges
    trims: int

    def partitions(self, spans: Mapping[str, tuple[int, int]]) -> list[InputPartition]:
        partitions: list[InputPartition] = []
        for key, span in spans.items():
            place = place_of(self.options.table, key, self.ranges)
            for split in self._splits(key, span):
                partitions.append(SplitPartition(split, self.selection, self.trims, place))
        return partitions

    def _splits(self, key: str, span: tuple[int, int]) -> Iterable[Split]:
        """Of a log without reading anything: there may be many."""
        rows = self.options.partition_rows
        if key == SINGLE_RANGE:
            request = Request(self.options.table, *span, (), self.selection)
            return self.source.splits(request, rows)
        return split_offsets(int(key), span, rows)


def _read(
    options: Options, columns: tuple[str, ...], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, SplitPartition):
        return  # Spark's placeholder for an empty list of partitions.
    split, stats = partition.split, ReadStats()
    request = Request(
        options.table,
        split.from_id,
        split.to_id,
        columns,
        partition.selection,
        split.queue_id,
        partition.trims,
    )
    try:
        with options.source() as source:
            yield from source.read(request, stats)
        report(lost_gaps(partition.place, stats), fail=options.fail_on_data_loss)
    finally:
        if options.read_log:
            _write_stats(Path(options.read_log), stats)


def _write_stats(directory: Path, stats: ReadStats) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{os.getpid()}-{uuid.uuid4().hex}.json"
    path.write_text(json.dumps(asdict(stats)))


def _columns(schema: StructType) -> tuple[str, ...]:
    return tuple(schema.fieldNames())
