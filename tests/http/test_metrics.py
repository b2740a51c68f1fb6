"""Prometheus: the metrics of dashboards, with values that match the traffic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pika
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

import leveret
from leveret.http_admin.metrics import aggregate
from tests.http.conftest import Served

# Metrics of the official RabbitMQ overview dashboard.
WANTED = {
    "rabbitmq_identity_info", "rabbitmq_build_info", "rabbitmq_connections", "rabbitmq_channels",
    "rabbitmq_queues", "rabbitmq_connections_opened_total", "rabbitmq_connections_closed_total",
    "rabbitmq_channels_opened_total", "rabbitmq_channels_closed_total",
    "rabbitmq_queues_declared_total", "rabbitmq_queues_created_total",
    "rabbitmq_queues_deleted_total", "rabbitmq_queue_messages_ready",
    "rabbitmq_queue_messages_unacked", "rabbitmq_process_resident_memory_bytes",
    "rabbitmq_resident_memory_limit_bytes", "rabbitmq_disk_space_available_bytes",
    "rabbitmq_disk_space_available_limit_bytes", "rabbitmq_process_open_fds",
    "rabbitmq_process_max_fds", "rabbitmq_erlang_uptime_seconds", "rabbitmq_global_publishers",
    "rabbitmq_global_consumers", "rabbitmq_global_messages_received_total",
    "rabbitmq_global_messages_received_confirm_total", "rabbitmq_global_messages_confirmed_total",
    "rabbitmq_global_messages_routed_total", "rabbitmq_global_messages_unroutable_dropped_total",
    "rabbitmq_global_messages_unroutable_returned_total",
    "rabbitmq_global_messages_delivered_total",
    "rabbitmq_global_messages_delivered_consume_auto_ack_total",
    "rabbitmq_global_messages_delivered_consume_manual_ack_total",
    "rabbitmq_global_messages_delivered_get_auto_ack_total",
    "rabbitmq_global_messages_delivered_get_manual_ack_total",
    "rabbitmq_global_messages_get_empty_total", "rabbitmq_global_messages_redelivered_total",
    "rabbitmq_global_messages_acknowledged_total",
}  # fmt: skip
OWN = {
    "leveret_oldest_ready_age_seconds", "leveret_oldest_unacked_age_seconds",
    "leveret_store_backlog_bytes", "leveret_history_bytes", "leveret_alarm", "leveret_log_bytes",
    "leveret_log_group_lag", "leveret_log_group_lag_most", "leveret_log_damaged_batches",
}  # fmt: skip
SIZES = "rabbitmq_message_size_bytes"
ALARMS = ("memory_used_watermark", "free_disk_space_watermark", "file_descriptor_limit")
WEIRD = 'we"ird\\{}'
PER_QUEUE = {
    "rabbitmq_queue_messages", "rabbitmq_queue_messages_ready", "rabbitmq_queue_messages_unacked",
    "rabbitmq_queue_consumers", "rabbitmq_queue_messages_bytes",
    "rabbitmq_queue_head_message_timestamp", "leveret_queue_oldest_ready_age_seconds",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def traffic(broker: Served) -> str:
    """The metrics after the traffic, before a test adds to them."""
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare(WEIRD)
        channel.confirm_delivery()
        for _ in range(5):
            channel.basic_publish("", WEIRD, b"12345678")
        method, _, _ = channel.basic_get(WEIRD)
        channel.basic_ack(method.delivery_tag)
        channel.basic_get(WEIRD)
    with broker.client() as client:
        return client.get("/metrics").text


def _samples(text: str) -> dict[str, float]:
    """Sums over labels."""
    found: dict[str, float] = {}
    for family in parse_text(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def test_all_metrics_of_the_dashboard_exist(broker: Served) -> None:
    with broker.client(None) as anybody:
        answer = anybody.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert _samples(answer.text).keys() >= WANTED | OWN


def test_counters_match_the_traffic(traffic: str) -> None:
    samples = _samples(traffic)
    expected = {
        "rabbitmq_queues": 1,
        "rabbitmq_queue_messages_ready": 4,
        "rabbitmq_queue_messages_unacked": 0,
        "rabbitmq_connections_opened_total": 1,
        "rabbitmq_global_messages_received_total": 5,
        "rabbitmq_global_messages_routed_total": 5,
        "rabbitmq_global_messages_confirmed_total": 5,
        "rabbitmq_global_messages_delivered_total": 2,
        "rabbitmq_global_messages_delivered_get_manual_ack_total": 2,
        "rabbitmq_global_messages_acknowledged_total": 1,
    }
    assert {name: samples[name] for name in expected} == expected


def test_identity_names_the_endpoint(api: httpx.Client) -> None:
    for path, endpoint in (
        ("/metrics", "aggregated"),
        ("/metrics/per-object", "per-object"),
        ("/metrics/detailed", "detailed"),
    ):
        [identity] = [
            sample
            for family in parse_text(api.get(path).text)
            for sample in family.samples
            if sample.name == "rabbitmq_identity_info"
        ]
        assert identity.labels["rabbitmq_endpoint"] == endpoint
        assert identity.labels["rabbitmq_cluster"] == api.get("/api/cluster-name").json()["name"]


def test_openmetrics_is_returned_if_accepted(api: httpx.Client) -> None:
    wanted = {"accept": "application/openmetrics-text; version=1.0.0"}
    answer = api.get("/metrics", headers=wanted)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in parse_openmetrics(answer.text)}
    assert "rabbitmq_global_messages_received" in names


def test_per_object_has_a_sample_per_queue(api: httpx.Client) -> None:
    families = list(parse_text(api.get("/metrics/per-object").text))
    rows = {
        sample.name: sample
        for family in families
        for sample in family.samples
        if sample.labels.get("queue") == WEIRD
    }
    assert rows.keys() >= PER_QUEUE
    assert rows["rabbitmq_queue_messages_bytes"].value == 32
    assert rows["rabbitmq_queue_messages_published_total"].value == 5
    assert "rabbitmq_connections" in {family.name for family in families}


def test_logs_and_their_groups_have_samples(api: httpx.Client, broker: Served) -> None:
    arguments = {"x-queue-type": "stream", "x-partitions": 2}
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("measured", durable=True, arguments=arguments)
        for _ in range(10):
            channel.basic_publish("measured", "", b"x")
        commit = {"offsets": {"0": 2}}
        assert api.post("/api/logs/%2F/measured/groups/g/commit", json=commit).status_code == 204
        text = api.get("/metrics/detailed?family=log_metrics&queue=measured").text
        found = {
            (sample.name.removeprefix("leveret_detailed_log_"), sample.labels.get("partition")):
            sample.value
            for family in parse_text(text)
            for sample in family.samples
            if sample.labels.get("log") == "measured"
        }  # fmt: skip
        assert {place: value for place, value in found.items() if place[0] != "bytes"} == {
            ("first_offset", "0"): 0, ("first_offset", "1"): 0,
            ("next_offset", "0"): 5, ("next_offset", "1"): 5,
            ("damaged_batches", "0"): 0, ("damaged_batches", "1"): 0,
            ("lost_records", "0"): 0, ("lost_records", "1"): 0,
            ("group_members", None): 0, ("group_lag", "0"): 3, ("group_lag", "1"): 5,
            ("group_committed_offset", "0"): 2,
        }  # fmt: skip
        assert found["bytes", "0"] > 5
        sums = _samples(api.get("/metrics").text)
        assert sums["leveret_log_group_lag"] >= 8 and sums["leveret_log_group_lag_most"] >= 5
        assert 'leveret_log_group_lag{group="g"' in api.get("/metrics/per-object").text
        channel.queue_delete("measured")


def test_consumer_lag_of_logs(api: httpx.Client, broker: Served) -> None:
    name = "rabbitmq_stream_consumer_max_offset_lag"
    detailed = name.replace("rabbitmq_", "rabbitmq_detailed_")
    assert _samples(api.get("/metrics").text)[name] == 0
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("behind", durable=True, arguments={"x-queue-type": "stream"})
        for _ in range(10):
            channel.basic_publish("", "behind", b"x")
        channel.basic_qos(prefetch_count=3)
        first = {"x-stream-offset": "first"}
        channel.basic_consume("behind", lambda *_: None, arguments=first)
        channel.basic_consume("behind", lambda *_: None, arguments={"x-stream-offset": "next"})

        places = (
            ("/metrics", name),
            ("/metrics/per-object", name),
            ("/metrics/detailed?family=stream_consumer_metrics&queue=behind", detailed),
        )
        lags: list[float] = []
        for _ in range(600):
            lags = [_samples(api.get(path).text)[one] for path, one in places]
            if lags == [7, 7, 7]:
                break
            connection.process_data_events(0.05)
        assert lags == [7, 7, 7]
        text = api.get("/metrics/detailed?family=stream_consumer_metrics").text
        assert f'{detailed}{{queue="behind",vhost="/"}} 7.0' in text
        channel.queue_delete("behind")


def test_detailed_has_the_requested_families_and_vhosts(api: httpx.Client) -> None:
    families = "family=queue_coarse_metrics&family=queue_consumer_count"
    names = _samples(api.get(f"/metrics/detailed?{families}").text).keys()
    assert "rabbitmq_detailed_queue_messages_ready" in names
    assert "rabbitmq_detailed_queue_consumers" in names
    assert "rabbitmq_detailed_queue_messages_bytes" not in names
    elsewhere = api.get(f"/metrics/detailed?{families}&vhost=elsewhere")
    assert "rabbitmq_detailed_queue_messages_ready{" not in elsewhere.text


def test_dead_letter_and_size_counters_become_families() -> None:
    sizes = [1, 0, 2, 0, 0, 0, 3, 0, 4]
    counters = SimpleNamespace(dead_lettered={"expired": 3}, sizes=sizes, published_bytes=5)
    broker: Any = SimpleNamespace(counters=counters)
    families = [*aggregate._dead_lettered(broker), *aggregate._message_sizes(broker)]
    found = {
        (sample.name, sample.labels.get("le")): sample.value
        for family in families
        for sample in family.samples
    }
    assert found["rabbitmq_global_messages_dead_lettered_expired_total", None] == 3
    assert found["rabbitmq_global_messages_dead_lettered_rejected_total", None] == 0
    buckets = {le: value for (name, le), value in found.items() if name == f"{SIZES}_bucket"}
    assert buckets == {
        "100.0": 1, "1000.0": 1, "10000.0": 3, "100000.0": 3, "1e+06": 3, "1e+07": 3, "5e+07": 6,
        "1e+08": 6, "+Inf": 10,
    }  # fmt: skip
    assert (found[f"{SIZES}_count", None], found[f"{SIZES}_sum", None]) == (10, 5)


def test_message_size_falls_into_the_bucket_of_the_dashboard() -> None:
    with leveret.ThreadedBroker() as running:
        with pika.BlockingConnection(pika.URLParameters(running.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for size in (0, 100, 101, 1_000, 100_000, 100_001):
                channel.basic_publish("amq.fanout", "", bytes(size))
        assert running.running is not None
        assert running.running.broker.counters.sizes == [2, 2, 0, 1, 1, 0, 0, 0, 0]


def test_alarm_has_the_metric_name_of_rabbitmq(api: httpx.Client) -> None:
    broker: Any = SimpleNamespace(alarms=SimpleNamespace(raised={"disk": "full"}))
    samples = [sample for family in aggregate._alarms(broker) for sample in family.samples]
    names = [f"rabbitmq_alarms_{name}" for name in ALARMS]
    assert [(sample.name, sample.value) for sample in samples] == [
        *zip(names, (0, 1, 0), strict=True)
    ]
    assert all(f"{name} 0.0" in api.get("/metrics").text for name in names)
