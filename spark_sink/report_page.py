"""The report as one HTML page: no scripts, no requests, every plot an inline SVG.

All texts from outside (names, keys, tags) pass through `escape`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from spark_sink.svg import Series, bar_plot, line_plot

Row = Mapping[str, Any]
_COUNTS = ("published", "delivered", "acked", "redelivered", "dead_lettered", "expired")
_PERCENTILES = ("p50_ms", "p95_ms", "p99_ms")
_SHOWN_QUEUES = 100
_STYLE = """
:root{--ink:#1d2430;--soft:#5d6878;--line:#dfe4ea;--back:#fff;--tile:#f5f7f9}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa6b5;--line:#343c48;
--back:#171b21;--tile:#1f252d}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);
max-width:1080px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
p{color:var(--soft);margin:.2rem 0}
.tiles{display:flex;flex-wrap:wrap;gap:.8rem;margin-top:1.2rem}
.tile{background:var(--tile);border-radius:8px;padding:.7rem 1rem;min-width:120px}
.tile b{display:block;font-size:1.4rem}.tile span{color:var(--soft)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid var(--line)}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto}svg text{fill:var(--soft);font:11px system-ui,sans-serif}
svg .axis{stroke:var(--line)}
"""


def page(overview: Row, tables: Mapping[str, Sequence[Row]]) -> str:
    """The whole page as text."""
    hours = tables.get("queue_hours", ())
    latency = tables.get("latency", ())
    body = [
        _head(overview),
        "<h2>Traffic per hour</h2>" + _traffic(hours),
        "<h2>Latency, publish to deliver</h2>" + _latency_plot(latency, "publish_to_deliver"),
        "<h2>Latency, deliver to ack</h2>" + _latency_plot(latency, "deliver_to_ack"),
        "<h2>Queues</h2>" + _queues(hours, latency),
    ]
    if "routing_keys" in tables:
        body.append("<h2>Top routing keys</h2>" + _routing_keys(tables["routing_keys"]))
    body.append("<h2>Slow consumers</h2>" + _consumers(tables.get("slow_consumers", ())))
    body.append("<h2>Messages never acked</h2>" + _never_acked(tables.get("never_acked", ())))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Leveret report</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _head(overview: Row) -> str:
    total, acked = overview.get("total") or 0, overview.get("acked") or 0
    tiles = [
        ("events", _number(overview.get("events"))),
        ("queues", _number(overview.get("queues"))),
        ("messages", _number(overview.get("messages"))),
        ("acked", f"{acked / total:.1%}" if total else "–"),
    ]
    boxes = "".join(
        f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for name, value in tiles
    )
    span = f"{_time(overview.get('first'))} to {_time(overview.get('last'))} UTC"
    return (
        f"<h1>Leveret report</h1><p>{escape(str(overview.get('directory', '')))}</p>"
        f'<p>{span}</p><div class="tiles">{boxes}</div>'
    )


def _traffic(hours: Sequence[Row]) -> str:
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


def _latency_plot(latency: Sequence[Row], measure: str) -> str:
    rows = [
        row for row in latency
        if row["measure"] == measure and row["queue"] is None and row["hour"] is not None
    ]  # fmt: skip
    rows.sort(key=lambda row: row["hour"])
    series = [Series(name.removesuffix("_ms"), [row[name] for row in rows])
              for name in _PERCENTILES]  # fmt: skip
    return line_plot([_time(row["hour"]) for row in rows], series, "ms")


def _queues(hours: Sequence[Row], latency: Sequence[Row]) -> str:
    totals: dict[tuple[str, str], dict[str, Any]] = {}
    for row in hours:
        key = (row["vhost"], row["queue"])
        known = totals.setdefault(key, dict.fromkeys(_COUNTS, 0))
        for name in _COUNTS:
            known[name] += row[name]
    for row in latency:
        known = totals.get((row["vhost"], row["queue"]), {})
        if row["hour"] is None:
            known[row["measure"]] = " / ".join(_number(row[name]) for name in _PERCENTILES)
    busiest = sorted(totals.items(), key=lambda item: (-item[1]["published"], item[0]))
    rows = [
        {"vhost": vhost, "queue": queue, **counts}
        for (vhost, queue), counts in busiest[:_SHOWN_QUEUES]
    ]
    columns = ["vhost", "queue", *_COUNTS, "publish_to_deliver", "deliver_to_ack"]
    note = "<p>Latencies are p50 / p95 / p99 in milliseconds.</p>"
    return note + _table(rows, columns)


def _routing_keys(rows: Sequence[Row]) -> str:
    labels = [f"{row['exchange'] or '(default)'} / {row['routing_key']}" for row in rows[:20]]
    plot = bar_plot(labels, [row["messages"] for row in rows[:20]])
    return plot + _table(rows, ["vhost", "exchange", "routing_key", "messages", "bytes"])


def _consumers(rows: Sequence[Row]) -> str:
    columns = ["vhost", "queue", "user", "connection", "consumer_tag", "acked", "unacked"]
    return _table(rows, [*columns, *_PERCENTILES])


def _never_acked(rows: Sequence[Row]) -> str:
    note = "<p>The oldest ones; the table <code>never_acked</code> has them all.</p>"
    columns = ["vhost", "queue", "message", "enqueued", "deliveries", "last_event", "last_time"]
    return note + _table(rows, columns)


def _table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    if not rows:
        return "<p>None.</p>"
    numeric = {
        name for name in columns if any(isinstance(row.get(name), int | float) for row in rows)
    }
    mark: Callable[[str], str] = lambda name: ' class="n"' if name in numeric else ""  # noqa: E731
    head = "".join(f"<th{mark(name)}>{escape(name.replace('_', ' '))}</th>" for name in columns)
    lines = "".join(
        "<tr>" + "".join(f"<td{mark(n)}>{_cell(row.get(n))}</td>" for n in columns) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{lines}</table></div>'


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return _time(value)
    return _number(value) if isinstance(value, int | float) else escape(str(value))


def _number(value: Any) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _time(value: Any) -> str:
    return value.strftime("%Y-%m-%d %H:%M") if isinstance(value, datetime) else "–"
