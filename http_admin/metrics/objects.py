"""Prometheus families with a sample per queue, exchange, connection and channel.

`/metrics/per-object` returns all of them; `/metrics/detailed` the families that the query names,
with the prefix `rabbitmq_detailed_`. Names of families are RabbitMQ's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from leveret.broker import Broker
from leveret.broker.broker import ConnectionEntry
from leveret.broker.metrics import CHANNEL_FIELDS, counter_values
from leveret.broker.runtime.slices import Steps
from leveret.http_admin.metrics.text import ObjectFamily, labels_text
from leveret.model.clients import ChannelInfo
from leveret.queues.port import MESSAGE_OVERHEAD, Queue

Values = Sequence[float | None]
"""The values of one object, in the order of its families; None: it has no such sample."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a request asks for; an empty set of vhosts or queues means all."""

    prefix: str
    own_prefix: str
    families: frozenset[str] | None = None
    vhosts: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()

    def includes(self, family: str) -> bool:
        return self.families is None or family in self.families

    def has_vhost(self, name: str) -> bool:
        return not self.vhosts or name in self.vhosts


@dataclass(frozen=True, slots=True)
class QueueGroup:
    """Families of queues that are requested together."""

    name: str
    families: tuple[tuple[str, str], ...]
    """Name without prefix, and text; a name ending in `_total` is a counter."""
    values_of: Callable[[Queue, int], Values]
    is_own: bool = False


def _coarse(queue: Queue, now_ms: int) -> Values:
    ready, unacked = queue.ready_count, queue.unacked_count
    return ready, unacked, ready + unacked


def _consumers(queue: Queue, now_ms: int) -> Values:
    return (len(queue.consumers),)


def _details(queue: Queue, now_ms: int) -> Values:
    capacity = 1.0 if queue.consumers and not queue.ready_count else 0.0
    stats = queue.stats()
    if stats is None:
        return (capacity, capacity)
    unacked, time_ms = queue.unacked_count, queue.oldest_ready_ms()
    return (
        capacity,
        capacity,
        stats.ready_bytes_in_memory + MESSAGE_OVERHEAD * stats.ready_in_memory,
        stats.ready_in_memory + unacked,
        stats.ready_bytes_in_memory + stats.unacked_bytes,
        stats.ready_in_memory,
        unacked,
        stats.ready_bytes + stats.unacked_bytes,
        stats.ready_bytes,
        stats.unacked_bytes,
        stats.paged_out,
        stats.paged_out_bytes,
        None if time_ms is None else time_ms // 1000,
    )


def _counters(queue: Queue, now_ms: int) -> Values:
    return counter_values(queue.counters)


def _ages(queue: Queue, now_ms: int) -> Values:
    return _age(now_ms, queue.oldest_ready_ms()), _age(now_ms, queue.oldest_unacked_ms())


def _age(now_ms: int, time_ms: int | None) -> float | None:
    return None if time_ms is None else (now_ms - time_ms) / 1000


_COARSE = (
    ("queue_messages_ready", "Messages ready"),
    ("queue_messages_unacked", "Messages unacked"),
    ("queue_messages", "Messages ready and unacked"),
)
_DETAILS = (
    ("queue_consumer_capacity", "1 if consumers could receive more"),
    ("queue_consumer_utilisation", "Same as consumer capacity"),
    ("queue_process_memory_bytes", "Memory of the messages in memory"),
    ("queue_messages_ram", "Messages in memory"),
    ("queue_messages_ram_bytes", "Bytes of messages in memory"),
    ("queue_messages_ready_ram", "Ready messages in memory"),
    ("queue_messages_unacked_ram", "Unacked messages in memory"),
    ("queue_messages_bytes", "Bytes of messages"),
    ("queue_messages_ready_bytes", "Bytes of ready messages"),
    ("queue_messages_unacked_bytes", "Bytes of unacked messages"),
    ("queue_messages_paged_out", "Messages on disk only"),
    ("queue_messages_paged_out_bytes", "Bytes of messages on disk only"),
    ("queue_head_message_timestamp", "When the first ready message was published, Unix seconds"),
)
QUEUE_COUNTERS = (
    ("queue_messages_published_total", "Messages enqueued"),
    ("queue_messages_delivered_ack_total", "Deliveries to consumers, with manual acks"),
    ("queue_messages_delivered_total", "Deliveries to consumers, with automatic acks"),
    ("queue_get_ack_total", "Messages fetched with basic.get, with manual acks"),
    ("queue_get_total", "Messages fetched with basic.get, with automatic acks"),
    ("queue_messages_redelivered_total", "Redeliveries"),
    ("queue_messages_acked_total", "Acks"),
)
"""In the order of QUEUE_FIELDS."""
_AGES = (
    ("queue_oldest_ready_age_seconds", "Age of the oldest ready message"),
    ("queue_oldest_unacked_age_seconds", "Age of the oldest unacked message"),
)
_QUEUE_GROUPS = (
    QueueGroup("queue_coarse_metrics", _COARSE, _coarse),
    QueueGroup("queue_consumer_count", (("queue_consumers", "Consumers"),), _consumers),
    QueueGroup("queue_metrics", _DETAILS, _details),
    QueueGroup("queue_delivery_metrics", QUEUE_COUNTERS, _counters),
    QueueGroup("queue_age_metrics", _AGES, _ages, is_own=True),
)
CHANNEL_GAUGES = (
    ("channel_consumers", "Consumers"),
    ("channel_messages_unacked", "Messages delivered, not acked"),
    ("channel_messages_unconfirmed", "Messages published, not confirmed"),
    ("channel_acks_uncommitted", "Acks in an open transaction"),
    ("consumer_prefetch", "Unacked messages allowed for each consumer"),
    ("channel_prefetch", "Unacked messages allowed for all consumers of the channel"),
)
CHANNEL_COUNTERS = (
    ("channel_messages_published_total", "Messages published"),
    ("channel_messages_confirmed_total", "Messages confirmed"),
    ("channel_messages_unroutable_returned_total", "Unroutable messages returned"),
    ("channel_messages_unroutable_dropped_total", "Unroutable messages dropped"),
    ("channel_messages_delivered_ack_total", "Deliveries to consumers, with manual acks"),
    ("channel_messages_delivered_total", "Deliveries to consumers, with automatic acks"),
    ("channel_get_ack_total", "Messages fetched with basic.get, with manual acks"),
    ("channel_get_total", "Messages fetched with basic.get, with automatic acks"),
    ("channel_messages_redelivered_total", "Redeliveries"),
    ("channel_messages_acked_total", "Acks"),
)
"""In the order of CHANNEL_FIELDS."""
_CHANNEL_GROUPS = {
    "channel_metrics": CHANNEL_GAUGES,
    "channel_exchange_metrics": CHANNEL_COUNTERS[:4],
    "channel_queue_metrics": CHANNEL_COUNTERS[4:],
}
_CONNECTION_GROUPS = {
    "connection_coarse_metrics": (
        ("connection_incoming_bytes_total", "Bytes received"),
        ("connection_outgoing_bytes_total", "Bytes sent"),
    ),
    "connection_metrics": (
        ("connection_pending_packets", "Writes that wait for the client"),
        ("connection_channels", "Channels"),
    ),
}
_EXCHANGES = (
    ("exchange_messages_published_total", "Messages published"),
    ("exchange_messages_published_in_total", "Messages published"),
    ("exchange_messages_published_out_total", "Copies routed"),
)
FAMILIES = (
    *(group.name for group in _QUEUE_GROUPS if not group.is_own),
    "exchange_metrics",
    *_CONNECTION_GROUPS,
    *_CHANNEL_GROUPS,
    "exchange_bindings",
    "exchange_names",
    "vhost_status",
    "log_metrics",
    "stream_consumer_metrics",
)


def channel_gauges(info: ChannelInfo) -> tuple[int, ...]:
    """In the order of CHANNEL_GAUGES."""
    return (
        info.consumer_count,
        info.messages_unacknowledged,
        info.messages_unconfirmed,
        info.acks_uncommitted,
        info.prefetch_count,
        info.global_prefetch_count,
    )


def object_families(broker: Broker, selection: Selection) -> Steps[list[ObjectFamily]]:
    """The selected families of queues, exchanges, connections and channels."""
    queues = yield from _queue_families(broker, selection)
    exchanges = yield from _exchange_families(broker, selection)
    clients = yield from _client_families(broker, selection)
    return [*queues, *exchanges, *clients, *_cluster_families(broker, selection)]


def _make(prefix: str, families: Sequence[tuple[str, str]]) -> list[ObjectFamily]:
    return [
        ObjectFamily(CounterMetricFamily, prefix + name.removesuffix("_total"), text)
        if name.endswith("_total")
        else ObjectFamily(GaugeMetricFamily, prefix + name, text)
        for name, text in families
    ]


def _add(families: Sequence[ObjectFamily], labels: str, values: Values) -> None:
    """An object may have values for the first families only."""
    for family, value in zip(families, values, strict=False):
        if value is not None:
            family.add(labels, value)


def _queue_families(broker: Broker, selection: Selection) -> Steps[list[ObjectFamily]]:
    now_ms = broker.clock.wall_ms()
    groups = [
        (group, _make(selection.own_prefix if group.is_own else selection.prefix, group.families))
        for group in _QUEUE_GROUPS
        if selection.includes(group.name)
    ]
    for vhost in list(broker.vhosts.values()) if groups else ():
        if not selection.has_vhost(vhost.name):
            continue
        for queue in list(vhost.queues.values()):
            if selection.queues and queue.name not in selection.queues:
                continue
            labels = labels_text(("vhost", "queue"), (vhost.name, queue.name))
            for group, families in groups:
                _add(families, labels, group.values_of(queue, now_ms))
            yield
    return [family for _, families in groups for family in families]


def _exchange_families(broker: Broker, selection: Selection) -> Steps[list[ObjectFamily]]:
    if not selection.includes("exchange_metrics"):
        return []
    families = _make(selection.prefix, _EXCHANGES)
    for vhost in list(broker.vhosts.values()):
        for exchange in list(vhost.exchanges.values()) if selection.has_vhost(vhost.name) else ():
            if exchange.published_in:
                labels = labels_text(("vhost", "exchange"), (vhost.name, exchange.name))
                counts = (exchange.published_in, exchange.published_in, exchange.published_out)
                _add(families, labels, counts)
                yield
    return families


def _client_families(broker: Broker, selection: Selection) -> Steps[list[ObjectFamily]]:
    groups = {
        name: _make(selection.prefix, families)
        for name, families in (_CONNECTION_GROUPS | _CHANNEL_GROUPS).items()
        if selection.includes(name)
    }
    if not groups:
        return []
    for connection in list(broker.connections):
        if selection.has_vhost(connection.vhost.name):
            _add_connection(groups, connection)
            yield
            for channel in list(connection.channels.values()):
                info, counts = channel.info(), channel.counts()
                labels = labels_text(
                    ("connection", "channel", "vhost", "user"),
                    (connection.name, info.name, info.vhost, info.user),
                )
                _add(groups.get("channel_metrics", ()), labels, channel_gauges(info))
                _add(groups.get("channel_exchange_metrics", ()), labels, counts[:4])
                _add(groups.get("channel_queue_metrics", ()), labels, counts[4:])
                yield
    return [family for families in groups.values() for family in families]


def _add_connection(groups: dict[str, list[ObjectFamily]], connection: ConnectionEntry) -> None:
    labels = labels_text(
        ("connection", "vhost", "user"),
        (connection.name, connection.vhost.name, connection.user.name),
    )
    traffic = (connection.received, connection.sent)
    _add(groups.get("connection_coarse_metrics", ()), labels, traffic)
    if "connection_metrics" in groups:
        values = (connection.info().send_pend, len(connection.channels))
        _add(groups["connection_metrics"], labels, values)


def _cluster_families(broker: Broker, selection: Selection) -> list[ObjectFamily]:
    """RabbitMQ has these on `/metrics/detailed` only, under another prefix."""
    if selection.families is None:
        return []
    prefix = "rabbitmq_cluster_"
    vhosts = [vhost for vhost in broker.vhosts.values() if selection.has_vhost(vhost.name)]
    families: list[ObjectFamily] = []
    if selection.includes("vhost_status"):
        families += _make(prefix, (("vhost_status", "1: the vhost is running"),))
        for vhost in vhosts:
            families[-1].add(labels_text(("vhost",), (vhost.name,)), 1)
    for name, text in (
        ("exchange_bindings", "Bindings of the exchange"),
        ("exchange_names", "1 for each exchange"),
    ):
        if selection.includes(name):
            families += _make(prefix, ((name.replace("names", "name"), text),))
            for vhost in vhosts:
                for exchange in vhost.exchanges.values():
                    labels = (vhost.name, exchange.name, exchange.spec.kind)
                    families[-1].add(
                        labels_text(("vhost", "exchange", "type"), labels),
                        len(exchange.bindings) if name == "exchange_bindings" else 1,
                    )
    return families


assert len(CHANNEL_COUNTERS) == len(CHANNEL_FIELDS)
