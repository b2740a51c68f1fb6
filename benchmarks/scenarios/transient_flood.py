"""What a backlog of transient messages costs: resident memory while it is there, and afterwards.

Every run starts a new broker with an empty directory.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pamqp import commands

from benchmarks.brokers import RunningBroker
from benchmarks.connection import Connection
from benchmarks.frames import delivery_mode, publish
from benchmarks.scenarios.base import Outcome, RunLength
from benchmarks.workers import RunError

_MEGABYTE = 1_000_000
_QUEUE = "bench.flood"
_CHUNK = 500
_SETTLE_SECONDS = 3.0
_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class TransientFlood:
    """Publish `count` transient messages of 100 B to a queue without consumers, then drain it."""

    count: int

    def prepare(self, broker: RunningBroker) -> None:
        """Does nothing: every run starts its own broker."""

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        count = max(1, int(self.count * length.share) // _CHUNK) * _CHUNK
        with tempfile.TemporaryDirectory(prefix="leveret-bench-flood-") as home:
            fresh = broker.another(data=Path(home))
            try:
                with Connection(fresh.address) as connection:
                    before = fresh.resident()
                    _fill(connection, count)
                    filled = fresh.resident()
                with Connection(fresh.address) as connection:
                    _drain(connection, fresh)
                time.sleep(_SETTLE_SECONDS)
                drained = fresh.resident()
            finally:
                fresh.stop()
        return Outcome({"filled": filled / _MEGABYTE, "left": max(0, drained - before) / _MEGABYTE})

    def clean_up(self, broker: RunningBroker) -> None:
        """Does nothing: a run leaves nothing behind."""


def _fill(connection: Connection, count: int) -> None:
    connection.call(commands.Queue.Declare(queue=_QUEUE))
    message = publish("", _QUEUE, delivery_mode(persistent=False), bytes(100))
    for _ in range(count // _CHUNK):
        connection.sock.sendall(message * _CHUNK)
    _wait_for(connection, count)


def _drain(connection: Connection, fresh: RunningBroker) -> None:
    """Deliveries are counted by the broker: parsing them here would take longer than sending."""
    connection.cast(commands.Basic.Consume(queue=_QUEUE, no_ack=True))
    connection.sock.settimeout(1.0)
    with Connection(fresh.address) as other:
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            try:
                while connection.sock.recv(1 << 20):
                    pass
            except TimeoutError:
                if not _ready(other):
                    return
    raise RunError("the queue was not drained in time")


def _wait_for(connection: Connection, count: int) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while (ready := _ready(connection)) < count:
        if time.monotonic() > deadline:
            raise RunError(f"{ready:,} of {count:,} messages arrived in time")
        time.sleep(0.2)


def _ready(connection: Connection) -> int:
    reply = connection.call(commands.Queue.Declare(queue=_QUEUE, passive=True))
    return int(reply.message_count)
