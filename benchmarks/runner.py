"""Running workloads: alternately on the brokers, several short rounds, medians at the end.

Both brokers are up all the time and idle while the other one works; before each run the runner
waits until neither uses the processor. A run that fails (lost messages, broken framing, refused)
ends its workload on that broker and is reported; the other rows go on.
"""

import fnmatch
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from benchmarks.brokers import Kind, Running, StartError
from benchmarks.catalogue import Growth, Measure, Workload
from benchmarks.connection import RefusedError
from benchmarks.crew import RunError
from benchmarks.figures import Unit, median, times_better
from benchmarks.scenarios.base import Outcome, Pace

_QUIET_SHARE = 0.05
_QUIET_WITHIN = 5.0
_QUIET_STEP = 0.2
_FAILURES = (RunError, RefusedError, StartError, OSError, psutil.Error)


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    pace: Pace


@dataclass(slots=True)
class Result:
    """The outcomes of one workload per broker, and what went wrong."""

    workload: Workload
    outcomes: dict[Kind, list[Outcome]] = field(default_factory=dict)
    errors: dict[Kind, str] = field(default_factory=dict)
    broker_cores: dict[Kind, list[float]] = field(default_factory=dict)
    other_cores: list[float] = field(default_factory=list)

    def figure(self, kind: Kind, key: str) -> float | None:
        outcomes = self.outcomes.get(kind)
        return median([outcome.figures[key] for outcome in outcomes]) if outcomes else None

    def rounds(self, kind: Kind, key: str) -> list[float]:
        return [outcome.figures[key] for outcome in self.outcomes.get(kind, [])]

    def busiest(self) -> float:
        return max((o.busiest for many in self.outcomes.values() for o in many), default=0.0)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report; None where there is no figure."""

    name: str
    label: str
    unit: Unit | None
    leveret: float | None
    rabbitmq: float | None
    ratio: float | None
    goal: str
    met: bool | None


def select(workloads: Sequence[Workload], pattern: str | None) -> list[Workload]:
    """The workload of that name, else those the glob matches, else those that contain it."""
    if not pattern:
        return list(workloads)
    ways: tuple[Callable[[str], bool], ...] = (
        lambda name: name == pattern,
        lambda name: fnmatch.fnmatchcase(name, pattern),
        lambda name: pattern in name,
    )
    found = ([w for w in workloads if way(w.name)] for way in ways)
    return next((selected for selected in found if selected), [])


def measure(
    workload: Workload,
    brokers: Mapping[Kind, Running],
    plan: Plan,
    say: Callable[[str], None],
) -> Result:
    """Run one workload on every broker it is meant for."""
    result = Result(workload)
    targets = [brokers[kind] for kind in workload.brokers if kind in brokers]
    for broker in targets:
        _attempt(result, broker, lambda b: workload.scenario.prepare(b))
    rounds = plan.rounds if workload.rounds is None else min(plan.rounds, workload.rounds)
    for number in range(rounds):
        for broker in targets if number % 2 == 0 else reversed(targets):
            if broker.kind in result.errors:
                continue
            say(f"{workload.name}: round {number + 1} of {rounds} on {broker.kind}")
            wait_quiet(brokers.values())
            _attempt(result, broker, lambda b: _one_run(result, b, plan.pace))
    for broker in targets:
        _attempt(result, broker, lambda b: workload.scenario.clean_up(b))
    return result


def _one_run(result: Result, broker: Running, pace: Pace) -> None:
    cpu, machine, began = broker.cpu_seconds(), _machine_seconds(), time.monotonic()
    outcome = result.workload.scenario.run(broker, pace)
    elapsed = time.monotonic() - began
    cpu, machine = broker.cpu_seconds() - cpu, _machine_seconds() - machine
    result.outcomes.setdefault(broker.kind, []).append(outcome)
    result.broker_cores.setdefault(broker.kind, []).append(cpu / elapsed)
    if outcome.workers:
        result.other_cores.append(max(machine - cpu - outcome.cpu, 0.0) / elapsed)


def _machine_seconds() -> float:
    """Processor seconds that the whole machine has worked so far."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _attempt(result: Result, broker: Running, step: Callable[[Running], None]) -> None:
    try:
        step(broker)
    except _FAILURES as error:
        result.errors.setdefault(broker.kind, f"{type(error).__name__}: {error}")


def wait_quiet(brokers: Iterable[Running]) -> None:
    """Wait until no broker works off anything left over from the run before."""
    running = [b for b in brokers if b.process.poll() is None]
    deadline = time.monotonic() + _QUIET_WITHIN
    while time.monotonic() < deadline:
        before = [broker.cpu_seconds() for broker in running]
        time.sleep(_QUIET_STEP)
        used = [b.cpu_seconds() - was for b, was in zip(running, before, strict=True)]
        if max(used, default=0.0) <= _QUIET_SHARE * _QUIET_STEP:
            return


def rows(results: Sequence[Result], growths: Sequence[Growth]) -> list[Row]:
    table = [_row(result, measure) for result in results for measure in result.workload.measures]
    by_name = {result.workload.name: result for result in results}
    return table + [
        _growth_row(growth, by_name[growth.small], by_name[growth.large])
        for growth in growths
        if growth.small in by_name and growth.large in by_name
    ]


def _row(result: Result, measure: Measure) -> Row:
    ours = result.figure(Kind.LEVERET, measure.key)
    theirs = result.figure(Kind.RABBITMQ, measure.key)
    ratio = None if ours is None or theirs is None else times_better(measure.unit, ours, theirs)
    goal = [] if measure.goal is None else [f"≥ {measure.goal:g}x"]
    goal += [] if measure.most is None else [f"≤ {measure.most:g} {measure.unit}"]
    return Row(
        name=f"{result.workload.name}/{measure.key}",
        label=measure.label,
        unit=measure.unit,
        leveret=ours,
        rabbitmq=theirs,
        ratio=ratio,
        goal=", ".join(goal),
        met=_is_met(measure, ours, ratio),
    )


def _is_met(measure: Measure, ours: float | None, ratio: float | None) -> bool | None:
    if measure.goal is None and measure.most is not None and ours is not None:
        return ours <= measure.most
    if measure.goal is None or ours is None or ratio is None:
        return None
    # A ratio that is shown as the goal counts as the goal.
    return round(ratio, 2) >= measure.goal and ours <= (measure.most or math.inf)


def _growth_row(growth: Growth, small: Result, large: Result) -> Row:
    costs: dict[Kind, float] = {}
    for kind in Kind:
        fast, slow = small.figure(kind, "rate"), large.figure(kind, "rate")
        if fast is not None and slow:
            costs[kind] = fast / slow
    ours = costs.get(Kind.LEVERET)
    return Row(
        name=growth.name,
        label=growth.label,
        unit=None,
        leveret=ours,
        rabbitmq=costs.get(Kind.RABBITMQ),
        ratio=None,
        goal=f"≤ {growth.most:g}x",
        met=None if ours is None else ours <= growth.most,
    )
