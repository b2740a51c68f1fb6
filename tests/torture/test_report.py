"""`make torture` has every promised row, and its report contains the result of each."""

import sys
from pathlib import Path

import pytest

from tests.torture import __main__ as program
from tests.torture.outcome import Outcome
from tests.torture.scenarios import SCENARIOS, Scenario

PROMISED = {f"R-{number:02}" for number in (*range(1, 24), 25, *range(30, 50))}


def test_every_promised_row_exists_once():
    rows = [scenario.row for scenario in SCENARIOS]
    assert PROMISED - set(rows) == set()
    assert len(rows) == len(set(rows))


def test_every_row_has_a_size_and_a_unit():
    assert all(scenario.cycles > 0 and scenario.unit for scenario in SCENARIOS)


def scenario(row, problems=(), late=(), error=None):
    async def run(_directory, cycles, _seed, progress):
        progress(cycles, cycles)
        if error is not None:
            raise error
        return Outcome(row, "title", f"figures of {row}", tuple(problems), tuple(late))

    return Scenario(row, "title", 3, "cycles", run)


GOOD = scenario("R-90")
WRONG = scenario("R-91", problems=["one lost"])
LATE = scenario("R-92", late=["a second too late"])
BROKEN = scenario("R-93", error=RuntimeError("it broke"))


def torture(monkeypatch: pytest.MonkeyPatch, report: Path, *scenarios: Scenario) -> tuple[int, str]:
    monkeypatch.setattr(program, "SCENARIOS", scenarios)
    monkeypatch.setattr("logging.disable", lambda _level: None)
    monkeypatch.setattr(sys, "argv", ["torture", "--report", str(report), "--seed", "1"])
    return program.main(), report.read_text(encoding="utf-8")


def test_report_of_a_success_has_the_figures_of_each_row(monkeypatch, tmp_path):
    code, report = torture(monkeypatch, tmp_path / "report.md", GOOD)
    assert code == 0
    assert "| R-90 | title | 3 cycles |" in report and "figures of R-90 | passed |" in report
    assert report.endswith("1 passed, 0 failed\n")


@pytest.mark.parametrize(
    ("bad", "words"),
    [(WRONG, "one lost"), (LATE, "a second too late"), (BROKEN, "RuntimeError: it broke")],
    ids=["wrong", "late", "broken"],
)
def test_one_failure_fails_the_run_and_does_not_hide_the_others(monkeypatch, tmp_path, bad, words):
    code, report = torture(monkeypatch, tmp_path / "report.md", bad, GOOD)
    assert code == 1
    assert f"| {bad.row} | title | 3 cycles |" in report and "**failed**" in report
    assert f"- {words}" in report
    assert "figures of R-90 | passed |" in report
    assert report.endswith("1 passed, 1 failed\n")
