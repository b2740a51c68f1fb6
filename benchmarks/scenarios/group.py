"""Replay by a consumer group: the members join, the log is filled, then they read.

The members join while the log is empty, so no partition is reassigned while they read, and every
record is delivered exactly once. During the fill they are sent what their prefetch allows; they
read it from the socket after the measurement has started.
"""

from dataclasses import dataclass, field
from typing import Any

from benchmarks.brokers import RunningBroker
from benchmarks.roles import Consumer, Publisher, Stream
from benchmarks.scenarios.base import Outcome, RunLength
from benchmarks.scenarios.flow import check_count
from benchmarks.topology import Topology
from benchmarks.workers import Report, WorkerPool

_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class GroupReplay:
    """Publish `count` records with confirms; then `members` read them, acked every 100."""

    topology: Topology
    stream: Stream
    count: int
    members: int
    window: int = 1000
    arguments: dict[str, Any] = field(default_factory=dict)

    def prepare(self, broker: RunningBroker) -> None:
        """Does nothing: every run declares its own log."""

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        count = int(self.count * length.share)
        self.topology.declare(broker.address)
        try:
            with WorkerPool(self._members(broker), consumers=self.members) as members:
                members.counts.expect(count)
                members.ready()
                filled = self._fill(broker, count)
                members.start()
                read = members.reports(slice(None), _TIMEOUT)
        finally:
            self.topology.delete(broker.address)
        check_count(read, count)
        reading = max(r.finished for r in read) - min(r.started for r in read)
        figures = {"fill": count / (filled.finished - filled.started), "drain": count / reading}
        return Outcome(figures, (filled, *read))

    def clean_up(self, broker: RunningBroker) -> None:
        """Does nothing: a run leaves nothing behind."""

    def _fill(self, broker: RunningBroker, count: int) -> Report:
        publisher = Publisher(broker.address, self.stream, count=count, window=self.window)
        with WorkerPool([publisher]) as pool:
            pool.go()
            (report,) = pool.reports(slice(None), _TIMEOUT)
        return report

    def _members(self, broker: RunningBroker) -> list[Consumer]:
        return [
            Consumer(
                broker.address,
                self.topology.queues,
                slot,
                ack_every=100,
                arguments=self.arguments,
            )
            for slot in range(self.members)
        ]
