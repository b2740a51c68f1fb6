"""Replay by a consumer group: the members stand ready, the log is filled, then they read.

The members join while the log is empty, so no partition changes hands while records flow and every
record comes exactly once. What they are sent during the fill is what their prefetch allows; they
take it from the socket when the measured time has begun.
"""

from dataclasses import dataclass, field
from typing import Any

from benchmarks.brokers import Running
from benchmarks.crew import Crew, Report
from benchmarks.roles import Consumer, Publisher, Stream
from benchmarks.scenarios.base import Outcome, Pace
from benchmarks.scenarios.flow import check_count
from benchmarks.topology import Topology

_WITHIN = 300.0


@dataclass(frozen=True, slots=True)
class GroupReplay:
    """`count` confirmed records in, then all of them out, acked every 100, to `members`."""

    topology: Topology
    stream: Stream
    count: int
    members: int
    window: int = 1000
    arguments: dict[str, Any] = field(default_factory=dict)

    def prepare(self, broker: Running) -> None:
        """Nothing: every run makes its own log."""

    def run(self, broker: Running, pace: Pace) -> Outcome:
        count = int(self.count * pace.share)
        self.topology.declare(broker.address)
        try:
            with Crew(self._members(broker), consumers=self.members) as members:
                members.tally.expect(count)
                members.ready()
                filled = self._fill(broker, count)
                members.start()
                read = members.reports(slice(None), _WITHIN)
        finally:
            self.topology.delete(broker.address)
        check_count(read, count)
        reading = max(r.finished for r in read) - min(r.started for r in read)
        figures = {"fill": count / (filled.finished - filled.started), "drain": count / reading}
        return Outcome(figures, (filled, *read))

    def clean_up(self, broker: Running) -> None:
        """Nothing is left after a run."""

    def _fill(self, broker: Running, count: int) -> Report:
        publisher = Publisher(broker.address, self.stream, count=count, window=self.window)
        with Crew([publisher]) as crew:
            crew.go()
            (report,) = crew.reports(slice(None), _WITHIN)
        return report

    def _members(self, broker: Running) -> list[Consumer]:
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
