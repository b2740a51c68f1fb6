"""How throughput changes with the load: more clients, queues, bytes, and messages waiting.

Each point of a curve is a workload of its own, measured like a row of the table: alternately on the
brokers, in several rounds, with every count exact.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import runner
from benchmarks.brokers import Kind, RunningBroker
from benchmarks.catalogue import Measure, Workload
from benchmarks.figures import Unit, shown
from benchmarks.report import heading
from benchmarks.roles import Stream
from benchmarks.scenarios.base import RunLength, Scenario
from benchmarks.scenarios.deep_queue import DeepQueue
from benchmarks.scenarios.flow import Flow
from benchmarks.topology import Topology

FULL = runner.Plan(rounds=3, length=RunLength(seconds=4.0))
QUICK = runner.Plan(rounds=1, length=RunLength(seconds=1.0, share=0.1))
_RATE = Measure("rate", "messages per second", Unit.RATE)
_STAMP_BYTES = 8
_IN_FLIGHT_BYTES = 10 << 20
_BLOB = 600


@dataclass(frozen=True, slots=True)
class Series:
    """One curve per broker: the rate of `scenario(x)` for every x of `points`, or of `quick`."""

    name: str
    title: str
    axis: str
    scenario: Callable[[int], Scenario]
    points: tuple[int, ...]
    quick: tuple[int, ...]
    rounds: int | None = None
    is_logarithmic: bool = False

    def workload(self, x: int) -> Workload:
        return Workload(f"{self.name}-{x}", self.scenario(x), (_RATE,), rounds=self.rounds)


@dataclass(frozen=True, slots=True)
class Curve:
    """The results of a series, by x."""

    series: Series
    results: Mapping[int, runner.Result]

    def points(self, kind: Kind) -> dict[int, float]:
        found = {x: result.figure(kind, _RATE.key) for x, result in self.results.items()}
        return {x: rate for x, rate in found.items() if rate is not None}

    @property
    def kinds(self) -> list[Kind]:
        return [kind for kind in Kind if self.points(kind)]


def _clients(count: int, *, durable: bool) -> Flow:
    """So many publishers, queues and consumers; each publisher and consumer has its own queue."""
    prefix = f"bench.clients.{'durable' if durable else 'transient'}"
    queues = tuple(f"{prefix}.{number:02}" for number in range(count))
    return Flow(
        Topology(queues, durable=durable),
        tuple(Stream("", (queue,), persistent=durable) for queue in queues),
        window=1000 if durable else 0,
        ack_every=100 if durable else 0,
        consumers=count,
    )


def _queues(count: int) -> Flow:
    """One publisher sends to the queues in turn; one consumer has all of them on a channel."""
    queues = tuple(f"bench.queues.{number:05}" for number in range(count))
    return Flow(
        Topology(queues),
        (Stream("", queues, blob=max(_BLOB, count)),),
        window=1000,
        ack_every=100,
        in_order=False,
        shared=True,
    )


def _bodies(size: int) -> Flow:
    """Bodies of `size` bytes; large ones with fewer in flight, so that memory is bounded."""
    part = max(1, min(100, _IN_FLIGHT_BYTES // 10 // max(size, 1)))
    queue = f"bench.bodies.{size}"
    return Flow(
        Topology((queue,)),
        (Stream("", (queue,), body_size=size, blob=part * 6),),
        window=part * 10,
        prefetch=part * 10,
        ack_every=part,
        part=part,
        in_order=size >= _STAMP_BYTES,
    )


def _backlog(depth: int) -> DeepQueue:
    return DeepQueue(f"bench.deep.{depth}", depth)


SERIES = (
    Series(
        "clients-transient",
        "Publishers and consumers, transient, auto-ack",
        "publishers, and as many queues and consumers",
        lambda count: _clients(count, durable=False),
        points=(1, 2, 4, 8, 16),
        quick=(1, 4, 16),
    ),
    Series(
        "clients-durable",
        "Publishers and consumers, persistent, confirms, ack every 100",
        "publishers, and as many queues and consumers",
        lambda count: _clients(count, durable=True),
        points=(1, 2, 4, 8, 16),
        quick=(1, 4, 16),
    ),
    Series(
        "queues",
        "Active queues, transient, confirms, ack every 100, one publisher and one consumer",
        "queues",
        _queues,
        points=(1, 10, 100, 1_000, 10_000),
        quick=(1, 100, 10_000),
    ),
    Series(
        "bodies",
        "Size of bodies, transient, confirms",
        "bytes (the rates are on a logarithmic scale)",
        _bodies,
        points=(0, 16, 128, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20),
        quick=(0, 1 << 10, 64 << 10, 1 << 20),
        is_logarithmic=True,
    ),
    Series(
        "backlog",
        "Messages already in the queue, persistent, confirms, ack every 100",
        "messages in the queue",
        _backlog,
        points=(0, 1_000, 10_000, 100_000, 1_000_000, 10_000_000),
        quick=(0, 10_000, 100_000),
        rounds=1,
    ),
)


def run(
    chosen: Sequence[Series],
    brokers: Mapping[Kind, RunningBroker],
    *,
    quick: bool,
    say: Callable[[str], None],
) -> list[Curve]:
    """Measure each series; an interrupt ends the run, and finished points are returned."""
    curves: list[Curve] = []
    plan = QUICK if quick else FULL
    for series in chosen:
        results: dict[int, runner.Result] = {}
        curves.append(Curve(series, results))
        try:
            for x in series.quick if quick else series.points:
                results[x] = runner.measure(series.workload(x), brokers, plan, say)
        except KeyboardInterrupt:
            break
    return curves


def has_errors(curves: Sequence[Curve]) -> bool:
    return any(result.errors for curve in curves for result in curve.results.values())


def show(console: Console, curves: Sequence[Curve], versions: Mapping[Kind, str]) -> None:
    for curve in curves:
        view = Table(title=curve.series.title, title_justify="left")
        view.add_column(curve.series.axis, justify="right")
        for kind in curve.kinds:
            view.add_column(versions.get(kind, kind.label), justify="right")
        rates = [curve.points(kind) for kind in curve.kinds]
        for x in curve.results:
            cells = [shown(Unit.RATE, points[x]) if x in points else "-" for points in rates]
            view.add_row(f"{x:,}", *cells)
        console.print(view)
        for x, result in curve.results.items():
            for kind, error in result.errors.items():
                console.print(f"{curve.series.name}, {x:,}, {kind}: {error}", markup=False)


def document(curves: Sequence[Curve], versions: Mapping[Kind, str]) -> dict[str, Any]:
    return {
        **heading(versions),
        "series": [
            {
                "name": curve.series.name,
                "title": curve.series.title,
                "axis": curve.series.axis,
                "points": [_point(x, result) for x, result in curve.results.items()],
            }
            for curve in curves
        ],
    }


def _point(x: int, result: runner.Result) -> dict[str, Any]:
    return {
        "x": x,
        "rate": {str(kind): result.figure(kind, _RATE.key) for kind in result.outcomes},
        "rounds": {str(kind): result.rounds(kind, _RATE.key) for kind in result.outcomes},
        "broker_cores": {str(kind): cores for kind, cores in result.broker_cores.items()},
        "generator_busiest": result.busiest(),
        "errors": {str(kind): error for kind, error in result.errors.items()},
    }
