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
from tests.torture.process import end_leftovers
from tests.torture.scenarios import SCENARIOS, Scenario

Judged = tuple[Scenario, int, Outcome, float]


def main() -> int:
    asked = arguments()
    logging.disable(logging.ERROR)  # brokers in this process would write into the display
    chosen = [one for one in SCENARIOS if not asked.only or one.row in asked.only]
    console = Console()
    console.print(f"seed {asked.seed}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    results: list[Judged] = []
    with Progress(*columns, TimeElapsedColumn(), console=console) as display:
        for scenario in chosen:
            results.append(_run(scenario, asked.cycles or scenario.cycles, asked.seed, display))
            display.console.print(str(results[-1][2]), highlight=False)
    passed = sum(outcome.passed for _, _, outcome, _ in results)
    last = f"{passed} passed, {len(results) - passed} failed"
    asked.report.write_text(_report(results, asked.seed, last), encoding="utf-8")
    console.print(f"report: {asked.report}")
    console.print(last, highlight=False)
    return 0 if passed == len(results) else 1


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    rows = ", ".join(f"{one.row} {one.cycles} {one.unit}" for one in SCENARIOS)
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture", description=__doc__, epilog=f"Sizes: {rows}."
    )
    parser.add_argument("--only", action="append", metavar="ROW", help="R-01 and so on; repeatable")
    parser.add_argument("--cycles", type=int, help="size of each run instead of its long form")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--report", type=Path, default=Path("torture-report.md"))
    asked = parser.parse_args(given)
    known = {one.row for one in SCENARIOS}
    for row in asked.only or ():
        if row not in known:
            parser.error(f"there is no {row}; there are {', '.join(sorted(known))}")
    return asked


def _run(scenario: Scenario, cycles: int, seed: int, display: Progress) -> Judged:
    task = display.add_task(f"{scenario.row} {scenario.title}", total=cycles)

    def progress(done: int, total: int) -> None:
        display.update(task, completed=done, total=total)

    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        try:
            outcome = asyncio.run(scenario.run(Path(directory) / "run", cycles, seed, progress))
        except Exception as error:  # noqa: BLE001 - one run that breaks must not hide the others
            problem = f"{type(error).__name__}: {error}"
            outcome = Outcome(scenario.row, scenario.title, "did not end", (problem,))
        finally:
            end_leftovers()
    return scenario, cycles, outcome, time.monotonic() - began


def _report(results: list[Judged], seed: int, last: str) -> str:
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        "# Torture report", "",
        f"{when}, seed {seed}, Python {platform.python_version()}, {platform.machine()}.",
        f"Again: `python -m tests.torture --seed {seed}`.", "",
        "| row | what | size | seconds | figures | verdict |", "|---|---|---|---|---|---|",
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
