"""Counters and rates: the parts that rows of several resources share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from leveret.broker import Broker
from leveret.broker.metrics import TOTAL_FIELDS, TRAFFIC_FIELDS, Measured
from leveret.http_admin.samples import SampleRange
from leveret.http_admin.schemas.common import ByteRates, Details, MessageStats, QueueTotals, Sample

LENGTH_FIELDS = ("messages_ready", "messages_unacknowledged")
DELIVER_FIELDS = ("deliver", "deliver_no_ack", "get", "get_no_ack")
_NOT_MESSAGES = (*LENGTH_FIELDS, *TRAFFIC_FIELDS)


def rate_details(series: Measured | None, index: int, samples: SampleRange | None) -> Details:
    """A `*_details` field: the current rate, and samples if the query asked for them."""
    details: Details = {"rate": round(series.rate(index), 3) if series else 0.0}
    if samples is not None and series is not None:
        _add_samples(details, series.samples(index, samples.age, samples.step))
    return details


def _add_samples(details: Details, points: Sequence[tuple[int, int]]) -> None:
    rows: list[Sample] = [{"timestamp": at, "sample": value} for at, value in points]
    details["samples"] = rows
    if not points:
        details["avg"] = details["avg_rate"] = 0.0
        return
    (newest, last), (oldest, first) = points[0], points[-1]
    details["avg"] = sum(value for _, value in points) / len(points)
    details["avg_rate"] = (last - first) / (max(1, newest - oldest) / 1000)


def message_stats(
    fields: Sequence[str],
    values: Sequence[int],
    series: Measured | None,
    samples: SampleRange | None = None,
) -> MessageStats:
    """Counters that are greater than zero, as RabbitMQ shows them."""
    if not any(values):
        return {}
    stats: dict[str, Any] = {}
    for index, (name, value) in enumerate(zip(fields, values, strict=True)):
        if value and name not in _NOT_MESSAGES:
            stats[name] = value
            stats[f"{name}_details"] = rate_details(series, index, samples)
    if any(name in stats for name in DELIVER_FIELDS):
        stats["deliver_get"] = sum(stats.get(name, 0) for name in DELIVER_FIELDS)
        rate = sum(stats.get(f"{name}_details", {}).get("rate", 0.0) for name in DELIVER_FIELDS)
        details: Details = {"rate": round(rate, 3)}
        if samples is not None and series is not None:
            _add_samples(details, _summed(fields, series, samples, DELIVER_FIELDS))
        stats["deliver_get_details"] = details
    return cast(MessageStats, stats)


def _summed(
    fields: Sequence[str], series: Measured, samples: SampleRange, names: Iterable[str]
) -> list[tuple[int, int]]:
    columns = [series.samples(fields.index(name), samples.age, samples.step) for name in names]
    return [
        (points[0][0], sum(value for _, value in points)) for points in zip(*columns, strict=True)
    ]


def queue_totals(
    ready: int,
    unacked: int,
    series: Measured | None,
    fields: Sequence[str],
    samples: SampleRange | None,
) -> QueueTotals:
    ready_details = rate_details(series, fields.index("messages_ready"), samples)
    unacked_details = rate_details(series, fields.index("messages_unacknowledged"), samples)
    total_details: Details = {"rate": ready_details["rate"] + unacked_details["rate"]}
    if samples is not None and series is not None:
        _add_samples(total_details, _summed(fields, series, samples, LENGTH_FIELDS))
    return {
        "messages": ready + unacked,
        "messages_details": total_details,
        "messages_ready": ready,
        "messages_ready_details": ready_details,
        "messages_unacknowledged": unacked,
        "messages_unacknowledged_details": unacked_details,
    }


def byte_rates(series: Measured | None, samples: SampleRange | None, first: int = 0) -> ByteRates:
    """Rates of bytes received and sent, which are at `first` and the next index of the series."""
    return {
        "recv_oct_details": rate_details(series, first, samples),
        "send_oct_details": rate_details(series, first + 1, samples),
    }


def total_stats(broker: Broker, values: Sequence[int], samples: SampleRange | None) -> MessageStats:
    count = TOTAL_FIELDS.index("get_empty")
    return message_stats(TOTAL_FIELDS[:count], values[:count], broker.metrics.totals, samples)
