"""The export job: a broker's history and logs as files, each row exactly once.

Each table is a stream that is read up to an end fixed at the start (the same commit for messages
and events, so that they join), in batches that Spark's checkpoint numbers. A batch is written to a
temporary directory, becomes visible by a rename, is recorded in the manifest, and is then committed
by Spark. If the process is killed at any point, the next run repeats at most that batch, with the
same number and the same rows. See `target` for the directory layout.
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

from leveret.model.quantities import approximate_size, maybe_interval
from leveret.spark_sink.arrow.schemas import schema_of
from leveret.spark_sink.arrow.selection import (
    END_OF_IDS,
    SINGLE_RANGE,
    Request,
    Selection,
    parse_time_ms,
    selection_to_params,
)
from leveret.spark_sink.arrow.source import Ranges, Source, open_source, require_tables
from leveret.spark_sink.data_loss import DataLossError, find_gaps, report
from leveret.spark_sink.errors import SourceError
from leveret.spark_sink.manifest import ExportedBatch, TableState, selection_json
from leveret.spark_sink.progress import Meter
from leveret.spark_sink.target import ExportTarget, TableTarget, locked, written_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = ("parquet", "json", "csv")
BATCH_ROWS = 1_000_000
_MAX_ATTEMPTS = 30
_WORKER_TIMEOUT = "Python worker failed to connect back"
_SHORT_CHARACTERS = 15
_MAX_NAME_BYTES = 240
_EXCEPTION_LINE = re.compile(r"(?:\w+\.)*(\w*(?:Error|Exception)): (.+)")
# The characters that Spark writes as %XX in directory names.
_ESCAPED = "[\\x01-\\x1f\"#%'*/:=?\\\\\\x7f{\\[\\]^]"


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What to export, from where and to where. Exactly one of `data_dir` and `url` is given."""

    to: str | Path
    data_dir: str | Path | None = None
    url: str | None = None
    user: str = "guest"
    password: str = "guest"  # noqa: S105 (the documented default account)
    tables: tuple[str, ...] = ("messages", "events")
    since: str | None = None
    until: str | None = None
    queue: str | None = None
    vhost: str | None = None
    format: str = "parquet"
    master: str = "local[*]"
    incremental: bool = False
    every: str | None = None
    fail_on_data_loss: bool = True
    batch_rows: int = BATCH_ROWS


def run(options: ExportOptions, console: Console | None = None) -> int:
    """Export; returns 0, or 1 after printing the error as one sentence."""
    console = console or Console(stderr=True)
    try:
        plan = make_plan(options)
        if options.every is None:
            _export_once(plan, console)
        else:
            _export_repeatedly(plan, interval_seconds(options.every), console)
    except SourceError as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    return 0


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """Checked options."""

    options: ExportOptions
    tables: tuple[str, ...]
    selection: Selection
    directory: Path

    def source(self) -> Source:
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
    seconds = maybe_interval(text)
    if seconds is None:
        raise SourceError(f"{text!r} is not an interval: write it as 90s, 15m, 1h or 1d.")
    return seconds


def make_plan(options: ExportOptions) -> ExportPlan:
    """Check the options as far as that is possible without Spark, which is not imported."""
    if options.format not in FORMATS:
        raise SourceError(f"{options.format!r} is not a format: choose from {', '.join(FORMATS)}.")
    if "://" in str(options.to):
        raise SourceError(
            f"{options.to} is not a directory: give a path that every executor can reach."
        )
    if options.every is not None:
        interval_seconds(options.every)
    since_ms = parse_time_ms(options.since) if options.since else None
    until_ms = parse_time_ms(options.until) if options.until else None
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise SourceError(
            f"--from must be before --until: {options.since} is not before {options.until}."
        )
    plan = ExportPlan(
        options=options,
        tables=require_tables(options.tables),
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


def _export_once(plan: ExportPlan, console: Console) -> None:
    from leveret.spark_sink.session import session

    with locked(plan.directory), session("leveret export", plan.options.master) as spark:
        export(spark, plan, console)


def _export_repeatedly(plan: ExportPlan, seconds: float, console: Console) -> None:
    """Export now and then every `seconds`, until SIGINT or SIGTERM."""
    from leveret.spark_sink.session import session

    stopped = threading.Event()

    def stop(_: int, __: FrameType | None) -> None:
        stopped.set()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    plan = replace(plan, options=replace(plan.options, incremental=True))
    try:
        with locked(plan.directory), session("leveret export", plan.options.master) as spark:
            while not stopped.is_set():
                started = monotonic()
                export(spark, plan, console)
                stopped.wait(max(0.0, seconds - (monotonic() - started)))
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def export(spark: SparkSession, plan: ExportPlan, console: Console) -> ExportTarget:
    """One run, in a session with the data source registered."""
    from pyspark.errors import PySparkException

    source = plan.source()
    try:
        ranges = source.ranges(plan.selection)
        target = ExportTarget(plan.directory, ranges.identity)
        staged = []
        for table in plan.tables:
            new_state = TableState(plan.options.format, selection_json(plan.selection))
            table_target = target.begin(table, new_state, plan.options.incremental)
            _check_position(table_target, ranges, plan.options, console)
            job = TableExport(spark, plan, source, table_target)
            with Meter(table, console) as meter:
                job.run(ranges, meter)
            if table_target.staged:
                staged.append(table_target)
        target.replace(staged)
    except PySparkException as error:
        raise SourceError(_explain(error)) from error
    except OSError as error:
        raise SourceError(f"Cannot write to {plan.directory}: {error}.") from error
    finally:
        source.close()
    for table in plan.tables:
        _print_summary(console, plan.directory / table, target.manifest.tables[table])
    return target


def _check_position(
    target: TableTarget, ranges: Ranges, options: ExportOptions, console: Console
) -> None:
    """Compare where the last run has stopped with what the source still has."""
    position = target.maybe_position()
    gaps = find_gaps(target.table, position, ranges) if position is not None else []
    if options.fail_on_data_loss:
        report(gaps, fail=True)
    for gap in gaps:
        target.state.lost += gap.rows
        console.print(f"Data was lost before it was read: {gap}.", style="yellow", markup=False,
                      highlight=False, soft_wrap=True)  # fmt: skip


class TableExport:
    """One table of one run."""

    def __init__(
        self, spark: SparkSession, plan: ExportPlan, source: Source, target: TableTarget
    ) -> None:
        self._spark = spark
        self._plan = plan
        self._source = source
        self._target = target
        self._table = target.table
        self._schema = schema_of(target.table)

    def run(self, ranges: Ranges, meter: Meter) -> None:
        ends = {key: high for key, (_, high) in ranges.of(self._table).items()}
        meter.total(self._expected_rows(self._target.state.reached, ends))
        self._target.finish(complete=False)
        if self._schema.is_stream:
            self._stream(ends, meter)
        else:
            self._write_whole_table(meter)
        state = self._target.state
        state.groups = merge_groups(self._target.groups(batch_id) for batch_id in state.batches)
        state.long_names = long_names(state.groups)
        self._target.finish(complete=True)

    def write(self, frame: DataFrame, batch_id: int) -> ExportedBatch:
        """Write one batch and make it visible, unless it is visible already."""
        span = self._target.span(batch_id)
        batch = self._target.maybe_finished(batch_id, span)
        if batch is None:
            temporary = self._target.temporary(batch_id)
            source_rows, groups = self._count(*span)  # before retention can delete any of them
            rows = self._write_files(frame, temporary)
            batch = ExportedBatch(batch_id, *span, rows, source_rows, *written_files(temporary))
            self._target.publish(temporary, batch, groups)
        self._target.record(batch)
        return batch

    def _stream(self, ends: dict[str, int], meter: Meter) -> None:
        from pyspark.errors import PySparkException

        errors: list[Exception] = []

        def write(frame: DataFrame, batch_id: int) -> None:
            try:
                batch = self.write(frame, batch_id)
            except Exception as error:
                errors.append(error)
                raise
            meter.advance(batch.rows, batch.bytes)

        for attempts_left in reversed(range(_MAX_ATTEMPTS)):
            query = self._start(ends, write)
            try:
                query.awaitTermination()
                return
            except PySparkException as error:
                # Spark wraps an error of `write` into many lines; the original is clearer.
                original = errors.pop() if errors else error
                if not attempts_left or not self._can_repeat(original):
                    raise original from None
            finally:
                query.stop()

    def _can_repeat(self, error: Exception) -> bool:
        """Whether an attempt that failed may be repeated."""
        if DataLossError.__name__ in str(error) and not self._target.state.batches:
            # Retention was faster than the first batch. Nothing is exported yet, so begin again
            # with what is there now.
            self._target.restart()
            return True
        # Spark gives a Python worker ten seconds to start; a busy machine may need more.
        return _WORKER_TIMEOUT in str(error)

    def _start(self, ends: dict[str, int], write: Callable[[DataFrame, int], None]) -> Any:
        stream = self._spark.readStream.format("leveret").options(**self._options())
        stream = stream.option("to_id", json.dumps(ends))
        stream = stream.option("max_rows", str(self._plan.options.batch_rows))
        return (
            stream.load()
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(self._target.checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def _write_whole_table(self, meter: Meter) -> None:
        """For a table that is not a stream: one batch, replaced by each run."""
        frame = self._spark.read.format("leveret").options(**self._options()).load()
        temporary = self._target.temporary(0)
        rows = self._write_files(frame, temporary)
        source_rows, _ = self._count({}, {SINGLE_RANGE: END_OF_IDS})
        batch = ExportedBatch(0, {}, {}, rows, source_rows, *written_files(temporary))
        self._target.publish(temporary, batch, [])
        self._target.record(batch)
        meter.advance(rows, batch.bytes)

    def _write_files(self, frame: DataFrame, temporary: Path) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        observation = Observation()
        shaped = shape(frame, self._table, self._plan.options.format)
        shaped = shaped.observe(observation, f.count(f.lit(1)).alias("rows"))
        writer = shaped.write.mode("overwrite").format(self._plan.options.format)
        if self._plan.options.format == "csv":
            writer = writer.option("header", "true").option("escape", '"')
        writer.partitionBy(*self._schema.partition_columns).save(str(temporary))
        return int(observation.get["rows"])

    def _options(self) -> dict[str, str]:
        options = self._plan.source_options() | selection_to_params(self._plan.selection)
        fails = str(self._plan.options.fail_on_data_loss).lower()
        return options | {"table": self._table, "failOnDataLoss": fails}

    def _expected_rows(self, start: dict[str, int], end: dict[str, int]) -> int:
        """An upper bound of the rows to read; exact for events, where counting is cheap."""
        if self._table == "events":
            return self._count(start, end)[0]
        return sum(max(high - start.get(key, 0), 0) for key, high in end.items())

    def _count(
        self, start: dict[str, int], end: dict[str, int]
    ) -> tuple[int, list[dict[str, Any]]]:
        """Rows and groups as the source itself counts them, to check what was written."""
        rows, groups = 0, []
        for key, high in end.items():
            span, columns = (start.get(key, 0), high), self._schema.column_names
            request = Request.of_range(self._table, key, span, columns, self._plan.selection)
            counts = self._source.count(request)
            rows += int(counts["rows"])
            groups += counts.get("groups", [])
        return rows, groups


def shape(frame: DataFrame, table: str, kind: str) -> DataFrame:
    """Columns as they are written: with partition columns, and for CSV without nested values."""
    from pyspark.sql import functions as f

    partition_columns = schema_of(table).partition_columns
    if "date" in partition_columns:
        frame = frame.withColumn("date", f.date_format("time", "yyyy-MM-dd"))
    for name in ("queue", "log"):
        if name in partition_columns:
            frame = frame.withColumn(name, directory_name(f.col(name)))
    if kind == "csv":
        for field in frame.schema.fields:
            if field.dataType.typeName() == "binary":
                frame = frame.withColumn(field.name, f.translate(f.base64(field.name), "\r\n", ""))
            elif field.dataType.typeName() in ("map", "array"):
                frame = frame.withColumn(field.name, f.to_json(field.name))
    return frame


def directory_name(name: Column) -> Column:
    """The name, or its beginning and a digest if it is too long for a directory."""
    from pyspark.sql import functions as f

    short = f.concat(f.substring(name, 1, _SHORT_CHARACTERS), f.lit("~"), f.md5(name))
    escaped = f.regexp_replace(name, _ESCAPED, "%00")
    # Most names fit however they are escaped, so the regular expression is not evaluated.
    fits = f.octet_length(name) <= _MAX_NAME_BYTES // 3
    return f.when(fits | (f.octet_length(escaped) <= _MAX_NAME_BYTES), name).otherwise(short)


def long_names(groups: list[dict[str, Any]]) -> dict[str, str]:
    """Real names by directory name, for names that `directory_name` shortens."""
    names = {group.get("queue") or group.get("log") for group in groups}
    return {
        f"{name[:_SHORT_CHARACTERS]}~{md5(name.encode(), usedforsecurity=False).hexdigest()}": name
        for name in names
        if name and len(re.sub(_ESCAPED, "%00", name).encode()) > _MAX_NAME_BYTES
    }


def merge_groups(parts: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The groups of several batches, with equal groups added up."""
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for group in chain.from_iterable(parts):
        key = tuple(value for name, value in sorted(group.items()) if name != "rows")
        total = merged.setdefault(key, group | {"rows": 0})
        total["rows"] += group["rows"]
    return list(merged.values())


def _print_summary(console: Console, directory: Path, state: TableState) -> None:
    difference = "" if state.rows == state.source_rows else (
        f"; the source counts {state.source_rows}: history was trimmed meanwhile"
    )  # fmt: skip
    if state.lost:
        difference += f"; at most {state.lost:,} rows were lost between runs"
    console.print(
        f"{directory}: {state.rows:,} rows in {len(state.batches)} batches, "
        f"{approximate_size(state.bytes)}{difference}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


def _explain(error: Exception) -> str:
    """The last line of a Python traceback inside the text, else the first line of the text."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    matches = [match for line in lines if (match := _EXCEPTION_LINE.fullmatch(line))]
    if not matches:
        return f"Spark failed: {lines[0] if lines else 'no reason given'}"
    name, text = matches[-1].groups()
    if name == DataLossError.__name__:
        return str(text)
    return f"Spark failed: {text if name == SourceError.__name__ else f'{name}: {text}'}"
