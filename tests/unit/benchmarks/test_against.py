"""The comparison of the working tree with another commit."""

import io
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import against, catalogue, cli
from benchmarks.against import Side
from benchmarks.brokers import CURRENT, ROOT, Kind, StartError
from benchmarks.figures import Unit
from benchmarks.runner import Plan
from benchmarks.scenarios.base import Outcome, RunLength
from benchmarks.workers import RunError

PLAN = Plan(rounds=3, length=RunLength(0.1))
MEASURE = catalogue.Measure("rate", "some rate", Unit.RATE)


class FakeProcess:
    def poll(self) -> int:
        return 0


class FakeBroker:
    kind = Kind.LEVERET
    process = FakeProcess()

    def __init__(self, *rates: float) -> None:
        self.rates = list(rates)


class Scripted:
    """A scenario whose rates are those of the broker, in turn; a negative one is an error."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def prepare(self, broker: Any) -> None:
        self.calls.append(("prepare", broker))

    def run(self, broker: Any, length: RunLength) -> Outcome:
        self.calls.append(("run", broker))
        rate = broker.rates.pop(0)
        if rate < 0:
            raise RunError("lost")
        return Outcome({"rate": rate})

    def clean_up(self, broker: Any) -> None:
        self.calls.append(("clean_up", broker))


def compared(new: FakeBroker, old: FakeBroker) -> tuple[against.Comparison, Scripted]:
    scenario = Scripted()
    brokers: Any = {Side.NEW: new, Side.OLD: old}
    workload = catalogue.Workload("scripted", scenario, (MEASURE,))
    return against.compare(workload, brokers, PLAN, lambda _: None), scenario


class TestCompare:
    def test_ratio_and_its_spread_are_those_of_the_rounds(self):
        comparison, _ = compared(FakeBroker(100, 90, 300), FakeBroker(100, 100, 200))
        assert comparison.maybe_spread("rate") == against.Spread(1.0, 0.9, 1.5)

    def test_the_order_alternates(self):
        new, old = FakeBroker(1, 1, 1), FakeBroker(1, 1, 1)
        _, scenario = compared(new, old)
        order = [broker for step, broker in scenario.calls if step == "run"]
        assert order == [new, old, old, new, new, old]
        assert [step for step, _ in scenario.calls].count("clean_up") == 2

    def test_failed_side_is_reported_and_ends_the_workload(self):
        comparison, scenario = compared(FakeBroker(1, 1, 1), FakeBroker(2, -1))
        assert comparison.errors == {Side.OLD: "RunError: lost"}
        assert comparison.maybe_spread("rate") == against.Spread(0.5, 0.5, 0.5)
        assert [step for step, _ in scenario.calls].count("run") == 3

    def test_no_complete_round_has_no_ratio(self):
        comparison, _ = compared(FakeBroker(-1), FakeBroker(1))
        assert comparison.maybe_spread("rate") is None

    def test_table(self):
        comparisons = [
            compared(FakeBroker(100, 90, 300), FakeBroker(100, 100, 200))[0],
            compared(FakeBroker(-1), FakeBroker())[0],
        ]
        out = io.StringIO()
        against.show(Console(file=out, width=120, color_system=None), comparisons, "v1")
        text = out.getvalue()
        (first, second) = [line for line in text.splitlines() if "some rate" in line]
        cells = [cell.strip() for cell in first.strip("│").split("│")]
        assert cells[1:] == ["100/s", "100/s", "1.00", "0.90", "1.50", "more"]
        assert second.count(" - ") == 5
        assert "scripted, new: RunError: lost" in text


class TestSelection:
    def test_long_workloads_run_only_by_name(self):
        short = against.selected(catalogue.WORKLOADS, by_name=False)
        names = {workload.name for workload in short}
        assert "durable-ack100" in names
        assert "flood-10000000" not in names
        assert against.selected(catalogue.WORKLOADS, by_name=True) == list(catalogue.WORKLOADS)


class TestCommand:
    @pytest.fixture(autouse=True)
    def process_is_left_as_it_was(self, monkeypatch):
        monkeypatch.setattr("signal.signal", lambda *_: None)
        monkeypatch.setattr(cli, "_allow_many_files", lambda: None)

    @pytest.mark.parametrize(("rates", "code"), [((1, 1, 1), 0), ((500, 500, 500), 0), ((-1,), 1)])
    def test_exit_code_does_not_depend_on_the_figures(self, monkeypatch, tmp_path, rates, code):
        comparison, _ = compared(FakeBroker(100, 100, 100), FakeBroker(*rates))
        monkeypatch.setattr(against, "run", lambda *_: [comparison])
        monkeypatch.setattr(against, "_git", lambda *_: "c0ffee")
        target = tmp_path / "out.json"
        assert cli.main(["--against", "v1", "--only", "fanout-10", "--json", str(target)]) == code
        assert '"commit": "c0ffee"' in target.read_text()

    def test_workload_that_cannot_be_compared_is_refused(self):
        assert cli.main(["--against", "HEAD", "--only", "spark-large"]) == 2


def worktrees() -> str:
    command = ["git", "-C", str(ROOT), "worktree", "list", "--porcelain"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a clone of the repository")
class TestCheckout:
    def test_other_commit_is_imported_from_its_worktree_which_is_removed(self):
        with against.checked_out("HEAD", lambda _: None) as checkout:
            assert str(checkout.root) in worktrees()
            program = "import leveret.queues as q; print(q.__file__)"
            done = subprocess.run(
                [str(checkout.python), "-c", program],
                cwd=checkout.root,
                env=checkout.environment,
                capture_output=True,
                text=True,
                check=True,
            )
            assert Path(done.stdout.strip()).is_relative_to(checkout.root)
        assert not checkout.root.exists()
        assert str(checkout.root) not in worktrees()

    def test_unknown_commit_is_an_error(self):
        with (
            pytest.raises(StartError, match="no such commit"),
            against.checked_out("no-such-branch", lambda _: None),
        ):
            pass

    def test_same_locked_dependencies_need_no_installation(self, tmp_path):
        (tmp_path / "requirements").mkdir()
        lock = (ROOT / "requirements" / "run.lock").read_bytes()
        (tmp_path / "requirements" / "run.lock").write_bytes(lock)
        assert against._python(tmp_path, tmp_path / "venv", pytest.fail) == CURRENT.python

    @pytest.mark.parametrize("has_lock", [True, False])
    def test_other_dependencies_get_an_environment(self, tmp_path, monkeypatch, has_lock):
        commands: list[list[str]] = []
        monkeypatch.setattr(against, "_run", commands.append)
        if has_lock:
            (tmp_path / "requirements").mkdir()
            (tmp_path / "requirements" / "run.lock").write_text("amqp==0\n")
        python = against._python(tmp_path, tmp_path / "venv", lambda _: None)
        assert python == tmp_path / "venv" / "bin" / "python"
        create, install = commands
        assert create[1:3] == ["-m", "venv"]
        assert ("--require-hashes" in install) == has_lock
