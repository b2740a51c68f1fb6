"""What a broker costs before it does anything: start-up, resident memory, idle connections.

Every run starts a broker of its own with an empty directory; the one under test elsewhere stays
up and idle.
"""

import contextlib
import time
from dataclasses import dataclass

from benchmarks.brokers import Running, start
from benchmarks.connection import Connection
from benchmarks.scenarios.base import Outcome, Pace

_MEGABYTE = 1_000_000
_SETTLE = 3.0


@dataclass(frozen=True, slots=True)
class Footprint:
    """Start, rest, weigh; open `connections` with a channel each, rest, weigh again."""

    connections: int = 1000

    def prepare(self, broker: Running) -> None:
        """Nothing: every run starts its own broker."""

    def run(self, broker: Running, pace: Pace) -> Outcome:
        fresh = start(broker.kind)
        try:
            time.sleep(_SETTLE)
            idle = fresh.resident()
            with contextlib.ExitStack() as stack:
                for _ in range(self.connections):
                    stack.enter_context(Connection(fresh.address))
                time.sleep(_SETTLE)
                crowded = fresh.resident()
        finally:
            fresh.stop()
        return Outcome(
            {
                "startup": fresh.seconds,
                "idle": idle / _MEGABYTE,
                "connection": (crowded - idle) / self.connections / 1000,
            }
        )

    def clean_up(self, broker: Running) -> None:
        """Nothing is left after a run."""
