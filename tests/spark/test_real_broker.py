"""The history of a real broker after random traffic, stops, kills and restarts.

Hypothesis chooses what clients do and how each run of the broker ends; `traffic` keeps the ledger.
`make torture-spark` runs many more examples than a test run can.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
import urllib.request
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pika
import pyarrow.dataset as ds
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console

from leveret.spark_sink.arrow.local import LocalSource
from leveret.spark_sink.arrow.remote import RemoteSource
from leveret.spark_sink.arrow.schemas import schema_of
from leveret.spark_sink.arrow.selection import Request, Selection
from leveret.spark_sink.arrow.source import ReadStats
from leveret.spark_sink.errors import SourceError
from leveret.spark_sink.export import ExportOptions, export, make_plan
from tests.spark.test_export import manifest, visible
from tests.spark.traffic import ACTIONS, LEAVES, QUEUES, BrokerRun, Client, run_all
from tests.support.brokers import running_leveret

TABLES = ("events", "messages", "logs")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
RUNS = st.lists(
    st.builds(
        BrokerRun,
        actions=st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=40),
        is_killed=st.booleans(),
    ),
    min_size=1,
    max_size=3,
)
EVERYTHING = (
    BrokerRun(ACTIONS * 2, is_killed=True),
    BrokerRun(ACTIONS[::-1], is_killed=False),
    BrokerRun(ACTIONS, is_killed=True),
)
PLAIN = settings(
    database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)  # fmt: skip


# A test run uses the same few examples each time; the torture run searches for new ones.
@settings(PLAIN, max_examples=3, derandomize=True)
@given(runs=RUNS)
def test_history_of_any_traffic_is_exact(tmp_path_factory, runs):
    client, data_dir = Client(), tmp_path_factory.mktemp("runs") / "data"
    run_all(client, runs, data_dir)
    depths = final_depths(data_dir)
    assert_exact(client, depths, {name: rows_of(data_dir, name) for name in TABLES})


def test_export_after_kills_of_the_broker_is_exact(spark, tmp_path):
    assert_export_is_exact(spark, EVERYTHING, tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(0)
@settings(PLAIN, max_examples=int(os.environ.get("LEVERET_TEST_EXAMPLES", "50")))
@given(runs=RUNS)
def test_export_of_any_traffic_is_exact(spark, tmp_path_factory, runs):
    assert_export_is_exact(spark, runs, tmp_path_factory.mktemp("runs"))


def assert_export_is_exact(spark, runs, directory):
    client, data_dir = Client(), directory / "data"
    run_all(client, runs, data_dir)
    depths = final_depths(data_dir)
    options = ExportOptions(to=directory / "out", data_dir=data_dir, tables=TABLES)
    export(spark, make_plan(options), Console(quiet=True))
    seen = {name: visible(options, name).to_pylist() for name in ("events", "messages")}
    logs = ds.dataset(directory / "out" / "logs", format="parquet", partitioning="hive")
    seen["logs"] = logs.to_table().to_pylist()
    assert_exact(client, depths, seen)
    before = manifest(options)
    export(spark, make_plan(replace(options, incremental=True)), Console(quiet=True))
    assert manifest(options) == before


def rows_of(data_dir, table):
    with LocalSource(data_dir) as source:
        request = Request(table, 0, 2**62, schema_of(table).column_names)
        return [row for batch in source.read(request, ReadStats()) for row in batch.to_pylist()]


def assert_exact(client, depths, rows):
    assert_counts(client, rows["events"], depths)
    assert_contents(client, rows["events"], rows["messages"])
    records = {(row["partition"], row["offset"]) for row in rows["logs"]}
    assert len(records) == len(rows["logs"]) == client.records


def final_depths(data_dir) -> dict[str, int]:
    """The depth of each queue once the messages with a TTL have expired."""
    with running_leveret("--data-dir", str(data_dir)) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()

        def depth(name):
            return channel.queue_declare(name, passive=True).method.message_count

        deadline = time.monotonic() + 60
        while depth("brief") and time.monotonic() < deadline:
            connection.sleep(0.05)
        depths = {name: depth(name) for name in QUEUES}
        connection.close()
        assert_http_agrees(f"http://127.0.0.1:{broker.http_port}", data_dir)
    return depths


def assert_counts(client, events, depths):
    """Counts per queue and event agree with the client's and with the depths of the queues."""
    counts = Counter((row["queue"], row["event"]) for row in events)
    assert {row["vhost"] for row in events} == {"/"}
    assert counts[None, "unroutable"] == client.unroutable
    sent_later = counts["work", "enqueued"] - client.counts["work", "enqueued"]
    assert 0 <= sent_later <= len(client.maybe)
    known = client.counts - Counter({("work", "enqueued"): client.counts["work", "enqueued"]})
    recorded = Counter(
        {key: rows for key, rows in counts.items() if key[0] and key != ("work", "enqueued")}
    )
    assert recorded == known
    for queue in QUEUES:
        left = sum(counts[queue, event] for event in LEAVES)
        assert counts[queue, "enqueued"] - left == depths[queue], queue


def assert_contents(client, events, messages):
    """Bodies and sizes are as published; every event has a message and every message an event."""
    assert len({row["id"] for row in messages}) == len(messages)
    assert {row["message"] for row in events} == {row["id"] for row in messages}
    bodies = {row["message_id"]: row["body"] for row in messages}
    assert bodies.keys() - client.maybe == client.bodies.keys()
    assert all(bodies[name] == body for name, body in client.bodies.items())
    certain = {row["id"] for row in messages if row["message_id"] not in client.maybe}
    entered: Counter[str] = Counter()
    routed: dict[int, set[str]] = {row["id"]: set() for row in messages}
    for row in events:
        if row["event"] == "enqueued":
            routed[row["message"]].add(row["queue"])
            if row["message"] in certain:
                entered[row["queue"]] += row["body_bytes"]
    assert +entered == +client.bytes
    for row in messages:
        assert len(row["queues"]) == len({*row["queues"]})
        assert {*row["queues"]} == routed[row["id"]]
        assert row["queue"] == (row["queues"][0] if row["queues"] else None)


def assert_http_agrees(url, data_dir):
    remote = RemoteSource(url, "guest", "guest")
    with LocalSource(data_dir) as local:
        assert remote.ranges(Selection()) == local.ranges(Selection())
        for table in ("messages", "events", "logs", "queues"):
            request = Request(table, 0, 2**62, schema_of(table).column_names)
            assert remote.count(request) == local.count(request)
            assert remote.splits(request, 50) == local.splits(request, 50)
            over_http, read = (
                [row for batch in source.read(request, ReadStats()) for row in batch.to_pylist()]
                for source in (remote, local)
            )
            assert over_http == read and (read or table == "logs")
    with pytest.raises(SourceError, match="no queue 'gone'"):
        remote.check(Selection(queues=("gone",)))
    with pytest.raises(SourceError, match="refused the user or the password"):
        RemoteSource(url, "guest", "wrong").ranges(Selection())


def test_spark_reads_a_log_without_touching_its_groups(spark, tmp_path):
    """The example of a windowed count, while a group has read half of the log."""
    with running_leveret("--data-dir", str(tmp_path / "data")) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("clicks", durable=True, arguments={"x-queue-type": "stream"})
        for number in range(20):
            channel.basic_publish("", "clicks", str(number).encode())
        channel.basic_qos(prefetch_count=5)
        assert read_some(channel, 10) == list(range(10))
        before = groups(broker)
        example = loaded("spark_windowed_count.py")
        source = {"data_dir": str(tmp_path / "data")}
        query = example.count_by_minute(spark, source, "clicks", str(tmp_path / "checkpoint"))
        query.awaitTermination()
        counted = spark.sql(f"SELECT routing_key, sum(count) FROM {example.TABLE} GROUP BY 1")
        assert [tuple(row) for row in counted.collect()] == [("clicks", 20)]
        assert groups(broker) == before
        assert [group["group"] for group in before] == ["readers"]
        assert read_some(channel, 10) == list(range(10, 20))
        connection.close()


def test_windowed_count_writes_its_own_records(spark, tmp_path):
    example = loaded("spark_windowed_count.py")
    example.write_records(str(tmp_path / "data"))
    source = {"data_dir": str(tmp_path / "data")}
    query = example.count_by_minute(spark, source, "clicks", str(tmp_path / "checkpoint"))
    query.awaitTermination()
    counted = spark.sql(
        f"SELECT routing_key, sum(count) FROM {example.TABLE} GROUP BY 1 ORDER BY 1"
    )
    assert [tuple(row) for row in counted.collect()] == [("cart", 30), ("home", 30), ("search", 30)]


def read_some(channel, count):
    """The next records of the group `readers`, acked; then the consumer is cancelled."""
    seen: list[int] = []
    arguments = {"x-group": "readers", "x-stream-offset": "first"}
    for method, _, body in channel.consume("clicks", inactivity_timeout=60, arguments=arguments):
        assert method is not None, seen
        seen.append(int(body))
        channel.basic_ack(method.delivery_tag)
        if len(seen) == count:
            break
    channel.cancel()
    return seen


def groups(broker):
    address = f"http://127.0.0.1:{broker.http_port}/api/logs/%2F/clicks/groups"
    manager = urllib.request.HTTPPasswordMgrWithPriorAuth()
    manager.add_password(None, address, "guest", "guest", is_authenticated=True)
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(manager))
    with opener.open(address) as response:
        return json.load(response)


def loaded(name):
    path = Path(__file__).parents[2] / "examples" / name
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
