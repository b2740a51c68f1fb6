"""Reads a broker's history and logs as Arrow record batches, without Spark.

`leveret.spark_sink.arrow.source.open_source` is the entry point. The HTTP API, the export job and
the Spark data source all read through this package.
"""
