"""Throughput while publishing and consuming at the same time.

The rate is all deliveries over the time from the first publish to the last delivery (and the last
confirm), so a broker gains nothing by taking messages in faster than it hands them out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.brokers import Running
from benchmarks.connection import Address
from benchmarks.crew import Crew, Report, RunError
from benchmarks.roles import Consumer, Publisher, Stream
from benchmarks.scenarios.base import Outcome, Pace
from benchmarks.topology import Topology

_DRAIN_WITHIN = 180.0


@dataclass(frozen=True, slots=True)
class Flow:
    """`streams` (a publisher each) through `topology` to `consumers` processes."""

    topology: Topology
    streams: tuple[Stream, ...]
    window: int = 0
    ack_every: int = 0
    prefetch: int = 1000
    consumers: int = 1
    copies: int = 1
    in_order: bool = True
    sources: tuple[str, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict)
    settles: bool = True

    def prepare(self, broker: Running) -> None:
        self.topology.declare(broker.address)

    def run(self, broker: Running, pace: Pace) -> Outcome:
        publishers = [self._publisher(broker.address, s, pace) for s in self.streams]
        consumers = self._consumers(broker.address)
        with Crew([*publishers, *consumers], consumers=len(consumers)) as crew:
            crew.go()
            sent = crew.reports(slice(len(publishers)), pace.seconds + _DRAIN_WITHIN)
            expected = self.copies * sum(report.count for report in sent)
            crew.tally.expect(expected)
            got = crew.reports(slice(len(publishers), None), _DRAIN_WITHIN)
        check_count(got, expected)
        if self.settles and (left := self.topology.wait_empty(broker.address)):
            raise RunError(f"{left:,} messages are left in the queues although all were acked")
        elapsed = max(r.finished for r in [*sent, *got]) - min(r.started for r in sent)
        return Outcome({"rate": expected / elapsed}, (*sent, *got))

    def clean_up(self, broker: Running) -> None:
        self.topology.delete(broker.address)

    def _publisher(self, address: Address, stream: Stream, pace: Pace) -> Publisher:
        part = 100 if self.window else 600
        return Publisher(address, stream, seconds=pace.seconds, window=self.window, part=part)

    def _consumers(self, address: Address) -> list[Consumer]:
        sources = self.sources or self.topology.queues
        return [
            Consumer(
                address,
                sources[slot :: self.consumers],
                slot,
                ack_every=self.ack_every,
                prefetch=self.prefetch,
                cycle=self.streams[0].blob if self.in_order else 0,
                arguments=self.arguments,
            )
            for slot in range(self.consumers)
        ]


def check_count(reports: Sequence[Report], expected: int) -> None:
    got = sum(report.count for report in reports)
    if got != expected:
        raise RunError(f"{expected:,} deliveries expected, {got:,} received")
