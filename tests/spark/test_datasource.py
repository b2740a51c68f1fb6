"""The data source in a real Spark session, against the ledger."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as f

from leveret.spark_sink.arrow.schemas import SCHEMAS, spark_ddl
from tests.spark.generator import START_MS, FakeBroker
from tests.spark.http_source import serve

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    broker = FakeBroker(tmp_path_factory.mktemp("source") / "data")
    broker.traffic(60)
    broker.append("flat", 200)
    broker.append("parted-1", 50)
    yield broker
    broker.close()


@pytest.fixture
def table(spark, broker):
    def load(name, **options):
        options = {"data_dir": str(broker.data_dir), "partition_rows": "300"} | options
        return spark.read.format("leveret").option("table", name).options(**options).load()

    return load


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_is_as_documented(table, name):
    schema = table(name).schema
    assert ", ".join(f"`{x.name}` {x.dataType.simpleString()}" for x in schema) == spark_ddl(name)


def test_events_equal_the_ledger_and_join_messages(table, broker):
    events = table("events")
    assert events.rdd.getNumPartitions() > 1
    counted = events.groupBy("queue", "event").count().collect()
    assert {(row["queue"], row["event"]): row["count"] for row in counted} == broker.ledger.events
    messages = table("messages")
    joined = events.join(messages, events["message"] == messages["id"], "full")
    orphans = joined.where("id IS NULL OR message IS NULL").count()
    assert orphans == 0


def test_messages_and_logs_equal_the_ledger(table, broker):
    (sums,) = table("messages").agg(f.count("id"), f.sum(f.length("body")), f.sum("id")).collect()
    ledger = broker.ledger.messages
    assert tuple(sums) == (len(ledger), broker.ledger.body_bytes, sum(ledger))
    counted = table("logs").groupBy("log", "partition").agg(f.sum("offset"), f.sum("body_bytes"))
    expected = {
        (log, number): (sum(range(len(sent))), sum(len(body) for _, _, body in sent))
        for (log, number), sent in {
            ("flat", 0): broker.ledger.logs["flat"],
            ("parted", 1): broker.ledger.logs["parted-1"],
        }.items()
    }
    assert {(row[0], row[1]): (row[2], row[3]) for row in counted.collect()} == expected


def test_only_requested_columns_are_read(table, tmp_path):
    frame = table("messages", columns="id,user", read_log=str(tmp_path))
    assert frame.columns == ["id", "user"]
    assert frame.where("user = 'alice'").count() > 0
    assert all(stats["bytes"] == 0 for stats in read_log(tmp_path))
    assert {tuple(stats["columns"]) for stats in read_log(tmp_path)} == {("id", "runs")}


def test_filters_are_applied_by_the_reader(table, broker, tmp_path):
    half = START_MS + (broker.time_ms - START_MS) // 2
    expected = Counter(
        kind for queue, kind, _, time_ms in broker.ledger.triples
        if queue == "orders" and kind in ("acked", "expired") and time_ms >= half
    )  # fmt: skip
    frame = table("events", read_log=str(tmp_path)).where(
        (f.col("queue") == "orders") & f.col("event").isin("acked", "expired")
        & (f.col("time") >= f.timestamp_millis(f.lit(half)))
    )  # fmt: skip
    result = Counter(row["event"] for row in frame.collect())
    assert result == expected
    assert sum(stats["rows"] for stats in read_log(tmp_path)) == expected.total()


def test_messages_by_queue(spark, table, broker, tmp_path):
    """The option selects by every queue of a message, a filter by the first one only."""
    routed = {number: broker.ledger.queues_of(number) for number in broker.ledger.messages}
    selected = table("messages", queue="mail", columns="id,queue,queues")
    assert {row["id"]: row["queues"] for row in selected.collect()} == {
        number: queues for number, queues in routed.items() if "mail" in queues
    }
    messages = table("messages", columns="id,queue", read_log=str(tmp_path))
    result = {row["id"] for row in messages.where("queue = 'mail'").collect()}
    assert result == {number for number, queues in routed.items() if queues[:1] == ["mail"]}
    in_mail = sum("mail" in queues for queues in routed.values())
    assert len(result) < in_mail == sum(stats["rows"] for stats in read_log(tmp_path))
    assert selected.where("queue IN ('mail', 'orders')").count() == in_mail - sum(
        queues[0] not in ("mail", "orders") for queues in routed.values() if "mail" in queues
    )
    none = table("messages").where("queue IS NULL AND queues = array()").count()
    assert none == sum(not queues for queues in routed.values())


def test_contradictory_filters_and_unknown_events_match_nothing(table):
    events = table("events")
    assert events.where("queue = 'orders' AND queue IN ('mail', 'x')").count() == 0
    assert events.where("event = 'eaten'").count() == 0


def test_spark_finds_the_source_without_register_and_pushdown(spark, broker):
    other = spark.newSession()
    frame = other.read.format("leveret").option("table", "events")
    frame = frame.option("data_dir", str(broker.data_dir)).load()
    assert (
        frame.where("event = 'acked' AND queue = '123'").count()
        == (broker.ledger.events["123", "acked"])
    )


def test_stream_reads_limited_batches_and_continues(spark, tmp_path):
    broker = FakeBroker(tmp_path / "data")
    broker.traffic(20)
    broker.append("flat", 90)
    seen: dict[str, list[list[int]]] = {"messages": [], "logs": []}

    def drain(name, key):
        frame = (
            spark.readStream.format("leveret")
            .options(table=name, data_dir=str(broker.data_dir), max_rows="40", columns=key)
            .load()
        )

        def keep(batch, _):
            seen[name].append([row[0] for row in batch.collect()])

        query = (
            frame.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    drain("messages", "id")
    drain("logs", "offset")
    assert sorted(flat(seen["messages"])) == sorted(broker.ledger.messages)
    assert flat(map(sorted, seen["logs"])) == list(range(90))
    assert max(map(len, seen["messages"] + seen["logs"])) == 40
    before, batches = len(broker.ledger.messages), len(seen["messages"])
    broker.traffic(5)
    drain("messages", "id")
    added = sorted(flat(seen["messages"][batches:]))
    assert added == list(range(before + 1, len(broker.ledger.messages) + 1))
    drain("messages", "id")
    assert sum(map(len, seen["messages"])) == len(broker.ledger.messages)
    broker.close()


def test_limited_batches_advance_all_partitions_together(spark, tmp_path):
    """A watermark follows the partition that is ahead, and Spark drops what is behind it."""
    broker = FakeBroker(tmp_path / "data")
    for second in range(0, 200, 2):
        for number in range(4):
            broker.append_at(f"clicks-{number}", START_MS + 1000 * second + number, 10)
    broker.close()
    records = (
        spark.readStream.format("leveret")
        .options(table="logs", data_dir=str(broker.data_dir), queue="clicks", max_rows="400")
        .option("columns", "time,partition")
        .load()
    )
    counts = records.withWatermark("time", "5 seconds").groupBy(f.window("time", "10 seconds"))
    query = (
        counts.count().writeStream.format("memory").queryName("clicks").outputMode("update")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        .start()
    )  # fmt: skip
    query.awaitTermination()
    assert [batch["numInputRows"] for batch in query.recentProgress[:10]] == [400] * 10
    windows = spark.table("clicks").groupBy("window").agg(f.max("count").alias("count"))
    assert windows.agg(f.sum("count")).first()[0] == 4000


def test_reads_over_http(table, broker):
    with serve(broker.data_dir) as url:
        source = {"data_dir": "", "url": url, "user": "u", "password": "p"}
        assert table("events", **source).count() == broker.ledger.event_rows
        assert table("logs", **source, columns="offset").where("offset >= 20").count() == 210
        with pytest.raises(PySparkException, match="refused the user or the password"):
            table("messages", **source | {"password": "wrong"}).count()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "nope"}, "There is no table 'nope'"),
        ({"table": "events", "columns": "color"}, "has no column 'color'"),
        ({"table": "events", "data_dir": "/nowhere/at/all"}, "give the data directory"),
        ({"table": "events", "url": "http://x"}, "either the data directory or the URL"),
        ({"table": "events", "max_row": "5"}, "There is no option 'max_row': the options are"),
        ({"table": "logs", "queue": "orders"}, "There is no log 'orders' .* choose from 'flat'"),
    ],
)
def test_bad_options_are_explained(spark, broker, options, words):
    reader = spark.read.format("leveret").option("data_dir", str(broker.data_dir))
    with pytest.raises((AnalysisException, PySparkException), match=words):
        reader.options(**options).load().count()


def flat(lists):
    return list(chain.from_iterable(lists))


def read_log(directory: Path):
    return [json.loads(path.read_text()) for path in directory.glob("*.json")]
