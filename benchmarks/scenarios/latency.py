"""Latency: at a low fixed rate, of single confirms, of request and reply, and of delays."""

from dataclasses import dataclass, replace
from typing import Any

from pamqp import commands
from pamqp.header import ContentHeader

from benchmarks.brokers import RunningBroker
from benchmarks.connection import Connection
from benchmarks.figures import percentile
from benchmarks.latency_roles import (
    FixedRatePublisher,
    LatencyConsumer,
    Requester,
    Responder,
    SerialPublisher,
)
from benchmarks.roles import Consumer
from benchmarks.scenarios.base import Outcome, RunLength
from benchmarks.topology import Topology
from benchmarks.workers import Report, Role, RunError, WorkerPool

_TIMEOUT = 60.0
_WAITING, _LATE = "bench.waiting", "bench.late"
_DELAY_MS = 100


@dataclass(frozen=True, slots=True)
class SteadyLatency:
    """Time from publish to delivery, at `rate` messages per second."""

    topology: Topology
    rate: float

    def prepare(self, broker: RunningBroker) -> None:
        self.topology.declare(broker.address)

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        (queue,) = self.topology.queues
        roles: list[Role] = [
            FixedRatePublisher(broker.address, queue, self.rate, length.seconds),
            LatencyConsumer(broker.address, queue),
        ]
        sent, got = run_pair(roles, length)
        if sent.count != got.count:
            raise RunError(f"{sent.count:,} deliveries expected, {got.count:,} received")
        return latency_outcome(got, (sent, got))

    def clean_up(self, broker: RunningBroker) -> None:
        self.topology.delete(broker.address)


@dataclass(frozen=True, slots=True)
class Lateness:
    """How long after its time a persistent message arrives: one that a delayed exchange held, or
    one that expired in a queue and was dead-lettered. The path through the broker is included."""

    is_delayed: bool
    rate: float = 100.0

    def prepare(self, broker: RunningBroker) -> None:
        calls: list[Any] = [commands.Queue.Declare(queue=_LATE, durable=True)]
        if self.is_delayed:
            kind = "x-delayed-message"
            arguments: Any = {"x-delayed-type": "fanout"}
            calls += [
                commands.Exchange.Declare(
                    exchange=_WAITING, exchange_type=kind, durable=True, arguments=arguments
                ),
                commands.Queue.Bind(queue=_LATE, exchange=_WAITING, routing_key=""),
            ]
        else:
            expiry: Any = {
                "x-message-ttl": _DELAY_MS,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": _LATE,
            }
            calls.append(commands.Queue.Declare(queue=_WAITING, durable=True, arguments=expiry))
        _call(broker, calls)

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        headers: Any = {"x-delay": _DELAY_MS} if self.is_delayed else None
        properties = commands.Basic.Properties(delivery_mode=2, headers=headers)
        publisher = FixedRatePublisher(
            broker.address,
            _WAITING,
            self.rate,
            length.seconds,
            exchange=_WAITING if self.is_delayed else "",
            properties=ContentHeader(0, 0, properties).marshal()[12:],
        )
        sent, got = run_pair([publisher, LatencyConsumer(broker.address, _LATE)], length)
        if sent.count != got.count:
            raise RunError(f"{sent.count:,} deliveries expected, {got.count:,} received")
        late = tuple(age - _DELAY_MS / 1000 for age in got.latencies)
        return latency_outcome(replace(got, latencies=late), (sent, got))

    def clean_up(self, broker: RunningBroker) -> None:
        calls: list[Any] = [commands.Queue.Delete(queue=_LATE)]
        delete_queue = commands.Queue.Delete(queue=_WAITING)
        delete_exchange = commands.Exchange.Delete(exchange=_WAITING)
        _call(broker, [*calls, delete_exchange if self.is_delayed else delete_queue])


def _call(broker: RunningBroker, methods: list[Any]) -> None:
    with Connection(broker.address) as connection:
        for method in methods:
            connection.call(method)


@dataclass(frozen=True, slots=True)
class ConfirmLatency:
    """Time from publish to confirm of one persistent message at a time."""

    topology: Topology
    consumed: bool

    def prepare(self, broker: RunningBroker) -> None:
        self.topology.declare(broker.address)

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        (queue,) = self.topology.queues
        publisher = SerialPublisher(broker.address, queue, length.seconds)
        if not self.consumed:
            return run_serial(publisher, length)
        consumer = Consumer(broker.address, (queue,), 0, ack_every=1)
        sent, got = run_pair([publisher, consumer], length)
        if sent.count != got.count:
            raise RunError(f"{sent.count:,} deliveries expected, {got.count:,} received")
        return latency_outcome(sent, (sent, got))

    def clean_up(self, broker: RunningBroker) -> None:
        self.topology.delete(broker.address)


@dataclass(frozen=True, slots=True)
class RequestReply:
    """Round trips of one requester, one request at a time, and one responder; direct reply-to."""

    topology: Topology

    def prepare(self, broker: RunningBroker) -> None:
        self.topology.declare(broker.address)

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        (queue,) = self.topology.queues
        roles: list[Role] = [
            Requester(broker.address, queue, length.seconds),
            Responder(broker.address, queue),
        ]
        requests, replies = run_pair(roles, length)
        if requests.count != replies.count:
            raise RunError(f"{requests.count:,} requests, {replies.count:,} replies")
        return latency_outcome(requests, (requests, replies))

    def clean_up(self, broker: RunningBroker) -> None:
        self.topology.delete(broker.address)


def run_serial(publisher: Role, length: RunLength) -> Outcome:
    with WorkerPool([publisher]) as pool:
        pool.go()
        (sent,) = pool.reports(slice(None), length.seconds + _TIMEOUT)
    return latency_outcome(sent, (sent,))


def run_pair(roles: list[Role], length: RunLength) -> tuple[Report, Report]:
    with WorkerPool(roles, consumers=1) as pool:
        pool.go()
        (first,) = pool.reports(slice(1), length.seconds + _TIMEOUT)
        pool.counts.expect(first.count)
        (second,) = pool.reports(slice(1, None), _TIMEOUT)
    return first, second


def latency_outcome(report: Report, all_reports: tuple[Report, ...]) -> Outcome:
    figures = {
        "rate": report.count / (report.finished - report.started),
        "p50": percentile(report.latencies, 50) * 1000,
        "p99": percentile(report.latencies, 99) * 1000,
    }
    return Outcome(figures, all_reports)
