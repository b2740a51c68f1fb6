"""Prometheus families of logs: how long they are, how far groups are behind, what is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from http_admin.metrics import gauge, labelled
from leveret.broker import Broker
from leveret.broker.log_views import Held, lag_of, partitions_of
from queues import LogQueue, PartitionedLog

Logs = list[tuple[tuple[str, str], Held]]


def chosen_logs(broker: Broker, vhosts: set[str], names: set[str]) -> Logs:
    """((vhost, name), log) of those asked for, partitioned ones once; nothing asked is everything.

    A log is asked for by its own name or by that of one of its partitions.
    """
    return [
        ((vhost.name, queue.name), queue)
        for vhost in broker.vhosts.values()
        if not vhosts or vhost.name in vhosts
        for queue in vhost.queues.values()
        if isinstance(queue, PartitionedLog)
        or (isinstance(queue, LogQueue) and queue.whole is None)
        if not names or names & {queue.name, *(part.name for part in partitions_of(queue))}
    ]


def _most_behind(log: Held) -> dict[Any, int]:
    """By partition, how far its slowest consumer is behind; groups without members have none."""
    most: dict[Any, int] = {}
    for part, lag in log.readers.lags():
        most[part] = max(lag, most.get(part, 0))
    return most


_BEHIND = ("stream_consumer_max_offset_lag", "Highest lag of a consumer of a log, in records")


def consumer_lags(prefix: str, logs: Logs) -> Iterator[Metric]:
    """RabbitMQ's name and labels for it: a partition is a queue."""
    rows = [
        ((labels[0], part.name), lag)
        for labels, log in logs
        for part, lag in _most_behind(log).items()
    ]
    name, text = _BEHIND
    yield labelled(GaugeMetricFamily, f"{prefix}{name}", text, ("vhost", "queue"), rows)


def log_totals(broker: Broker) -> Iterator[Metric]:
    logs = [log for _, log in chosen_logs(broker, set(), set())]
    parts = [part for log in logs for part in partitions_of(log)]
    lags = [
        lag_of(group, number, part)
        for log in logs
        for group in log.readers.groups.values()
        for number, part in enumerate(partitions_of(log))
    ]
    damaged = sum(len(part.partition.damage()) for part in parts)
    behind = [lag for log in logs for lag in _most_behind(log).values()]
    yield gauge(f"rabbitmq_{_BEHIND[0]}", _BEHIND[1], max(behind, default=0))
    yield gauge("leveret_log_bytes", "Octets in logs", sum(p.partition.size for p in parts))
    yield gauge("leveret_log_group_lag", "Records that groups have not committed", sum(lags))
    yield gauge(
        "leveret_log_group_lag_most", "The same, of the partition most behind", max(lags, default=0)
    )
    yield gauge("leveret_log_damaged_batches", "Batches found damaged and set aside", damaged)


def log_objects(prefix: str, logs: Logs) -> Iterator[Metric]:
    parts = [
        ((*labels, str(number)), part)
        for labels, log in logs
        for number, part in enumerate(partitions_of(log))
    ]
    by_partition = (
        ("first_offset", "Offset of the oldest record", lambda p: p.first_offset),
        ("next_offset", "Offset the next record will get", lambda p: p.next_offset),
        ("bytes", "Octets in the log", lambda p: p.partition.size),
        ("damaged_batches", "Batches set aside", lambda p: len(p.partition.damage())),
    )
    for name, text, of in by_partition:
        rows = [(labels, of(part)) for labels, part in parts]
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
    lags, places = [], []
    for labels, group, log in groups:
        for number, part in enumerate(partitions_of(log)):
            where = (*labels, str(number))
            lags.append((where, lag_of(group, number, part)))
            if (committed := group.committed(number)) is not None:
                places.append((where, committed))
    whole = (*names, "partition")
    text = "Records not committed by the group"
    yield labelled(GaugeMetricFamily, f"{prefix}log_group_lag", text, whole, lags)
    text = "The next record the group will process"
    yield labelled(GaugeMetricFamily, f"{prefix}log_group_committed_offset", text, whole, places)
