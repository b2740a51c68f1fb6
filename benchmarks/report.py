"""The report as a table, as Markdown and as JSON. It only formats rows and results."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.brokers import Kind
from benchmarks.figures import median, shown
from benchmarks.peers.registry import CLIENTS
from benchmarks.runner import Result, Row

_BUSY_SHARE = 0.9
_OTHER_CORES = 0.3
_MARKS = ("<!-- results -->", "<!-- end of results -->")


def table(rows: Sequence[Row], versions: Mapping[Kind, str]) -> Table:
    view = Table(title="All brokers on the same machine, in the same run", title_justify="left")
    view.add_column("workload", no_wrap=True)
    view.add_column(versions.get(Kind.LEVERET, Kind.LEVERET.label), justify="right")
    view.add_column(versions.get(Kind.RABBITMQ, Kind.RABBITMQ.label), justify="right")
    view.add_column("times better", justify="right")
    view.add_column("goal", justify="right", no_wrap=True)
    view.add_column("met", justify="center")
    others = _others(rows)
    for kind in others:
        view.add_column(versions.get(kind, kind.label), justify="right")
    for row in rows:
        view.add_row(
            row.label,
            _figure(row, row.leveret),
            _figure(row, row.rabbitmq),
            "-" if row.ratio is None else f"{row.ratio:.2f}x",
            row.goal or "-",
            _verdict(row),
            *(_figure(row, row.figures.get(kind)) for kind in others),
        )
    return view


def _others(rows: Sequence[Row]) -> list[Kind]:
    """The brokers besides Leveret and RabbitMQ that have a figure."""
    return [kind for kind in CLIENTS if any(kind in row.figures for row in rows)]


def _figure(row: Row, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}x" if row.unit is None else shown(row.unit, value)


def _verdict(row: Row) -> str:
    if row.met is None:
        return "-"
    return "[green]yes[/]" if row.met else "[red]no[/]"


def show(
    console: Console, rows: Sequence[Row], results: Sequence[Result], versions: Mapping[Kind, str]
) -> None:
    console.print(table(rows, versions))
    busy = [result for result in results if result.busiest() > _BUSY_SHARE]
    for result in busy:
        console.print(
            f"[yellow]{result.workload.name}: a generator process was busy "
            f"{result.busiest():.0%} of the time; the broker may not be the bottleneck[/]"
        )
    others = median([share for result in results for share in result.other_cores] or [0.0])
    if others > _OTHER_CORES:
        console.print(
            f"[yellow]other programs used {others:.1f} cores during the run: all brokers would be "
            "faster on an idle machine, and latencies are unreliable on a busy one[/]"
        )
    for result in results:
        for kind, error in result.errors.items():
            console.print(f"[red]{result.workload.name} on {kind}: [/]", end="")
            console.print(error, markup=False)


def markdown(rows: Sequence[Row], versions: Mapping[Kind, str]) -> str:
    ours, theirs = (versions.get(kind, kind.label) for kind in (Kind.LEVERET, Kind.RABBITMQ))
    others = _others(rows)
    names = "".join(f" {versions.get(kind, kind.label)} |" for kind in others)
    lines = [
        f"| workload | {ours} | {theirs} | times better | goal | met |{names}",
        "|---|--:|--:|--:|--:|:-:|" + "--:|" * len(others),
    ]
    for row in rows:
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}x"
        verdict = {True: "yes", False: "**no**", None: "-"}[row.met]
        figures = f"{_figure(row, row.leveret)} | {_figure(row, row.rabbitmq)}"
        rest = "".join(f" {_figure(row, row.figures.get(kind))} |" for kind in others)
        lines.append(f"| {row.label} | {figures} | {ratio} | {row.goal or '-'} | {verdict} |{rest}")
    return "\n".join(lines) + "\n"


def with_results(page: str, results: str, marks: tuple[str, str] = _MARKS) -> str:
    """The page with the text between its marks replaced; only the results if it has no marks."""
    before, mark, rest = page.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    return f"{before}{mark}\n{results}{end}{after}" if mark and end else results


def document(
    rows: Sequence[Row], results: Sequence[Result], versions: Mapping[Kind, str]
) -> dict[str, Any]:
    return {
        **heading(versions),
        "rows": [_row_document(row) for row in rows],
        "workloads": {result.workload.name: _result_document(result) for result in results},
    }


def heading(versions: Mapping[Kind, str]) -> dict[str, Any]:
    """What every document begins with: the machine and the brokers."""
    return {
        "machine": {
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
        },
        "brokers": {str(kind): version for kind, version in versions.items()},
    }


def dumps(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _row_document(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "label": row.label,
        "unit": None if row.unit is None else str(row.unit),
        **{str(kind): row.figures.get(kind) for kind in Kind},
        "times_better": row.ratio,
        "goal": row.goal or None,
        "met": row.met,
    }


def _result_document(result: Result) -> dict[str, Any]:
    keys = [measure.key for measure in result.workload.measures]
    return {
        "rounds": {
            str(kind): {key: result.rounds(kind, key) for key in keys} for kind in result.outcomes
        },
        "broker_cores": {str(kind): cores for kind, cores in result.broker_cores.items()},
        "generator_busiest": result.busiest(),
        "other_cores": result.other_cores,
        "errors": {str(kind): error for kind, error in result.errors.items()},
    }
