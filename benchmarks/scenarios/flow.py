"""Throughput while publishing and consuming at the same time.

The rate is all deliveries over the time from the first publish to the last delivery (and the last
confirm), so a broker gains nothing by accepting messages faster than it delivers them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.brokers import RunningBroker
from benchmarks.connection import Address
from benchmarks.roles import Consumer, Publisher, Stream
from benchmarks.scenarios.base import Outcome, RunLength
from benchmarks.topology import Topology
from benchmarks.workers import Report, Role, RunError, WorkerPool

_DRAIN_TIMEOUT = 180.0


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
    part: int = 0
    shared: bool = False

    def prepare(self, broker: RunningBroker) -> None:
        self.topology.declare(broker.address)

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        publishers = [self._publisher(broker.address, s, length) for s in self.streams]
        consumers = self._consumers(broker.address)
        outcome = run_flow(publishers, consumers, length.seconds, self.copies)
        if self.settles and (left := self.topology.wait_empty(broker.address)):
            raise RunError(f"{left:,} messages are left in the queues although all were acked")
        return outcome

    def clean_up(self, broker: RunningBroker) -> None:
        self.topology.delete(broker.address)

    def _publisher(self, address: Address, stream: Stream, length: RunLength) -> Publisher:
        part = self.part or (100 if self.window else 600)
        return Publisher(address, stream, seconds=length.seconds, window=self.window, part=part)

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
                shared=self.shared,
                arguments=self.arguments,
            )
            for slot in range(self.consumers)
        ]


def run_flow(
    publishers: Sequence[Role], consumers: Sequence[Role], seconds: float, copies: int = 1
) -> Outcome:
    """Run all of them together; each message must be delivered `copies` times."""
    with WorkerPool([*publishers, *consumers], consumers=len(consumers)) as pool:
        pool.go()
        sent = pool.reports(slice(len(publishers)), seconds + _DRAIN_TIMEOUT)
        expected = copies * sum(report.count for report in sent)
        pool.counts.expect(expected)
        got = pool.reports(slice(len(publishers), None), _DRAIN_TIMEOUT)
    check_count(got, expected)
    elapsed = max(r.finished for r in [*sent, *got]) - min(r.started for r in sent)
    return Outcome({"rate": expected / elapsed}, (*sent, *got))


def check_count(reports: Sequence[Report], expected: int) -> None:
    got = sum(report.count for report in reports)
    if got != expected:
        raise RunError(f"{expected:,} deliveries expected, {got:,} received")
