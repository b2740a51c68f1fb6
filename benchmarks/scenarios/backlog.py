"""Fills a queue or a stream without consumers, then drains or replays it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.brokers import RunningBroker
from benchmarks.connection import Address
from benchmarks.roles import Consumer, Publisher, Stream
from benchmarks.scenarios.base import Outcome, RunLength
from benchmarks.scenarios.flow import check_count
from benchmarks.topology import Topology
from benchmarks.workers import Report, Role, RunError, WorkerPool

_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """Publish `count` messages with confirms, then consume them, acked every 100, `replays` times.

    A second replay receives everything again only if the queue is really a log: a broker that
    declares a classic queue instead fails here instead of being measured.

    Every run declares a new queue: a stream keeps its records, and a classic queue that was filled
    before may behave differently from a new one.
    """

    topology: Topology
    stream: Stream
    count: int
    window: int = 1000
    arguments: dict[str, Any] = field(default_factory=dict)
    replays: int = 1

    def prepare(self, broker: RunningBroker) -> None:
        """Does nothing: every run declares its own queue."""

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        address, count = broker.address, int(self.count * length.share)
        self.topology.declare(address)
        try:
            filled = self._fill(address, count)
            drained = [self._drain(address, count) for _ in range(self.replays)]
            if self.replays == 1 and (left := self.topology.wait_empty(address)):
                raise RunError(f"{left:,} messages are left in the queue although all were acked")
        finally:
            self.topology.delete(address)
        figures = {"fill": total_rate([filled]), "drain": total_rate(drained)}
        return Outcome(figures, (filled, *drained))

    def clean_up(self, broker: RunningBroker) -> None:
        """Does nothing: a run leaves nothing behind."""

    def _fill(self, address: Address, count: int) -> Report:
        publisher = Publisher(address, self.stream, count=count, window=self.window)
        return run_fill(publisher)

    def _drain(self, address: Address, count: int) -> Report:
        consumer = Consumer(
            address,
            self.topology.queues,
            0,
            ack_every=100,
            cycle=self.stream.blob,
            late=True,
            arguments=self.arguments,
        )
        return run_drain(consumer, count)


def run_fill(publisher: Role, within: float = _TIMEOUT) -> Report:
    with WorkerPool([publisher]) as pool:
        pool.go()
        (report,) = pool.reports(slice(None), within)
    return report


def run_drain(consumer: Role, count: int) -> Report:
    """Run a consumer that must receive exactly `count` messages."""
    with WorkerPool([consumer], consumers=1) as pool:
        pool.counts.expect(count)
        pool.go()
        reports = pool.reports(slice(None), _TIMEOUT)
    check_count(reports, count)
    return reports[0]


def total_rate(reports: Sequence[Report]) -> float:
    elapsed = sum(report.finished - report.started for report in reports)
    return sum(report.count for report in reports) / elapsed
