"""`make torture`: the long forms, with progress and a one-page report."""

from __future__ import annotations

import argparse
import asyncio
import logging
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.torture.outcome import Outcome
from tests.torture.process import kill_leftover_brokers
from tests.torture.scenarios import SCENARIOS, Scenario

Judged = tuple[Scenario, int, Outcome, float]


def main() -> int:
    options = arguments()
    logging.disable(logging.ERROR)  # brokers in this process would disturb the display
    chosen = [
        scenario for scenario in SCENARIOS if not options.only or scenario.row in options.only
    ]
    console = Console()
    console.print(f"seed {options.seed}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    results: list[Judged] = []
    with Progress(*columns, TimeElapsedColumn(), console=console) as display:
        for scenario in chosen:
            results.append(_run(scenario, options.cycles or scenario.cycles, options.seed, display))
            display.console.print(str(results[-1][2]), highlight=False)
    passed = sum(outcome.passed for _, _, outcome, _ in results)
    last = f"{passed} passed, {len(results) - passed} failed"
    options.report.write_text(_report(results, options.seed, last), encoding="utf-8")
    console.print(f"report: {options.report}")
    console.print(last, highlight=False)
    return 0 if passed == len(results) else 1


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    rows = ", ".join(f"{scenario.row} {scenario.cycles} {scenario.unit}" for scenario in SCENARIOS)
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture", description=__doc__, epilog=f"Sizes: {rows}."
    )
    parser.add_argument("--only", action="append", metavar="ROW", help="R-01 and so on; repeatable")
    parser.add_argument("--cycles", type=int, help="size of each run in place of its long form")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--report", type=Path, default=Path("torture-report.md"))
    options = parser.parse_args(given)
    known = {scenario.row for scenario in SCENARIOS}
    for row in options.only or ():
        if row not in known:
            parser.error(f"there is no {row}; there are {', '.join(sorted(known))}")
    return options


def _run(scenario: Scenario, cycles: int, seed: int, display: Progress) -> Judged:
    task = display.add_task(f"{scenario.row} {scenario.title}", total=cycles)

    def progress(done: int, total: int) -> None:
        display.update(task, completed=done, total=total)

    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        try:
            outcome = asyncio.run(scenario.run(Path(directory) / "run", cycles, seed, progress))
        except Exception as error:  # noqa: BLE001 - an error in one run must not hide the other results
            problem = f"{type(error).__name__}: {error}"
            outcome = Outcome(scenario.row, scenario.title, "did not finish", (problem,))
        finally:
            kill_leftover_brokers()
    return scenario, cycles, outcome, time.monotonic() - began


def _report(results: list[Judged], seed: int, last: str) -> str:
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        "# Torture report", "",
        f"{when}, seed {seed}, Python {platform.python_version()}, {platform.machine()}.",
        f"To repeat: `python -m tests.torture --seed {seed}`.", "",
        "| row | check | size | seconds | figures | verdict |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for scenario, cycles, outcome, seconds in results:
        verdict = "passed" if outcome.passed else "**failed**"
        lines.append(
            f"| {scenario.row} | {scenario.title} | {cycles} {scenario.unit} | {seconds:.0f} "
            f"| {outcome.figures.replace('|', '/')} | {verdict} |"
        )
    failed = [outcome for _, _, outcome, _ in results if not outcome.passed]
    for outcome in failed:
        lines += ["", f"## {outcome.row}: problems", ""]
        lines += [f"- {problem}" for problem in (*outcome.problems, *outcome.late)[:20]]
    return "\n".join([*lines, "", last, ""])


if __name__ == "__main__":
    sys.exit(main())
