"""A reader that continues from a position notices what was deleted before it came to it."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from sqlalchemy import insert, update

from leveret.queues.log.files.compaction import compact
from leveret.queues.storage import schema
from leveret.spark_sink.data_loss import DataLossError
from leveret.spark_sink.datasource import BatchReader, StreamReader, parse_options
from leveret.spark_sink.positions import Position
from tests.spark.generator import FakeBroker
from tests.spark.http_source import serve

EVERYTHING = ReadAllAvailable()


@pytest.fixture
def broker(tmp_path):
    broker = FakeBroker(tmp_path / "data")
    yield broker
    broker.close()


class Stream:
    """A stream as Spark drives it, with a checkpoint. `source` are options of the data source."""

    def __init__(self, table, column, **source):
        self.table, self.column, self.source = table, column, source
        self.offset = self.reader().initialOffset()

    def reader(self):
        return StreamReader(parse_options({"table": self.table, **self.source}), (self.column,))

    def batch(self, limit=EVERYTHING):
        """The rows of the next batch, read by a reader that was just created."""
        reader = self.reader()
        end = reader.latestOffset(self.offset, limit)
        rows = self.read(reader, end)
        self.offset = json.loads(json.dumps(end))
        return rows

    def read(self, reader, end):
        tasks = reader.partitions(self.offset, end)
        batches = [batch for task in tasks for batch in reader.read(task)]
        return [row[self.column] for batch in batches for row in batch.to_pylist()]


def messages(broker, **options):
    return Stream("messages", "id", data_dir=str(broker.data_dir), **options)


def logs(broker, **options):
    return Stream("logs", "offset", data_dir=str(broker.data_dir), **options)


def publish(broker, count):
    numbers = [broker.publish(["orders"], b"x") for _ in range(count)]
    broker.commit()
    return numbers


# Messages and events -----------------------------------------------------------------------------


def test_rows_trimmed_between_two_runs_fail_the_stream_and_are_named(broker):
    publish(broker, 5)
    stream = messages(broker)
    assert stream.batch() == [1, 2, 3, 4, 5]
    publish(broker, 10)
    broker.trim("messages", upto=12)
    with pytest.raises(DataLossError) as error:
        stream.batch()
    assert (
        "retention has deleted 6 to 12 of table 'messages' (at most 7 rows), "
        "and the first one available is 13" in str(error.value)
    )
    assert "failOnDataLoss" in str(error.value) and "\n" not in str(error.value)


def test_without_fail_on_data_loss_the_stream_warns_once_and_continues(broker, caplog):
    publish(broker, 5)
    stream = messages(broker, failOnDataLoss="false")
    stream.batch()
    publish(broker, 10)
    broker.trim("messages", upto=12, keep=[7])
    assert stream.batch() == [7, 13, 14, 15]
    assert [record.getMessage() for record in caplog.records] == [
        "data was lost before it was read: retention has deleted 6 to 12 of table 'messages' "
        "(at most 7 rows), and the first one available is 13"
    ]
    caplog.clear()
    assert stream.batch() == [] and not caplog.records


@pytest.mark.parametrize("table", ["messages", "events"])
def test_trimming_what_was_read_is_no_loss(broker, table):
    publish(broker, 5)
    stream = Stream(table, "time", data_dir=str(broker.data_dir))
    stream.batch()
    broker.trim(table, upto=5 if table == "messages" else 1)  # the newest event stays
    before = stream.offset
    assert stream.batch() == []
    assert stream.offset == before  # so that Spark runs no batch
    publish(broker, 2)
    assert stream.batch()


@pytest.mark.parametrize("table", ["messages", "events", "logs"])
def test_empty_table_has_no_gap(broker, table):
    stream = Stream(table, "time", data_dir=str(broker.data_dir))
    assert stream.batch() == stream.batch() == []
    publish(broker, 1)
    broker.append("clicks", 1)
    assert stream.batch()


def test_events_are_checked_like_messages(broker):
    publish(broker, 3)
    stream = Stream("events", "event_id", data_dir=str(broker.data_dir))
    assert set(stream.batch()) == {1, 2}
    publish(broker, 3)
    publish(broker, 3)
    broker.trim("events", upto=4)
    with pytest.raises(DataLossError, match="deleted 3 to 4 of table 'events'"):
        stream.batch()


def test_new_stream_begins_with_old_messages_that_are_still_in_a_queue(broker):
    """Most messages after them are deleted, but not since the stream has begun."""
    publish(broker, 10)
    broker.trim("messages", upto=8, keep=[2, 5])
    stream = messages(broker)
    assert stream.batch(ReadMaxRows(1)) == [2]
    assert stream.batch() == [5, 9, 10]


def test_old_message_deleted_before_it_is_read_is_noticed(broker):
    publish(broker, 10)
    broker.trim("messages", upto=8, keep=[2, 5])
    stream = messages(broker)
    assert stream.batch(ReadMaxRows(1)) == [2]
    broker.trim("messages", upto=5)  # it was acked
    with pytest.raises(DataLossError, match="deleted 3 to 5 of table 'messages'"):
        stream.batch()


def test_checkpoint_of_an_older_version_is_checked_too(broker):
    publish(broker, 10)
    stream = messages(broker)
    stream.offset = {"next": 4}
    broker.trim("messages", upto=3)
    assert stream.batch() == [4, 5, 6, 7, 8, 9, 10]
    stream.offset = {"next": 4}
    broker.trim("messages", upto=4)
    with pytest.raises(DataLossError, match="deleted 4 to 4"):
        stream.batch()


def test_batch_that_is_repeated_after_a_restart_is_checked(broker):
    publish(broker, 10)
    stream = messages(broker)
    end = stream.reader().latestOffset(stream.offset, EVERYTHING)
    broker.trim("messages", upto=2)
    with pytest.raises(DataLossError, match="deleted 1 to 2"):
        stream.reader().partitions(stream.offset, end)


@pytest.mark.parametrize("table", ["messages", "events", "logs"])
@pytest.mark.parametrize("over_http", [False, True])
def test_rows_deleted_between_planning_and_reading_are_noticed(broker, table, over_http, caplog):
    publish(broker, 10)
    publish(broker, 10)
    fill_segments(broker, "clicks")
    with serve(broker.data_dir) as url:
        source = {"data_dir": str(broker.data_dir)}
        if over_http:
            source = {"url": url, "user": "u", "password": "p"}
        options = {"table": table, **source}
        strict = BatchReader(parse_options(options), ("time",))
        tolerant = BatchReader(parse_options(options | {"failOnDataLoss": "false"}), ("time",))
        (planned,) = strict.partitions()
        everything = read(strict, planned)
        if table == "logs":
            deleted = broker.logs["clicks"].drop_oldest(1)
        else:
            deleted = 15 if table == "messages" else 3
            broker.trim(table, upto=deleted)
        with pytest.raises(DataLossError, match="retention has deleted"):
            read(strict, planned)
        assert 0 < len(read(tolerant, planned)) < len(everything)
        assert "retention has deleted" in caplog.text
        if table == "logs":
            assert f"{deleted - 1} of partition 0 of log 'clicks' in vhost '/'" in caplog.text
        (planned_again,) = strict.partitions()
        assert len(read(strict, planned_again)) == len(read(tolerant, planned))


def read(reader, task):
    return [row for batch in reader.read(task) for row in batch.to_pylist()]


# Logs --------------------------------------------------------------------------------------------


def fill_segments(broker, log, records=300):
    """Several segments, all but the last of them sealed."""
    for _ in range(4):
        broker.append(log, records)
        broker.logs[log].roll()
    broker.append(log, 10)


def test_segments_deleted_by_retention_are_a_gap(broker):
    broker.append("clicks", 100)
    stream = logs(broker)
    assert stream.batch() == list(range(100))
    fill_segments(broker, "clicks")
    first = broker.logs["clicks"].drop_oldest(2)
    assert first > 100
    with pytest.raises(DataLossError, match=f"deleted 100 to {first - 1} of partition 0 of log"):
        stream.batch()
    stream.source["failOnDataLoss"] = "false"
    assert stream.batch()[0] == first
    stream.source["failOnDataLoss"] = "true"
    assert stream.batch() == []


def test_segments_deleted_by_compaction_are_no_gap(broker):
    declare_compacted(broker, "table")
    stream = logs(broker)
    for _ in range(3):
        broker.append_at("table", broker.time_ms, 5)  # all of them have one key
        broker.logs["table"].roll()
    broker.append_at("table", broker.time_ms, 5)
    compact(broker.logs["table"], broker.time_ms)
    assert broker.logs["table"].first_offset > 0
    assert stream.batch() == [15, 16, 17, 18, 19]


def declare_compacted(broker, log):
    broker.append_at(log, broker.time_ms, 0)
    arguments = json.dumps({"x-cleanup-policy": "compact"})
    with broker.engine.begin() as connection:
        changed = update(schema.queues).where(schema.queues.c.name == log)
        connection.execute(changed.values(arguments=arguments))


def test_compacted_log_with_retention_has_a_gap_where_retention_deleted(broker):
    declare_compacted(broker, "table")
    stream = logs(broker)
    for _ in range(3):
        broker.append_at("table", broker.time_ms, 5)
        broker.logs["table"].roll()
    broker.logs["table"].drop_oldest(1)
    with pytest.raises(DataLossError, match="deleted 0 to 4 of"):
        stream.batch()


def test_log_trimmed_by_an_older_version_is_a_gap(broker):
    broker.append("clicks", 100)
    stream = logs(broker)
    stream.batch()
    fill_segments(broker, "clicks")
    broker.logs["clicks"].drop_oldest(2)
    (broker.logs["clicks"].directory / "segments.json").unlink()
    with pytest.raises(DataLossError, match="deleted 100 to"):
        stream.batch()


def test_deleted_log_is_a_gap_once(broker, caplog):
    broker.append("clicks", 10)
    broker.append("views", 10)
    stream = logs(broker)
    stream.batch()
    delete_queue(broker, "clicks")
    with pytest.raises(DataLossError, match="was deleted or cannot be read, and had been read up"):
        stream.batch()
    stream.source["failOnDataLoss"] = "false"
    assert stream.batch() == []
    stream.source["failOnDataLoss"] = "true"
    broker.append("views", 2)
    assert stream.batch() == [10, 11]


def test_recreated_log_is_read_from_its_start(broker):
    broker.append("clicks", 10)
    stream = logs(broker, failOnDataLoss="false")
    stream.batch()
    delete_queue(broker, "clicks")
    for known in (broker.queue_ids, broker.logs):
        known["deleted"] = known.pop("clicks")
    broker.append("clicks", 3)
    assert stream.batch() == [0, 1, 2]


def delete_queue(broker, name):
    with broker.engine.begin() as connection:
        deleted = update(schema.queues).where(schema.queues.c.name == name)
        connection.execute(deleted.values(deleted_ms=broker.time_ms))


def test_partition_that_is_new_and_already_trimmed_is_a_gap(broker):
    broker.append("clicks", 10)
    stream = logs(broker)
    stream.batch()
    fill_segments(broker, "views")
    first = broker.logs["views"].drop_oldest(1)
    with pytest.raises(DataLossError, match=f"deleted 0 to {first - 1} of partition 0 of log 'vie"):
        stream.batch()


# Another data directory --------------------------------------------------------------------------


@pytest.mark.parametrize("messages_in_new", [1, 20])
def test_new_data_directory_is_noticed_whatever_it_holds(broker, tmp_path, messages_in_new, caplog):
    publish(broker, 5)
    set_id(broker, "first")
    stream = messages(broker)
    stream.batch()
    other = FakeBroker(tmp_path / "other")
    set_id(other, "second")
    publish(other, messages_in_new)
    stream.source["data_dir"] = str(other.data_dir)
    with pytest.raises(DataLossError, match="belongs to another broker than the one read up to 6"):
        stream.batch()
    stream.source["failOnDataLoss"] = "false"
    assert stream.batch() == list(range(1, messages_in_new + 1))
    stream.source["failOnDataLoss"] = "true"
    assert stream.batch() == []
    other.close()


def set_id(broker, value):
    with broker.engine.begin() as connection:
        connection.execute(insert(schema.meta), {"key": "id", "value": value})


def test_older_copy_of_the_data_directory_is_noticed(broker):
    publish(broker, 5)
    broker.append("clicks", 5)
    for stream in (messages(broker), logs(broker)):
        key = next(iter(Position.from_offset(stream.offset).next_ids))
        stream.offset = {key: 9}
        with pytest.raises(DataLossError, match=r"ends at \d, but had been read up to 9"):
            stream.batch()
        stream.source["failOnDataLoss"] = "false"
        assert stream.batch() == []
        stream.source["failOnDataLoss"] = "true"
        assert stream.batch() == []


def test_ids_of_deleted_rows_count_as_used(broker):
    """A queue without history leaves no rows, but its ids were given out."""
    with broker.engine.begin() as connection:
        for key in ("last_message_id", "last_event_id"):
            connection.execute(insert(schema.meta), {"key": key, "value": "7"})
    for table in ("messages", "events"):
        stream = Stream(table, "time", data_dir=str(broker.data_dir))
        stream.offset = {"next": 8}
        assert stream.batch() == []
