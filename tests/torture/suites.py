"""Rows whose long form is a set of the project's own tests at a larger size.

pytest runs in its own process; its counts become the figures. The variable `TORTURE_SIZE` gives the
size to tests that have one (`size_or`).
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from tests.support.brokers import ROOT
from tests.torture.outcome import Outcome, Progress

SIZE = "TORTURE_SIZE"
LAST_FAILED = ("--last-failed", "--last-failed-no-failures=none")
_SHARE = re.compile(rb"\[ *(\d+)%\]")


def size_or(short: int) -> int:
    """The size that `make torture` asks for, or the short one of an ordinary test run."""
    return int(os.environ.get(SIZE, short))


@dataclass(frozen=True, slots=True)
class Suite:
    """`figure` describes the result and may contain `{cases}` and `{size}`. With several tries, a
    test has failed only if it fails each time."""

    row: str
    title: str
    tests: tuple[str, ...]
    figure: str
    tries: int = 1

    async def __call__(self, directory: Path, size: int, _seed: int, progress: Progress) -> Outcome:
        result = await _pytest(directory, self.tests, size, progress)
        last_result = result
        for _ in range(1, self.tries):
            if last_result.failed:
                last_result = await _pytest(directory, (*self.tests, *LAST_FAILED), size, progress)
        figures = self.figure.format(cases=result.cases, size=size)
        problems = list(last_result.failed)
        if not result.cases:
            problems.append(f"no test ran: {result.output[-500:]}")
        return Outcome(self.row, self.title, figures, tuple(problems))


@dataclass(frozen=True, slots=True)
class _Result:
    cases: int
    failed: tuple[str, ...]
    output: str


async def _pytest(
    directory: Path, tests: tuple[str, ...], size: int, progress: Progress
) -> _Result:
    report = directory / "junit.xml"
    _prepare(directory)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest", "-n", "0", "-v", "--tb=line",
        "-m", "torture or not torture", "--timeout=14400",
        f"--junit-xml={report}", f"--basetemp={directory / 'tmp'}",
        "-o", f"cache_dir={directory / 'cache'}", *tests,
        cwd=ROOT,
        env={**os.environ, SIZE: str(size)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    output = bytearray()
    async for line in process.stdout:
        output += line
        share = _SHARE.search(line)
        if share:
            progress(int(share[1]), 100)
    await process.wait()
    cases, failed = _read(report)
    return _Result(cases, failed, output.decode(errors="replace"))


def _prepare(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)


def _read(report: Path) -> tuple[int, tuple[str, ...]]:
    """How many tests ran, without skipped ones, and which failed."""
    if not report.exists():
        return 0, ()
    failed, cases = [], 0
    for case in ElementTree.parse(report).iter("testcase"):
        failures = [element for element in case if element.tag in ("failure", "error")]
        cases += not any(element.tag == "skipped" for element in case)
        if failures:
            failed.append(f"{case.get('name')}: {failures[0].get('message', '')[:300]}")
    return cases, tuple(failed)
