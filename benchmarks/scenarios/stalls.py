"""Stalls: how long confirms of a steady client take while another client has the broker work.

Every run starts a broker of its own, with a probe of its event loop (`loop_probe.py`). The figures
are the confirms that arrived from the begin of the work until a second after its end, and the
longest work of the event loop in CPU time, which does not depend on how busy the machine is.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.brokers import RunningBroker
from benchmarks.figures import percentile
from benchmarks.latency_roles import SteadyPublisher
from benchmarks.loop_probe import FILE_VARIABLE, read_waits
from benchmarks.scenarios.base import Outcome, RunLength
from benchmarks.stall_work import Target, Work
from benchmarks.topology import Topology
from benchmarks.workers import DeliveryCounts, Report, Role, WorkerPool
from leveret.testing.ports import free_port

_QUEUE = "bench.steady"
_RATE = 1000.0
_WARM_UP_SECONDS = 1.0
_AFTER_SECONDS = 1.0
_WORK_SECONDS = 600.0


@dataclass(slots=True)
class Worker:
    """Runs the work in a process of its own."""

    task: Work
    target: Target
    share: float

    def prepare(self) -> None:
        """Does nothing: the work is prepared before the steady client connects."""

    def work(self, counts: DeliveryCounts) -> Report:
        time.sleep(_WARM_UP_SECONDS)
        started = time.monotonic()
        self.task.run(self.target, self.share)
        return Report(1, started, time.monotonic())


@dataclass(frozen=True, slots=True)
class Stalls:
    """Confirms of 1,000 persistent messages per second while `work` runs."""

    work: Work

    def prepare(self, broker: RunningBroker) -> None:
        """Does nothing: every run starts its own broker."""

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        with tempfile.NamedTemporaryFile(prefix="leveret-bench-probe-") as probe:
            waits = Path(probe.name)
            with _started(broker, waits) as target:
                target.request("GET", "/api/overview")  # the first request loads the HTTP API
                self.work.prepare(target, length.share)
                steady, worker = self._measure(target, length.share)
            loop = [
                wait.cpu_ms
                for wait in read_waits(waits)
                if worker.started <= wait.ended <= worker.finished + _AFTER_SECONDS
            ]
        late = _during(steady, worker)
        figures = {
            "p50": percentile(late, 50) * 1000,
            "p99": percentile(late, 99) * 1000,
            "max": max(late) * 1000,
            "loop": max(loop, default=0.0),
        }
        return Outcome(figures, (steady, worker))

    def _measure(self, target: Target, share: float) -> tuple[Report, Report]:
        Topology((_QUEUE,), durable=True).declare(target.address)
        roles: list[Role] = [
            SteadyPublisher(target.address, _QUEUE, _RATE),
            Worker(self.work, target, share),
        ]
        with WorkerPool(roles) as pool:
            pool.go()
            (worker,) = pool.reports(slice(1, None), _WORK_SECONDS)
            time.sleep(_AFTER_SECONDS)
            pool.counts.expect(0)
            (steady,) = pool.reports(slice(1), _WORK_SECONDS)
        return steady, worker

    def clean_up(self, broker: RunningBroker) -> None:
        """Does nothing: a run leaves nothing behind."""


@contextlib.contextmanager
def _started(broker: RunningBroker, waits: Path) -> Iterator[Target]:
    port = free_port()
    settings = {"LEVERET_HTTP_PORT": str(port), FILE_VARIABLE: str(waits)}
    running = broker.another(settings, module="benchmarks.loop_probe")
    try:
        yield Target(running.address, port)
    finally:
        running.stop()


def _during(steady: Report, worker: Report) -> list[float]:
    """Latencies of the messages that were due while the work ran, or a second later."""
    first = int((worker.started - steady.started) * _RATE)
    last = int((worker.finished + _AFTER_SECONDS - steady.started) * _RATE)
    return list(steady.latencies[max(first, 0) : last + 1])
