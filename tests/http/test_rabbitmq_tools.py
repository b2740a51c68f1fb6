"""What tools for RabbitMQ expect of the API: contexts, the realm, a memory limit, impersonation."""

from __future__ import annotations

import httpx
import pika
import pytest

import leveret
from tests.http.conftest import Served
from tests.support.polling import wait_until

LOGIN = "Basic realm="


def test_contexts_name_the_port_of_the_management_api(api: httpx.Client, broker: Served) -> None:
    port = str(httpx.URL(broker.url).port)
    overview, [node] = api.get("/api/overview").json(), api.get("/api/nodes").json()
    [context] = overview["contexts"]
    assert context == {
        "node": overview["node"], "description": "RabbitMQ Management", "path": "/",
        "port": port, "cowboy_opts": "[]", "ssl_opts": [],
    }  # fmt: skip
    del context["node"], context["ssl_opts"]
    assert node["contexts"] == [context]


@pytest.mark.parametrize("realm", ["Leveret", "RabbitMQ Management"])
def test_realm_is_the_configured_one(realm: str) -> None:
    settings = leveret.in_process_settings(http_enabled=True, http_realm=realm)
    with leveret.ThreadedBroker(settings) as running:
        answer = httpx.get(f"{running.http_url}/api/overview", verify=False, timeout=60)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == f'Basic realm="{realm}"'


# The memory limit --------------------------------------------------------------------------------


def limit_of(api: httpx.Client) -> int:
    return int(api.get("/api/nodes").json()[0]["mem_limit"])


def test_memory_limit_is_set_until_the_next_start(api: httpx.Client, broker: Served) -> None:
    path, configured = "/api/memory-high-watermark", broker.hub.settings.memory_high_watermark
    assert limit_of(api) == configured
    for body, limit in (
        ({"absolute": "512MiB"}, 512 << 20),
        ({"absolute": 1 << 30}, 1 << 30),
        ({"absolute": "2GB"}, 2_000_000_000),
    ):
        assert api.put(path, json=body).status_code == 204
        assert limit_of(api) == limit
    assert api.put(path, json={"relative": 0.5}).status_code == 204
    half = limit_of(api)
    assert api.put(path, json={"relative": 0.25}).status_code == 204
    assert abs(limit_of(api) - half / 2) <= 1
    assert f"rabbitmq_resident_memory_limit_bytes {float(limit_of(api))}" in _metrics(api)
    for wrong in ({}, {"relative": 2}, {"absolute": "much"}, {"relative": 0.1, "absolute": 5}):
        assert api.put(path, json=wrong).status_code == 400
    assert api.put(path, json={"absolute": configured}).status_code == 204


def _metrics(api: httpx.Client) -> str:
    text = api.get("/metrics").text
    return "\n".join(
        f"{name} {float(value)}"
        for name, _, value in (line.rpartition(" ") for line in text.splitlines())
        if name == "rabbitmq_resident_memory_limit_bytes"
    )


def test_memory_limit_of_0_blocks_publishers_at_once(api: httpx.Client, broker: Served) -> None:
    """Operators use it to stop publishers by hand, as with RabbitMQ."""
    path, configured = "/api/memory-high-watermark", broker.hub.settings.memory_high_watermark
    blocked: list[str] = []
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        connection.add_on_connection_blocked_callback(lambda *_: blocked.append("blocked"))
        connection.add_on_connection_unblocked_callback(lambda *_: blocked.append("unblocked"))
        channel = connection.channel()
        channel.basic_publish("amq.fanout", "", b"")
        assert api.put(path, json={"relative": 0}).status_code == 204
        assert api.get("/api/nodes").json()[0]["mem_alarm"] is True
        channel.basic_publish("amq.fanout", "", b"")
        wait_until(lambda: connection.process_data_events(0.05) or blocked == ["blocked"])
        assert api.put(path, json={"absolute": configured}).status_code == 204
        wait_until(lambda: connection.process_data_events(0.05) or len(blocked) == 2)
    assert blocked == ["blocked", "unblocked"]


# The tag impersonator ----------------------------------------------------------------------------


@pytest.mark.parametrize("tags", ["management", "management,impersonator"])
def test_impersonator_may_publish_with_the_user_id_of_others(
    api: httpx.Client, broker: Served, tags: str
) -> None:
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    api.put("/api/users/someone", json={"password": "p", "tags": tags}).raise_for_status()
    api.put("/api/permissions/%2F/someone", json=rights).raise_for_status()
    api.put("/api/queues/%2F/marked", json={"durable": False}).raise_for_status()
    url = broker.amqp_url.replace("guest:guest", "someone:p")
    is_allowed = "impersonator" in tags
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for user in ("someone", "another"):
            properties = pika.BasicProperties(user_id=user)
            if user == "another" and not is_allowed:
                with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="user_id property"):
                    channel.basic_publish("", "marked", b"x", properties)
            else:
                channel.basic_publish("", "marked", b"x", properties)
    body = {"routing_key": "marked", "payload": "x", "properties": {"user_id": "another"}}
    body |= {"payload_encoding": "string"}
    with broker.client("someone", "p") as client:
        answer = client.post("/api/exchanges/%2F/amq.default/publish", json=body)
    assert answer.status_code == (200 if is_allowed else 400)
    api.delete("/api/queues/%2F/marked").raise_for_status()
    api.delete("/api/users/someone").raise_for_status()
