"""The data source for Spark to find: it imports top-level modules named `pyspark_*`.

The wheel installs this file at its top level, so that `spark.read.format("leveret")` works in any
session without `leveret.spark_sink.register`. Spark then applies all filters itself, because the
session may have filter pushdown off; `register` replaces this source by one with pushdown.
"""

from leveret.spark_sink.datasource import LeveretDataSource as DefaultSource

__all__ = ["DefaultSource"]
