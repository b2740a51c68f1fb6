"""Prometheus families with a sample per queue, exchange and connection.

`/metrics/per-object` has them all; `/metrics/detailed` those of the families it names, under the
prefix `rabbitmq_detailed_`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from http_admin.ages import oldest_ready_ms, oldest_unacked_ms, unacked_bytes
from http_admin.metrics import labelled
from http_admin.metrics_logs import chosen_logs, consumer_lags, log_objects
from leveret.broker import Broker
from leveret.broker.metrics import QUEUE_FIELDS, queue_values
from queues import ClassicQueue, HeldQueue

Queues = list[tuple[tuple[str, str], HeldQueue]]
QUEUE_LABELS = ("vhost", "queue")


def chosen_queues(broker: Broker, vhosts: set[str], names: set[str]) -> Queues:
    """((vhost, name), queue) of those asked for; nothing asked for is everything."""
    return [
        ((vhost.name, queue.name), queue)
        for vhost in broker.vhosts.values()
        if not vhosts or vhost.name in vhosts
        for queue in vhost.queues.values()
        if not names or queue.name in names
    ]


def _gauge(
    prefix: str, name: str, text: str, queues: Queues, of: Callable[[HeldQueue], float | None]
) -> Metric:
    rows = [(labels, of(queue)) for labels, queue in queues]
    known = [(labels, value) for labels, value in rows if value is not None]
    return labelled(GaugeMetricFamily, f"{prefix}{name}", text, QUEUE_LABELS, known)


def queue_coarse(broker: Broker, prefix: str, queues: Queues) -> Iterator[Metric]:
    yield _gauge(prefix, "queue_messages_ready", "Messages ready", queues, lambda q: q.ready_count)
    yield _gauge(
        prefix, "queue_messages_unacked", "Messages unacked", queues, lambda q: q.unacked_count
    )
    yield _gauge(
        prefix,
        "queue_messages",
        "Messages ready and unacked",
        queues,
        lambda q: q.ready_count + q.unacked_count,
    )


def queue_consumers(broker: Broker, prefix: str, queues: Queues) -> Iterator[Metric]:
    yield _gauge(prefix, "queue_consumers", "Consumers", queues, lambda q: len(q.consumers))


def queue_details(broker: Broker, prefix: str, queues: Queues) -> Iterator[Metric]:
    yield _gauge(prefix, "queue_messages_bytes", "Octets in messages", queues, _bytes)
    yield _gauge(
        prefix,
        "queue_head_message_timestamp",
        "When the first ready message was published, Unix seconds",
        queues,
        _head_time,
    )


def queue_ages(broker: Broker, queues: Queues) -> Iterator[Metric]:
    now = broker.clock.wall_ms()
    yield _gauge(
        "leveret_",
        "queue_oldest_ready_age_seconds",
        "Age of the message that has waited longest",
        queues,
        lambda q: _age(now, oldest_ready_ms(q)),
    )
    yield _gauge(
        "leveret_",
        "queue_oldest_unacked_age_seconds",
        "Age of the oldest unacked message",
        queues,
        lambda q: _age(now, oldest_unacked_ms(q)),
    )


def _age(now: int, since: int | None) -> float | None:
    return None if since is None else (now - since) / 1000


def _bytes(queue: HeldQueue) -> float | None:
    return queue.message_bytes + unacked_bytes(queue) if isinstance(queue, ClassicQueue) else None


def _head_time(queue: HeldQueue) -> float | None:
    at = oldest_ready_ms(queue)
    return None if at is None else at // 1000


_COUNTED = (
    ("publish", "queue_messages_published"),
    ("deliver", "queue_messages_delivered"),
    ("deliver_no_ack", "queue_messages_delivered_ack_free"),
    ("get", "queue_get"),
    ("get_no_ack", "queue_get_ack"),
    ("redeliver", "queue_messages_redelivered"),
    ("ack", "queue_messages_acked"),
)


def queue_counters(broker: Broker, prefix: str, queues: Queues) -> Iterator[Metric]:
    values = [(labels, queue_values(queue)) for labels, queue in queues]
    for field, name in _COUNTED:
        at = QUEUE_FIELDS.index(field)
        yield labelled(
            CounterMetricFamily,
            f"{prefix}{name}",
            f"Since the queue was made: {field}",
            QUEUE_LABELS,
            [(labels, row[at]) for labels, row in values],
        )


def exchange_counters(broker: Broker, prefix: str, vhosts: set[str]) -> Iterator[Metric]:
    exchanges = [
        ((vhost.name, one.name), one)
        for vhost in broker.vhosts.values()
        if not vhosts or vhost.name in vhosts
        for one in vhost.exchanges.values()
        if one.published_in
    ]
    for name, text in (("published_in", "Messages published"), ("published_out", "Copies routed")):
        yield labelled(
            CounterMetricFamily,
            f"{prefix}exchange_messages_{name}",
            text,
            ("vhost", "exchange"),
            [(labels, getattr(one, name)) for labels, one in exchanges],
        )


def connection_octets(broker: Broker, prefix: str, vhosts: set[str]) -> Iterator[Metric]:
    rows = [one.describe() for one in broker.connections if not vhosts or one.vhost.name in vhosts]
    for field, name in (("recv_oct", "incoming"), ("send_oct", "outgoing")):
        yield labelled(
            CounterMetricFamily,
            f"{prefix}connection_{name}_bytes",
            f"Octets {name}",
            ("connection", "vhost", "user"),
            [((str(row["name"]), str(row["vhost"]), str(row["user"])), row[field]) for row in rows],
        )


def gather_objects(broker: Broker) -> Iterator[Metric]:
    queues = chosen_queues(broker, set(), set())
    for make in (queue_coarse, queue_consumers, queue_details, queue_counters):
        yield from make(broker, "rabbitmq_", queues)
    yield from queue_ages(broker, queues)
    logs = chosen_logs(broker, set(), set())
    yield from log_objects("leveret_", logs)
    yield from consumer_lags("rabbitmq_", logs)
    yield from exchange_counters(broker, "rabbitmq_", set())
    yield from connection_octets(broker, "rabbitmq_", set())


FAMILIES = (
    "queue_coarse_metrics",
    "queue_consumer_count",
    "queue_metrics",
    "queue_delivery_metrics",
    "exchange_metrics",
    "connection_coarse_metrics",
    "log_metrics",
    "stream_consumer_metrics",
)


def gather_detailed(
    broker: Broker, families: set[str], vhosts: set[str], names: set[str]
) -> Iterator[Metric]:
    prefix, queues = "rabbitmq_detailed_", chosen_queues(broker, vhosts, names)
    by_queue = {
        "queue_coarse_metrics": queue_coarse,
        "queue_consumer_count": queue_consumers,
        "queue_metrics": queue_details,
        "queue_delivery_metrics": queue_counters,
    }
    for family, make in by_queue.items():
        if family in families:
            yield from make(broker, prefix, queues)
    if "exchange_metrics" in families:
        yield from exchange_counters(broker, prefix, vhosts)
    if "connection_coarse_metrics" in families:
        yield from connection_octets(broker, prefix, vhosts)
    if "log_metrics" in families:
        yield from log_objects("leveret_detailed_", chosen_logs(broker, vhosts, names))
    if "stream_consumer_metrics" in families:
        yield from consumer_lags(prefix, chosen_logs(broker, vhosts, names))
