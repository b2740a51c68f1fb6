"""Planning a read of logs: the work grows with the number of partitions, not with its square."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from leveret.queues.log.files import Partition, PartitionSettings
from leveret.queues.log.files.reader import LogReader
from leveret.queues.log.files.segment import log_path
from leveret.spark_sink.arrow.local import history_ranges
from leveret.spark_sink.arrow.selection import Request
from leveret.spark_sink.arrow.sql import Database
from leveret.spark_sink.datasource import BatchReader, StreamReader, parse_options
from tests.spark.generator import FakeBroker

FEW, MANY = 3, 9


@pytest.fixture
def calls(monkeypatch):
    """How often log files were opened and the database was queried."""
    counted: Counter[str] = Counter()
    open_log, query = LogReader.__init__, Database.row

    def counting_open(self, directory):
        counted["logs opened"] += 1
        open_log(self, directory)

    def counting_query(self, *args, **values):
        counted["queries"] += 1
        return query(self, *args, **values)

    monkeypatch.setattr(LogReader, "__init__", counting_open)
    monkeypatch.setattr(Database, "row", counting_query)
    return counted


def options_of(tmp_path, partitions):
    broker = FakeBroker(tmp_path / str(partitions))
    for number in range(partitions):
        broker.append_at(f"clicks-{number}", broker.time_ms, 4)
    broker.close()
    return parse_options({"table": "logs", "data_dir": str(broker.data_dir)})


def plan_stream(options):
    reader = StreamReader(options, ("offset",))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(1_000))
    return reader.partitions(start, end)


def plan_batch(options):
    return BatchReader(options, ("offset",)).partitions()


@pytest.mark.parametrize("plan", [plan_stream, plan_batch])
def test_planning_opens_each_log_a_fixed_number_of_times(tmp_path, calls, plan):
    queries = {}
    for partitions in (FEW, MANY):
        options = options_of(tmp_path, partitions)
        calls.clear()
        assert len(plan(options)) == partitions
        assert calls["logs opened"] <= 3 * (partitions + 1)  # one more: the log is a queue itself
        queries[partitions] = calls["queries"]
    assert queries[MANY] == queries[FEW]


def test_count_over_http_opens_only_its_own_partition(tmp_path, calls):
    """An export counts each partition with one request."""
    options = options_of(tmp_path, MANY)
    spans = history_ranges(options.data_dir, {"table": "logs"})["logs"]
    calls.clear()
    for queue_id, (first, end) in spans.items():
        request = Request("logs", first, end, (), queue_id=queue_id)
        response = history_ranges(options.data_dir, request.to_params() | {"count": "1"})
        assert list(response["logs"]) == [queue_id]
        assert response["count"]["rows"] == end - first
    assert calls["logs opened"] <= 3 * (MANY + 1)


def test_task_opens_only_its_own_partition(tmp_path, calls):
    reader = BatchReader(options_of(tmp_path, MANY), ("log", "partition", "offset"))
    tasks = reader.partitions()
    calls.clear()
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    assert {(row["log"], row["partition"]) for row in rows} == {("clicks", n) for n in range(MANY)}
    assert len(rows) == 4 * MANY
    assert calls["logs opened"] <= 2 * MANY


def test_reading_a_log_with_a_missing_segment_warns(tmp_path, caplog):
    broker = FakeBroker(tmp_path)
    broker.append_at("clicks", broker.time_ms, 4)
    broker.close()
    (directory,) = (broker.data_dir / "logs").iterdir()
    log = Partition(directory, PartitionSettings(1, durable=False))
    for _ in range(3):
        log.write([(b"", b"", b"\x00\x00", b"body")], broker.time_ms)
        log.sync()
    log.close()
    log_path(directory, 5).unlink()
    Partition(directory, PartitionSettings(1, durable=False)).close()  # the broker starts
    reader = BatchReader(
        parse_options({"table": "logs", "data_dir": str(broker.data_dir)}), ("offset",)
    )
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch[0]]
    assert [row.as_py() for row in rows] == [0, 1, 2, 3, 4, 6]
    assert "log 'clicks' in vhost '/', partition 0: the offsets 5 to 5 are lost" in caplog.text
