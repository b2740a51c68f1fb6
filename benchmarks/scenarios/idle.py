"""What queues cost while nothing happens: memory each, and the time of a restart with all of them.

Every run starts brokers of its own: an empty one to be weighed, one in which the queues are made,
and one that takes them up again.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pamqp import commands

from benchmarks.brokers import Kind, Running, start
from benchmarks.connection import Address, Connection
from benchmarks.crew import RunError
from benchmarks.scenarios.base import Outcome, Pace

_EXCHANGE = "bench.idle"
_SETTLE = 3.0


@dataclass(frozen=True, slots=True)
class IdleQueues:
    """So many durable queues, each bound to one topic exchange by so many patterns."""

    queues: int = 5_000
    bindings: int = 5

    def prepare(self, broker: Running) -> None:
        """Nothing: every run starts its own brokers."""

    def run(self, broker: Running, pace: Pace) -> Outcome:
        count = max(1, int(self.queues * pace.share))
        with tempfile.TemporaryDirectory(prefix="leveret-bench-idle-") as home:
            data = Path(home)
            running = start(Kind.LEVERET, data=data)
            try:
                empty = _weighed(running)
                self._declare(running.address, count)
                made = _weighed(running)
            finally:
                running.stop()
            running = start(Kind.LEVERET, data=data)
            try:
                with Connection(running.address) as connection:
                    _check(connection, count)
                found = _weighed(running)
            finally:
                running.stop()
        return Outcome(
            {
                "made": (made - empty) / count / 1000,
                "found": (found - empty) / count / 1000,
                "startup": running.seconds,
            }
        )

    def clean_up(self, broker: Running) -> None:
        """Nothing is left after a run."""

    def _declare(self, address: Address, count: int) -> None:
        """Only the last of them is answered, and so stands for all of them."""
        with Connection(address) as connection:
            exchange = commands.Exchange.Declare(
                exchange=_EXCHANGE, exchange_type="topic", durable=True
            )
            connection.call(exchange)
            for number in range(count):
                name = _name(number)
                connection.cast(commands.Queue.Declare(queue=name, durable=True, nowait=True))
                for binding in range(self.bindings):
                    key = f"site{number}.room{binding}.#"
                    connection.cast(
                        commands.Queue.Bind(
                            queue=name, exchange=_EXCHANGE, routing_key=key, nowait=True
                        )
                    )
            _check(connection, count)


def _name(number: int) -> str:
    return f"bench.idle.{number:05}"


def _check(connection: Connection, count: int) -> None:
    """The last one is there; a queue that is not would be refused."""
    found = connection.call(commands.Queue.Declare(queue=_name(count - 1), passive=True))
    if found.queue != _name(count - 1):
        raise RunError(f"asked for {_name(count - 1)}, told of {found.queue}")


def _weighed(running: Running) -> int:
    time.sleep(_SETTLE)
    return running.resident()
