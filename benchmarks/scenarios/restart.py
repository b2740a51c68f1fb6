"""Starting a broker with a long log, and reading the log's end: neither may depend on its length.

A broker declares the log; then its files are written directly with the log library, without syncs,
because publishing ten million records would take minutes. The files are the same. The broker then
reads them from the page cache, as after any stop or crash.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from pamqp import commands

from benchmarks.brokers import RunningBroker
from benchmarks.connection import Address, Connection
from benchmarks.frames import delivery_mode
from benchmarks.roles import Consumer
from benchmarks.scenarios.base import Outcome, RunLength
from benchmarks.scenarios.flow import check_count
from benchmarks.topology import Topology
from benchmarks.workers import Report, RunError, WorkerPool
from leveret.queues.log.files import Partition, PartitionSettings

_TIMEOUT = 300.0
_BODY = bytes(100)


@dataclass(frozen=True, slots=True)
class LongLog:
    """A log of `records` in `segments`; the last `tail` of them are read."""

    topology: Topology
    records: int = 10_000_000
    segments: int = 1_000
    tail: int = 300_000

    def prepare(self, broker: RunningBroker) -> None:
        """Does nothing: every run starts its own broker."""

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        each = int(self.records * length.share) // self.segments
        count, tail = each * self.segments, int(self.tail * length.share)
        with tempfile.TemporaryDirectory(prefix="leveret-bench-log-") as home:
            data = Path(home)
            first = broker.another(data=data)
            try:
                self.topology.declare(first.address)
            finally:
                first.stop()
            self._write(data, each)
            running = broker.another(data=data)
            try:
                self._check(running.address, count)
                read = self._read(running.address, count - tail, tail)
            finally:
                running.stop()
        rate = tail / (read.finished - read.started)
        return Outcome({"startup": running.seconds, "tail": rate}, (read,))

    def clean_up(self, broker: RunningBroker) -> None:
        """Does nothing: a run leaves nothing behind."""

    def _write(self, data: Path, each: int) -> None:
        (directory,) = (data / "logs").iterdir()
        (name,) = self.topology.queues
        properties = delivery_mode(persistent=True)
        entries = [(b"", name.encode(), properties, _BODY)] * each
        partition = Partition(directory, PartitionSettings(1, durable=False))
        for time_ms in range(self.segments):
            partition.write(entries, time_ms)
        partition.close()

    def _check(self, address: Address, count: int) -> None:
        (name,) = self.topology.queues
        with Connection(address) as connection:
            reply = connection.call(commands.Queue.Declare(queue=name, passive=True))
        if reply.message_count != count:
            raise RunError(f"{count:,} records written, {reply.message_count:,} found")

    def _read(self, address: Address, offset: int, count: int) -> Report:
        consumer = Consumer(
            address,
            self.topology.queues,
            0,
            ack_every=100,
            late=True,
            arguments={"x-stream-offset": offset},
        )
        with WorkerPool([consumer], consumers=1) as pool:
            pool.counts.expect(count)
            pool.go()
            reports = pool.reports(slice(None), _TIMEOUT)
        check_count(reports, count)
        return reports[0]
