"""docs/spark.md names every column, option and event, and its example works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leveret.spark_sink.arrow.schemas import SCHEMAS, spark_ddl
from leveret.spark_sink.arrow.selection import EVENT_NAMES
from leveret.spark_sink.datasource import OPTION_NAMES
from leveret.spark_sink.export import FORMATS
from leveret.spark_sink.report import TABLES as REPORT_TABLES
from tests.spark.generator import FakeBroker

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


@pytest.mark.parametrize("table", SCHEMAS)
def test_every_column_is_documented_with_its_type(table):
    section = PAGE.split(f"### {table}\n")[1].split("\n#")[0]
    described = re.findall(r"^\| `(\w+)` \| (\S+) \|", section, re.MULTILINE)
    assert ", ".join(f"`{name}` {kind}" for name, kind in described) == spark_ddl(table)


def test_every_event_option_format_and_report_table_is_documented():
    for name in {*EVENT_NAMES, *OPTION_NAMES, *REPORT_TABLES}:
        assert f"`{name}`" in PAGE, name
    assert all(name in PAGE for name in FORMATS)


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_windowed_count_example_runs(spark, tmp_path):
    from pyspark.sql.functions import window

    broker = FakeBroker(tmp_path / "data")
    broker.append("clicks", 100)
    (example,) = (block for block in code_blocks() if "withWatermark" in block)
    names = {
        "spark": spark, "window": window, "data_dir": str(broker.data_dir),
        "checkpoint": str(tmp_path / "checkpoint"),
    }  # fmt: skip
    exec(example, names)
    rows = spark.sql("SELECT sum(count) FROM clicks_per_minute").collect()
    assert rows[0][0] == 100
    broker.close()


def code_blocks():
    return re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
