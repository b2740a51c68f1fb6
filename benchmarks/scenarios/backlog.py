"""Fill a queue or a stream with nobody consuming, then drain or replay it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.brokers import Running
from benchmarks.connection import Address
from benchmarks.crew import Crew, Report, RunError
from benchmarks.roles import Consumer, Publisher, Stream
from benchmarks.scenarios.base import Outcome, Pace
from benchmarks.scenarios.flow import check_count
from benchmarks.topology import Topology

_WITHIN = 300.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """`count` confirmed messages in, then all of them out, acked every 100, `replays` times.

    A second replay finds everything again only if the queue is the log it was declared to be: a
    broker that takes it for a classic queue fails here instead of being measured.

    The queue is made anew for every run: a stream keeps what it had, and a classic queue that has
    been filled before may behave unlike a new one.
    """

    topology: Topology
    stream: Stream
    count: int
    window: int = 1000
    arguments: dict[str, Any] = field(default_factory=dict)
    replays: int = 1

    def prepare(self, broker: Running) -> None:
        """Nothing: every run makes its own queue."""

    def run(self, broker: Running, pace: Pace) -> Outcome:
        address, count = broker.address, int(self.count * pace.share)
        self.topology.declare(address)
        try:
            filled = self._fill(address, count)
            drained = [self._drain(address, count) for _ in range(self.replays)]
            if self.replays == 1 and (left := self.topology.wait_empty(address)):
                raise RunError(f"{left:,} messages are left in the queue although all were acked")
        finally:
            self.topology.delete(address)
        return Outcome({"fill": _rate([filled]), "drain": _rate(drained)}, (filled, *drained))

    def clean_up(self, broker: Running) -> None:
        """Nothing is left after a run."""

    def _fill(self, address: Address, count: int) -> Report:
        publisher = Publisher(address, self.stream, count=count, window=self.window)
        with Crew([publisher]) as crew:
            crew.go()
            (report,) = crew.reports(slice(None), _WITHIN)
        return report

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
        with Crew([consumer], consumers=1) as crew:
            crew.tally.expect(count)
            crew.go()
            reports = crew.reports(slice(None), _WITHIN)
        check_count(reports, count)
        return reports[0]


def _rate(reports: Sequence[Report]) -> float:
    elapsed = sum(report.finished - report.started for report in reports)
    return sum(report.count for report in reports) / elapsed
