"""Rates of connections, channels, exchanges and virtual hosts, as RabbitMQ measures them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pika
import pytest

from leveret.broker import Broker
from tests.http.conftest import Served

SAMPLES = {"msg_rates_age": 60, "msg_rates_incr": 5, "lengths_age": 60, "lengths_incr": 5}


@pytest.fixture(scope="module")
def traffic(broker: Served) -> Iterator[pika.BlockingConnection]:
    """Traffic between two samples: routed, returned and dropped messages, and a consumer."""
    with broker.client() as api:
        assert api.put("/api/vhosts/busy").status_code == 201
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url + "busy"))
    channel = connection.channel(7)
    channel.queue_declare("q")
    broker.on_loop(_stop_sampling)
    broker.on_loop(lambda hub: hub.metrics.sample())
    channel.confirm_delivery()
    for body in (b"acked", b"again", b"got"):
        channel.basic_publish("", "q", body)
    channel.basic_publish("amq.fanout", "", b"dropped")
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("amq.fanout", "", b"returned", mandatory=True)
    channel.basic_ack(channel.basic_get("q")[0].delivery_tag)
    channel.basic_nack(channel.basic_get("q")[0].delivery_tag)
    for _, (method, _, _) in zip(range(2), channel.consume("q"), strict=False):
        channel.basic_ack(method.delivery_tag)
    channel.cancel()
    assert channel.basic_get("q") == (None, None, None)
    broker.on_loop(lambda hub: hub.metrics.sample())
    yield connection
    connection.close()


def _stop_sampling(hub: Broker) -> None:
    """Another sample before the test's request would see no traffic, and rates of 0."""
    hub.resource_monitor._sampled_ms = 1 << 62


def _counts(stats: dict[str, Any]) -> dict[str, int]:
    """The counters; each must have a rate greater than zero."""
    counts = {name: value for name, value in stats.items() if not name.endswith("_details")}
    assert all(stats[f"{name}_details"]["rate"] > 0 for name in counts)
    return counts


HANDED = {
    "deliver": 2, "get": 2, "redeliver": 1, "ack": 3, "deliver_get": 4
}  # fmt: skip
PUBLISHED = {"publish": 5, "confirm": 5, "return_unroutable": 1, "drop_unroutable": 1}


def test_channel_row_has_its_counters(traffic: Any, api: httpx.Client) -> None:
    [row] = [row for row in api.get("/api/channels").json() if row["vhost"] == "busy"]
    assert row["number"] == 7
    assert _counts(row["message_stats"]) == {**PUBLISHED, **HANDED}
    one = api.get(f"/api/channels/{quote(row['name'], '')}", params=SAMPLES).json()
    newest = one["message_stats"]["publish_details"]["samples"][0]
    assert newest["sample"] == 5
    assert (one["publishes"], one["deliveries"]) == ([], [])


def test_connection_row_has_its_byte_counters(traffic: Any, api: httpx.Client) -> None:
    [row] = api.get("/api/vhosts/busy/connections").json()
    for name in ("recv_oct", "send_oct"):
        assert row[name] > 300 and row[f"{name}_details"]["rate"] > 0
    one = api.get(f"/api/connections/{quote(row['name'], '')}", params=SAMPLES).json()
    assert 0 < one["recv_oct_details"]["samples"][0]["sample"] <= one["recv_oct"]
    busiest = api.get("/api/connections?sort=recv_oct_details.rate&sort_reverse=true").json()
    assert busiest[0]["name"] == row["name"]


def test_vhost_row_has_the_sums_of_its_queues(traffic: Any, api: httpx.Client) -> None:
    row = api.get("/api/vhosts/busy", params=SAMPLES).json()
    assert _counts(row["message_stats"]) == {**PUBLISHED, **HANDED, "get_empty": 1}
    assert row["message_stats"]["publish_details"]["samples"][0]["sample"] == 5
    assert row["recv_oct_details"]["rate"] > 0 and row["send_oct_details"]["rate"] > 0
    assert row["messages"] == 0 and row["messages_details"]["rate"] == 0.0
    other = next(one for one in api.get("/api/vhosts").json() if one["name"] == "/")
    assert "message_stats" not in other and other["recv_oct"] == 0


def test_exchange_row_has_its_counters(traffic: Any, api: httpx.Client) -> None:
    fanout = api.get("/api/exchanges/busy/amq.fanout").json()["message_stats"]
    assert _counts(fanout) == {"publish_in": 2}
    default = api.get("/api/exchanges/busy/amq.default").json()["message_stats"]
    assert _counts(default) == {"publish_in": 3, "publish_out": 3}


def test_user_of_one_vhost_sees_only_its_rates(
    traffic: Any, broker: Served, api: httpx.Client
) -> None:
    user = {"password": "p", "tags": "management"}
    assert api.put("/api/users/busybody", json=user).status_code == 201
    every = {"configure": ".*", "write": ".*", "read": ".*"}
    assert api.put("/api/permissions/busy/busybody", json=every).status_code == 201
    with broker.client("busybody", "p") as client:
        overview = client.get("/api/overview", params=SAMPLES).json()
    stats = overview["message_stats"]
    assert stats["publish"] == 5 and stats["publish_details"]["rate"] > 0
    assert stats["publish_details"]["samples"][0]["sample"] == 5
    assert overview["queue_totals"]["messages_details"]["samples"][0]["sample"] == 0


def test_deleted_queues_still_count(broker: Served, api: httpx.Client) -> None:
    assert api.put("/api/vhosts/gone").status_code == 201
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url + "gone")) as connection:
        channel = connection.channel()
        channel.exchange_declare("x", "fanout")
        channel.queue_declare("q")
        channel.queue_bind("q", "x")
        channel.basic_publish("x", "", b"1")
        assert channel.basic_get("q", auto_ack=True)[2] == b"1"
        channel.queue_delete("q")
        channel.exchange_delete("x")
    row = api.get("/api/vhosts/gone").json()
    counts = {"publish": 1, "get_no_ack": 1, "deliver_get": 1}
    assert {name: row["message_stats"][name] for name in counts} == counts
    assert row["recv_oct"] > 0 and row["send_oct"] > 0
