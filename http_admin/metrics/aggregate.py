"""Prometheus families of the whole broker: RabbitMQ's, for its dashboards, and Leveret's own.

Families are collected on the loop from counters that exist anyway; `routes/metrics.py` encodes them
on another thread. No family here contains names of objects; those are in `objects.py` and
`logs.py`.

All panels of RabbitMQ's official dashboard join on `rabbitmq_identity_info`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from leveret.broker import Broker
from leveret.broker.metrics import CHANNEL_FIELDS, QUEUE_FIELDS, add_values
from leveret.broker.runtime import process
from leveret.broker.runtime.slices import Steps
from leveret.http_admin.metrics.objects import (
    CHANNEL_COUNTERS,
    CHANNEL_GAUGES,
    QUEUE_COUNTERS,
    channel_gauges,
)
from leveret.http_admin.product import PRODUCT, product_version, runtime_version
from leveret.http_admin.rows.totals import Totals
from leveret.model.compatibility import RABBITMQ_VERSION
from leveret.model.counters import SIZE_BOUNDS

PROTOCOL = "amqp091"
KNOWN_ALARMS = ("memory", "disk", "store", "dead-letters")
_DEAD_LETTER_REASONS = ("rejected", "expired", "maxlen", "delivery_limit", "confirmed")


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def labelled(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    labels: Sequence[str],
    rows: Iterable[tuple[Sequence[str], float]],
) -> Metric:
    family = kind(name, text, labels=labels)
    for label_values, value in rows:
        family.add_metric(list(label_values), value)
    return family


def aggregate_metrics(
    broker: Broker,
    totals: Totals,
    channels: ChannelTotals,
    endpoint: str = "aggregated",
) -> Iterator[Metric]:
    """Sums over all objects."""
    yield from identity_metrics(broker, endpoint)
    yield from _objects(broker, totals)
    yield from _queue_totals(totals)
    yield from _queue_sizes(totals)
    yield from _client_totals(broker, totals, channels)
    yield from _churn(totals)
    yield from _logins(broker)
    yield from _disk_io(broker)
    yield from _process_metrics(broker)
    yield from _alarms(broker)
    yield from _global(broker, totals, channels)
    yield from _by_queue_type(broker, totals)
    yield from _dead_lettered(broker)
    yield from _message_sizes(broker)
    yield from _leveret_metrics(broker, totals)


def identity_metrics(broker: Broker, endpoint: str) -> Iterator[Metric]:
    node = broker.settings.node_name
    directory = "memory" if broker.settings.memory else str(broker.settings.data_dir.absolute())
    permanent = f"leveret-{uuid.uuid5(uuid.NAMESPACE_URL, f'{node} {directory}')}"
    yield labelled(
        GaugeMetricFamily,
        "rabbitmq_identity_info",
        "Node and cluster; dashboards join on this",
        ("rabbitmq_node", "rabbitmq_cluster", "rabbitmq_cluster_permanent_id", "rabbitmq_endpoint"),
        [((node, broker.cluster_name, permanent, endpoint), 1)],
    )
    yield labelled(
        GaugeMetricFamily,
        "rabbitmq_build_info",
        "What is running",
        ("rabbitmq_version", "prometheus_client_version", "erlang_version", "product_name",
         "product_version"),
        [((RABBITMQ_VERSION, "python", f"Python {runtime_version()}", PRODUCT,
           product_version()), 1)],
    )  # fmt: skip


def _objects(broker: Broker, totals: Totals) -> Iterator[Metric]:
    counters = broker.counters
    channels = counters.channels_opened - counters.channels_closed
    vhosts = broker.vhosts.values()
    yield gauge("rabbitmq_connections", "Connections open", len(broker.connections))
    yield gauge("rabbitmq_channels", "Channels open", channels)
    yield gauge("rabbitmq_queues", "Queues", sum(len(v.queues) for v in vhosts))
    yield gauge("rabbitmq_exchanges", "Exchanges", sum(len(v.exchanges) for v in vhosts))
    yield gauge("rabbitmq_consumers", "Consumers", totals.consumers)
    yield gauge("rabbitmq_vhosts", "Virtual hosts", len(broker.vhosts))


def _queue_totals(totals: Totals) -> Iterator[Metric]:
    ready, unacked = totals.of("messages_ready"), totals.of("messages_unacknowledged")
    yield gauge("rabbitmq_queue_messages_ready", "Messages ready to be delivered", ready)
    yield gauge("rabbitmq_queue_messages_unacked", "Messages delivered, not acked", unacked)
    yield gauge("rabbitmq_queue_messages", "Messages ready and unacked", ready + unacked)
    yield gauge("rabbitmq_queue_consumers", "Consumers", totals.consumers)


def _queue_sizes(totals: Totals) -> Iterator[Metric]:
    """Of queues whose messages are counted in bytes, which logs are not."""
    sizes, unacked = totals.sizes, totals.of("messages_unacknowledged")
    in_bytes = sizes.ready_bytes + sizes.unacked_bytes
    in_memory_bytes = sizes.ready_bytes_in_memory + sizes.unacked_bytes
    rows = (
        ("process_memory_bytes", "Memory of the messages in memory", sizes.memory),
        ("messages_ram", "Messages in memory", sizes.ready_in_memory + unacked),
        ("messages_ram_bytes", "Bytes of messages in memory", in_memory_bytes),
        ("messages_ready_ram", "Ready messages in memory", sizes.ready_in_memory),
        ("messages_unacked_ram", "Unacked messages in memory", unacked),
        ("messages_bytes", "Bytes of messages", in_bytes),
        ("messages_ready_bytes", "Bytes of ready messages", sizes.ready_bytes),
        ("messages_unacked_bytes", "Bytes of unacked messages", sizes.unacked_bytes),
        ("messages_paged_out", "Messages on disk only", sizes.paged_out),
        ("messages_paged_out_bytes", "Bytes of messages on disk only", sizes.paged_out_bytes),
    )
    for name, text, value in rows:
        yield gauge(f"rabbitmq_queue_{name}", text, value)
    for index, (name, text) in enumerate(QUEUE_COUNTERS):
        value = sum(row[index] for row in totals.by_kind.values())
        yield counter(f"rabbitmq_{name.removesuffix('_total')}", text, value)
    yield counter("rabbitmq_queue_get_empty", "Gets that found no message", totals.of("get_empty"))


@dataclass(frozen=True, slots=True)
class ChannelTotals:
    """Sums over the open channels."""

    gauges: tuple[int, ...]
    """In the order of CHANNEL_GAUGES."""
    publishers: int
    """Channels that have published a message."""


def channel_totals(broker: Broker) -> Steps[ChannelTotals]:
    gauges, publishers = [0] * len(CHANNEL_GAUGES), 0
    for connection in list(broker.connections):
        for channel in list(connection.channels.values()):
            info = channel.info()
            add_values(gauges, channel_gauges(info))
            publishers += bool(info.published)
            yield
    return ChannelTotals(tuple(gauges), publishers)


def _client_totals(broker: Broker, totals: Totals, channels: ChannelTotals) -> Iterator[Metric]:
    """Counters include closed channels and connections, so that they never decrease."""
    for (name, text), value in zip(CHANNEL_GAUGES, channels.gauges, strict=True):
        yield gauge(f"rabbitmq_{name}", text, value)
    counters = broker.counters
    values: dict[str, int] = {
        "publish": counters.published,
        "confirm": counters.confirmed,
        "return_unroutable": counters.returned_unroutable,
        "drop_unroutable": counters.dropped_unroutable,
    }
    for field, (name, text) in zip(CHANNEL_FIELDS, CHANNEL_COUNTERS, strict=True):
        value = values[field] if field in values else totals.of(field)
        yield counter(f"rabbitmq_{name.removesuffix('_total')}", text, value)
    empty = totals.of("get_empty")
    yield counter("rabbitmq_channel_get_empty", "Gets that found no message", empty)
    open_bytes = broker.metrics.traffic().values()
    by_vhost = [vhost.counters for vhost in broker.vhosts.values()]
    received = sum(each[0] for each in open_bytes) + sum(each.received for each in by_vhost)
    sent = sum(each[1] for each in open_bytes) + sum(each.sent for each in by_vhost)
    yield counter("rabbitmq_connection_incoming_bytes", "Bytes received", received)
    yield counter("rabbitmq_connection_outgoing_bytes", "Bytes sent", sent)
    open_channels = counters.channels_opened - counters.channels_closed
    yield gauge("rabbitmq_connection_channels", "Channels", open_channels)
    published = sum(
        exchange.published_in
        for vhost in broker.vhosts.values()
        for exchange in vhost.exchanges.values()
    )
    yield counter("rabbitmq_exchange_messages_published", "Messages published", published)


def _logins(broker: Broker) -> Iterator[Metric]:
    succeeded, failed = broker.counters.logins_succeeded, broker.counters.logins_failed
    yield counter("rabbitmq_auth_attempts", "Logins over AMQP", succeeded + failed)
    yield counter("rabbitmq_auth_attempts_succeeded", "Successful logins over AMQP", succeeded)
    yield counter("rabbitmq_auth_attempts_failed", "Refused logins over AMQP", failed)


def _disk_io(broker: Broker) -> Iterator[Metric]:
    read, written = process.disk_bytes()
    yield counter("rabbitmq_io_read_bytes", "Bytes read from disk", read)
    yield counter("rabbitmq_io_write_bytes", "Bytes written to disk", written)
    commits = broker.store.committed
    yield counter("rabbitmq_schema_db_disk_tx", "Transactions of the database", commits)


_CHURN = (
    ("connection_created", "connections_opened", "Connections opened"),
    ("connection_closed", "connections_closed", "Connections closed"),
    ("channel_created", "channels_opened", "Channels opened"),
    ("channel_closed", "channels_closed", "Channels closed"),
    ("queue_declared", "queues_declared", "Queues declared"),
    ("queue_created", "queues_created", "Queues created"),
    ("queue_deleted", "queues_deleted", "Queues deleted"),
)


def _churn(totals: Totals) -> Iterator[Metric]:
    for field, name, text in _CHURN:
        yield counter(f"rabbitmq_{name}", text, totals.of(field))


def _process_metrics(broker: Broker) -> Iterator[Metric]:
    settings = broker.settings
    max_files = process.max_open_files()
    uptime = (broker.clock.wall_ms() - broker.started_ms) / 1000
    yield gauge("rabbitmq_process_resident_memory_bytes", "Memory", process.resident_bytes())
    yield gauge(
        "rabbitmq_resident_memory_limit_bytes", "Memory limit", broker.resource_monitor.memory_limit
    )
    yield gauge(
        "rabbitmq_disk_space_available_bytes", "Disk free", broker.resource_monitor.free_disk()
    )
    yield gauge(
        "rabbitmq_disk_space_available_limit_bytes", "Disk free limit", settings.disk_free_limit
    )
    yield gauge("rabbitmq_process_open_fds", "Open file descriptors", process.open_files())
    yield gauge("rabbitmq_process_max_fds", "File descriptors allowed", max_files)
    yield gauge("rabbitmq_process_open_tcp_sockets", "Connections", len(broker.connections))
    yield gauge("rabbitmq_process_max_tcp_sockets", "Sockets allowed", max_files)
    yield gauge("rabbitmq_erlang_uptime_seconds", "Seconds since the broker started", uptime)


_ALARMS = (
    ("memory_used_watermark", "memory"),
    ("free_disk_space_watermark", "disk"),
    ("file_descriptor_limit", ""),
)


def _alarms(broker: Broker) -> Iterator[Metric]:
    """Alerts written for RabbitMQ use these; Leveret has no alarm for file descriptors."""
    for name, alarm in _ALARMS:
        text = f"1 while the alarm is raised: {name.replace('_', ' ')}"
        yield gauge(f"rabbitmq_alarms_{name}", text, alarm in broker.alarms.raised)


def _global(broker: Broker, totals: Totals, channels: ChannelTotals) -> Iterator[Metric]:
    counters = broker.counters
    unroutable = counters.dropped_unroutable + counters.returned_unroutable
    rows = {
        "messages_received": counters.published,
        "messages_received_confirm": counters.confirmed,
        "messages_confirmed": counters.confirmed,
        "messages_routed": counters.published - unroutable,
        "messages_unroutable_dropped": counters.dropped_unroutable,
        "messages_unroutable_returned": counters.returned_unroutable,
    }
    for name, value in rows.items():
        text = name.replace("_", " ").capitalize()
        yield labelled(
            CounterMetricFamily,
            f"rabbitmq_global_{name}",
            text,
            ("protocol",),
            [((PROTOCOL,), value)],
        )
    for name, value in (("publishers", channels.publishers), ("consumers", totals.consumers)):
        yield labelled(
            GaugeMetricFamily,
            f"rabbitmq_global_{name}",
            f"Open {name}",
            ("protocol",),
            [((PROTOCOL,), value)],
        )


_BY_TYPE = (
    ("messages_delivered", ("deliver", "deliver_no_ack", "get", "get_no_ack")),
    ("messages_delivered_consume_auto_ack", ("deliver_no_ack",)),
    ("messages_delivered_consume_manual_ack", ("deliver",)),
    ("messages_delivered_get_auto_ack", ("get_no_ack",)),
    ("messages_delivered_get_manual_ack", ("get",)),
    ("messages_redelivered", ("redeliver",)),
    ("messages_acknowledged", ("ack",)),
)


def _by_queue_type(broker: Broker, totals: Totals) -> Iterator[Metric]:
    labels = ("protocol", "queue_type")
    for name, fields in _BY_TYPE:
        indexes = [QUEUE_FIELDS.index(field) for field in fields]
        sums = {kind: sum(row[i] for i in indexes) for kind, row in totals.by_kind.items()}
        yield labelled(
            CounterMetricFamily,
            f"rabbitmq_global_{name}",
            name.replace("_", " ").capitalize(),
            labels,
            [((PROTOCOL, f"rabbit_{kind}_queue"), total) for kind, total in sums.items()],
        )
    yield labelled(
        CounterMetricFamily,
        "rabbitmq_global_messages_get_empty",
        "Gets that found the queue empty",
        labels,
        [((PROTOCOL, "rabbit_classic_queue"), broker.counters.get_empty)],
    )


def _dead_lettered(broker: Broker) -> Iterator[Metric]:
    counts: dict[str, int] | None = getattr(broker.counters, "dead_lettered", None)
    if counts is None:
        return
    for reason in _DEAD_LETTER_REASONS:
        yield labelled(
            CounterMetricFamily,
            f"rabbitmq_global_messages_dead_lettered_{reason}",
            f"Messages dead-lettered: {reason}",
            ("queue_type", "dead_letter_strategy"),
            [(("rabbit_classic_queue", "at_most_once"), counts.get(reason, 0))],
        )


def _message_sizes(broker: Broker) -> Iterator[Metric]:
    counts: list[int] | None = getattr(broker.counters, "sizes", None)
    if counts is None:
        return
    total, buckets = 0, []
    for bound, count in zip(SIZE_BOUNDS, counts, strict=False):
        total += count
        label: str = floatToGoString(float(bound))  # type: ignore[no-untyped-call]
        buckets.append((label, float(total)))
    total = sum(counts)
    family = HistogramMetricFamily("rabbitmq_message_size_bytes", "Sizes of published bodies")
    size = getattr(broker.counters, "published_bytes", 0)
    family.add_metric([], [*buckets, ("+Inf", float(total))], size)
    yield family


def _leveret_metrics(broker: Broker, totals: Totals) -> Iterator[Metric]:
    raised = broker.alarms.raised
    now = broker.clock.wall_ms()
    ready, unacked = totals.sizes.oldest_ready_ms, totals.sizes.oldest_unacked_ms
    usage = broker.store.usage
    yield gauge(
        "leveret_oldest_ready_age_seconds",
        "Age of the oldest ready message in all queues",
        max(0, now - ready) / 1000 if ready else 0,
    )
    yield gauge(
        "leveret_oldest_unacked_age_seconds",
        "Age of the oldest unacked message in all queues",
        max(0, now - unacked) / 1000 if unacked else 0,
    )
    yield gauge(
        "leveret_store_backlog_bytes", "Bytes accepted and not yet on disk", broker.store.backlog
    )
    yield gauge(
        "leveret_lost_data",
        "Losses by damage of the database, until the folder damaged is removed",
        len(broker.store.lost),
    )
    yield gauge("leveret_store_commits", "Batches committed", broker.store.committed)
    yield gauge("leveret_history_bytes", "Size of the stored messages and history", usage.bytes)
    yield gauge(
        "leveret_memory_in_messages_bytes",
        "Memory in messages",
        broker.resource_monitor.message_memory(),
    )
    yield labelled(
        GaugeMetricFamily,
        "leveret_alarm",
        "1 while the alarm is raised",
        ("alarm",),
        [((name,), name in raised) for name in sorted({*KNOWN_ALARMS, *raised})],
    )
