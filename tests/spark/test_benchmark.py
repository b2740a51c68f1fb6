"""The benchmark of the tables: all methods write the same rows, and the findings are reported."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from benchmarks.figures import median
from benchmarks.report import with_results
from benchmarks.spark import suite
from benchmarks.spark.export_impact import ExportImpact, Window
from benchmarks.spark.export_memory import ExportMemory
from benchmarks.spark.log_planning import LogPlanning
from benchmarks.spark.methods import METHODS, TupleSource, by_pyarrow, write_with
from leveret.spark_sink.arrow.local import LocalSource
from leveret.spark_sink.arrow.schemas import schema_of
from leveret.spark_sink.arrow.selection import Request
from leveret.spark_sink.arrow.source import ReadStats
from tests.spark.generator import FakeBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    broker = FakeBroker(tmp_path_factory.mktemp("methods") / "data")
    broker.traffic(20)
    broker.append("flat", 60)
    yield broker
    broker.close()


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_all_methods_write_the_same_rows(spark, broker, tmp_path):
    spark.dataSource.register(TupleSource)
    written = {}
    for method in METHODS:
        count = write_with(method, spark, broker.data_dir, "logs", tmp_path / method)
        rows = pq.read_table(tmp_path / method).to_pylist()
        assert len(rows) == count > 0
        written[method] = sorted(rows, key=lambda row: row["offset"])
    assert written["tuples"] == written["plain"] == written["source"]


@pytest.mark.parametrize("table", ["messages", "events", "queues"])
def test_row_tuples_equal_the_rows_of_the_readers(broker, tmp_path, table):
    count = by_pyarrow(broker.data_dir, table, tmp_path / "plain")
    rows = pq.read_table(tmp_path / "plain").to_pylist()
    assert len(rows) == count
    with LocalSource(broker.data_dir) as source:
        request = Request(table, 0, 2**62, schema_of(table).column_names)
        read = [row for batch in source.read(request, ReadStats()) for row in batch.to_pylist()]
    assert rows == read and read


def test_workloads_are_selected_by_name_glob_or_part():
    assert suite.select(None) == []
    assert suite.select("spark-logs") == ["spark-logs"]
    assert suite.select("spark*") == list(suite.names())
    assert suite.select("beside") == ["spark-beside"]
    assert suite.select("durable-*") == []


def test_findings_become_tables_with_verdicts():
    rates = {1: {"source": [900.0, 1000.0, 1100.0], "tuples": [500.0], "plain": [700.0],
                 "rows": [40.0]},
             2: {"source": [2000.0], "tuples": [600.0], "rows": [40.0]}}  # fmt: skip
    alone = [Window(0.5, 1.0, 9.0, 0.1), Window(0.5, 3.0, 11.0, 0.1)]
    beside = [Window(0.6, 4.2, 9.0, 0.2), Window(0.6, 4.4, 11.0, 0.2)]
    large = [ExportMemory(5_000_000, 25_000_000, 250.0, 1 << 30, 300 << 20)]
    findings = suite.Findings(
        {"logs": rates, "events": rates}, ExportImpact(alone, beside, 2), large,
        LogPlanning(1_000, 0.41, 0.11),
    )  # fmt: skip
    logs, events = suite.lines(findings)
    assert (logs.times, logs.is_met, events.is_met) == (2.0, True, None)
    assert logs.source == (median([900.0, 1000.0, 1100.0]), 2000.0)
    page = with_results(f"a\n{suite.MARKS[0]}\nold\n{suite.MARKS[1]}\nb\n",
                        suite.markdown(findings), suite.MARKS)  # fmt: skip
    assert "| logs | 40 | 1,000/s | 2,000/s | 500/s | 600/s | 700/s | 2.00x | ≥ 2x | yes |" in page
    impact_row = "| p99 | 2.00 ms (1.00 to 3.00) | 4.30 ms (4.20 to 4.40) | 2.15x | ≤ 2x | no |"
    assert impact_row in page and "| longest | 10.00 ms (9.00 to 11.00) |" in page
    assert "old" not in page and page.startswith("a\n") and page.endswith("\nb\n")
    assert [len(table.rows) for table in suite.shown(findings)] == [2, 4, 1, 1]
    assert "| 1,000 partitions | 0.41 s | 0.11 s | ≤ 1 s | yes |" in page
    assert "| 5,000,000 messages | 25,000,000 | 250 | 100,000/s | 1,024 MiB | 300 MiB |" in page
    late = ExportImpact([Window(0.5, 9.0, 9.0, 1.5)], beside, 1)
    (table,) = suite.shown(suite.Findings(impact=late))
    assert "sent late" in str(table.title)
    assert suite.document(findings)["planning"]["partitions"] == 1_000
    windows = suite.document(findings)["beside_ms"]
    assert [window["p99"] for window in windows["beside"]] == [4.2, 4.4]
