"""The command: start the brokers, run the selected workloads, report, stop the brokers.

Exit code: 0 whatever the figures are; 1 if a run lost messages, broke framing or failed; 2 if a
broker did not start or no workload was selected.
"""

import argparse
import contextlib
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import (
    against,
    catalogue,
    ceiling,
    chart,
    report,
    runner,
    scaling,
    scaling_chart,
)
from benchmarks.brokers import Kind, RunningBroker, StartError, start
from benchmarks.connection import Connection
from benchmarks.debian import ensure_installed
from benchmarks.peers.registry import CLIENTS
from benchmarks.scenarios.base import RunLength
from benchmarks.spark import suite as spark
from benchmarks.workers import RunError

_PLAIN_WIDTH = 160
_BROKERS = {"both": list(catalogue.BOTH), "all": list(Kind)}
_FULL = runner.Plan(rounds=3, length=RunLength(seconds=4.0))
_QUICK = runner.Plan(rounds=1, length=RunLength(seconds=2.0, share=0.1))


def main(arguments: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    if options.list or options.ceiling:
        for line in _list() if options.list else ceiling.lines():
            console.print(line, highlight=False)
        return 0
    if options.scaling:
        return _guarded(console, lambda: _run_scaling(console, options))
    workloads = runner.select(catalogue.WORKLOADS, options.only)
    spark_workloads = [] if workloads else spark.select(options.only)
    if not workloads and not spark_workloads:
        console.print(f"no workload matches {options.only!r}: --list shows all of them")
        return 2
    if options.against:
        return _guarded(console, lambda: _run_against(console, workloads, options))
    if spark_workloads:
        return _guarded(console, lambda: _run_spark(console, spark_workloads, options))
    return _guarded(console, lambda: _run(console, workloads, options))


def _guarded(console: Console, run: Callable[[], int]) -> int:
    """Run with many files; SIGTERM stops the brokers, and a failed start is exit code 2."""
    _allow_many_files()
    # SIGTERM must not leave the brokers running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return run()
    except StartError as error:
        console.print(str(error), markup=False)
        return 2


def _list() -> Iterator[str]:
    for workload in catalogue.WORKLOADS:
        labels = "; ".join(measure.label for measure in workload.measures)
        yield f"{workload.name:26} {labels}"
    for name, label in spark.names().items():
        yield f"{name:26} {label}"


def _run(
    console: Console, workloads: Sequence[catalogue.Workload], options: argparse.Namespace
) -> int:
    plan = _QUICK if options.quick else _FULL
    kinds = [
        kind
        for kind in _kinds(options)
        if any(workload.maybe_scenario(kind) for workload in workloads)
    ]
    results: list[runner.Result] = []
    with contextlib.ExitStack() as stack:
        status = stack.enter_context(console.status("starting the brokers"))
        brokers = start_all(stack, kinds, console)
        versions = {kind: _version(broker) for kind, broker in brokers.items()}
        # An interrupted benchmark still reports the finished workloads.
        with contextlib.suppress(KeyboardInterrupt):
            for workload in workloads:
                results.append(runner.measure(workload, brokers, plan, status.update))
        status.update("stopping the brokers")
    _publish(console, results, versions, options)
    return 1 if any(result.errors for result in results) else 0


def _run_scaling(console: Console, options: argparse.Namespace) -> int:
    chosen = runner.select(scaling.SERIES, options.only)
    if not chosen:
        names = ", ".join(series.name for series in scaling.SERIES)
        console.print(f"--scaling has no series {options.only!r}: there are {names}")
        return 2
    kinds = [kind for kind in _kinds(options) if kind in catalogue.BOTH]
    with contextlib.ExitStack() as stack:
        status = stack.enter_context(console.status("starting the brokers"))
        brokers = start_all(stack, kinds, console)
        versions = {kind: _version(broker) for kind, broker in brokers.items()}
        curves = scaling.run(chosen, brokers, quick=options.quick, say=status.update)
        status.update("stopping the brokers")
    scaling.show(console, curves, versions)
    if options.json:
        options.json.write_text(report.dumps(scaling.document(curves, versions)))
    if options.chart:
        options.chart.write_text(scaling_chart.svg(curves, versions))
    return 1 if scaling.has_errors(curves) else 0


def _run_against(
    console: Console, workloads: Sequence[catalogue.Workload], options: argparse.Namespace
) -> int:
    plan = against.QUICK if options.quick else against.FULL
    chosen = against.selected(workloads, by_name=bool(options.only))
    if not chosen:
        console.print(f"--against has no workload {options.only!r}: --list shows all of them")
        return 2
    with console.status("") as status:
        comparisons = against.run(chosen, options.against, plan, status.update)
    against.show(console, comparisons, options.against)
    if options.json:
        options.json.write_text(report.dumps(against.document(comparisons, options.against)))
    return 1 if any(comparison.errors for comparison in comparisons) else 0


def _run_spark(console: Console, chosen: Sequence[str], options: argparse.Namespace) -> int:
    try:
        with console.status("starting a broker") as status:
            plan = spark.QUICK if options.quick else spark.FULL
            findings = spark.run(chosen, plan, status.update)
    except RunError as error:
        console.print(str(error), markup=False)
        return 1
    for table in spark.shown(findings):
        console.print(table)
    if options.json:
        options.json.write_text(report.dumps(spark.document(findings)))
    if options.markdown:
        page = options.markdown.read_text() if options.markdown.exists() else ""
        page = report.with_results(page, spark.markdown(findings), spark.MARKS)
        options.markdown.write_text(page)
    return 0


def _publish(
    console: Console,
    results: Sequence[runner.Result],
    versions: dict[Kind, str],
    options: argparse.Namespace,
) -> None:
    rows = runner.rows(results, catalogue.GROWTHS)
    report.show(console, rows, results, versions)
    if options.json:
        options.json.write_text(report.dumps(report.document(rows, results, versions)))
    if options.markdown:
        page = options.markdown.read_text() if options.markdown.exists() else ""
        options.markdown.write_text(report.with_results(page, report.markdown(rows, versions)))
    if options.chart:
        options.chart.write_text(chart.svg(rows))


def _kinds(options: argparse.Namespace) -> list[Kind]:
    return _BROKERS.get(options.broker) or [Kind(options.broker)]


def start_all(
    stack: contextlib.ExitStack, kinds: Sequence[Kind], console: Console
) -> dict[Kind, RunningBroker]:
    """Start a broker of each kind, installed if it is missing; they stop with `stack`."""
    brokers: dict[Kind, RunningBroker] = {}
    for kind in kinds:
        ensure_installed(kind, console.print)
        brokers[kind] = start(kind)
        stack.callback(brokers[kind].stop)
    return brokers


def _version(broker: RunningBroker) -> str:
    if client := CLIENTS.get(broker.kind):
        return f"{broker.kind.label} {client.version(broker.address)}"
    with Connection(broker.address) as connection:
        server = connection.server
    return f"{broker.kind.label} {server.get('version', '')}".strip()


def _allow_many_files() -> None:
    """Raise the limit of open files: a thousand connections exceed the usual one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Leveret, RabbitMQ, NATS and Redis under the same load.",
    )
    parser.add_argument("--only", metavar="PATTERN", help="workloads by name or glob")
    parser.add_argument("--quick", action="store_true", help="one round of 2 s each")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures as JSON")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="replace the results in FILE")
    parser.add_argument("--chart", metavar="FILE", type=Path, help="write a chart as SVG")
    parser.add_argument(
        "--broker",
        choices=[*map(str, Kind), *_BROKERS],
        default="all",
        help="one broker, both AMQP brokers, or all (the default)",
    )
    parser.add_argument(
        "--ceiling", action="store_true", help="measure only the load generator, and exit"
    )
    parser.add_argument(
        "--scaling", action="store_true", help="measure curves instead; --only selects by name"
    )
    parser.add_argument(
        "--against", metavar="REF", help="compare the working tree with another commit"
    )
    parser.add_argument("--list", action="store_true", help="list the workloads and exit")
    return parser
