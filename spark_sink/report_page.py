"""The report as one HTML page: no scripts, no requests, every plot an inline SVG.

The page is the Jinja2 template `templates/report.html`, which escapes all values (names, keys,
tags); only the plots are inserted as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from leveret.spark_sink.plots import Series, bar_plot, line_plot

Row = Mapping[str, Any]
_COUNTS = ("published", "delivered", "acked", "redelivered", "dead_lettered", "expired")
_PERCENTILES = ("p50_ms", "p95_ms", "p99_ms")
_QUEUE_COLUMNS = ("vhost", "queue", *_COUNTS, "publish_to_deliver", "deliver_to_ack")
_MAX_QUEUES = 100
_MAX_BARS = 20


def render_page(overview: Row, tables: Mapping[str, Sequence[Row]]) -> str:
    """The whole page as text."""
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")), autoescape=True
    )
    environment.filters |= {"cell": _cell, "time": _time}
    environment.globals["numeric_columns"] = _numeric_columns
    hours, latency = tables.get("queue_hours", ()), tables.get("latency", ())
    routing_keys = tables.get("routing_keys")
    return environment.get_template("report.html").render(
        overview=overview,
        tiles=_tiles(overview),
        traffic_plot=_traffic_plot(hours),
        publish_to_deliver_plot=_latency_plot(latency, "publish_to_deliver"),
        deliver_to_ack_plot=_latency_plot(latency, "deliver_to_ack"),
        queues=_queues(hours, latency),
        queue_columns=_QUEUE_COLUMNS,
        routing_keys=routing_keys,
        routing_keys_plot=_routing_keys_plot(routing_keys or ()),
        slow_consumers=tables.get("slow_consumers", ()),
        never_acked=tables.get("never_acked", ()),
    )


def _tiles(overview: Row) -> list[tuple[str, str]]:
    total, acked = overview.get("total") or 0, overview.get("acked") or 0
    return [
        ("events", _number(overview.get("events"))),
        ("queues", _number(overview.get("queues"))),
        ("messages", _number(overview.get("messages"))),
        ("acked", f"{acked / total:.1%}" if total else "–"),
    ]


def _traffic_plot(hours: Sequence[Row]) -> str | None:
    totals: dict[datetime, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_COUNTS, 0))
    for row in hours:
        for name in _COUNTS:
            totals[row["hour"]][name] += row[name]
    moments = sorted(totals)
    series = [
        Series(name.replace("_", "-"), [totals[moment][name] for moment in moments])
        for name in _COUNTS
        if any(totals[moment][name] for moment in moments)
    ]
    return line_plot([_time(moment) for moment in moments], series, "messages")


def _latency_plot(latency: Sequence[Row], measure: str) -> str | None:
    """The hourly percentiles over all queues."""
    rows = [
        row for row in latency
        if row["measure"] == measure and row["queue"] is None and row["hour"] is not None
    ]  # fmt: skip
    rows.sort(key=lambda row: row["hour"])
    series = [Series(name.removesuffix("_ms"), [row[name] for row in rows])
              for name in _PERCENTILES]  # fmt: skip
    return line_plot([_time(row["hour"]) for row in rows], series, "ms")


def _routing_keys_plot(rows: Sequence[Row]) -> str | None:
    rows = rows[:_MAX_BARS]
    labels = [f"{row['exchange'] or '(default)'} / {row['routing_key']}" for row in rows]
    return bar_plot(labels, [row["messages"] for row in rows])


def _queues(hours: Sequence[Row], latency: Sequence[Row]) -> list[Row]:
    """Counts and latencies per queue over all hours, the busiest queues first."""
    totals: dict[tuple[str, str], dict[str, Any]] = {}
    for row in hours:
        key = (row["vhost"], row["queue"])
        total = totals.setdefault(key, dict.fromkeys(_COUNTS, 0))
        for name in _COUNTS:
            total[name] += row[name]
    for row in latency:
        total = totals.get((row["vhost"], row["queue"]), {})
        if row["hour"] is None:
            total[row["measure"]] = " / ".join(_number(row[name]) for name in _PERCENTILES)
    busiest = sorted(totals.items(), key=lambda item: (-item[1]["published"], item[0]))
    return [
        {"vhost": vhost, "queue": queue, **counts}
        for (vhost, queue), counts in busiest[:_MAX_QUEUES]
    ]


def _numeric_columns(rows: Sequence[Row]) -> set[str]:
    return {name for row in rows for name, value in row.items() if isinstance(value, int | float)}


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return _time(value)
    if isinstance(value, int | float):
        return _number(value)
    # Jinja passes an undefined value for a column that the row does not have.
    return "" if value is None else str(value)


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _time(value: Any) -> str:
    return value.strftime("%Y-%m-%d %H:%M") if isinstance(value, datetime) else "–"
