"""Counts the records of a log by minute and routing key, with Spark Structured Streaming.

    pip install 'leveret[spark]'
    python examples/spark_windowed_count.py /var/lib/leveret clicks            # what is there
    python examples/spark_windowed_count.py http://127.0.0.1:15672 clicks --follow

Run again with the same checkpoint it goes on where it stopped. Spark keeps its own place in the
log: consumer groups and their offsets are not touched.
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql.functions import window
from pyspark.sql.streaming import StreamingQuery

TABLE = "records_per_minute"


def count_by_minute(
    spark: SparkSession, source: dict[str, str], log: str, checkpoint: str, follow: bool = False
) -> StreamingQuery:
    """A running query that keeps the counts in the table `records_per_minute`."""
    records = (
        spark.readStream.format("leveret")
        .options(**source, table="logs", queue=log, columns="time,routing_key")
        .load()
    )
    counts = (
        records.withWatermark("time", "1 minute")
        .groupBy(window("time", "1 minute"), "routing_key")
        .count()
    )
    writer = counts.writeStream.format("memory").queryName(TABLE).outputMode("complete")
    trigger = {"processingTime": "5 seconds"} if follow else {"availableNow": True}
    return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()


def main() -> None:
    from spark_sink.session import session

    parser = argparse.ArgumentParser(description="Count a log's records by minute.")
    parser.add_argument("source", help="data directory, or address of the HTTP API")
    parser.add_argument("log")
    parser.add_argument("--checkpoint", default="windowed-count-checkpoint")
    parser.add_argument("--follow", action="store_true", help="go on with what is new")
    given = parser.parse_args()
    is_address = given.source.startswith(("http://", "https://"))
    source = {"url" if is_address else "data_dir": given.source}
    with session("windowed count", "local[*]") as spark:
        query = count_by_minute(spark, source, given.log, given.checkpoint, given.follow)
        query.awaitTermination()
        spark.table(TABLE).orderBy("window", "routing_key").show(1000, truncate=False)


if __name__ == "__main__":
    main()
