"""Counts the records of a log by minute and routing key, with Spark Structured Streaming.

    pip install 'leveret[spark]' pika
    python examples/spark_windowed_count.py                          # its own broker and records
    python examples/spark_windowed_count.py /var/lib/leveret clicks  # stored records
    python examples/spark_windowed_count.py http://127.0.0.1:15672 clicks --follow

With the same checkpoint, the next run continues where this one stopped. Spark stores its own
offsets: consumer groups and their offsets are not touched.
"""

import argparse
import tempfile

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
    parser = argparse.ArgumentParser(description="Count a log's records by minute.")
    parser.add_argument("source", nargs="?", help="data directory, or URL of the HTTP API")
    parser.add_argument("log", nargs="?", default="clicks")
    parser.add_argument("--checkpoint", default="windowed-count-checkpoint")
    parser.add_argument("--follow", action="store_true", help="wait for new records")
    options = parser.parse_args()
    if options.source is None:
        with tempfile.TemporaryDirectory() as folder:
            write_records(folder)
            options.source, options.checkpoint = folder, f"{folder}/checkpoint"
            run(options)
    else:
        run(options)


def write_records(data_dir: str) -> None:
    """Start a broker with this data directory and write some records to the log `clicks`."""
    import pika

    import leveret

    with (
        leveret.ThreadedBroker(data_dir=data_dir) as broker,
        pika.BlockingConnection(pika.URLParameters(broker.url)) as connection,
    ):
        channel = connection.channel()
        channel.confirm_delivery()
        arguments = {"x-queue-type": "stream", "x-partitions": 2}
        channel.queue_declare("clicks", durable=True, arguments=arguments)
        for number in range(90):
            channel.basic_publish("clicks", ("home", "search", "cart")[number % 3], b"click")


def run(options: argparse.Namespace) -> None:
    from leveret.spark_sink.session import session

    is_url = options.source.startswith(("http://", "https://"))
    source = {"url" if is_url else "data_dir": options.source}
    with session("windowed count", "local[*]") as spark:
        query = count_by_minute(spark, source, options.log, options.checkpoint, options.follow)
        query.awaitTermination()
        spark.table(TABLE).orderBy("window", "routing_key").show(1000, truncate=False)


if __name__ == "__main__":
    main()
