"""Leveret's history and logs for Spark: data source, export job, reports.

Importing this package costs nothing: PySpark and pyarrow are imported when they are used.
`spark_sink.readers` needs pyarrow alone and serves the HTTP API as well; `spark_sink.datasource`
is the only road into Spark. Nothing here ever writes to a broker's data directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("leveret")` and `spark.readStream.format("leveret")` known.

    Filter pushdown is switched on for the session, because Spark leaves it off.
    """
    from spark_sink.datasource import PUSHDOWN, PushingDataSource

    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(PushingDataSource)
