"""Leveret's history and logs for Spark: data source, export job, reports.

Importing this package is cheap: PySpark and pyarrow are imported when they are used.
`leveret.spark_sink.arrow` does not need Spark and serves the HTTP API as well. Nothing in this
package ever writes to a broker's data directory.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register the data source: `spark.read.format("leveret")`, `spark.readStream` alike.

    This also turns on filter pushdown for the session, which is off by default. On this machine
    Spark starts its Python workers with this interpreter, unless `PYSPARK_PYTHON` or
    `spark.pyspark.python` names another one: its default is the `python3` on the PATH.
    """
    from leveret.spark_sink.datasource import PUSHDOWN_SETTING, PushdownDataSource

    context = spark.sparkContext
    is_chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if str(context.master).startswith("local") and not is_chosen:
        context.pythonExec = sys.executable
    spark.conf.set(PUSHDOWN_SETTING, "true")
    spark.dataSource.register(PushdownDataSource)


if __name__ != "leveret.spark_sink":  # a checkout whose root is on sys.path
    raise ImportError("import leveret.spark_sink instead of spark_sink", name=__name__)
