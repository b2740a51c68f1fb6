"""The scenarios that mean the same on NATS and Redis as on an AMQP broker.

Queues are durable, and a confirmed message is synced to disk, in all of them.
"""

import time
from dataclasses import dataclass

from benchmarks.brokers import RunningBroker
from benchmarks.connection import Address
from benchmarks.peers.client import Client, Shape
from benchmarks.peers.nats_roles import NatsRequester, NatsResponder
from benchmarks.peers.roles import PeerConsumer, PeerPublisher, PeerSerialPublisher
from benchmarks.scenarios.backlog import run_drain, run_fill, total_rate
from benchmarks.scenarios.base import Outcome, RunLength
from benchmarks.scenarios.flow import run_flow
from benchmarks.scenarios.latency import latency_outcome, run_pair, run_serial
from benchmarks.workers import RunError

_FILL_SECONDS = 30.0
_EMPTY_TIMEOUT = 10.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class PeerFlow:
    """A publisher, a queue and a consumer per name."""

    client: Client
    names: tuple[str, ...]
    shape: Shape

    def prepare(self, broker: RunningBroker) -> None:
        for name in self.names:
            self.client.declare(broker.address, name, self.shape)

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        client, address = self.client, broker.address
        publishers = [PeerPublisher(client, address, n, length.seconds) for n in self.names]
        consumers = [
            PeerConsumer(client, address, name, slot, self.shape)
            for slot, name in enumerate(self.names)
        ]
        outcome = run_flow(publishers, consumers, length.seconds)
        for name in self.names:
            _check_empty(client, address, name)
        return outcome

    def clean_up(self, broker: RunningBroker) -> None:
        for name in self.names:
            self.client.delete(broker.address, name)


@dataclass(frozen=True, slots=True)
class PeerBacklog:
    """Publish `count` messages with confirms, then consume them, `replays` times if a log.

    A server that syncs every message by itself would take many minutes: publishing ends after
    _FILL_SECONDS, and what was published is consumed.
    """

    client: Client
    name: str
    shape: Shape
    count: int
    replays: int = 1

    def prepare(self, broker: RunningBroker) -> None:
        """Does nothing: every run declares its own queue."""

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        client, address, name = self.client, broker.address, self.name
        count = int(self.count * length.share)
        client.declare(address, name, self.shape)
        try:
            filled = run_fill(PeerPublisher(client, address, name, _FILL_SECONDS, count))
            drained = [
                run_drain(PeerConsumer(client, address, name, 0, self.shape), filled.count)
                for _ in range(self.replays)
            ]
            if self.shape is not Shape.LOG:
                _check_empty(client, address, name)
        finally:
            client.delete(address, name)
        figures = {"fill": total_rate([filled]), "drain": total_rate(drained)}
        return Outcome(figures, (filled, *drained))

    def clean_up(self, broker: RunningBroker) -> None:
        """Does nothing: a run leaves nothing behind."""


@dataclass(frozen=True, slots=True)
class PeerConfirmLatency:
    """Time from publish to confirm of one message at a time."""

    client: Client
    name: str
    consumed: bool

    def prepare(self, broker: RunningBroker) -> None:
        self.client.declare(broker.address, self.name, Shape.ACK_EACH)

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        client, address = self.client, broker.address
        publisher = PeerSerialPublisher(client, address, self.name, length.seconds)
        if not self.consumed:
            return run_serial(publisher, length)
        consumer = PeerConsumer(client, address, self.name, 0, Shape.ACK_EACH)
        sent, got = run_pair([publisher, consumer], length)
        if sent.count != got.count:
            raise RunError(f"{sent.count:,} deliveries expected, {got.count:,} received")
        _check_empty(client, address, self.name)
        return latency_outcome(sent, (sent, got))

    def clean_up(self, broker: RunningBroker) -> None:
        self.client.delete(broker.address, self.name)


@dataclass(frozen=True, slots=True)
class NatsRequestReply:
    """Round trips of one requester, one request at a time, and one responder."""

    def prepare(self, broker: RunningBroker) -> None:
        """Does nothing: a subject needs no declaration."""

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        requester = NatsRequester(broker.address, length.seconds)
        requests, replies = run_pair([requester, NatsResponder(broker.address)], length)
        if requests.count != replies.count:
            raise RunError(f"{requests.count:,} requests, {replies.count:,} replies")
        return latency_outcome(requests, (requests, replies))

    def clean_up(self, broker: RunningBroker) -> None:
        """Does nothing: a run leaves nothing behind."""


def _check_empty(client: Client, address: Address, name: str) -> None:
    deadline = time.monotonic() + _EMPTY_TIMEOUT
    while left := client.left(address, name):
        if time.monotonic() > deadline:
            raise RunError(f"{left:,} messages are left in {name} although all were acked")
        time.sleep(_POLL_SECONDS)
