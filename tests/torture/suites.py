"""Rows whose long form is a set of the project's own tests, run alone and at another size.

pytest runs in a process of its own; what it counted becomes the figures. The variable
`TORTURE_SIZE` tells those tests that have a size which one to take (`size_or`).
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
AGAIN = ("--last-failed", "--last-failed-no-failures=none")
_SHARE = re.compile(rb"\[ *(\d+)%\]")


def size_or(short: int) -> int:
    """The size `make torture` asks for, or the short one of an ordinary test run."""
    return int(os.environ.get(SIZE, short))


@dataclass(frozen=True, slots=True)
class Suite:
    """`figure` says what was shown; `{cases}` and `{size}` are filled in. With more than one try
    only what fails each time has failed."""

    row: str
    title: str
    tests: tuple[str, ...]
    figure: str
    tries: int = 1

    async def __call__(self, directory: Path, size: int, _seed: int, progress: Progress) -> Outcome:
        counted = await _pytest(directory, self.tests, size, progress)
        again = counted
        for _ in range(1, self.tries):
            if again.failed:
                again = await _pytest(directory, (*self.tests, *AGAIN), size, progress)
        figures = self.figure.format(cases=counted.cases, size=size)
        problems = list(again.failed)
        if not counted.cases:
            problems.append(f"no test ran: {counted.said[-500:]}")
        return Outcome(self.row, self.title, figures, tuple(problems))


@dataclass(frozen=True, slots=True)
class _Counted:
    cases: int
    failed: tuple[str, ...]
    said: str


async def _pytest(
    directory: Path, tests: tuple[str, ...], size: int, progress: Progress
) -> _Counted:
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
    said = bytearray()
    async for line in process.stdout:
        said += line
        share = _SHARE.search(line)
        if share:
            progress(int(share[1]), 100)
    await process.wait()
    cases, failed = _read(report)
    return _Counted(cases, failed, said.decode(errors="replace"))


def _prepare(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)


def _read(report: Path) -> tuple[int, tuple[str, ...]]:
    """How many ran, and the names of those that failed; a skipped one shows nothing."""
    if not report.exists():
        return 0, ()
    failed, cases = [], 0
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = [one for one in case if one.tag in ("failure", "error")]
        cases += not any(one.tag == "skipped" for one in case)
        if wrong:
            failed.append(f"{case.get('name')}: {wrong[0].get('message', '')[:300]}")
    return cases, tuple(failed)
