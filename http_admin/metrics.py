"""Prometheus families with RabbitMQ's names, so that its dashboards fill, and our own.

Families are gathered on the loop, from counters that are there anyway; turning them into text is
left to another thread by whoever asks. `gather` is all numbers without names of objects;
`gather_objects` has a sample per queue, exchange and connection.

Every panel of the official dashboard joins on `rabbitmq_identity_info`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from http_admin import process
from http_admin.ages import oldest_ready_ms, oldest_unacked_ms
from http_admin.product import PRODUCT, RABBITMQ_VERSION, product_version, runtime_version
from http_admin.totals import Totals
from leveret.broker import Broker
from leveret.broker.metrics import CHANNEL_FIELDS, QUEUE_FIELDS
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
    for values, number in rows:
        family.add_metric(list(values), number)
    return family


def gather(broker: Broker, totals: Totals, endpoint: str = "aggregated") -> Iterator[Metric]:
    """The aggregated metrics."""
    yield from identity(broker, endpoint)
    yield from _objects(broker, totals)
    yield from _queue_sums(totals)
    yield from _churn(totals)
    yield from _machine(broker)
    yield from _alarms(broker)
    yield from _global(broker, totals)
    yield from _by_queue_type(broker, totals)
    yield from _dead_lettered(broker)
    yield from _sizes(broker)
    yield from _own(broker)


def identity(broker: Broker, endpoint: str) -> Iterator[Metric]:
    node = broker.settings.node_name
    where = "memory" if broker.settings.memory else str(broker.settings.data_dir.absolute())
    permanent = f"leveret-{uuid.uuid5(uuid.NAMESPACE_URL, f'{node} {where}')}"
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


def _queue_sums(totals: Totals) -> Iterator[Metric]:
    ready, unacked = totals.of("messages_ready"), totals.of("messages_unacknowledged")
    yield gauge("rabbitmq_queue_messages_ready", "Messages ready to be delivered", ready)
    yield gauge("rabbitmq_queue_messages_unacked", "Messages delivered, not acked", unacked)
    yield gauge("rabbitmq_queue_messages", "Messages ready and unacked", ready + unacked)
    yield gauge("rabbitmq_queue_consumers", "Consumers", totals.consumers)


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


def _machine(broker: Broker) -> Iterator[Metric]:
    settings = broker.settings
    files = process.most_files()
    uptime = (broker.clock.wall_ms() - broker.started_ms) / 1000
    yield gauge("rabbitmq_process_resident_memory_bytes", "Memory", process.resident_bytes())
    yield gauge(
        "rabbitmq_resident_memory_limit_bytes", "Memory limit", settings.memory_high_watermark
    )
    yield gauge("rabbitmq_disk_space_available_bytes", "Disk free", process.disk_free(broker))
    yield gauge(
        "rabbitmq_disk_space_available_limit_bytes", "Disk free limit", settings.disk_free_limit
    )
    yield gauge("rabbitmq_process_open_fds", "Open file descriptors", process.open_files())
    yield gauge("rabbitmq_process_max_fds", "File descriptors allowed", files)
    yield gauge("rabbitmq_process_open_tcp_sockets", "Connections", len(broker.connections))
    yield gauge("rabbitmq_process_max_tcp_sockets", "Sockets allowed", files)
    yield gauge("rabbitmq_erlang_uptime_seconds", "Seconds since the broker started", uptime)


_ALARMS = (
    ("memory_used_watermark", "memory"),
    ("free_disk_space_watermark", "disk"),
    ("file_descriptor_limit", ""),
)


def _alarms(broker: Broker) -> Iterator[Metric]:
    """Alerts made for RabbitMQ watch these; of file descriptors Leveret has no alarm."""
    for name, alarm in _ALARMS:
        text = f"1 while the alarm is raised: {name.replace('_', ' ')}"
        yield gauge(f"rabbitmq_alarms_{name}", text, alarm in broker.alarms.raised)


def _global(broker: Broker, totals: Totals) -> Iterator[Metric]:
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
    for name, value in (("publishers", _publishers(broker)), ("consumers", totals.consumers)):
        yield labelled(
            GaugeMetricFamily,
            f"rabbitmq_global_{name}",
            f"Open {name}",
            ("protocol",),
            [((PROTOCOL,), value)],
        )


def _publishers(broker: Broker) -> int:
    """Channels that have published something."""
    at = CHANNEL_FIELDS.index("publish")
    return sum(
        bool(channel.counts()[at])
        for one in broker.connections
        for channel in one.channels.values()
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
        places = [QUEUE_FIELDS.index(field) for field in fields]
        sums = {kind: sum(row[at] for at in places) for kind, row in totals.by_kind.items()}
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
    counted: dict[str, int] | None = getattr(broker.counters, "dead_lettered", None)
    if counted is None:
        return
    for reason in _DEAD_LETTER_REASONS:
        yield labelled(
            CounterMetricFamily,
            f"rabbitmq_global_messages_dead_lettered_{reason}",
            f"Messages dead-lettered: {reason}",
            ("queue_type", "dead_letter_strategy"),
            [(("rabbit_classic_queue", "at_most_once"), counted.get(reason, 0))],
        )


def _sizes(broker: Broker) -> Iterator[Metric]:
    counted: list[int] | None = getattr(broker.counters, "sizes", None)
    if counted is None:
        return
    total, buckets = 0, []
    for bound, count in zip(SIZE_BOUNDS, counted, strict=False):
        total += count
        written: str = floatToGoString(float(bound))  # type: ignore[no-untyped-call]
        buckets.append((written, float(total)))
    total = sum(counted)
    family = HistogramMetricFamily("rabbitmq_message_size_bytes", "Sizes of published bodies")
    octets = getattr(broker.counters, "published_bytes", 0)
    family.add_metric([], [*buckets, ("+Inf", float(total))], octets)
    yield family


def _own(broker: Broker) -> Iterator[Metric]:
    raised = broker.alarms.raised
    now = broker.clock.wall_ms()
    queues = [q for v in broker.vhosts.values() for q in v.queues.values()]
    ready = [at for at in map(oldest_ready_ms, queues) if at is not None]
    unacked = [at for at in map(oldest_unacked_ms, queues) if at is not None]
    usage = broker.store.usage
    yield gauge(
        "leveret_oldest_ready_age_seconds",
        "Age of the oldest message that waits for a consumer, over all queues",
        (now - min(ready)) / 1000 if ready else 0,
    )
    yield gauge(
        "leveret_oldest_unacked_age_seconds",
        "Age of the oldest message that was delivered and not acked, over all queues",
        (now - min(unacked)) / 1000 if unacked else 0,
    )
    yield gauge(
        "leveret_store_backlog_bytes", "Content taken and not yet durable", broker.store.backlog
    )
    yield gauge("leveret_store_commits", "Batches made durable", broker.store.committed)
    yield gauge("leveret_history_bytes", "Size of the stored messages and history", usage.bytes)
    yield gauge(
        "leveret_memory_in_messages_bytes", "Memory in messages", broker.upkeep.memory_held()
    )
    yield labelled(
        GaugeMetricFamily,
        "leveret_alarm",
        "1 while the alarm is raised",
        ("alarm",),
        [((name,), name in raised) for name in sorted({*KNOWN_ALARMS, *raised})],
    )
