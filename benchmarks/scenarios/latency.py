"""Latency: at a steady low rate, of one confirm at a time, of a round trip through the broker."""

from dataclasses import dataclass

from benchmarks.brokers import Running
from benchmarks.crew import Crew, Report, Role, RunError
from benchmarks.figures import percentile
from benchmarks.pacing import LonePublisher, PacedPublisher, Requester, Responder, StampReader
from benchmarks.roles import Consumer
from benchmarks.scenarios.base import Outcome, Pace
from benchmarks.topology import Topology

_WITHIN = 60.0


@dataclass(frozen=True, slots=True)
class SteadyLatency:
    """Publish to delivery, at `rate` messages a second."""

    topology: Topology
    rate: float

    def prepare(self, broker: Running) -> None:
        self.topology.declare(broker.address)

    def run(self, broker: Running, pace: Pace) -> Outcome:
        (queue,) = self.topology.queues
        roles: list[Role] = [
            PacedPublisher(broker.address, queue, self.rate, pace.seconds),
            StampReader(broker.address, queue),
        ]
        sent, got = _run_pair(roles, pace)
        if sent.count != got.count:
            raise RunError(f"{sent.count:,} deliveries expected, {got.count:,} received")
        return _timed(got, (sent, got))

    def clean_up(self, broker: Running) -> None:
        self.topology.delete(broker.address)


@dataclass(frozen=True, slots=True)
class ConfirmLatency:
    """One persistent publish, its confirm, the next; with a consumer that acks each, or none."""

    topology: Topology
    consumed: bool

    def prepare(self, broker: Running) -> None:
        self.topology.declare(broker.address)

    def run(self, broker: Running, pace: Pace) -> Outcome:
        (queue,) = self.topology.queues
        publisher = LonePublisher(broker.address, queue, pace.seconds)
        if not self.consumed:
            with Crew([publisher]) as crew:
                crew.go()
                (sent,) = crew.reports(slice(None), pace.seconds + _WITHIN)
            return _timed(sent, (sent,))
        consumer = Consumer(broker.address, (queue,), 0, ack_every=1)
        sent, got = _run_pair([publisher, consumer], pace)
        if sent.count != got.count:
            raise RunError(f"{sent.count:,} deliveries expected, {got.count:,} received")
        return _timed(sent, (sent, got))

    def clean_up(self, broker: Running) -> None:
        self.topology.delete(broker.address)


@dataclass(frozen=True, slots=True)
class RequestReply:
    """Round trips: one requester with one request under way, one responder, direct reply-to."""

    topology: Topology

    def prepare(self, broker: Running) -> None:
        self.topology.declare(broker.address)

    def run(self, broker: Running, pace: Pace) -> Outcome:
        (queue,) = self.topology.queues
        roles: list[Role] = [
            Requester(broker.address, queue, pace.seconds),
            Responder(broker.address, queue),
        ]
        asked, answered = _run_pair(roles, pace)
        if asked.count != answered.count:
            raise RunError(f"{asked.count:,} requests, {answered.count:,} answers")
        return _timed(asked, (asked, answered))

    def clean_up(self, broker: Running) -> None:
        self.topology.delete(broker.address)


def _run_pair(roles: list[Role], pace: Pace) -> tuple[Report, Report]:
    with Crew(roles, consumers=1) as crew:
        crew.go()
        (first,) = crew.reports(slice(1), pace.seconds + _WITHIN)
        crew.tally.expect(first.count)
        (second,) = crew.reports(slice(1, None), _WITHIN)
    return first, second


def _timed(report: Report, all_reports: tuple[Report, ...]) -> Outcome:
    figures = {
        "rate": report.count / (report.finished - report.started),
        "p50": percentile(report.latencies, 50) * 1000,
        "p99": percentile(report.latencies, 99) * 1000,
    }
    return Outcome(figures, all_reports)
