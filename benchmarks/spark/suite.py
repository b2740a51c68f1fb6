"""What is measured about Spark, and how it is told.

Broker, history and files stand in directories of their own and go at the end. The brokers of the
other workloads are not needed, so `python -m benchmarks --only 'spark*'` starts one Leveret alone.
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

from benchmarks.brokers import Kind, Running, start
from benchmarks.crew import RunError
from benchmarks.figures import median
from benchmarks.spark import history
from benchmarks.spark.beside import RATE, Beside
from benchmarks.spark.beside import measure as measure_beside
from benchmarks.spark.large import Large
from benchmarks.spark.large import measure as measure_large

TABLES = ("messages", "events", "logs", "queues")
BESIDE = "spark-beside"
LARGE = "spark-large"
CORES = (1, 2)
MARKS = ("<!-- spark results -->", "<!-- end of spark results -->")
LEAST_TIMES = {"logs": 2.0}
MOST_TIMES = 2.0
_LATE_MS = 1.0
_TITLE = "Tables to Parquet, rows per second"
_HEADS = (
    "table", "rows", "data source, 1 core", "2 cores", "row tuples, 1 core", "2 cores",
    "sqlite3 + pyarrow, 1 process", "source / tuples", "goal", "met",
)  # fmt: skip
_BESIDE_HEADS = (
    "publish to confirm at 2,000 msg/s", "alone", "beside exports", "times", "goal", "met"
)  # fmt: skip
_LARGE_HEADS = (
    "export of a history", "rows", "seconds", "rows per second", "JVM at most", "Python at most"
)  # fmt: skip

Rates = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Plan:
    amounts: history.Amounts
    rounds: int
    window_seconds: float
    large: tuple[int, ...]
    """How many messages the histories have whose exports are watched."""


FULL = Plan(history.FULL, rounds=3, window_seconds=20.0, large=(500_000, 5_000_000))
QUICK = Plan(history.QUICK, rounds=1, window_seconds=12.0, large=(50_000, 500_000))


@dataclass(slots=True)
class Findings:
    """Rates by table, cores and way; times with an export and without; memory of exports."""

    rates: dict[str, dict[int, Rates]] = field(default_factory=dict)
    beside: Beside | None = None
    large: list[Large] = field(default_factory=list)


def names() -> dict[str, str]:
    """Every workload of this suite and what it is about."""
    tables = {f"spark-{table}": f"Spark: {table} to Parquet, three ways" for table in TABLES}
    return tables | {
        BESIDE: f"Spark: publish p99 at {RATE:,} msg/s beside an export",
        LARGE: "Spark: memory that the export of a long history takes",
    }


def select(pattern: str | None) -> list[str]:
    """Chosen by name, by glob or by a part of the name; nothing unless asked for."""
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
        if set(chosen) != {LARGE}:
            _measure_history(chosen, plan, Path(scratch), findings, say)
        if LARGE in chosen:
            findings.large = measure_large(plan.large, Path(scratch), say)
    return findings


def _measure_history(
    chosen: Sequence[str], plan: Plan, scratch: Path, findings: Findings, say: Callable[[str], None]
) -> None:
    say("spark: filling a broker with history")
    broker = start(Kind.LEVERET)
    try:
        history.fill(broker, plan.amounts)
        _measure_tables(broker, chosen, plan, scratch, findings, say)
        if BESIDE in chosen:
            say("spark: publishing with an export beside it, and without")
            findings.beside = measure_beside(broker, scratch, plan.rounds, plan.window_seconds)
    finally:
        broker.stop()


def _measure_tables(
    broker: Running, chosen: Sequence[str], plan: Plan, scratch: Path, findings: Findings,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    tables = [table for table in TABLES if f"spark-{table}" in chosen]
    for cores in CORES if tables else ():
        say(f"spark: {', '.join(tables)} on {cores} core{'s' * (cores > 1)}")
        ways = "source,tuples,plain" if cores == 1 else "source,tuples"
        command = [
            sys.executable,
            "-m",
            "benchmarks.spark.job",
            str(broker.directory / "data"),
        ]
        command += [str(scratch), "--cores", str(cores), "--rounds", str(plan.rounds)]
        command += ["--tables", ",".join(tables), "--ways", ways]
        usual = {**os.environ, "LEVERET_SPARK_NICE": "0"}
        done = subprocess.run(command, env=usual, capture_output=True, text=True, check=False)
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
    found = []
    for table, by_cores in findings.rates.items():
        source, tuples = (
            tuple(median(by_cores[cores][way]) for cores in CORES) for way in ("source", "tuples")
        )
        found.append(
            TableLine(
                table=table,
                rows=int(by_cores[1]["rows"][0]),
                source=(source[0], source[1]),
                tuples=(tuples[0], tuples[1]),
                plain=median(by_cores[1]["plain"]),
                times=source[0] / tuples[0],
                goal=LEAST_TIMES.get(table),
            )
        )
    return found


def _cells(line: TableLine) -> list[str]:
    rates = (*line.source, *line.tuples, line.plain)
    goal = "-" if line.goal is None else f"≥ {line.goal:g}x"
    return [
        line.table, f"{line.rows:,}", *(f"{rate:,.0f}/s" for rate in rates), f"{line.times:.2f}x",
        goal, _verdict(line.is_met),
    ]  # fmt: skip


def _beside_cells(found: Beside) -> list[list[str]]:
    """Medians of the windows; for the goal's figure, also the windows it lies between."""
    cells = []
    for label, name in (("p50", "p50"), ("p99", "p99"), ("longest", "most"), ("sent late", "lag")):
        alone, beside = (
            [getattr(one, name) for one in ones] for ones in (found.alone, found.beside)
        )
        times = median(beside) / median(alone)
        is_goal = name == "p99"
        cells.append([
            f"{label}, p99" if name == "lag" else label, _spread(alone), _spread(beside),
            f"{times:.2f}x", f"≤ {MOST_TIMES:g}x" if is_goal else "-",
            _verdict(round(times, 2) <= MOST_TIMES if is_goal else None),
        ])  # fmt: skip
    return cells


def _spread(values: Sequence[float]) -> str:
    middle = f"{median(values):.2f} ms"
    return middle if len(values) < 2 else f"{middle} ({min(values):.2f} to {max(values):.2f})"


def _large_cells(found: Large) -> list[str]:
    sizes = (f"{size / (1 << 20):,.0f} MiB" for size in (found.jvm, found.python))
    rate = f"{found.rows / found.seconds:,.0f}/s"
    return [
        f"{found.messages:,} messages",
        f"{found.rows:,}",
        f"{found.seconds:,.0f}",
        rate,
        *sizes,
    ]


def _verdict(met: bool | None) -> str:
    return "-" if met is None else "yes" if met else "no"


def shown(findings: Findings) -> list[Table]:
    tables = []
    if findings.rates:
        tables.append(_table(_TITLE, _HEADS, [_cells(line) for line in lines(findings)]))
    if findings.beside:
        title = "An export beside the broker"
        if median([window.lag for window in findings.beside.alone]) > _LATE_MS:
            title += " (messages were sent late: on a machine as busy as this it says little)"
        tables.append(_table(title, _BESIDE_HEADS, _beside_cells(findings.beside)))
    if findings.large:
        tables.append(_table("Memory of an export", _LARGE_HEADS,
                             [_large_cells(one) for one in findings.large]))  # fmt: skip
    return tables


def _table(title: str, heads: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left")
    for row in cells:
        table.add_row(*row)
    return table


def markdown(findings: Findings) -> str:
    parts = []
    if findings.rates:
        parts.append(_markdown(_HEADS, [_cells(line) for line in lines(findings)]))
    if findings.beside:
        parts.append(_markdown(_BESIDE_HEADS, _beside_cells(findings.beside)))
    if findings.large:
        parts.append(_markdown(_LARGE_HEADS, [_large_cells(one) for one in findings.large]))
    return "\n".join(parts)


def _markdown(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    aligned = ["---", *["--:"] * (len(heads) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (heads, aligned, *cells))


def document(findings: Findings) -> dict[str, Any]:
    found: dict[str, Any] = {"tables": findings.rates}
    if findings.beside:
        found["beside_ms"] = {
            "alone": [asdict(window) for window in findings.beside.alone],
            "beside": [asdict(window) for window in findings.beside.beside],
        }
        found["exports"] = findings.beside.exports
    if findings.large:
        found["large"] = [asdict(one) for one in findings.large]
    return found
