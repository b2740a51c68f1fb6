"""The figures of the report, against lifecycles written down by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.console import Console

from leveret.model.history import EventKind
from leveret.spark_sink.export import ExportOptions, export, make_plan
from leveret.spark_sink.exported import read_export
from leveret.spark_sink.plots import Series, bar_plot, line_plot
from leveret.spark_sink.report import PAGE, run, write_report
from tests.spark.generator import START_MS, FakeBroker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
HOUR = 3_600_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """Ten messages delivered after 10 ms × n and acked 100 ms later; five never acked."""
    broker = FakeBroker(tmp_path_factory.mktemp("report") / "data")
    broker.time_ms = START_MS - START_MS % HOUR
    for number in range(1, 11):
        start = broker.time_ms
        published = broker.publish(["orders"], b"x" * number)
        at(broker, start)
        broker.record(EventKind.DELIVERED, "orders", published, 3)
        at(broker, start + 10 * number)
        broker.record(EventKind.ACKED, "orders", published, 3)
        at(broker, start + 10 * number + 100)
        broker.time_ms = start + 1000
    broker.time_ms += HOUR
    for kind in (EventKind.EXPIRED, EventKind.DEAD_LETTERED, EventKind.DELIVERED,
                 EventKind.REDELIVERED, None):  # fmt: skip
        number = broker.publish(["mail"], b"y")
        if kind is not None:
            broker.record(kind, "mail", number, 3)
    broker.commit()
    yield broker
    broker.close()


def at(broker, time_ms):
    broker.time_ms = time_ms
    broker.commit()


@pytest.fixture(scope="module")
def report(spark, broker, tmp_path_factory):
    out = tmp_path_factory.mktemp("exported")
    options = ExportOptions(to=out, data_dir=broker.data_dir, tables=("events", "messages"))
    export(spark, make_plan(options), Console(quiet=True))
    write_report(spark, out, out / "report")
    return out


def table(spark, report, name):
    return [row.asDict() for row in spark.read.parquet(str(report / "report" / name)).collect()]


def test_counts_per_queue_and_hour(spark, report):
    rows = {row["queue"]: row for row in table(spark, report, "queue_hours")}
    names = ("published", "delivered", "acked", "redelivered", "dead_lettered", "expired")
    assert {queue: tuple(row[n] for n in names) for queue, row in rows.items()} == {
        "orders": (10, 10, 10, 0, 0, 0),
        "mail": (5, 2, 0, 1, 1, 1),
    }
    assert (rows["mail"]["hour"] - rows["orders"]["hour"]).total_seconds() == 3600


def test_latencies(spark, report):
    rows = [row for row in table(spark, report, "latency") if row["queue"] == "orders"]
    whole = {row["measure"]: row for row in rows if row["hour"] is None}
    wait = whole["publish_to_deliver"]
    assert (wait["messages"], wait["p50_ms"], wait["p95_ms"], wait["p99_ms"]) == (10, 50, 100, 100)
    assert whole["deliver_to_ack"]["p50_ms"] == whole["deliver_to_ack"]["p99_ms"] == 100


def test_routing_keys_consumers_and_never_acked(spark, report):
    keys = table(spark, report, "routing_keys")
    assert sum(row["messages"] for row in keys) == 15
    assert sum(row["bytes"] for row in keys) == 55 + 5
    consumers = {row["queue"]: row for row in table(spark, report, "slow_consumers")}
    assert consumers["orders"]["consumer_tag"] == "ct" and consumers["orders"]["p95_ms"] == 100
    assert consumers["mail"]["unacked"] == 2 and consumers["mail"]["acked"] == 0
    last = sorted(row["last_event"] for row in table(spark, report, "never_acked"))
    assert last == ["dead_lettered", "delivered", "enqueued", "expired", "redelivered"]


def test_page_is_self_contained(report):
    text = (report / "report" / PAGE).read_text()
    assert text.count("<svg") == 4 and "orders" in text
    assert not re.search(r"<script|https?://|src=|url\(", text)
    assert not (report / "report" / ".tmp").exists()


def test_report_can_be_repeated(spark, report):
    write_report(spark, report, report / "report")
    assert len(table(spark, report, "never_acked")) == 5


def test_export_is_read_back_with_types(spark, report, broker):
    frame = read_export(spark, report, "messages")
    assert dict(frame.dtypes)["headers"] == "map<string,string>"
    assert frame.count() == len(broker.ledger.messages)


def test_missing_export_is_explained(tmp_path, capsys):
    assert run(tmp_path) == 1
    output = capsys.readouterr().err
    assert "There is no export in" in output and output.count("\n") == 1


def test_missing_library_is_explained(report, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(report) == 1
    assert capsys.readouterr().err == (
        "jinja2 is not installed: run `pip install 'leveret[spark]'`.\n"
    )


def test_report_of_an_empty_export(spark, tmp_path):
    broker = FakeBroker(tmp_path / "data")
    options = ExportOptions(to=tmp_path / "out", data_dir=broker.data_dir, tables=("events",))
    export(spark, make_plan(replace(options)), Console(quiet=True))
    write_report(spark, tmp_path / "out", tmp_path / "out" / "report")
    assert "None." in (tmp_path / "out" / "report" / PAGE).read_text()
    broker.close()


def test_plots_escape_labels_and_scale():
    bars = bar_plot(["<b>", "漢 $x$"], [1, 2_000]) or ""
    assert "<b>" not in bars and ">&lt;b&gt;<" in bars and ">漢 $x$<" in bars and ">2,000<" in bars
    lines = line_plot(["now"], [Series("<b>", [3])], "ms") or ""
    assert ">&lt;b&gt;<" in lines and 'aria-label="&lt;b&gt;"' in lines
    assert ">4<" in lines  # the axis never ends below 4
    assert "url(" not in bars + lines and "http" not in bars + lines
    assert line_plot([], [], "ms") is None and bar_plot([], []) is None
