"""`spark.read.format("leveret")` and `spark.readStream.format("leveret")`.

Options: `table` (messages, events, logs, queues), and where to read: `data_dir`, or `url` with
`user` and `password`. Conditions that hold for batch and stream alike: `since`, `until`, `queue`,
`vhost`, `kind`. Columns: Spark tells a Python source nothing about the columns a query needs, so
say it with `columns` ("id,time") or with `.schema(...)`; then nothing else is read.
`partition_rows` is how many rows a task reads, `max_rows` how many a streaming batch takes,
`to_id` an end that a stream never passes, `read_log` a directory that is told what was read.

Offsets of a stream are the next id to read: {"next": n}, and for logs {queue number: n}.
Objects here are pickled to other processes; they open their source when they need it.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
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

from spark_sink.chunks import Tally
from spark_sink.errors import SourceError
from spark_sink.filters import Pushed
from spark_sink.readers import SPLIT_ROWS, LocalSource, Source
from spark_sink.remote import RemoteSource
from spark_sink.schemas import columns_of, spark_ddl
from spark_sink.selection import Request, Selection, Split, selection_of, whole_number

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one DataFrame, checked."""

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

    @contextmanager
    def source(self) -> Iterator[Source]:
        opened = open_source(self.data_dir, self.url, self.user, self.password)
        try:
            yield opened
        finally:
            opened.close()


def open_source(data_dir: str | None, url: str | None, user: str, password: str) -> Source:
    """By directory or by address: exactly one of them."""
    if bool(data_dir) == bool(url):
        raise SourceError("Say where to read: either the data directory or the url of a broker.")
    if data_dir:
        return LocalSource(data_dir)
    return RemoteSource(str(url), user, password)


def parse_options(given: Mapping[str, str]) -> Options:
    table = given.get("table", "")
    columns_of(table)
    to_id = given.get("to_id")
    return Options(
        table=table,
        data_dir=given.get("data_dir"),
        url=given.get("url"),
        user=given.get("user", "guest"),
        password=given.get("password", "guest"),
        selection=selection_of(given),
        partition_rows=max(1, whole_number(given, "partition_rows", SPLIT_ROWS)),
        max_rows=whole_number(given, "max_rows", 0) or None,
        to_id=json.loads(to_id) if to_id else None,
        read_log=given.get("read_log"),
    )


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
        return BatchReader(parse_options(self.options), _columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader(parse_options(self.options), _columns(schema))


class PushingDataSource(LeveretDataSource):
    """The same, doing filters itself; Spark refuses it while PUSHDOWN is off."""

    def reader(self, schema: StructType) -> DataSourceReader:
        return PushingReader(parse_options(self.options), _columns(schema))


class SplitPartition(InputPartition):
    """One task's part."""

    def __init__(self, split: Split, selection: Selection) -> None:
        super().__init__(split)
        self.split = split
        self.selection = selection


class BatchReader(DataSourceReader):
    """Everything there is at planning time, in parts by id range."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._selection = options.selection

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        found: list[InputPartition] = []
        with options.source() as source:
            ranges = source.ranges(self._selection).of(options.table)
            for key, (low, high) in ranges.items():
                request = _request(options.table, key, (low, high), self._selection)
                for split in source.splits(request, options.partition_rows):
                    found.append(SplitPartition(split, self._selection))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._columns, partition)


class PushingReader(BatchReader):
    """The same, reading only what the filters of the query let through."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        pushed = Pushed(self._options.table, self._selection)
        left = list(pushed.take(filters))
        self._selection = pushed.selection
        return iter(left)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Rows in the order of their ids, as many at a time as the limit allows."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        if options.table == "queues":
            raise SourceError("Table 'queues' is no stream: read it with spark.read.")
        self._options = options
        self._columns = columns
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {key: low for key, (low, _) in self._ranges().items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows = self._options.max_rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ends()

    def latestOffset(  # noqa: N802
        self, start: dict[str, int], limit: ReadLimit
    ) -> dict[str, int]:
        ends = self._target if self._target is not None else self._ends()
        # What was seen once is never unseen, even when the newest rows have been trimmed since.
        ends = {key: max(ends.get(key, 0), start.get(key, 0)) for key in {*ends, *start}}
        if isinstance(limit, ReadMaxRows):
            return self._limited(start, ends, limit.max_rows)
        return ends

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        options = self._options
        found: list[InputPartition] = []
        with options.source() as source:
            for key, high in sorted(end.items()):
                request = _request(options.table, key, (start.get(key, 0), high), options.selection)
                for split in source.splits(request, options.partition_rows):
                    found.append(SplitPartition(split, options.selection))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._columns, partition)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is marked at the source: the checkpoint knows."""

    def stop(self) -> None:
        """Nothing is open between calls."""

    def _ranges(self) -> dict[str, tuple[int, int]]:
        with self._options.source() as source:
            return source.ranges(self._options.selection).of(self._options.table)

    def _ends(self) -> dict[str, int]:
        bound = self._options.to_id
        ends = {key: high for key, (_, high) in self._ranges().items()}
        if bound is None:
            return ends
        return {key: min(high, int(bound.get(key, 0))) for key, high in ends.items()}

    def _limited(self, start: dict[str, int], ends: dict[str, int], rows: int) -> dict[str, int]:
        """The furthest offset at which at most `rows` rows are read."""
        table, reached = self._options.table, dict(start)
        with self._options.source() as source:
            for key, high in sorted(ends.items()):
                low = start.get(key, 0)
                reached[key] = low
                if low >= high or rows <= 0:
                    continue
                request = _request(table, key, (low, high), self._options.selection)
                parts = source.splits(request, rows, limit=2)
                reached[key] = parts[0].to_id if len(parts) > 1 else high
                rows -= parts[0].rows if parts else 0
        return reached


def _request(table: str, key: str, span: tuple[int, int], selection: Selection) -> Request:
    queue_id = int(key) if table == "logs" else None
    return Request(table, *span, (), selection, queue_id)


def _read(
    options: Options, columns: tuple[str, ...], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, SplitPartition):
        return  # Spark's stand-in for "no partition at all".
    split, tally = partition.split, Tally()
    request = Request(
        options.table, split.from_id, split.to_id, columns, partition.selection, split.queue_id
    )
    try:
        with options.source() as source:
            yield from source.read(request, tally)
    finally:
        if options.read_log:
            _tell(Path(options.read_log), tally)


def _tell(directory: Path, tally: Tally) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{os.getpid()}-{uuid.uuid4().hex}.json"
    path.write_text(json.dumps(asdict(tally)))


def _columns(schema: StructType) -> tuple[str, ...]:
    return tuple(schema.fieldNames())
