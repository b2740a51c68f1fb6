"""Rows of queues, and the columns by which thousands of queues are sorted without their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from leveret.broker import Broker, VirtualHost
from leveret.broker.metrics import QUEUE_FIELDS, queue_values
from leveret.http_admin.rows.stats import DELIVER_FIELDS, message_stats, queue_totals
from leveret.http_admin.samples import SampleRange
from leveret.http_admin.schemas.queues import QueueRow
from leveret.queues.port import MESSAGE_OVERHEAD, Consumer, Queue

VhostQueue = tuple[VirtualHost, Queue]
_RATES = ("publish", "deliver", "deliver_no_ack", "get", "get_no_ack", "redeliver", "ack")


def queue_row(
    broker: Broker, vhost: VirtualHost, queue: Queue, samples: SampleRange | None = None
) -> QueueRow:
    """One row of GET /api/queues."""
    if queue.dispatch_pending:
        queue.deliver_pending()
    series = broker.metrics.queues.get(queue)
    spec, consumers, node = queue.spec, queue.consumers, broker.settings.node_name
    kind, consumer_count = spec.kind, len(consumers)
    ready, unacked = queue.ready_count, queue.unacked_count
    policy = broker.policies.effective(vhost.name, queue.name, kind)
    capacity = 1.0 if consumer_count and not ready else 0.0
    totals = queue_totals(ready, unacked, series, QUEUE_FIELDS, samples)
    row: QueueRow = {
        "name": queue.name,
        "vhost": vhost.name,
        "type": kind,
        "durable": spec.durable,
        "auto_delete": spec.auto_delete,
        "exclusive": spec.exclusive,
        "arguments": dict(spec.arguments),
        "node": node,
        "state": "running",
        "consumers": consumer_count,
        "consumer_utilisation": capacity,
        "consumer_capacity": capacity,
        "policy": policy.policy,
        "operator_policy": policy.operator_policy,
        "effective_policy_definition": dict(policy.definition),
        "exclusive_consumer_tag": _exclusive_tag(consumers) if consumer_count else None,
        "single_active_consumer_tag": None,
        "memory": 0,
        "messages": totals["messages"],
        "messages_details": totals["messages_details"],
        "messages_ready": totals["messages_ready"],
        "messages_ready_details": totals["messages_ready_details"],
        "messages_unacknowledged": totals["messages_unacknowledged"],
        "messages_unacknowledged_details": totals["messages_unacknowledged_details"],
    }
    _add_optional_fields(row, broker, queue, samples)
    return row


def _exclusive_tag(consumers: Iterable[Consumer]) -> str | None:
    return next((consumer.tag for consumer in consumers if consumer.exclusive), None)


def _add_optional_fields(
    row: QueueRow, broker: Broker, queue: Queue, samples: SampleRange | None
) -> None:
    series, node = broker.metrics.queues.get(queue), row["node"]
    counters = message_stats(QUEUE_FIELDS, queue_values(queue), series, samples)
    if counters:
        row["message_stats"] = counters
    if row["type"] != "classic":
        row.update({"leader": node, "members": [node], "online": [node]})
    stats = queue.stats()
    if stats is None:
        return
    now_ms, active, unacked = broker.clock.wall_ms(), queue.active_consumer, queue.unacked_count
    oldest_ready, oldest_unacked = queue.oldest_ready_ms(), queue.oldest_unacked_ms()
    row.update(
        {
            "message_bytes": stats.ready_bytes + stats.unacked_bytes,
            "message_bytes_ready": stats.ready_bytes,
            "message_bytes_unacknowledged": stats.unacked_bytes,
            "message_bytes_ram": stats.ready_bytes_in_memory + stats.unacked_bytes,
            "message_bytes_paged_out": stats.paged_out_bytes,
            "messages_ram": stats.ready_in_memory + unacked,
            "messages_ready_ram": stats.ready_in_memory,
            "messages_unacknowledged_ram": unacked,
            "single_active_consumer_tag": active.tag if active is not None else None,
            "messages_paged_out": stats.paged_out,
            "memory": stats.ready_bytes_in_memory + MESSAGE_OVERHEAD * stats.ready_in_memory,
            "head_message_timestamp": oldest_ready // 1000 if oldest_ready else None,
            "oldest_ready_age_ms": now_ms - oldest_ready if oldest_ready else None,
            "oldest_unacked_age_ms": now_ms - oldest_unacked if oldest_unacked else None,
        }
    )


def message_bytes(queue: Queue) -> int | None:
    """Bytes in the bodies of ready and unacked messages."""
    stats = queue.stats()
    return None if stats is None else stats.ready_bytes + stats.unacked_bytes


# Sorting -----------------------------------------------------------------------------------------


def sortable_queue_columns(broker: Broker) -> dict[str, Callable[[VhostQueue], Any]]:
    """Columns that can be read without building the row."""
    columns: dict[str, Callable[[VhostQueue], Any]] = {
        "vhost": lambda item: item[0].name,
        "type": lambda item: item[1].spec.kind,
        "durable": lambda item: item[1].spec.durable,
        "messages": lambda item: item[1].ready_count + item[1].unacked_count,
        "messages_ready": lambda item: item[1].ready_count,
        "messages_unacknowledged": lambda item: item[1].unacked_count,
        "consumers": lambda item: len(item[1].consumers),
        "message_bytes": lambda item: message_bytes(item[1]),
        "oldest_ready_age_ms": lambda item: _negated(item[1].oldest_ready_ms()),
    }
    for field in _RATES:
        columns[f"message_stats.{field}_details.rate"] = _rate_column(broker, (field,))
    columns["message_stats.deliver_get_details.rate"] = _rate_column(broker, DELIVER_FIELDS)
    return columns


def _negated(time_ms: int | None) -> int | None:
    """Sorts like the age: the earlier the time, the greater the age."""
    return None if time_ms is None else -time_ms


def _rate_column(broker: Broker, fields: tuple[str, ...]) -> Callable[[VhostQueue], Any]:
    indexes = [QUEUE_FIELDS.index(field) for field in fields]

    def read(item: VhostQueue) -> float | None:
        series = broker.metrics.queues.get(item[1])
        return sum(series.rate(index) for index in indexes) if series is not None else None

    return read
