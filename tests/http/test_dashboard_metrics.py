"""Every panel of RabbitMQ's official Overview dashboards has data, and the right data.

The names are those that the queries of the dashboards use (RabbitMQ 3.10 and 4.x).
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pika
import pytest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families

from leveret.broker.runtime.slices import run_at_once
from leveret.http_admin.metrics import objects
from leveret.http_admin.metrics.text import (
    ObjectFamily,
    encode_metrics,
    encode_objects,
    labels_text,
)
from tests.http.conftest import Served

EXACT = {
    "rabbitmq_build_info": 1,
    "rabbitmq_identity_info": 1,
    "rabbitmq_connections": 2,
    "rabbitmq_connections_opened_total": 3,
    "rabbitmq_connections_closed_total": 1,
    "rabbitmq_channels": 3,
    "rabbitmq_channels_opened_total": 4,
    "rabbitmq_channels_closed_total": 1,
    "rabbitmq_channel_consumers": 2,
    "rabbitmq_consumers": 2,
    "rabbitmq_global_consumers": 2,
    "rabbitmq_global_publishers": 1,
    "rabbitmq_queues": 2,
    "rabbitmq_queues_declared_total": 4,
    "rabbitmq_queues_created_total": 3,
    "rabbitmq_queues_deleted_total": 1,
    "rabbitmq_queue_messages_ready": 1,
    "rabbitmq_queue_messages_unacked": 3,
    "rabbitmq_global_messages_received_total": 12,
    "rabbitmq_global_messages_received_confirm_total": 12,
    "rabbitmq_global_messages_confirmed_total": 12,
    "rabbitmq_global_messages_routed_total": 10,
    "rabbitmq_global_messages_unroutable_dropped_total": 1,
    "rabbitmq_global_messages_unroutable_returned_total": 1,
    "rabbitmq_global_messages_delivered_total": 10,
    "rabbitmq_global_messages_delivered_consume_manual_ack_total": 5,
    "rabbitmq_global_messages_delivered_consume_auto_ack_total": 2,
    "rabbitmq_global_messages_delivered_get_manual_ack_total": 2,
    "rabbitmq_global_messages_delivered_get_auto_ack_total": 1,
    "rabbitmq_global_messages_get_empty_total": 1,
    "rabbitmq_global_messages_redelivered_total": 1,
    "rabbitmq_global_messages_acknowledged_total": 3,
    "rabbitmq_message_size_bytes_count": 12,
    "rabbitmq_message_size_bytes_sum": 12 * 200,
    "rabbitmq_auth_attempts_total": 4,
    "rabbitmq_auth_attempts_succeeded_total": 3,
    "rabbitmq_auth_attempts_failed_total": 1,
    "rabbitmq_channel_messages_unacked": 3,
    "rabbitmq_channel_messages_published_total": 12,
    "rabbitmq_channel_messages_acked_total": 3,
    "rabbitmq_queue_messages_bytes": 4 * 200,
    "rabbitmq_queue_messages_unacked_bytes": 3 * 200,
}
POSITIVE = {
    "rabbitmq_disk_space_available_bytes", "rabbitmq_disk_space_available_limit_bytes",
    "rabbitmq_erlang_uptime_seconds", "rabbitmq_process_max_fds",
    "rabbitmq_process_max_tcp_sockets", "rabbitmq_process_open_fds",
    "rabbitmq_process_open_tcp_sockets", "rabbitmq_process_resident_memory_bytes",
    "rabbitmq_resident_memory_limit_bytes", "rabbitmq_message_size_bytes_bucket",
    "rabbitmq_connection_incoming_bytes_total", "rabbitmq_connection_outgoing_bytes_total",
}  # fmt: skip
BODY = bytes(200)


def connect(url: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(url))


@pytest.fixture(scope="module")
def load(broker: Served) -> Iterator[None]:
    """Connections that stay open with unacked messages, after all kinds of traffic."""
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(broker.amqp_url.replace("guest:guest", "guest:wrong"))
    with connect(broker.amqp_url) as short:
        channel = short.channel()
        channel.queue_declare("gone")
        channel.queue_delete("gone")
    publisher, consumer = connect(broker.amqp_url), connect(broker.amqp_url)
    publishing, consuming, polling = publisher.channel(), consumer.channel(), consumer.channel()
    publishing.confirm_delivery()
    publishing.queue_declare("manual")
    publishing.queue_declare("manual")
    publishing.queue_declare("automatic")
    for _ in range(3):  # one is polled twice, one automatically, one stays
        publishing.basic_publish("", "manual", BODY)
    first, _, _ = polling.basic_get("manual")
    polling.basic_nack(first.delivery_tag)
    again, _, _ = polling.basic_get("manual")
    polling.basic_ack(again.delivery_tag)
    polling.basic_get("manual", auto_ack=True)
    polling.basic_get("automatic")
    publishing.basic_publish("", "nowhere", BODY)
    with pytest.raises(pika.exceptions.UnroutableError):
        publishing.basic_publish("", "nowhere", BODY, mandatory=True)
    received: list[int] = []
    consuming.basic_qos(prefetch_count=3)

    def on_message(_: object, method: pika.spec.Basic.Deliver, *rest: object) -> None:
        received.append(method.delivery_tag)

    consuming.basic_consume("automatic", on_message, auto_ack=True)
    for _ in range(2):
        publishing.basic_publish("", "automatic", BODY)
    consuming.basic_consume("manual", on_message)
    for _ in range(5):
        publishing.basic_publish("", "manual", BODY)
    while len(received) < 5:
        consumer.process_data_events(0.1)
    consuming.basic_ack(received[-1], multiple=False)
    while len(received) < 6:
        consumer.process_data_events(0.1)
    consuming.basic_ack(received[-1], multiple=False)
    while len(received) < 7:
        consumer.process_data_events(0.1)
    yield
    publisher.close()
    consumer.close()


def sums_of(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


@pytest.mark.usefixtures("load")
@pytest.mark.parametrize("path", ["/metrics", "/metrics/per-object"])
def test_panels_of_the_dashboards_have_the_right_values(api: httpx.Client, path: str) -> None:
    found = sums_of(api.get(path).text)
    assert {name: found.get(name) for name in EXACT} == EXACT
    assert [name for name in sorted(POSITIVE) if not found.get(name, 0) > 0] == []


def test_object_families_are_those_that_the_library_writes() -> None:
    """Lines of text, and their parts, parse to the same samples as the library's own."""
    labels = ("queue", "vhost")
    values = [("plain", "/"), ('we"ird\\\n{}', "v,1"), ("é", "")]
    ours = ObjectFamily(CounterMetricFamily, "rabbitmq_x", 'A "text"\\')
    library = CounterMetricFamily("rabbitmq_x", 'A "text"\\', labels=labels)
    for number, (queue, vhost) in enumerate(values * 400):
        row = (f"{queue}{number}", vhost)
        ours.add(labels_text(labels, row), number)
        library.add_metric(row, number)
    for accept in ("", "application/openmetrics-text; version=1.0.0"):
        encode, _ = choose_encoder(accept)
        parts = run_at_once(encode_objects(encode, [ours]))
        written = encode_metrics(encode, [library])
        assert len(parts) > 2
        ours_text = (b"".join(parts) + encode_metrics(encode, [])).decode()
        parse = parse_openmetrics if accept else text_string_to_metric_families
        assert list(parse(ours_text)) == list(parse(written.decode()))


@pytest.mark.usefixtures("load")
def test_families_of_the_detailed_endpoint(api: httpx.Client) -> None:
    """Each is returned alone, with a sample where there is an object."""
    for family in objects.FAMILIES:
        found = sums_of(api.get(f"/metrics/detailed?family={family}").text)
        names = set(found) - {"rabbitmq_identity_info", "rabbitmq_build_info"}
        is_log = family in ("log_metrics", "stream_consumer_metrics")
        prefixes = ("rabbitmq_detailed_", "rabbitmq_cluster_")
        assert bool(names) != is_log, family
        assert all(name.startswith(prefixes) for name in names)
