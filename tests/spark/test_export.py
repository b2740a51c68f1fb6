"""The export: exact, idempotent, resumable wherever it was stopped."""

from __future__ import annotations

import io
import json
import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from rich.console import Console

from spark_sink.errors import SourceError
from spark_sink.export import ExportOptions, TableExport, export, interval_seconds, plan_of, run
from spark_sink.exported import read_export
from spark_sink.manifest import Manifest
from spark_sink.progress import Meter
from spark_sink.target import TableTarget, Target, locked
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
    """Run an export in the session of the tests; returns what was printed."""

    def once(options):
        console = Console(record=True, quiet=True)
        export(spark, plan_of(options), console)

    return once


def visible(options, table="events"):
    """Rows that a plain Parquet reader sees."""
    return ds.dataset(options.to / table, partitioning=PARTITIONS, format="parquet").to_table()


def manifest(options):
    return json.loads((options.to / "manifest.json").read_text())["tables"]


def assert_exact(spark, options, broker):
    """Each event once, for pyarrow and for Spark, and as many as manifest and ledger say."""
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
    """By date and queue, for a reader that knows nothing of Spark, and as the manifest says."""
    firsts: Counter[str | None] = Counter()
    for row in messages.to_pylist():
        taken = broker.ledger.queues_of(row["id"])
        assert (row["queues"], row["queue"]) == (taken, taken[0] if taken else None)
        firsts[row["queue"]] += 1
    state = manifest(options)["messages"]
    assert {group["queue"]: group["rows"] for group in state["groups"]} == firsts
    assert state["rows"] == state["source_rows"] == firsts.total()
    for name in ("orders", "__HIVE_DEFAULT_PARTITION__"):
        assert any(options.to.glob(f"messages/batch=0/date=*/queue={name}/*.parquet"))


def test_incremental_adds_only_what_is_new_and_full_replaces(spark, exported, options, broker):
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
    """Stands for the end of the process."""


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
    """Six runs over one directory: five are stopped, each at another point of another batch."""
    options = replace(options, batch_rows=broker.ledger.event_rows // 8)
    for number, (point, owner, name, die) in enumerate(KILLS):
        whole = getattr(owner, name)
        with monkeypatch.context() as patch:
            patched = kill_at(whole, die, number)
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
    """A method that works for `survivors` calls and then ends the process."""

    def __init__(self, method, die, survivors):
        self.method, self.die, self.left, self.calls = method, die, min(survivors, 1), 0

    def __get__(self, instance, _owner):
        return partial(self, instance)

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if self.calls > self.left:
            return self.die(self.method, *args, **kwargs)
        return self.method(*args, **kwargs)


def test_a_swap_that_was_cut_off_is_finished(exported, options, broker, monkeypatch):
    exported(options)
    broker.traffic(3)
    monkeypatch.setattr(Target, "_finish_swap", lambda _: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        export_to_swap(exported, options, monkeypatch)
    monkeypatch.undo()
    exported(replace(options, incremental=True))
    rows = visible(options).to_pylist()
    assert Counter((row["queue"], row["event"]) for row in rows) == broker.ledger.events


def export_to_swap(exported, options, monkeypatch):
    """The constructor of Target must work: only the swap at the end dies."""
    die = Target._finish_swap
    calls = []

    def second(self):
        calls.append(1)
        if len(calls) > 1:
            die(self)

    monkeypatch.setattr(Target, "_finish_swap", second)
    exported(options)


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
        len(sent), broker.ledger.body_bytes, sum("headers" in one for one in sent)
    )  # fmt: skip
    assert sums[3] == max(one["time_ms"] for one in sent)
    queues = f.from_json("queues", "array<string>") if kind == "csv" else f.col("queues")
    for number, first, taken in frame.select("id", "queue", queues).collect():
        wanted = broker.ledger.queues_of(number)
        assert (taken, first) == (wanted, wanted[0] if wanted else None)


def test_conditions_hold(exported, options, broker):
    chosen = replace(options, queue="odd/name %=,é", tables=("events", "messages"))
    exported(chosen)
    rows = visible(chosen).to_pylist()
    wanted = {k: n for k, n in broker.ledger.events.items() if k[0] == chosen.queue}
    assert Counter((row["queue"], row["event"]) for row in rows) == wanted
    enqueued = {t[2] for t in broker.ledger.triples if t[:2] == (chosen.queue, "enqueued")}
    assert set(visible(chosen, "messages")["id"].to_pylist()) == enqueued
    with pytest.raises(SourceError, match="with other conditions"):
        exported(replace(chosen, queue="mail", incremental=True))


def test_long_queue_names_have_short_directories(spark, exported, options, broker):
    from sqlalchemy import update

    from queues.storage import schema

    name = "/" + "é" * 127
    with broker.engine.begin() as connection:
        connection.execute(update(schema.queues).where(schema.queues.c.id == 2).values(name=name))
    exported(replace(options, tables=("events", "messages")))
    ((short, full),) = manifest(options)["events"]["long_names"].items()
    assert full == name
    assert manifest(options)["messages"]["long_names"] == {short: full}
    whole = read_export(spark, options.to, "messages").where(f.col("queue") == name)
    firsts = [broker.ledger.queues_of(number)[:1] for number in broker.ledger.messages]
    assert whole.count() == firsts.count(["mail"]) > 0
    assert whole.where(f.col("queues")[0] == name).count() == whole.count()
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
        ({"since": "2026-11-17", "until": "2026-11-16"}, "there is no time: swap them"),
        ({"data_dir": "/nowhere/at/all"}, "give the data directory of a broker"),
        ({"master": "moon"}, "'moon' is no Spark master"),
        ({"master": "spark://127.0.0.1:1"}, "No Spark master answers"),
        ({"tables": ("nope",)}, "There is no table 'nope'"),
        ({"tables": ()}, "Name at least one table"),
        ({"format": "xml"}, "'xml' is no format"),
        ({"every": "often"}, "'often' is no interval"),
        ({"since": "soon"}, "'soon' is no time"),
        ({"to": "s3a://bucket/x"}, "is no directory"),
        ({"to": "/proc/nothing"}, "choose a directory you may write to"),
        ({"url": "http://127.0.0.1:1"}, "either the data directory or the url"),
        ({"url": "ftp://x", "data_dir": None}, "begins with http"),
    ],
)
def test_bad_input_is_one_sentence(options, change, words, capsys):
    assert run(replace(options, **change)) == 1
    said = capsys.readouterr().err.strip()
    assert words in said and said.count("\n") == 0


def test_address_of_another_server_is_one_sentence(options, capsys):
    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

        def log_message(self, *_):
            """Tests are quiet."""

    server = HTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    assert run(replace(options, data_dir=None, url=url)) == 1
    thread.join()
    server.server_close()
    assert capsys.readouterr().err == (
        f"{url} has no message history: give the address of a Leveret's HTTP API.\n"
    )


def test_a_worker_that_starts_too_slowly_is_waited_for(exported, options, broker, monkeypatch):
    """Spark gives it ten seconds; what an export of a busy machine needs is another try."""
    start, tries = TableExport._start, []

    class Slow:
        def awaitTermination(self):  # noqa: N802
            raise PySparkException("… Python worker failed to connect back. …")

        def stop(self):
            tries.append("stopped")

    def slow(self, cut, write):
        tries.append("started")
        return start(self, cut, write) if len(tries) > 1 else Slow()

    monkeypatch.setattr(TableExport, "_start", slow)
    exported(options)
    assert tries == ["started", "stopped", "started"]
    assert manifest(options)["events"]["rows"] == broker.ledger.event_rows


def test_two_exports_do_not_share_a_directory(options, capsys):
    with locked(options.to):
        assert run(options) == 1
    assert "Another export is writing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [({"identity": "created_ms=2"}, "another broker"), ({"version": 1}, "of another version")],
)
def test_export_of_another_broker_or_version_is_refused(tmp_path, change, words):
    Manifest("created_ms=1").save(tmp_path)
    there = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(there | change))
    with pytest.raises(SourceError, match=words):
        Target(tmp_path, "created_ms=1")


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("1.5h", 5400)])
def test_intervals(text, seconds):
    assert interval_seconds(text) == seconds


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere():
    for terminal in (True, False):
        printed = io.StringIO()
        console = Console(file=printed, force_terminal=terminal, width=120)
        with Meter("events", console) as meter:
            meter.total(2000)
            meter.advance(1500, 3 << 20)
        said = printed.getvalue()
        assert "1,500" in said and "3.0 MiB" in said and "rows/s" in said
        assert ("2,000" in said) == terminal
