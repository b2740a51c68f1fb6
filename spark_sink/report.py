"""The report: summary tables as Parquet, and one HTML page, from an export.

Only the routing keys need the table `messages`; everything else comes from `events`. A *lifecycle*
is what happened to one message in one queue; a queue never holds the same message twice, so the
first delivery, the last delivery and the ack are unambiguous. Output is written to a temporary
directory and renamed into place, so that a killed report leaves the previous one.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from leveret.spark_sink.errors import SourceError
from leveret.spark_sink.exported import read_export, require_export

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE = "report.html"
TABLES = ("queue_hours", "latency", "routing_keys", "slow_consumers", "never_acked")
_MAX_ROWS = 1000
_MAX_PAGE_ROWS = 50

_LIFECYCLES = """
SELECT vhost, queue, message,
    min(CASE WHEN event = 'enqueued' THEN time END) AS enqueued,
    min(CASE WHEN event IN ('delivered', 'redelivered', 'got') THEN time END) AS first_delivery,
    max(CASE WHEN event IN ('delivered', 'redelivered', 'got') THEN time END) AS last_delivery,
    max(CASE WHEN event = 'acked' THEN time END) AS acked,
    count_if(event IN ('delivered', 'redelivered', 'got')) AS deliveries,
    max_by(event, struct(event_id, position)) AS last_event,
    max(time) AS last_time,
    max_by(
        struct(user, connection, consumer_tag),
        CASE WHEN event IN ('delivered', 'redelivered', 'got') THEN struct(event_id, position) END
    ) AS consumer
FROM events WHERE queue IS NOT NULL GROUP BY vhost, queue, message
"""

_QUEUE_HOURS = """
SELECT vhost, queue, date_trunc('HOUR', time) AS hour,
    count_if(event = 'enqueued') AS published,
    count_if(event IN ('delivered', 'redelivered', 'got')) AS delivered,
    count_if(event = 'acked') AS acked,
    count_if(event = 'redelivered') AS redelivered,
    count_if(event = 'dead_lettered') AS dead_lettered,
    count_if(event = 'expired') AS expired
FROM events WHERE queue IS NOT NULL GROUP BY ALL ORDER BY vhost, queue, hour
"""

# A null queue or hour means all queues or hours.
_LATENCY = """
WITH spans AS (
    SELECT vhost, queue, 'publish_to_deliver' AS measure, date_trunc('HOUR', enqueued) AS hour,
        unix_millis(first_delivery) - unix_millis(enqueued) AS ms
    FROM lifecycles WHERE first_delivery IS NOT NULL AND enqueued IS NOT NULL
    UNION ALL
    SELECT vhost, queue, 'deliver_to_ack', date_trunc('HOUR', last_delivery),
        unix_millis(acked) - unix_millis(last_delivery)
    FROM lifecycles WHERE acked IS NOT NULL AND last_delivery IS NOT NULL
)
SELECT vhost, queue, hour, measure, count(*) AS messages,
    percentile_approx(ms, 0.5, 10000) AS p50_ms,
    percentile_approx(ms, 0.95, 10000) AS p95_ms,
    percentile_approx(ms, 0.99, 10000) AS p99_ms
FROM spans
GROUP BY GROUPING SETS ((vhost, queue, measure, hour), (vhost, queue, measure), (measure, hour))
ORDER BY measure, vhost, queue, hour
"""

_ROUTING_KEYS = """
SELECT vhost, exchange, routing_key, count(*) AS messages, sum(body_bytes) AS bytes
FROM messages GROUP BY ALL ORDER BY messages DESC, vhost, exchange, routing_key LIMIT :max_rows
"""

_SLOW_CONSUMERS = """
SELECT vhost, queue, consumer.user AS user, consumer.connection AS connection,
    consumer.consumer_tag AS consumer_tag, count(acked) AS acked,
    count_if(last_event IN ('delivered', 'redelivered')) AS unacked,
    percentile_approx(unix_millis(acked) - unix_millis(last_delivery), 0.5, 10000) AS p50_ms,
    percentile_approx(unix_millis(acked) - unix_millis(last_delivery), 0.95, 10000) AS p95_ms,
    percentile_approx(unix_millis(acked) - unix_millis(last_delivery), 0.99, 10000) AS p99_ms
FROM lifecycles WHERE deliveries > 0 GROUP BY ALL
ORDER BY p95_ms DESC NULLS LAST, vhost, queue, consumer_tag LIMIT :max_rows
"""

_NEVER_ACKED = """
SELECT vhost, queue, message, enqueued, deliveries, last_event, last_time
FROM lifecycles WHERE acked IS NULL ORDER BY enqueued, vhost, queue, message
"""


def run(
    directory: str | Path,
    out: str | Path | None = None,
    master: str = "local[*]",
    console: Console | None = None,
) -> int:
    """Write the report of an export; returns 0, or 1 after printing the error as one sentence."""
    console = console or Console(stderr=True)
    directory = Path(directory)
    output = Path(out) if out else directory / "report"
    try:
        manifest = require_export(directory)
        if "events" not in manifest.tables:
            raise SourceError(
                f"{directory} has no table 'events': export it with `--table events` first."
            )
        _require_libraries()
        from leveret.spark_sink.session import session

        with session("leveret report", master) as spark:
            write_report(spark, directory, output)
    except SourceError as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    console.print(f"{output / PAGE}", markup=False, highlight=False, soft_wrap=True)
    return 0


def _require_libraries() -> None:
    for name in ("jinja2", "matplotlib"):
        if importlib.util.find_spec(name) is None:
            raise SourceError(f"{name} is not installed: run `pip install 'leveret[spark]'`.")


def write_report(spark: SparkSession, directory: Path, output: Path) -> None:
    """Write the summary tables and the page, in a session made by `leveret.spark_sink.session`."""
    from leveret.spark_sink.report_page import render_page

    frames = summaries(spark, directory)
    temporary = output / ".tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    except OSError as error:
        raise SourceError(
            f"Cannot write to {output} ({error.strerror}): choose a writable directory."
        ) from error
    page_rows = {}
    for name, frame in frames.items():
        frame.coalesce(1).write.mode("overwrite").parquet(str(temporary / name))
        page_rows[name] = _page_rows(
            spark.read.schema(frame.schema).parquet(str(temporary / name)), name
        )
    overview = _overview(spark, directory)
    spark.catalog.uncacheTable("lifecycles")
    (temporary / PAGE).write_text(render_page(overview, page_rows), encoding="utf-8")
    for name in (*frames, PAGE):
        shutil.rmtree(output / name, ignore_errors=True)
        os.replace(temporary / name, output / name)
    shutil.rmtree(temporary)


def summaries(spark: SparkSession, directory: Path) -> dict[str, DataFrame]:
    """The summary tables as DataFrames; this creates the views `events` and `lifecycles`."""
    read_export(spark, directory, "events").createOrReplaceTempView("events")
    spark.sql(_LIFECYCLES).createOrReplaceTempView("lifecycles")
    spark.sql("CACHE LAZY TABLE lifecycles OPTIONS ('storageLevel' = 'DISK_ONLY')")
    frames = {"queue_hours": spark.sql(_QUEUE_HOURS), "latency": spark.sql(_LATENCY)}
    if "messages" in require_export(directory).tables:
        read_export(spark, directory, "messages").createOrReplaceTempView("messages")
        frames["routing_keys"] = spark.sql(_ROUTING_KEYS, {"max_rows": _MAX_ROWS})
    frames["slow_consumers"] = spark.sql(_SLOW_CONSUMERS, {"max_rows": _MAX_ROWS})
    frames["never_acked"] = spark.sql(_NEVER_ACKED)
    return frames


def _overview(spark: SparkSession, directory: Path) -> dict[str, Any]:
    row = spark.sql(
        "SELECT count(*) AS events, count(DISTINCT vhost, queue) AS queues,"
        " min(time) AS first, max(time) AS last FROM events"
    ).first()
    acks = spark.sql("SELECT count(*) AS total, count(acked) AS acked FROM lifecycles").first()
    totals = (row.asDict() if row else {}) | (acks.asDict() if acks else {})
    tables = require_export(directory).tables
    messages = tables["messages"].rows if "messages" in tables else None
    return totals | {"messages": messages, "directory": str(directory)}


def _page_rows(frame: DataFrame, name: str) -> list[dict[str, Any]]:
    """The rows that the page needs; of the hourly tables all rows, for the plots."""
    if name in ("routing_keys", "slow_consumers", "never_acked"):
        frame = frame.limit(_MAX_PAGE_ROWS)
    elif name == "latency":
        frame = frame.where("queue IS NULL OR hour IS NULL")
    return [row.asDict() for row in frame.collect()]
