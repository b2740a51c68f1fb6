"""What idle queues cost: memory per queue, and the time of a restart with all of them.

Every run starts a broker, measures its memory when empty and with the queues, and restarts it.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pamqp import commands

from benchmarks.brokers import RunningBroker
from benchmarks.connection import Address, Connection
from benchmarks.scenarios.base import Outcome, RunLength
from benchmarks.workers import RunError

_EXCHANGE = "bench.idle"
_SETTLE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class IdleQueues:
    """`queues` durable queues, each bound to one topic exchange with `bindings` patterns."""

    queues: int = 5_000
    bindings: int = 5

    def prepare(self, broker: RunningBroker) -> None:
        """Does nothing: every run starts its own brokers."""

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        count = max(1, int(self.queues * length.share))
        with tempfile.TemporaryDirectory(prefix="leveret-bench-idle-") as home:
            data = Path(home)
            running = broker.another(data=data)
            try:
                empty = _settled_memory(running)
                self._declare(running.address, count)
                declared = _settled_memory(running)
            finally:
                running.stop()
            running = broker.another(data=data)
            try:
                with Connection(running.address) as connection:
                    _check(connection, count)
                recovered = _settled_memory(running)
            finally:
                running.stop()
        return Outcome(
            {
                "made": (declared - empty) / count / 1000,
                "found": (recovered - empty) / count / 1000,
                "startup": running.seconds,
            }
        )

    def clean_up(self, broker: RunningBroker) -> None:
        """Does nothing: a run leaves nothing behind."""

    def _declare(self, address: Address, count: int) -> None:
        """Only the last declaration waits for its reply, which covers all of them."""
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
    """Check that the last queue exists; a missing one raises RefusedError."""
    reply = connection.call(commands.Queue.Declare(queue=_name(count - 1), passive=True))
    if reply.queue != _name(count - 1):
        raise RunError(f"declared {_name(count - 1)}, got {reply.queue}")


def _settled_memory(running: RunningBroker) -> int:
    time.sleep(_SETTLE_SECONDS)
    return running.resident()
