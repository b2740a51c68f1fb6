"""The CPU time of planning a read of many log partitions.

A real broker creates the partitions, with a few records in each. Spark itself is not started:
what is measured are the calls of the data source that Spark makes for one batch.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.brokers import Kind, RunningBroker, start
from benchmarks.roles import Publisher, Stream
from benchmarks.topology import Topology
from benchmarks.workers import RunError, WorkerPool

PARTITIONS = 1_000
MAX_SECONDS = 1.0
_RECORDS = 20
"""Records per partition on average: their keys are hashed, and no partition may stay empty."""
_LOG = "spark.partitioned"
_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class LogPlanning:
    """CPU seconds for one batch of a stream, and for one read without a stream."""

    partitions: int
    stream: float
    batch: float

    @property
    def is_met(self) -> bool:
        return max(self.stream, self.batch) <= MAX_SECONDS


def measure(say: Callable[[str], None], partitions: int = PARTITIONS) -> LogPlanning:
    say(f"spark: planning a read of {partitions:,} partitions")
    broker = start(Kind.LEVERET)
    try:
        _fill(broker, partitions)
        result = _plan(broker.directory / "data")
    finally:
        broker.stop()
    if result.partitions != partitions:
        raise RunError(f"{partitions} partitions have records, but {result.partitions} are planned")
    return result


def _fill(broker: RunningBroker, partitions: int) -> None:
    arguments = {"x-queue-type": "stream", "x-partitions": partitions}
    Topology((_LOG,), durable=True, arguments=arguments).declare(broker.address)
    count = _RECORDS * partitions
    keys = tuple(f"{number:06}" for number in range(count))
    records = Stream(_LOG, keys, persistent=True, blob=count)
    with WorkerPool([Publisher(broker.address, records, count=count, window=1000)]) as pool:
        pool.go()
        pool.reports(slice(None), _TIMEOUT)


def _plan(data_dir: Path) -> LogPlanning:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    from leveret.spark_sink.datasource import BatchReader, StreamReader, parse_options

    options = parse_options({"table": "logs", "data_dir": str(data_dir), "queue": _LOG})
    started = time.process_time()
    stream = StreamReader(options, ("offset",))
    offset = stream.initialOffset()
    end = stream.latestOffset(offset, ReadMaxRows(1_000_000))
    tasks = stream.partitions(offset, end)
    between = time.process_time()
    BatchReader(options, ("offset",)).partitions()
    return LogPlanning(len(tasks), between - started, time.process_time() - between)
