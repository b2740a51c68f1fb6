"""Runs workloads: alternately on the brokers, in several short rounds; the figures are medians.

All brokers are running all the time, and each is idle while another one is measured; before each
run the runner waits until none uses the CPU. A run that fails (lost messages, broken
framing, an AMQP error) ends its workload on that broker and is reported; the others continue.
"""

import fnmatch
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import psutil

from benchmarks.brokers import Kind, RunningBroker, StartError
from benchmarks.catalogue import Growth, Measure, Workload
from benchmarks.connection import RefusedError
from benchmarks.figures import Unit, median, times_better
from benchmarks.scenarios.base import Outcome, RunLength, Scenario
from benchmarks.workers import RunError

_IDLE_SHARE = 0.05
_IDLE_TIMEOUT = 5.0
_IDLE_STEP = 0.2
FAILURES = (RunError, RefusedError, StartError, OSError, psutil.Error)


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    length: RunLength


@dataclass(slots=True)
class Result:
    """The outcomes of one workload per broker, and the errors."""

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
    figures: Mapping[Kind, float]
    ratio: float | None
    goal: str
    met: bool | None

    @property
    def leveret(self) -> float | None:
        return self.figures.get(Kind.LEVERET)

    @property
    def rabbitmq(self) -> float | None:
        return self.figures.get(Kind.RABBITMQ)


class Named(Protocol):
    @property
    def name(self) -> str: ...


NamedT = TypeVar("NamedT", bound=Named)


def select(workloads: Sequence[NamedT], pattern: str | None) -> list[NamedT]:
    """The workload of that name, else those that match the glob, else those that contain it."""
    if not pattern:
        return list(workloads)
    matchers: tuple[Callable[[str], bool], ...] = (
        lambda name: name == pattern,
        lambda name: fnmatch.fnmatchcase(name, pattern),
        lambda name: pattern in name,
    )
    matches = ([w for w in workloads if matcher(w.name)] for matcher in matchers)
    return next((selected for selected in matches if selected), [])


def measure(
    workload: Workload,
    brokers: Mapping[Kind, RunningBroker],
    plan: Plan,
    say: Callable[[str], None],
) -> Result:
    """Run one workload on every broker that it is defined for."""
    result = Result(workload)
    found = {kind: workload.maybe_scenario(kind) for kind in brokers}
    scenarios = {kind: scenario for kind, scenario in found.items() if scenario}
    targets = [brokers[kind] for kind in scenarios]
    for broker in targets:
        _attempt(result, broker, lambda b: scenarios[b.kind].prepare(b))
    rounds = plan.rounds if workload.rounds is None else min(plan.rounds, workload.rounds)
    for number in range(rounds):
        for broker in targets if number % 2 == 0 else reversed(targets):
            if broker.kind in result.errors:
                continue
            say(f"{workload.name}: round {number + 1} of {rounds} on {broker.kind}")
            wait_until_idle(brokers.values())
            _attempt(result, broker, lambda b: _run_once(result, scenarios[b.kind], b, plan.length))
    for broker in targets:
        _attempt(result, broker, lambda b: scenarios[b.kind].clean_up(b))
    return result


def _run_once(result: Result, scenario: Scenario, broker: RunningBroker, length: RunLength) -> None:
    cpu, machine, began = broker.cpu_seconds(), _machine_seconds(), time.monotonic()
    outcome = scenario.run(broker, length)
    elapsed = time.monotonic() - began
    cpu, machine = broker.cpu_seconds() - cpu, _machine_seconds() - machine
    result.outcomes.setdefault(broker.kind, []).append(outcome)
    result.broker_cores.setdefault(broker.kind, []).append(cpu / elapsed)
    if outcome.workers:
        result.other_cores.append(max(machine - cpu - outcome.cpu, 0.0) / elapsed)


def _machine_seconds() -> float:
    """CPU seconds that the whole machine has used so far."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _attempt(result: Result, broker: RunningBroker, step: Callable[[RunningBroker], None]) -> None:
    try:
        step(broker)
    except FAILURES as error:
        result.errors.setdefault(broker.kind, f"{type(error).__name__}: {error}")


def wait_until_idle(brokers: Iterable[RunningBroker]) -> None:
    """Wait until no broker is still working because of the previous run."""
    running = [b for b in brokers if b.process.poll() is None]
    deadline = time.monotonic() + _IDLE_TIMEOUT
    while time.monotonic() < deadline:
        before = [broker.cpu_seconds() for broker in running]
        time.sleep(_IDLE_STEP)
        used = [b.cpu_seconds() - was for b, was in zip(running, before, strict=True)]
        if max(used, default=0.0) <= _IDLE_SHARE * _IDLE_STEP:
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
    found = {kind: result.figure(kind, measure.key) for kind in Kind}
    figures = {kind: figure for kind, figure in found.items() if figure is not None}
    ours, theirs = figures.get(Kind.LEVERET), figures.get(Kind.RABBITMQ)
    ratio = None if ours is None or theirs is None else times_better(measure.unit, ours, theirs)
    goal = [] if measure.goal is None else [f"≥ {measure.goal:g}x"]
    goal += [] if measure.limit is None else [f"≤ {measure.limit:g} {measure.unit}"]
    return Row(
        name=f"{result.workload.name}/{measure.key}",
        label=measure.label,
        unit=measure.unit,
        figures=figures,
        ratio=ratio,
        goal=", ".join(goal),
        met=_is_met(measure, ours, ratio),
    )


def _is_met(measure: Measure, ours: float | None, ratio: float | None) -> bool | None:
    if measure.goal is None and measure.limit is not None and ours is not None:
        return ours <= measure.limit
    if measure.goal is None or ours is None or ratio is None:
        return None
    # The ratio is compared as it is displayed.
    return round(ratio, 2) >= measure.goal and ours <= (measure.limit or math.inf)


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
        figures=costs,
        ratio=None,
        goal=f"≤ {growth.limit:g}x",
        met=None if ours is None else ours <= growth.limit,
    )
