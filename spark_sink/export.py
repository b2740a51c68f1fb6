"""The export job: a broker's history and logs as files, each row exactly once.

Each table is a stream that is read up to a cut taken at the start (the same commit for messages
and events, so that they join), in batches that Spark's checkpoint gives numbers to. A batch is
written aside, becomes visible by a rename, is entered into the manifest, and is then committed by
Spark. Killed anywhere in between, the next run repeats at most that batch, under the same number
and with the same rows. See `target` for the directory.
"""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import md5
from itertools import chain
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from spark_sink.errors import SourceError
from spark_sink.manifest import Batch, TableState, selection_json
from spark_sink.progress import Meter, human_bytes
from spark_sink.readers import Ranges, Source, all_columns, chosen_tables
from spark_sink.selection import Request, Selection, time_ms
from spark_sink.target import TableTarget, Target, locked, written_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = ("parquet", "json", "csv")
BATCH_ROWS = 1_000_000
PARTITIONED_BY = {
    "messages": ("date", "queue"),
    "events": ("date", "queue"),
    "logs": ("date", "log", "partition"),
    "queues": (),
}
_INTERVAL = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WORKER_TRIES = 30
_SLOW_WORKER = "Python worker failed to connect back"
_SHORT_CHARACTERS = 15
_LONGEST_BYTES = 240
_RAISED = re.compile(r"(?:\w+\.)*(\w*(?:Error|Exception)): (.+)")
# What Spark writes as %XX in the name of a directory.
_ESCAPED = "[\\x01-\\x1f\"#%'*/:=?\\\\\\x7f{\\[\\]^]"


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What to export, from where, to where. Exactly one of `data_dir` and `url` is given."""

    to: str | Path
    data_dir: str | Path | None = None
    url: str | None = None
    user: str = "guest"
    password: str = "guest"  # noqa: S105 (the well-known first account)
    tables: tuple[str, ...] = ("messages", "events")
    since: str | None = None
    until: str | None = None
    queue: str | None = None
    vhost: str | None = None
    format: str = "parquet"
    master: str = "local[*]"
    incremental: bool = False
    every: str | None = None
    batch_rows: int = BATCH_ROWS


def run(options: ExportOptions, console: Console | None = None) -> int:
    """Export; 0 when done, 1 after saying in one sentence what was wrong."""
    console = console or Console(stderr=True)
    try:
        plan = plan_of(options)
        if options.every is None:
            _export_once(plan, console)
        else:
            _export_often(plan, interval_seconds(options.every), console)
    except SourceError as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    return 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Options that have been checked."""

    options: ExportOptions
    tables: tuple[str, ...]
    selection: Selection
    directory: Path

    def source(self) -> Source:
        from spark_sink.datasource import open_source

        options = self.options
        data_dir = str(options.data_dir) if options.data_dir else None
        return open_source(data_dir, options.url, options.user, options.password)

    def source_options(self) -> dict[str, str]:
        options = self.options
        if options.url:
            return {"url": options.url, "user": options.user, "password": options.password}
        return {"data_dir": str(Path(str(options.data_dir)).resolve())}


def interval_seconds(text: str) -> float:
    """Seconds from `90s`, `15m`, `1h`, `1d`."""
    found = _INTERVAL.fullmatch(text.strip())
    if not found or not float(found[1]):
        raise SourceError(f"{text!r} is no interval: write it as 90s, 15m, 1h or 1d.")
    return float(found[1]) * _SECONDS[found[2]]


def plan_of(options: ExportOptions) -> Plan:
    """Check everything that can be checked without Spark."""
    if options.format not in FORMATS:
        raise SourceError(f"{options.format!r} is no format: choose from {', '.join(FORMATS)}.")
    if "://" in str(options.to):
        raise SourceError(
            f"{options.to} is no directory: export to one that every executor can reach by path."
        )
    if options.every is not None:
        interval_seconds(options.every)
    since_ms = time_ms(options.since) if options.since else None
    until_ms = time_ms(options.until) if options.until else None
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise SourceError(
            f"From {options.since} until {options.until} there is no time: swap them."
        )
    plan = Plan(
        options=options,
        tables=chosen_tables(options.tables),
        selection=Selection(
            since_ms=since_ms,
            until_ms=until_ms,
            queues=(options.queue,) if options.queue else (),
            vhosts=(options.vhost,) if options.vhost else (),
        ),
        directory=Path(options.to).resolve(),
    )
    source = plan.source()
    try:
        source.check(plan.selection)
    finally:
        source.close()
    return plan


def _export_once(plan: Plan, console: Console) -> None:
    from spark_sink.session import session

    with locked(plan.directory), session("leveret export", plan.options.master) as spark:
        export(spark, plan, console)


def _export_often(plan: Plan, seconds: float, console: Console) -> None:
    """Export now and then every so often, until interrupted."""
    from spark_sink.session import session

    ended = threading.Event()

    def end(_: int, __: FrameType | None) -> None:
        ended.set()

    previous = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    plan = replace(plan, options=replace(plan.options, incremental=True))
    try:
        with locked(plan.directory), session("leveret export", plan.options.master) as spark:
            while not ended.is_set():
                started = monotonic()
                export(spark, plan, console)
                ended.wait(max(0.0, seconds - (monotonic() - started)))
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def export(spark: SparkSession, plan: Plan, console: Console) -> Target:
    """One run in a session that knows the data source."""
    from pyspark.errors import PySparkException

    source = plan.source()
    try:
        ranges = source.ranges(plan.selection)
        target = Target(plan.directory, ranges.identity)
        staged = []
        for table in plan.tables:
            wanted = TableState(plan.options.format, selection_json(plan.selection))
            place = target.begin(table, wanted, plan.options.incremental)
            job = TableExport(spark, plan, source, place)
            with Meter(table, console) as meter:
                job.run(ranges, meter)
            if place.staged:
                staged.append(place)
        target.replace(staged)
    except PySparkException as error:
        raise SourceError(f"Spark failed: {_first_line(error)}") from error
    except OSError as error:
        raise SourceError(f"Cannot write to {plan.directory}: {error}.") from error
    finally:
        source.close()
    for table in plan.tables:
        _summary(console, plan.directory / table, target.manifest.tables[table])
    return target


class TableExport:
    """One table of one run."""

    def __init__(self, spark: SparkSession, plan: Plan, source: Source, place: TableTarget) -> None:
        self._spark = spark
        self._plan = plan
        self._source = source
        self._place = place
        self._table = place.table

    def run(self, ranges: Ranges, meter: Meter) -> None:
        cut = {key: high for key, (_, high) in ranges.of(self._table).items()}
        meter.total(self._expected(self._place.state.reached, cut))
        self._place.finish(complete=False)
        if self._table == "queues":
            self._write_queues(meter)
        else:
            self._stream(cut, meter)
        state = self._place.state
        state.groups = merged(self._place.groups(batch_id) for batch_id in state.batches)
        state.long_names = long_names(state.groups)
        self._place.finish(complete=True)

    def write(self, frame: DataFrame, batch_id: int) -> Batch:
        """Write one batch and make it visible; a batch that is visible already is left alone."""
        span = self._place.span(batch_id)
        batch = self._place.maybe_finished(batch_id, span)
        if batch is None:
            temporary = self._place.temporary(batch_id)
            rows = self._write_files(frame, temporary)
            source_rows, groups = self._count(*span)
            batch = Batch(batch_id, *span, rows, source_rows, *written_files(temporary))
            self._place.publish(temporary, batch, groups)
        self._place.record(batch)
        return batch

    def _stream(self, cut: dict[str, int], meter: Meter) -> None:
        from pyspark.errors import PySparkException

        failed: list[Exception] = []

        def write(frame: DataFrame, batch_id: int) -> None:
            try:
                batch = self.write(frame, batch_id)
            except Exception as error:
                failed.append(error)
                raise
            meter.advance(batch.rows, batch.bytes)

        for left in reversed(range(_WORKER_TRIES)):
            query = self._start(cut, write)
            try:
                query.awaitTermination()
                return
            except PySparkException as error:
                # Spark gives a Python worker ten seconds to start, and a busy machine may not.
                if failed or not left or _SLOW_WORKER not in str(error):
                    # Spark wraps what was raised in here into many lines; the first cause is
                    # clearer.
                    raise (failed or [error])[0] from None
            finally:
                query.stop()

    def _start(self, cut: dict[str, int], write: Callable[[DataFrame, int], None]) -> Any:
        stream = self._spark.readStream.format("leveret").options(**self._options())
        stream = stream.option("to_id", json.dumps(cut))
        stream = stream.option("max_rows", str(self._plan.options.batch_rows))
        return (
            stream.load()
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(self._place.checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def _write_queues(self, meter: Meter) -> None:
        """A short list, not a stream: one batch, replaced by each run."""
        frame = self._spark.read.format("leveret").options(**self._options()).load()
        temporary = self._place.temporary(0)
        rows = self._write_files(frame, temporary)
        counted, _ = self._count({}, {"next": 2**62})
        batch = Batch(0, {}, {}, rows, counted, *written_files(temporary))
        self._place.publish(temporary, batch, [])
        self._place.record(batch)
        meter.advance(rows, batch.bytes)

    def _write_files(self, frame: DataFrame, temporary: Path) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        seen = Observation()
        shaped = shape(frame, self._table, self._plan.options.format)
        shaped = shaped.observe(seen, f.count(f.lit(1)).alias("rows"))
        writer = shaped.write.mode("overwrite").format(self._plan.options.format)
        if self._plan.options.format == "csv":
            writer = writer.option("header", "true").option("escape", '"')
        writer.partitionBy(*PARTITIONED_BY[self._table]).save(str(temporary))
        return int(seen.get["rows"])

    def _options(self) -> dict[str, str]:
        from spark_sink.selection import selection_params

        given = self._plan.source_options() | selection_params(self._plan.selection)
        return given | {"table": self._table}

    def _expected(self, start: dict[str, int], end: dict[str, int]) -> int:
        """How many rows are to come, at most; exact for events alone, where it is cheap."""
        if self._table == "events":
            return self._count(start, end)[0]
        return sum(max(high - start.get(key, 0), 0) for key, high in end.items())

    def _count(
        self, start: dict[str, int], end: dict[str, int]
    ) -> tuple[int, list[dict[str, Any]]]:
        """The source's own count, and its parts where it has any."""
        rows, groups = 0, []
        for key, high in end.items():
            queue_id = int(key) if self._table == "logs" else None
            span = (start.get(key, 0), high)
            columns = all_columns(self._table)
            request = Request(self._table, *span, columns, self._plan.selection, queue_id)
            counted = self._source.count(request)
            rows += int(counted["rows"])
            groups += counted.get("groups", [])
        return rows, groups


def shape(frame: DataFrame, table: str, kind: str) -> DataFrame:
    """Columns as they are written: the partition columns added, CSV without nested values."""
    from pyspark.sql import functions as f

    if "date" in PARTITIONED_BY[table]:
        frame = frame.withColumn("date", f.date_format("time", "yyyy-MM-dd"))
    for name in ("queue", "log"):
        if name in PARTITIONED_BY[table]:
            frame = frame.withColumn(name, directory_name(f.col(name)))
    if kind == "csv":
        for field in frame.schema.fields:
            if field.dataType.typeName() == "binary":
                frame = frame.withColumn(field.name, f.translate(f.base64(field.name), "\r\n", ""))
            elif field.dataType.typeName() in ("map", "array"):
                frame = frame.withColumn(field.name, f.to_json(field.name))
    return frame


def directory_name(name: Column) -> Column:
    """The name, or for one too long for a directory: its beginning and a digest."""
    from pyspark.sql import functions as f

    short = f.concat(f.substring(name, 1, _SHORT_CHARACTERS), f.lit("~"), f.md5(name))
    escaped = f.regexp_replace(name, _ESCAPED, "%00")
    # Most names are short however they are escaped, and need no closer look.
    fits = f.octet_length(name) <= _LONGEST_BYTES // 3
    return f.when(fits | (f.octet_length(escaped) <= _LONGEST_BYTES), name).otherwise(short)


def long_names(groups: list[dict[str, Any]]) -> dict[str, str]:
    """Directory name to real name, for the names that `directory_name` shortens."""
    names = {group.get("queue") or group.get("log") for group in groups}
    return {
        f"{name[:_SHORT_CHARACTERS]}~{md5(name.encode(), usedforsecurity=False).hexdigest()}": name
        for name in names
        if name and len(re.sub(_ESCAPED, "%00", name).encode()) > _LONGEST_BYTES
    }


def merged(parts: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Counts of several batches added up."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for group in chain.from_iterable(parts):
        key = tuple(value for name, value in sorted(group.items()) if name != "rows")
        known = found.setdefault(key, group | {"rows": 0})
        known["rows"] += group["rows"]
    return list(found.values())


def _summary(console: Console, place: Path, state: TableState) -> None:
    differs = "" if state.rows == state.source_rows else (
        f"; the source counts {state.source_rows}: history was trimmed meanwhile"
    )  # fmt: skip
    console.print(
        f"{place}: {state.rows:,} rows in {len(state.batches)} batches, "
        f"{human_bytes(state.bytes)}{differs}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


def _first_line(error: Exception) -> str:
    """The cause: the end of a Python traceback inside the text, else its first line."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    causes = [found for line in lines if (found := _RAISED.fullmatch(line))]
    if not causes:
        return lines[0] if lines else "no reason given"
    name, text = causes[-1].groups()
    return text if name == "SourceError" else f"{name}: {text}"
