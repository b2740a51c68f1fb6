"""Compares the code of the working tree with that of another commit: is it faster or slower?

The other commit is checked out into a temporary worktree, which is removed afterwards. Two brokers
run, one of each, and every workload alternates between them; each round gives one ratio. Ratios of
the same round are compared because they share what else the machine did at that time.

If both commits have the same locked dependencies, the other one runs with the interpreter of this
process and its own source code first on the path. If not, it gets an environment of its own with
the versions that its lock file names.
"""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.brokers import CURRENT, ROOT, Checkout, Kind, RunningBroker, StartError, start
from benchmarks.catalogue import Measure, Workload
from benchmarks.figures import median, shown
from benchmarks.runner import FAILURES, Plan, wait_until_idle
from benchmarks.scenarios.base import Outcome, RunLength

FULL = Plan(rounds=5, length=RunLength(seconds=4.0))
QUICK = Plan(rounds=3, length=RunLength(seconds=1.0, share=0.1))
_LOCK = Path("requirements") / "run.lock"


class Side(StrEnum):
    NEW = "new"
    OLD = "old"


@dataclass(frozen=True, slots=True)
class Spread:
    """The ratio new/old: its median over the rounds, and the smallest and the largest."""

    median: float
    low: float
    high: float


@dataclass(slots=True)
class Comparison:
    """The outcomes of one workload on both sides, a pair per round, and the errors."""

    workload: Workload
    rounds: list[dict[Side, Outcome]] = field(default_factory=list)
    errors: dict[Side, str] = field(default_factory=dict)

    def figures(self, side: Side, key: str) -> list[float]:
        return [pair[side].figures[key] for pair in self.rounds]

    def maybe_spread(self, key: str) -> Spread | None:
        """None if no round has a figure of both sides."""
        pairs = zip(self.figures(Side.NEW, key), self.figures(Side.OLD, key), strict=True)
        ratios = [new / old for new, old in pairs if old]
        return Spread(median(ratios), min(ratios), max(ratios)) if ratios else None


def selected(workloads: Sequence[Workload], *, by_name: bool) -> list[Workload]:
    """All that were asked for by name; else those that a normal run repeats, which are short."""
    return [w for w in workloads if by_name or w.rounds is None]


@contextlib.contextmanager
def checked_out(reference: str, say: Callable[[str], None]) -> Iterator[Checkout]:
    """A worktree of another commit, with an interpreter that has its dependencies."""
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{reference}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="leveret-bench-against-") as home:
        root = Path(home) / "checkout"
        _git("worktree", "add", "--detach", "--quiet", str(root), commit)
        try:
            yield Checkout(root, _python(root, Path(home) / "venv", say))
        finally:
            _git("worktree", "remove", "--force", str(root))


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip() or "no such commit"
        raise StartError(f"git {' '.join(arguments)} failed: {reason}")
    return done.stdout.strip()


def _python(root: Path, home: Path, say: Callable[[str], None]) -> Path:
    lock = root / _LOCK
    if lock.exists() and lock.read_bytes() == (ROOT / _LOCK).read_bytes():
        return CURRENT.python
    say("installing the dependencies of the other commit")
    _run([str(CURRENT.python), "-m", "venv", str(home)])
    python = home / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # Without a lock file pip takes the newest versions that the commit allows.
    what = ["--require-hashes", "--requirement", str(lock)] if lock.exists() else [str(root)]
    _run([*install, *what])
    return python


def _run(command: list[str]) -> None:
    environment = {**os.environ, "HATCH_BUILD_NO_HOOKS": "true"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise StartError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")


def run(
    workloads: Sequence[Workload], reference: str, plan: Plan, say: Callable[[str], None]
) -> list[Comparison]:
    """Compare on each workload; an interrupt ends the run, and finished workloads are returned."""
    comparisons: list[Comparison] = []
    with contextlib.ExitStack() as stack:
        say(f"checking out {reference}")
        old = stack.enter_context(checked_out(reference, say))
        say("starting both brokers")
        brokers: dict[Side, RunningBroker] = {}
        for side, checkout in ((Side.NEW, CURRENT), (Side.OLD, old)):
            brokers[side] = start(Kind.LEVERET, checkout=checkout)
            stack.callback(brokers[side].stop)
        with contextlib.suppress(KeyboardInterrupt):
            for workload in workloads:
                comparisons.append(compare(workload, brokers, plan, say))
    return comparisons


def compare(
    workload: Workload,
    brokers: Mapping[Side, RunningBroker],
    plan: Plan,
    say: Callable[[str], None],
) -> Comparison:
    """Run one workload on both sides in turn; a failed side ends it."""
    comparison = Comparison(workload)
    for side in Side:
        _attempt(comparison, side, lambda s: workload.scenario.prepare(brokers[s]))
    for number in range(plan.rounds):
        comparison.rounds.append({})
        for side in tuple(Side) if number % 2 == 0 else tuple(reversed(Side)):
            if comparison.errors:
                break
            say(f"{workload.name}: round {number + 1} of {plan.rounds}, {side}")
            wait_until_idle(brokers.values())
            _attempt(comparison, side, lambda s: _run_once(comparison, s, brokers[s], plan))
    comparison.rounds = [pair for pair in comparison.rounds if len(pair) == len(Side)]
    for side in Side:
        _attempt(comparison, side, lambda s: workload.scenario.clean_up(brokers[s]))
    return comparison


def _run_once(comparison: Comparison, side: Side, broker: RunningBroker, plan: Plan) -> None:
    comparison.rounds[-1][side] = comparison.workload.scenario.run(broker, plan.length)


def _attempt(comparison: Comparison, side: Side, step: Callable[[Side], None]) -> None:
    try:
        step(side)
    except FAILURES as error:
        comparison.errors.setdefault(side, f"{type(error).__name__}: {error}")


def show(console: Console, comparisons: Sequence[Comparison], reference: str) -> None:
    view = Table(
        title=f"The working tree (new) and {reference} (old), in alternation", title_justify="left"
    )
    view.add_column("workload", no_wrap=True)
    for name in ("new", "old", "new/old", "lowest", "highest", "better is"):
        view.add_column(name, justify="right", no_wrap=True)
    for comparison in comparisons:
        for measure in comparison.workload.measures:
            view.add_row(measure.label, *_cells(comparison, measure))
    console.print(view)
    for comparison in comparisons:
        for side, error in comparison.errors.items():
            console.print(f"{comparison.workload.name}, {side}: {error}", markup=False)


def _cells(comparison: Comparison, measure: Measure) -> list[str]:
    spread = comparison.maybe_spread(measure.key)
    better = "more" if measure.unit.more_is_better else "less"
    if spread is None:
        return ["-", "-", "-", "-", "-", better]
    sides = [shown(measure.unit, median(comparison.figures(side, measure.key))) for side in Side]
    ratios = [f"{ratio:.2f}" for ratio in (spread.median, spread.low, spread.high)]
    return [*sides, *ratios, better]


def document(comparisons: Sequence[Comparison], reference: str) -> dict[str, Any]:
    return {
        "against": reference,
        "commit": _git("rev-parse", "--verify", "--end-of-options", f"{reference}^{{commit}}"),
        "workloads": {c.workload.name: _comparison_document(c) for c in comparisons},
    }


def _comparison_document(comparison: Comparison) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for measure in comparison.workload.measures:
        spread = comparison.maybe_spread(measure.key)
        figures[measure.key] = {
            "unit": str(measure.unit),
            **{str(side): comparison.figures(side, measure.key) for side in Side},
            "ratio": spread and {"median": spread.median, "min": spread.low, "max": spread.high},
        }
    errors = {str(side): error for side, error in comparison.errors.items()}
    return {"figures": figures, "errors": errors}
