"""Starting on a long log, and reading its end: neither may depend on how long it is.

The log is declared by a broker and then written directly, through the log library and without
syncs, because publishing ten million records would take minutes: the files are the same. They are
read from the page cache by whoever opens them next, as after any stop or crash of a broker.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from pamqp import commands

from benchmarks.brokers import Kind, Running, start
from benchmarks.connection import Address, Connection
from benchmarks.crew import Crew, Report, RunError
from benchmarks.frames import delivery_mode
from benchmarks.roles import Consumer
from benchmarks.scenarios.base import Outcome, Pace
from benchmarks.scenarios.flow import check_count
from benchmarks.topology import Topology
from queues.log import Partition, PartitionSettings

_WITHIN = 300.0
_BODY = bytes(100)


@dataclass(frozen=True, slots=True)
class LongLog:
    """`records` in `segments`; `tail` of them are read at the end."""

    topology: Topology
    records: int = 10_000_000
    segments: int = 1_000
    tail: int = 300_000

    def prepare(self, broker: Running) -> None:
        """Nothing: every run starts its own broker."""

    def run(self, broker: Running, pace: Pace) -> Outcome:
        each = int(self.records * pace.share) // self.segments
        count, tail = each * self.segments, int(self.tail * pace.share)
        with tempfile.TemporaryDirectory(prefix="leveret-bench-log-") as home:
            data = Path(home)
            before = start(Kind.LEVERET, data=data)
            try:
                self.topology.declare(before.address)
            finally:
                before.stop()
            self._write(data, each)
            running = start(Kind.LEVERET, data=data)
            try:
                self._check(running.address, count)
                read = self._read(running.address, count - tail, tail)
            finally:
                running.stop()
        rate = tail / (read.finished - read.started)
        return Outcome({"startup": running.seconds, "tail": rate}, (read,))

    def clean_up(self, broker: Running) -> None:
        """Nothing is left after a run."""

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
            found = connection.call(commands.Queue.Declare(queue=name, passive=True))
        if found.message_count != count:
            raise RunError(f"{count:,} records written, {found.message_count:,} found")

    def _read(self, address: Address, offset: int, count: int) -> Report:
        consumer = Consumer(
            address,
            self.topology.queues,
            0,
            ack_every=100,
            late=True,
            arguments={"x-stream-offset": offset},
        )
        with Crew([consumer], consumers=1) as crew:
            crew.tally.expect(count)
            crew.go()
            reports = crew.reports(slice(None), _WITHIN)
        check_count(reports, count)
        return reports[0]
