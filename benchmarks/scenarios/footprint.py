"""What an idle broker costs: start-up time, resident memory, memory of idle connections.

Every run starts a new broker with an empty directory; the broker that other workloads use stays
idle meanwhile.
"""

import contextlib
import socket
import time
from dataclasses import dataclass

from benchmarks.brokers import RunningBroker
from benchmarks.connection import Connection
from benchmarks.peers.registry import CLIENTS
from benchmarks.scenarios.base import Outcome, RunLength

_MEGABYTE = 1_000_000
_SETTLE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Footprint:
    """Measure memory after the start, and again with `connections` (in AMQP with a channel)."""

    connections: int = 1000

    def prepare(self, broker: RunningBroker) -> None:
        """Does nothing: every run starts its own broker."""

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        fresh = broker.another()
        try:
            time.sleep(_SETTLE_SECONDS)
            idle = fresh.resident()
            with contextlib.ExitStack() as stack:
                for _ in range(self.connections):
                    stack.enter_context(_idle_connection(fresh))
                time.sleep(_SETTLE_SECONDS)
                connected = fresh.resident()
        finally:
            fresh.stop()
        return Outcome(
            {
                "startup": fresh.seconds,
                "idle": idle / _MEGABYTE,
                "connection": (connected - idle) / self.connections / 1000,
            }
        )

    def clean_up(self, broker: RunningBroker) -> None:
        """Does nothing: a run leaves nothing behind."""


def _idle_connection(broker: RunningBroker) -> Connection | socket.socket:
    client = CLIENTS.get(broker.kind)
    return client.idle_connection(broker.address) if client else Connection(broker.address)
