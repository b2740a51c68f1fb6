"""The workloads about Spark, and their report.

The broker, its history and all files are in temporary directories. RabbitMQ is not needed:
`python -m benchmarks --only 'spark*'` starts only one Leveret.
"""

import fnmatch
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.brokers import Kind, RunningBroker, start
from benchmarks.figures import median
from benchmarks.spark import history
from benchmarks.spark.export_impact import RATE, ExportImpact
from benchmarks.spark.export_impact import measure as measure_impact
from benchmarks.spark.export_memory import ExportMemory
from benchmarks.spark.export_memory import measure as measure_memory
from benchmarks.spark.log_planning import MAX_SECONDS, PARTITIONS, LogPlanning
from benchmarks.spark.log_planning import measure as measure_planning
from benchmarks.workers import RunError

TABLES = ("messages", "events", "logs", "queues")
EXPORT_IMPACT = "spark-beside"
EXPORT_MEMORY = "spark-large"
LOG_PLANNING = "spark-partitions"
CORES = (1, 2)
MARKS = ("<!-- spark results -->", "<!-- end of spark results -->")
MIN_RATIOS = {"logs": 2.0}
MAX_RATIO = 2.0
_MAX_LAG_MS = 1.0
_TITLE = "Tables to Parquet, rows per second"
_HEADS = (
    "table", "rows", "data source, 1 core", "2 cores", "row tuples, 1 core", "2 cores",
    "sqlite3 + pyarrow, 1 process", "source / tuples", "goal", "met",
)  # fmt: skip
_IMPACT_HEADS = (
    "publish to confirm at 2,000 msg/s", "alone", "beside exports", "times", "goal", "met"
)  # fmt: skip
_MEMORY_HEADS = (
    "export of a history", "rows", "seconds", "rows per second", "JVM at most", "Python at most"
)  # fmt: skip
_PLANNING_HEADS = (
    "CPU time to plan a read of a log", "one batch of a stream", "one read", "goal", "met"
)  # fmt: skip

Rates = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Plan:
    amounts: history.Amounts
    rounds: int
    window_seconds: float
    large: tuple[int, ...]
    """The numbers of messages of the histories that are exported to measure memory."""


FULL = Plan(history.FULL, rounds=3, window_seconds=20.0, large=(500_000, 5_000_000))
QUICK = Plan(history.QUICK, rounds=1, window_seconds=12.0, large=(50_000, 500_000))


@dataclass(slots=True)
class Findings:
    """Rates by table, cores and method; latencies with and without an export; memory of exports;
    the time to plan a read of many partitions."""

    rates: dict[str, dict[int, Rates]] = field(default_factory=dict)
    impact: ExportImpact | None = None
    memory: list[ExportMemory] = field(default_factory=list)
    planning: LogPlanning | None = None


def names() -> dict[str, str]:
    """Every workload of this suite, with a description."""
    tables = {f"spark-{table}": f"Spark: {table} to Parquet, three ways" for table in TABLES}
    return tables | {
        EXPORT_IMPACT: f"Spark: publish p99 at {RATE:,} msg/s beside an export",
        EXPORT_MEMORY: "Spark: memory that the export of a long history takes",
        LOG_PLANNING: f"Spark: CPU time to plan a read of {PARTITIONS:,} partitions",
    }


def select(pattern: str | None) -> list[str]:
    """Workloads by name, by glob or by a part of the name; none without a pattern."""
    if not pattern:
        return []
    return [name for name in names() if pattern == name] or [
        name for name in names() if fnmatch.fnmatchcase(name, pattern) or pattern in name
    ]


def run(chosen: Sequence[str], plan: Plan, say: Callable[[str], None]) -> Findings:
    if importlib.util.find_spec("pyspark") is None:
        raise RunError("PySpark is not installed: run `make setup` first")
    findings = Findings()
    with tempfile.TemporaryDirectory(prefix="leveret-bench-") as scratch:
        if not set(chosen) <= {EXPORT_MEMORY, LOG_PLANNING}:
            _measure_history(chosen, plan, Path(scratch), findings, say)
        if EXPORT_MEMORY in chosen:
            findings.memory = measure_memory(plan.large, Path(scratch), say)
    if LOG_PLANNING in chosen:
        findings.planning = measure_planning(say)
    return findings


def _measure_history(
    chosen: Sequence[str], plan: Plan, scratch: Path, findings: Findings, say: Callable[[str], None]
) -> None:
    say("spark: filling a broker with history")
    broker = start(Kind.LEVERET)
    try:
        history.fill(broker, plan.amounts)
        _measure_tables(broker, chosen, plan, scratch, findings, say)
        if EXPORT_IMPACT in chosen:
            say("spark: publishing with and without an export")
            findings.impact = measure_impact(broker, scratch, plan.rounds, plan.window_seconds)
    finally:
        broker.stop()


def _measure_tables(
    broker: RunningBroker, chosen: Sequence[str], plan: Plan, scratch: Path, findings: Findings,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    tables = [table for table in TABLES if f"spark-{table}" in chosen]
    for cores in CORES if tables else ():
        say(f"spark: {', '.join(tables)} on {cores} core{'s' * (cores > 1)}")
        methods = "source,tuples,plain" if cores == 1 else "source,tuples"
        command = [
            sys.executable,
            "-m",
            "benchmarks.spark.job",
            str(broker.directory / "data"),
        ]
        command += [str(scratch), "--cores", str(cores), "--rounds", str(plan.rounds)]
        command += ["--tables", ",".join(tables), "--methods", methods]
        environment = {**os.environ, "LEVERET_SPARK_NICE": "0"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RunError(f"Spark failed: {(done.stderr or done.stdout)[-2000:]}")
        for table, rates in json.loads(done.stdout.splitlines()[-1]).items():
            findings.rates.setdefault(table, {})[cores] = rates


@dataclass(frozen=True, slots=True)
class TableLine:
    """One table's medians. `times` is the data source over row tuples on one core."""

    table: str
    rows: int
    source: tuple[float, float]
    tuples: tuple[float, float]
    plain: float
    times: float
    goal: float | None

    @property
    def is_met(self) -> bool | None:
        return None if self.goal is None else round(self.times, 2) >= self.goal


def lines(findings: Findings) -> list[TableLine]:
    table_lines = []
    for table, by_cores in findings.rates.items():
        source, tuples = (
            tuple(median(by_cores[cores][method]) for cores in CORES)
            for method in ("source", "tuples")
        )
        table_lines.append(
            TableLine(
                table=table,
                rows=int(by_cores[1]["rows"][0]),
                source=(source[0], source[1]),
                tuples=(tuples[0], tuples[1]),
                plain=median(by_cores[1]["plain"]),
                times=source[0] / tuples[0],
                goal=MIN_RATIOS.get(table),
            )
        )
    return table_lines


def _cells(line: TableLine) -> list[str]:
    rates = (*line.source, *line.tuples, line.plain)
    goal = "-" if line.goal is None else f"≥ {line.goal:g}x"
    return [
        line.table, f"{line.rows:,}", *(f"{rate:,.0f}/s" for rate in rates), f"{line.times:.2f}x",
        goal, _verdict(line.is_met),
    ]  # fmt: skip


def _impact_cells(impact: ExportImpact) -> list[list[str]]:
    """The median over the windows, with the smallest and the largest value."""
    cells = []
    for label, name in (
        ("p50", "p50"),
        ("p99", "p99"),
        ("longest", "longest"),
        ("sent late", "lag"),
    ):
        alone, beside = (
            [getattr(window, name) for window in windows]
            for windows in (impact.without_export, impact.with_export)
        )
        times = median(beside) / median(alone)
        is_goal = name == "p99"
        cells.append([
            f"{label}, p99" if name == "lag" else label, _spread(alone), _spread(beside),
            f"{times:.2f}x", f"≤ {MAX_RATIO:g}x" if is_goal else "-",
            _verdict(round(times, 2) <= MAX_RATIO if is_goal else None),
        ])  # fmt: skip
    return cells


def _spread(values: Sequence[float]) -> str:
    middle = f"{median(values):.2f} ms"
    return middle if len(values) < 2 else f"{middle} ({min(values):.2f} to {max(values):.2f})"


def _memory_cells(export: ExportMemory) -> list[str]:
    sizes = (f"{size / (1 << 20):,.0f} MiB" for size in (export.jvm, export.python))
    rate = f"{export.rows / export.seconds:,.0f}/s"
    return [
        f"{export.messages:,} messages",
        f"{export.rows:,}",
        f"{export.seconds:,.0f}",
        rate,
        *sizes,
    ]


def _planning_cells(planning: LogPlanning) -> list[str]:
    return [
        f"{planning.partitions:,} partitions", f"{planning.stream:.2f} s",
        f"{planning.batch:.2f} s", f"≤ {MAX_SECONDS:g} s", _verdict(planning.is_met),
    ]  # fmt: skip


def _verdict(met: bool | None) -> str:
    return "-" if met is None else "yes" if met else "no"


def shown(findings: Findings) -> list[Table]:
    tables = []
    if findings.rates:
        tables.append(_table(_TITLE, _HEADS, [_cells(line) for line in lines(findings)]))
    if findings.impact:
        title = "An export beside the broker"
        if median([window.lag for window in findings.impact.without_export]) > _MAX_LAG_MS:
            title += " (messages were sent late: the machine is too busy for a reliable result)"
        tables.append(_table(title, _IMPACT_HEADS, _impact_cells(findings.impact)))
    if findings.memory:
        tables.append(_table("Memory of an export", _MEMORY_HEADS,
                             [_memory_cells(export) for export in findings.memory]))  # fmt: skip
    if findings.planning:
        cells = [_planning_cells(findings.planning)]
        tables.append(_table("Planning", _PLANNING_HEADS, cells))
    return tables


def _table(title: str, heads: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index else "left")
    for row in cells:
        table.add_row(*row)
    return table


def markdown(findings: Findings) -> str:
    parts = []
    if findings.rates:
        parts.append(_markdown(_HEADS, [_cells(line) for line in lines(findings)]))
    if findings.impact:
        parts.append(_markdown(_IMPACT_HEADS, _impact_cells(findings.impact)))
    if findings.memory:
        parts.append(
            _markdown(_MEMORY_HEADS, [_memory_cells(export) for export in findings.memory])
        )
    if findings.planning:
        parts.append(_markdown(_PLANNING_HEADS, [_planning_cells(findings.planning)]))
    return "\n".join(parts)


def _markdown(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    aligned = ["---", *["--:"] * (len(heads) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (heads, aligned, *cells))


def document(findings: Findings) -> dict[str, Any]:
    content: dict[str, Any] = {"tables": findings.rates}
    if findings.impact:
        content["beside_ms"] = {
            "alone": [asdict(window) for window in findings.impact.without_export],
            "beside": [asdict(window) for window in findings.impact.with_export],
        }
        content["exports"] = findings.impact.exports
    if findings.memory:
        content["large"] = [asdict(export) for export in findings.memory]
    if findings.planning:
        content["planning"] = asdict(findings.planning)
    return content
