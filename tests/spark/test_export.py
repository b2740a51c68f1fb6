"""The export is exact, idempotent, and resumable wherever it was stopped."""

from __future__ import annotations

import io
import json
import threading
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from rich.console import Console

from leveret.spark_sink.errors import SourceError
from leveret.spark_sink.export import (
    ExportOptions,
    TableExport,
    export,
    interval_seconds,
    make_plan,
    run,
)
from leveret.spark_sink.exported import read_export
from leveret.spark_sink.manifest import Manifest
from leveret.spark_sink.progress import Meter
from leveret.spark_sink.target import ExportTarget, TableTarget, locked
from tests.spark.generator import FakeBroker
from tests.spark.http_source import serve

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
PARTITIONS = ds.partitioning(
    pa.schema([("batch", pa.int64()), ("date", pa.string()), ("queue", pa.string())]),
    flavor="hive",
)


@pytest.fixture
def broker(tmp_path):
    broker = FakeBroker(tmp_path / "data")
    broker.traffic(40)
    yield broker
    broker.close()


@pytest.fixture
def options(broker, tmp_path):
    return ExportOptions(to=tmp_path / "out", data_dir=broker.data_dir, tables=("events",))


@pytest.fixture
def exported(spark):
    """Run an export in the shared session."""

    def once(options):
        console = Console(record=True, quiet=True)
        export(spark, make_plan(options), console)

    return once


def visible(options, table="events"):
    """Rows that a plain Parquet reader sees."""
    return ds.dataset(options.to / table, partitioning=PARTITIONS, format="parquet").to_table()


def manifest(options):
    return json.loads((options.to / "manifest.json").read_text())["tables"]


def assert_exact(spark, options, broker):
    """Each event is visible once to pyarrow and to Spark; manifest and ledger agree."""
    rows = visible(options).to_pylist()
    assert Counter((row["queue"], row["event"]) for row in rows) == broker.ledger.events
    assert len({(row["event_id"], row["position"]) for row in rows}) == len(rows)
    seen = spark.read.parquet(str(options.to / "events"))
    counted = seen.groupBy("queue", "event").count().collect()
    assert {(row[0], row[1]): row[2] for row in counted} == broker.ledger.events
    state = manifest(options)["events"]
    assert state["rows"] == state["source_rows"] == broker.ledger.event_rows
    groups = {(group["queue"], group["event"]): group["rows"] for group in state["groups"]}
    assert groups == broker.ledger.events


def test_export_is_exact_and_a_second_run_adds_nothing(spark, exported, options, broker):
    broker.append("flat", 60)
    everything = replace(options, tables=("messages", "events", "logs", "queues"))
    exported(everything)
    assert_exact(spark, options, broker)
    messages = visible(everything, "messages")
    assert sorted(messages["id"].to_pylist()) == sorted(broker.ledger.messages)
    assert_partitioned(everything, messages, broker)
    bodies = dict(zip(messages["id"].to_pylist(), messages["body"].to_pylist(), strict=True))
    assert bodies == {number: sent["body"] for number, sent in broker.ledger.messages.items()}
    logs = spark.read.parquet(str(everything.to / "logs"))
    assert [tuple(row) for row in logs.groupBy("log", "partition").count().collect()] == [
        ("flat", "0", 60)
    ]
    assert any(everything.to.glob("logs/batch=0/date=*/log=flat/partition=0/*.parquet"))
    assert manifest(everything)["queues"]["rows"] == 5
    before = manifest(everything)
    exported(replace(everything, incremental=True))
    after = manifest(everything)
    for table in ("messages", "events", "logs"):
        assert after[table] == before[table]
    assert after["queues"]["rows"] == 5


def assert_partitioned(options, messages, broker):
    """The partition columns are right for a plain Parquet reader, and the manifest agrees."""
    first_queues: Counter[str | None] = Counter()
    for row in messages.to_pylist():
        routed = broker.ledger.queues_of(row["id"])
        assert (row["queues"], row["queue"]) == (routed, routed[0] if routed else None)
        first_queues[row["queue"]] += 1
    state = manifest(options)["messages"]
    assert {group["queue"]: group["rows"] for group in state["groups"]} == first_queues
    assert state["rows"] == state["source_rows"] == first_queues.total()
    for name in ("orders", "__HIVE_DEFAULT_PARTITION__"):
        assert any(options.to.glob(f"messages/batch=0/date=*/queue={name}/*.parquet"))


def test_incremental_adds_only_new_rows_and_full_replaces(spark, exported, options, broker):
    exported(options)
    first = {path.name for path in (options.to / "events").iterdir()}
    broker.traffic(10)
    exported(replace(options, incremental=True))
    assert_exact(spark, options, broker)
    added = {path.name for path in (options.to / "events").iterdir()} - first
    assert added == {"batch=1"}
    broker.traffic(5)
    exported(options)
    assert_exact(spark, options, broker)
    assert {path.name for path in (options.to / "events").iterdir()} == {"batch=0"}
    assert manifest(options)["events"]["generation"] == 2
    broker.traffic(5)
    exported(replace(options, incremental=True))
    assert_exact(spark, options, broker)


class Killed(Exception):
    """Simulates the end of the process."""


def die_before(method, *_args, **_kwargs):
    raise Killed(method.__name__)


def die_after(method, *args, **kwargs):
    method(*args, **kwargs)
    raise Killed(method.__name__)


KILLS = [
    ("before the write", TableTarget, "temporary", die_before),
    ("with files written", TableExport, "_write_files", die_after),
    ("before it is visible", TableTarget, "publish", die_before),
    ("visible, not in the manifest", TableTarget, "publish", die_after),
    ("in the manifest, not committed", TableTarget, "record", die_after),
]


def test_export_stopped_anywhere_has_each_row_once(spark, exported, options, broker, monkeypatch):
    """Six runs into one directory: five are stopped, each at a different point."""
    options = replace(options, batch_rows=broker.ledger.event_rows // 8)
    for number, (point, owner, name, die) in enumerate(KILLS):
        method = getattr(owner, name)
        with monkeypatch.context() as patch:
            patched = kill_at(method, die, number)
            patch.setattr(owner, name, patched)
            with pytest.raises(Killed):
                exported(options)
        assert patched.calls > 0, point
        if (options.to / "events").exists() and any((options.to / "events").iterdir()):
            rows = visible(options).to_pylist()
            assert len({(row["event_id"], row["position"]) for row in rows}) == len(rows), point
    exported(options)
    assert_exact(spark, options, broker)
    assert len(manifest(options)["events"]["batches"]) > 5


class kill_at:  # noqa: N801 (used as a function)
    """A method that works for at most one call and then raises Killed."""

    def __init__(self, method, die, survivors):
        self.method, self.die, self.left, self.calls = method, die, min(survivors, 1), 0

    def __get__(self, instance, _owner):
        return partial(self, instance)

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if self.calls > self.left:
            return self.die(self.method, *args, **kwargs)
        return self.method(*args, **kwargs)


def test_interrupted_swap_is_completed(exported, options, broker, monkeypatch):
    exported(options)
    broker.traffic(3)
    monkeypatch.setattr(ExportTarget, "_finish_swap", lambda _: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        export_to_swap(exported, options, monkeypatch)
    monkeypatch.undo()
    exported(replace(options, incremental=True))
    rows = visible(options).to_pylist()
    assert Counter((row["queue"], row["event"]) for row in rows) == broker.ledger.events


def export_to_swap(exported, options, monkeypatch):
    """The constructor of ExportTarget works; only the swap at the end fails."""
    die = ExportTarget._finish_swap
    calls = []

    def second(self):
        calls.append(1)
        if len(calls) > 1:
            die(self)

    monkeypatch.setattr(ExportTarget, "_finish_swap", second)
    exported(options)


def test_rows_trimmed_between_two_runs_fail_the_export_and_are_named(
    exported, options, broker, spark, monkeypatch, capsys
):
    """By default; otherwise the export warns, counts them and continues."""
    monkeypatch.setattr("leveret.spark_sink.session.session", lambda *_: nullcontext(spark))
    options = replace(options, tables=("messages", "logs"), incremental=True)
    broker.append("flat", 60)
    assert run(options) == 0
    exported_rows, next_id = manifest(options)["messages"]["rows"], max(broker.ledger.messages) + 1
    broker.traffic(20)
    last = max(broker.ledger.messages)
    broker.trim("messages", upto=last - 5)
    capsys.readouterr()
    assert run(options) == 1
    lost = last - 5 - next_id + 1
    gap = (
        f"Data was lost before it was read: retention has deleted {next_id} to {last - 5} of "
        f"table 'messages' (at most {lost} rows), and the first one available is {last - 4}."
    )
    output = capsys.readouterr().err
    assert output.startswith(gap) and "--no-fail-on-data-loss" in output
    assert manifest(options)["messages"]["rows"] == exported_rows
    tolerant = replace(options, fail_on_data_loss=False)
    assert run(tolerant) == 0
    output = capsys.readouterr().err
    assert gap in output and f"at most {lost:,} rows were lost between runs" in output
    state = manifest(options)["messages"]
    assert (state["rows"], state["lost"]) == (exported_rows + 5, lost)
    assert run(options) == 0
    assert manifest(options)["messages"] == state


def test_rows_trimmed_during_the_first_batch_make_the_export_begin_again(
    exported, options, broker, monkeypatch
):
    """Nothing is exported yet, so what is there then is everything there is."""
    options = replace(options, tables=("messages",))
    trim_while_writing(monkeypatch, broker, 20, batch=1)
    exported(options)
    rows = visible(options, "messages")["id"].to_pylist()
    assert sorted(rows) == [number for number in sorted(broker.ledger.messages) if number > 20]
    assert manifest(options)["messages"]["source_rows"] == len(rows)


def test_rows_trimmed_during_a_later_batch_fail_the_export(exported, options, broker, monkeypatch):
    options = replace(options, tables=("messages",), batch_rows=50)
    trim_while_writing(monkeypatch, broker, 70, batch=2)
    with pytest.raises(
        SourceError, match=r"^Data was lost .* deleted 51 to 70 of table 'messages'"
    ):
        exported(options)
    assert manifest(options)["messages"]["rows"] == 50
    with pytest.raises(SourceError, match="deleted 51 to 70 of table 'messages'"):
        exported(options)
    exported(replace(options, fail_on_data_loss=False))
    state = manifest(options)["messages"]
    assert (state["rows"], state["lost"]) == (len(broker.ledger.messages) - 20, 20)


def trim_while_writing(monkeypatch, broker, upto, batch):
    """Retention deletes rows of a batch after it was planned and before it is read."""
    write, calls = TableExport._write_files, []

    def trimming(self, frame, temporary):
        calls.append(1)
        if len(calls) == batch:
            broker.trim("messages", upto=upto)
        return write(self, frame, temporary)

    monkeypatch.setattr(TableExport, "_write_files", trimming)


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_other_formats(spark, exported, options, broker, kind):
    exported(replace(options, tables=("messages",), format=kind))
    frame = read_export(spark, options.to, "messages")
    body = f.unbase64("body") if kind == "csv" else f.col("body")
    (sums,) = frame.agg(
        f.count("id"), f.sum(f.octet_length(body)), f.count("headers"), f.unix_millis(f.max("time"))
    ).collect()
    sent = broker.ledger.messages.values()
    assert tuple(sums[:3]) == (
        len(sent), broker.ledger.body_bytes, sum("headers" in message for message in sent)
    )  # fmt: skip
    assert sums[3] == max(message["time_ms"] for message in sent)
    queues = f.from_json("queues", "array<string>") if kind == "csv" else f.col("queues")
    for number, first, routed in frame.select("id", "queue", queues).collect():
        expected = broker.ledger.queues_of(number)
        assert (routed, first) == (expected, expected[0] if expected else None)


def test_conditions_select_rows(exported, options, broker):
    chosen = replace(options, queue="odd/name %=,é", tables=("events", "messages"))
    exported(chosen)
    rows = visible(chosen).to_pylist()
    expected = {k: n for k, n in broker.ledger.events.items() if k[0] == chosen.queue}
    assert Counter((row["queue"], row["event"]) for row in rows) == expected
    enqueued = {t[2] for t in broker.ledger.triples if t[:2] == (chosen.queue, "enqueued")}
    assert set(visible(chosen, "messages")["id"].to_pylist()) == enqueued
    with pytest.raises(SourceError, match="with other conditions"):
        exported(replace(chosen, queue="mail", incremental=True))


def test_long_queue_names_have_short_directories(spark, exported, options, broker):
    from sqlalchemy import update

    from leveret.queues.storage import schema

    name = "/" + "é" * 127
    with broker.engine.begin() as connection:
        connection.execute(update(schema.queues).where(schema.queues.c.id == 2).values(name=name))
    exported(replace(options, tables=("events", "messages")))
    ((short, full),) = manifest(options)["events"]["long_names"].items()
    assert full == name
    assert manifest(options)["messages"]["long_names"] == {short: full}
    renamed = read_export(spark, options.to, "messages").where(f.col("queue") == name)
    first_queues = [broker.ledger.queues_of(number)[:1] for number in broker.ledger.messages]
    assert renamed.count() == first_queues.count(["mail"]) > 0
    assert renamed.where(f.col("queues")[0] == name).count() == renamed.count()
    counted = Counter(row["queue"] for row in visible(options).to_pylist())
    assert counted[short] == sum(n for k, n in broker.ledger.events.items() if k[0] == "mail")


def test_export_over_http(spark, exported, options, broker):
    with serve(broker.data_dir) as url:
        remote = replace(options, data_dir=None, url=url, user="u", password="p")
        exported(replace(remote, tables=("events", "messages")))
        with pytest.raises(SourceError, match="refused the user or the password"):
            exported(replace(remote, user="x"))
        with pytest.raises(SourceError, match="no queue 'gone'"):
            exported(replace(remote, queue="gone"))
    assert_exact(spark, options, broker)
    assert_partitioned(remote, visible(remote, "messages"), broker)
    with pytest.raises(SourceError, match="Cannot reach a broker"):
        exported(remote)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"queue": "gone"}, "There is no queue 'gone'"),
        ({"vhost": "gone"}, "There is no vhost 'gone'"),
        ({"since": "2026-11-17", "until": "2026-11-16"}, "--from must be before --until"),
        ({"data_dir": "/nowhere/at/all"}, "give the data directory of a broker"),
        ({"master": "moon"}, "'moon' is not a Spark master"),
        ({"master": "spark://127.0.0.1:1"}, "No Spark master answers"),
        ({"tables": ("nope",)}, "There is no table 'nope'"),
        ({"tables": ()}, "Name at least one table"),
        ({"format": "xml"}, "'xml' is not a format"),
        ({"every": "often"}, "'often' is not an interval"),
        ({"since": "soon"}, "'soon' is not a time"),
        ({"to": "s3a://bucket/x"}, "is not a directory"),
        ({"to": "/proc/nothing"}, "choose a writable directory"),
        ({"url": "http://127.0.0.1:1"}, "either the data directory or the URL"),
        ({"url": "ftp://x", "data_dir": None}, "must begin with http"),
    ],
)
def test_bad_input_is_explained_in_one_sentence(options, change, words, capsys):
    assert run(replace(options, **change)) == 1
    output = capsys.readouterr().err.strip()
    assert words in output and output.count("\n") == 0


def test_url_of_another_server_is_explained_in_one_sentence(options, capsys):
    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

        def log_message(self, *_):
            """No log output."""

    server = HTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    assert run(replace(options, data_dir=None, url=url)) == 1
    thread.join()
    server.server_close()
    assert capsys.readouterr().err == (
        f"{url} has no message history: give the URL of a Leveret HTTP API.\n"
    )


def test_slow_worker_start_is_retried(exported, options, broker, monkeypatch):
    """Spark waits ten seconds for a worker, which is too short on a busy machine."""
    start, calls = TableExport._start, []

    class Slow:
        def awaitTermination(self):  # noqa: N802
            raise PySparkException("… Python worker failed to connect back. …")

        def stop(self):
            calls.append("stopped")

    def slow(self, ends, write):
        calls.append("started")
        return start(self, ends, write) if len(calls) > 1 else Slow()

    monkeypatch.setattr(TableExport, "_start", slow)
    exported(options)
    assert calls == ["started", "stopped", "started"]
    assert manifest(options)["events"]["rows"] == broker.ledger.event_rows


def test_second_export_into_a_directory_is_refused(options, capsys):
    with locked(options.to):
        assert run(options) == 1
    assert "Another export is writing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"identity": "created_ms=2"}, "another broker"),
        ({"version": 1}, "has a version other than 3"),
    ],
)
def test_export_of_another_broker_or_version_is_refused(tmp_path, change, words):
    Manifest("created_ms=1").save(tmp_path)
    content = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(content | change))
    with pytest.raises(SourceError, match=words):
        ExportTarget(tmp_path, "created_ms=1")


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("1.5h", 5400)])
def test_intervals(text, seconds):
    assert interval_seconds(text) == seconds


def test_progress_is_a_bar_on_a_terminal_and_lines_otherwise():
    for terminal in (True, False):
        printed = io.StringIO()
        console = Console(file=printed, force_terminal=terminal, width=120)
        with Meter("events", console) as meter:
            meter.total(2000)
            meter.advance(1500, 3 << 20)
        output = printed.getvalue()
        assert "1,500" in output and "3.0 MiB" in output and "rows/s" in output
        assert ("2,000" in output) == terminal
