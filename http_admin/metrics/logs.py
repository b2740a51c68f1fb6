"""Prometheus families of logs: their size, the lag of their groups, damaged batches."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from leveret.broker import Broker
from leveret.broker.logs.info import group_lag, top_level_logs
from leveret.http_admin.metrics.aggregate import gauge, labelled
from leveret.http_admin.metrics.objects import Selection
from leveret.queues.log.log_queue import AnyLog

Logs = list[tuple[tuple[str, str], AnyLog]]


def log_families(broker: Broker, selection: Selection) -> Iterator[Metric]:
    logs = selected_logs(broker, selection.vhosts, selection.queues)
    if selection.includes("log_metrics"):
        yield from log_objects(selection.own_prefix, logs)
    if selection.includes("stream_consumer_metrics"):
        yield from consumer_lags(selection.prefix, logs)


def selected_logs(broker: Broker, vhosts: Set[str], names: Set[str]) -> Logs:
    """((vhost, name), log) of the named logs, or of all; a partitioned log is one.

    A log may be named by its own name or by that of one of its partitions.
    """
    return [
        ((vhost.name, log.name), log)
        for vhost in broker.vhosts.values()
        if not vhosts or vhost.name in vhosts
        for log in top_level_logs(vhost.queues.values())
        if not names or names & {log.name, *(part.name for part in log.partitions)}
    ]


def _max_lags(log: AnyLog) -> dict[Any, int]:
    """The greatest lag of a consumer, by partition; groups without members have none."""
    lags: dict[Any, int] = {}
    for part, lag in log.readers.lags():
        lags[part] = max(lag, lags.get(part, 0))
    return lags


_CONSUMER_LAG = ("stream_consumer_max_offset_lag", "Highest lag of a consumer of a log, in records")


def consumer_lags(prefix: str, logs: Logs) -> Iterator[Metric]:
    """Under RabbitMQ's name and labels: a partition is a queue."""
    rows = [
        ((labels[0], part.name), lag)
        for labels, log in logs
        for part, lag in _max_lags(log).items()
    ]
    name, text = _CONSUMER_LAG
    yield labelled(GaugeMetricFamily, f"{prefix}{name}", text, ("vhost", "queue"), rows)


def log_totals(broker: Broker) -> Iterator[Metric]:
    logs = [log for _, log in selected_logs(broker, set(), set())]
    parts = [part for log in logs for part in log.all_partitions()]
    lags = [
        group_lag(group, number, part)
        for log in logs
        for group in log.readers.groups.values()
        for number, part in enumerate(log.all_partitions())
    ]
    damaged = sum(len(part.partition.damage()) for part in parts)
    consumer_lags = [lag for log in logs for lag in _max_lags(log).values()]
    yield gauge(f"rabbitmq_{_CONSUMER_LAG[0]}", _CONSUMER_LAG[1], max(consumer_lags, default=0))
    yield gauge("leveret_log_bytes", "Bytes in logs", sum(p.partition.size for p in parts))
    yield gauge("leveret_log_group_lag", "Records that groups have not committed", sum(lags))
    yield gauge(
        "leveret_log_group_lag_most",
        "The same, of the partition with the greatest lag",
        max(lags, default=0),
    )
    yield gauge(
        "leveret_log_damaged_batches",
        "Damaged batches and missing files, whose records are skipped",
        damaged,
    )
    yield gauge(
        "leveret_log_lost_records",
        "Offsets in damaged batches and missing files",
        sum(part.partition.view.count_lost(0, part.next_offset) for part in parts),
    )
    yield gauge(
        "leveret_log_skipped_records",
        "Lost offsets that consumers have passed since the start",
        sum(part.skipped for part in parts),
    )


def log_objects(prefix: str, logs: Logs) -> Iterator[Metric]:
    parts = [
        ((*labels, str(number)), part)
        for labels, log in logs
        for number, part in enumerate(log.all_partitions())
    ]
    by_partition = (
        ("first_offset", "Offset of the oldest record", lambda p: p.first_offset),
        ("next_offset", "Offset the next record will get", lambda p: p.next_offset),
        ("bytes", "Bytes in the log", lambda p: p.partition.size),
        (
            "damaged_batches",
            "Damaged batches and missing files",
            lambda p: len(p.partition.damage()),
        ),
        (
            "lost_records",
            "Offsets in damaged batches and missing files",
            lambda p: p.partition.view.count_lost(0, p.next_offset),
        ),
    )
    for name, text, value_of in by_partition:
        rows = [(labels, value_of(part)) for labels, part in parts]
        labels = ("vhost", "log", "partition")
        yield labelled(GaugeMetricFamily, f"{prefix}log_{name}", text, labels, rows)
    yield from _groups(prefix, logs)


def _groups(prefix: str, logs: Logs) -> Iterator[Metric]:
    groups = [
        ((*labels, group.name), group, log)
        for labels, log in logs
        for group in log.readers.groups.values()
    ]
    names = ("vhost", "log", "group")
    members = [(labels, len(group.members)) for labels, group, _ in groups]
    yield labelled(GaugeMetricFamily, f"{prefix}log_group_members", "Members", names, members)
    lags, offsets = [], []
    for labels, group, log in groups:
        for number, part in enumerate(log.all_partitions()):
            partition_labels = (*labels, str(number))
            lags.append((partition_labels, group_lag(group, number, part)))
            if (committed := group.committed(number)) is not None:
                offsets.append((partition_labels, committed))
    partition_names = (*names, "partition")
    text = "Records not committed by the group"
    yield labelled(GaugeMetricFamily, f"{prefix}log_group_lag", text, partition_names, lags)
    text = "The next offset that the group will read"
    yield labelled(
        GaugeMetricFamily, f"{prefix}log_group_committed_offset", text, partition_names, offsets
    )
