"""Found by Spark itself: it imports top-level modules named `pyspark_*` and takes their source.

The wheel installs this file at its top level, so that `spark.read.format("leveret")` works in any
session without `spark_sink.register`. Filters are then done by Spark, because this road says
nothing about whether pushdown is on; `register` replaces it by the source that does them itself.
"""

from spark_sink.datasource import LeveretDataSource as DefaultSource

__all__ = ["DefaultSource"]
