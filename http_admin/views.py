"""Broker objects as the rows of RabbitMQ's API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

from bindings import Binding
from exchange import DELAYED, Exchange
from http_admin.ages import oldest_ready_ms, oldest_unacked_ms, unacked_bytes
from leveret.broker import Broker, ChannelEntry, ConnectionEntry, VirtualHost
from leveret.broker.metrics import (
    CHANNEL_FIELDS,
    EXCHANGE_FIELDS,
    OCTET_FIELDS,
    QUEUE_FIELDS,
    TOTAL_FIELDS,
    Measured,
    queue_values,
)
from queues import ClassicQueue, HeldQueue

if TYPE_CHECKING:
    from http_admin.samples import SampleRange

Row = dict[str, Any]
LENGTH_FIELDS = ("messages_ready", "messages_unacknowledged")
_NOT_MESSAGES = (*LENGTH_FIELDS, *OCTET_FIELDS)


def rate(series: Measured | None, index: int, ask: SampleRange | None = None) -> Row:
    """`*_details`: the rate now, and samples when the query asked for them."""
    details: Row = {"rate": round(series.rate(index), 3) if series else 0.0}
    if ask is not None and series is not None:
        samples = series.samples(index, ask.age, ask.step)
        details["samples"] = [{"timestamp": at, "sample": value} for at, value in samples]
        details.update(_averages(samples))
    return details


def _averages(samples: Sequence[tuple[int, int]]) -> Row:
    if not samples:
        return {"avg": 0.0, "avg_rate": 0.0}
    (newest, last), (oldest, first) = samples[0], samples[-1]
    seconds = max(1, newest - oldest) / 1000
    return {
        "avg": sum(value for _, value in samples) / len(samples),
        "avg_rate": (last - first) / seconds,
    }


def message_stats(
    fields: Sequence[str],
    values: Sequence[int],
    series: Measured | None,
    ask: SampleRange | None = None,
) -> Row:
    """Only what has happened appears, as with RabbitMQ."""
    stats: Row = {}
    for index, (name, value) in enumerate(zip(fields, values, strict=True)):
        if value and name not in _NOT_MESSAGES:
            stats[name] = value
            stats[f"{name}_details"] = rate(series, index, ask)
    handed = ("deliver", "deliver_no_ack", "get", "get_no_ack")
    if any(name in stats for name in handed):
        stats["deliver_get"] = sum(stats.get(name, 0) for name in handed)
        total = sum(stats.get(f"{name}_details", {}).get("rate", 0.0) for name in handed)
        stats["deliver_get_details"] = {"rate": round(total, 3)}
        if ask is not None and series is not None:
            stats["deliver_get_details"] |= _summed_samples(fields, series, ask, handed)
    return stats


def _summed_samples(
    fields: Sequence[str], series: Measured, ask: SampleRange, names: Iterable[str]
) -> Row:
    columns = [series.samples(fields.index(name), ask.age, ask.step) for name in names]
    samples = [
        (points[0][0], sum(value for _, value in points)) for points in zip(*columns, strict=True)
    ]
    rows = [{"timestamp": at, "sample": value} for at, value in samples]
    return {"samples": rows, **_averages(samples)}


def lengths(
    ready: int,
    unacked: int,
    series: Measured | None,
    fields: Sequence[str],
    ask: SampleRange | None,
) -> Row:
    at_ready = fields.index("messages_ready")
    at_unacked = fields.index("messages_unacknowledged")
    ready_details = rate(series, at_ready, ask)
    unacked_details = rate(series, at_unacked, ask)
    both: Row = {"rate": ready_details["rate"] + unacked_details["rate"]}
    if ask is not None and series is not None:
        both |= _summed_samples(fields, series, ask, LENGTH_FIELDS)
    return {
        "messages": ready + unacked,
        "messages_details": both,
        "messages_ready": ready,
        "messages_ready_details": ready_details,
        "messages_unacknowledged": unacked,
        "messages_unacknowledged_details": unacked_details,
    }


def queue_row(
    broker: Broker, vhost: VirtualHost, queue: HeldQueue, ask: SampleRange | None = None
) -> Row:
    series = broker.metrics.queues.get(queue)
    spec, consumers, node = queue.spec, queue.consumers, broker.settings.node_name
    governed = broker.policies.effective(vhost.name, queue.name, spec.kind)
    at_hand = 1.0 if consumers and not queue.ready_count else 0.0
    row: Row = {
        "name": queue.name,
        "vhost": vhost.name,
        "type": spec.kind,
        "durable": spec.durable,
        "auto_delete": spec.auto_delete,
        "exclusive": spec.exclusive,
        "arguments": dict(spec.arguments),
        "node": node,
        "state": "running",
        "consumers": len(consumers),
        "consumer_utilisation": at_hand,
        "consumer_capacity": at_hand,
        "policy": governed.policy,
        "operator_policy": governed.operator_policy,
        "effective_policy_definition": dict(governed.definition),
        "exclusive_consumer_tag": next((one.tag for one in consumers if one.exclusive), None),
        "single_active_consumer_tag": None,
        "memory": 0,
        **lengths(queue.ready_count, queue.unacked_count, series, QUEUE_FIELDS, ask),
    }
    stats = message_stats(QUEUE_FIELDS, queue_values(queue), series, ask)
    if stats:
        row["message_stats"] = stats
    if spec.kind != "classic":
        row |= {"leader": node, "members": [node], "online": [node]}
    if isinstance(queue, ClassicQueue):
        row |= _classic_part(broker, queue)
    return row


def _classic_part(broker: Broker, queue: ClassicQueue) -> Row:
    now = broker.clock.wall_ms()
    held = unacked_bytes(queue)
    oldest_ready, oldest_unacked = oldest_ready_ms(queue), oldest_unacked_ms(queue)
    active = queue.active_consumer
    return {
        "message_bytes": queue.message_bytes + held,
        "message_bytes_ready": queue.message_bytes,
        "message_bytes_unacknowledged": held,
        "message_bytes_ram": queue.ready_bytes + held,
        "message_bytes_paged_out": queue.backlog.bytes,
        "messages_ram": len(queue.ready) + len(queue.unacked),
        "messages_ready_ram": len(queue.ready),
        "messages_unacknowledged_ram": len(queue.unacked),
        "single_active_consumer_tag": active.tag if active is not None else None,
        "messages_paged_out": len(queue.backlog),
        "memory": queue.ready_bytes + 400 * len(queue.ready),
        "head_message_timestamp": oldest_ready // 1000 if oldest_ready else None,
        "oldest_ready_age_ms": now - oldest_ready if oldest_ready else None,
        "oldest_unacked_age_ms": now - oldest_unacked if oldest_unacked else None,
    }


def exchange_row(
    broker: Broker, vhost: VirtualHost, exchange: Exchange, ask: SampleRange | None = None
) -> Row:
    spec = exchange.spec
    row: Row = {
        "name": exchange.name,
        "vhost": vhost.name,
        "type": spec.kind,
        "durable": spec.durable,
        "auto_delete": spec.auto_delete,
        "internal": spec.internal,
        "arguments": dict(spec.arguments),
        "policy": broker.policies.effective(vhost.name, exchange.name, "exchange").policy,
        "user_who_performed_action": "rmq-internal" if exchange.name.startswith("amq.") else "",
    }
    if spec.kind == DELAYED:
        delayed = broker.stations.delays.by_exchange.get(exchange)
        row["messages_delayed"] = len(delayed) if delayed is not None else 0
    values = (exchange.published_in, exchange.published_out)
    stats = message_stats(EXCHANGE_FIELDS, values, broker.metrics.exchanges.get(exchange), ask)
    if stats:
        row["message_stats"] = stats
    return row


def connection_row(broker: Broker, one: ConnectionEntry, ask: SampleRange | None = None) -> Row:
    series = broker.metrics.connections.get(one)
    return one.describe() | octet_rates(series, ask)


def octet_rates(series: Measured | None, ask: SampleRange | None, first: int = 0) -> Row:
    """`recv_oct_details` and `send_oct_details`; the first of them is at `first`."""
    return {
        f"{name}_details": rate(series, first + index, ask)
        for index, name in enumerate(OCTET_FIELDS)
    }


def channel_row(broker: Broker, channel: ChannelEntry, ask: SampleRange | None = None) -> Row:
    row = channel.describe()
    series = broker.metrics.channels.get(channel)
    stats = message_stats(CHANNEL_FIELDS, channel.counts(), series, ask)
    if stats:
        row["message_stats"] = stats
    return row


def binding_row(vhost: VirtualHost, binding: Binding) -> Row:
    return {
        "source": binding.source,
        "vhost": vhost.name,
        "destination": binding.destination.name,
        "destination_type": binding.destination.kind.value,
        "routing_key": binding.routing_key,
        "arguments": dict(binding.arguments),
        "properties_key": binding.properties_key,
    }


def default_binding_row(vhost: VirtualHost, queue_name: str) -> Row:
    """Every queue is bound to the default exchange by its name, visibly but for ever."""
    return {
        "source": "",
        "vhost": vhost.name,
        "destination": queue_name,
        "destination_type": "queue",
        "routing_key": queue_name,
        "arguments": {},
        "properties_key": quote_plus(queue_name, safe="").replace("~", "%7E"),
    }


def total_stats(broker: Broker, values: Sequence[int], ask: SampleRange | None) -> Row:
    wanted = TOTAL_FIELDS.index("get_empty")
    return message_stats(TOTAL_FIELDS[:wanted], values[:wanted], broker.metrics.totals, ask)
