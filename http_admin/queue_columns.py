"""Columns of a queue that can be read without making its whole row, for sorting thousands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from http_admin.ages import oldest_ready_ms, unacked_bytes
from leveret.broker import Broker, VirtualHost
from leveret.broker.metrics import QUEUE_FIELDS
from queues import ClassicQueue, HeldQueue

Held = tuple[VirtualHost, HeldQueue]
_RATES = ("publish", "deliver", "deliver_no_ack", "get", "get_no_ack", "redeliver", "ack")
_HANDED = ("deliver", "deliver_no_ack", "get", "get_no_ack")


def quick_queue_columns(broker: Broker) -> dict[str, Callable[[Held], Any]]:
    columns: dict[str, Callable[[Held], Any]] = {
        "vhost": lambda one: one[0].name,
        "type": lambda one: one[1].spec.kind,
        "durable": lambda one: one[1].spec.durable,
        "messages": lambda one: one[1].ready_count + one[1].unacked_count,
        "messages_ready": lambda one: one[1].ready_count,
        "messages_unacknowledged": lambda one: one[1].unacked_count,
        "consumers": lambda one: len(one[1].consumers),
        "message_bytes": lambda one: _bytes(one[1]),
        "oldest_ready_age_ms": lambda one: _negative(oldest_ready_ms(one[1])),
    }
    for field in _RATES:
        columns[f"message_stats.{field}_details.rate"] = _rate(broker, (field,))
    columns["message_stats.deliver_get_details.rate"] = _rate(broker, _HANDED)
    return columns


def _bytes(queue: HeldQueue) -> int | None:
    if not isinstance(queue, ClassicQueue):
        return None
    return queue.message_bytes + unacked_bytes(queue)


def _negative(time_ms: int | None) -> int | None:
    """The older, the larger the age."""
    return None if time_ms is None else -time_ms


def _rate(broker: Broker, fields: tuple[str, ...]) -> Callable[[Held], Any]:
    places = [QUEUE_FIELDS.index(field) for field in fields]

    def read(one: Held) -> float | None:
        series = broker.metrics.queues.get(one[1])
        return sum(series.rate(place) for place in places) if series is not None else None

    return read
