"""Throughput of a durable queue that already holds many messages."""

from dataclasses import dataclass

from pamqp import commands

from benchmarks.brokers import RunningBroker
from benchmarks.connection import Address, Connection
from benchmarks.roles import LimitedConsumer, Publisher, Stream
from benchmarks.scenarios.backlog import run_fill
from benchmarks.scenarios.base import Outcome, RunLength
from benchmarks.scenarios.flow import run_flow
from benchmarks.topology import Topology
from benchmarks.workers import RunError

_BLOB = 1000
_LEAST = 20_000
_FILL_TIMEOUT = 120.0
_SLOWEST_FILL = 2_000.0


@dataclass(frozen=True, slots=True)
class DeepQueue:
    """Fill a queue with `depth` messages, then publish and consume `count` at the same time.

    The queue keeps `depth` messages all the time: consumers get the oldest, and as many are added
    at its end. Depth and count are multiples of the publisher's blob, so the order of all messages
    is known and checked. Every run declares a new queue.
    """

    queue: str
    depth: int
    count: int = 200_000
    window: int = 1000

    def prepare(self, broker: RunningBroker) -> None:
        """Does nothing: every run declares its own queue."""

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        address, topology = broker.address, Topology((self.queue,), durable=True)
        count = max(int(self.count * length.share), _LEAST)
        topology.declare(address)
        try:
            if self.depth:
                within = _FILL_TIMEOUT + self.depth / _SLOWEST_FILL
                run_fill(self._publisher(address, self.depth), within)
            publisher = self._publisher(address, count)
            consumer = LimitedConsumer(address, self.queue, count, cycle=_BLOB)
            outcome = run_flow([publisher], [consumer], length.seconds)
            self._check(address)
        finally:
            topology.delete(address)
        return outcome

    def clean_up(self, broker: RunningBroker) -> None:
        """Does nothing: a run leaves nothing behind."""

    def _publisher(self, address: Address, count: int) -> Publisher:
        stream = Stream("", (self.queue,), persistent=True, blob=_BLOB)
        return Publisher(address, stream, count=count, window=self.window)

    def _check(self, address: Address) -> None:
        with Connection(address) as connection:
            reply = connection.call(commands.Queue.Declare(queue=self.queue, passive=True))
        if reply.message_count != self.depth:
            raise RunError(f"{self.depth:,} messages must be left, {reply.message_count:,} are")
