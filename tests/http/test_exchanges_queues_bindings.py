"""Exchanges, queues and bindings over HTTP; connections, channels and consumers as clients make
them."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection

from tests.http.conftest import Served
from tests.support.polling import wait_until


def test_exchange_is_created_shown_and_deleted(api: httpx.Client) -> None:
    path = "/api/exchanges/%2F/ex%2F1"
    body = {"type": "topic", "durable": True, "auto_delete": False, "arguments": {"a": 1}}
    assert api.put(path, json=body).status_code == 201
    assert api.put(path, json=body).status_code == 204
    found = api.get(path).json()
    assert (found["name"], found["type"], found["arguments"]) == ("ex/1", "topic", {"a": 1})
    assert (found["incoming"], found["outgoing"]) == ([], [])
    assert api.delete(path).status_code == 204
    assert api.get(path).status_code == 404
    assert api.delete(path).status_code == 404


@pytest.mark.parametrize("alternate", [5, True, None, ["fallback"], {"name": "fallback"}, b"\xff"])
def test_alternate_exchange_must_be_a_string(
    broker: Served, api: httpx.Client, alternate: object
) -> None:
    path, arguments = "/api/exchanges/%2F/alternating", {"alternate-exchange": alternate}
    if not isinstance(alternate, bytes):
        answer = api.put(path, json={"type": "topic", "arguments": arguments})
        assert answer.status_code == 400
        assert "invalid type for arg 'alternate-exchange'" in answer.json()["reason"]
    with (
        BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection,
        pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed,
    ):
        connection.channel().exchange_declare("alternating", "topic", arguments=arguments)
    assert closed.value.reply_code == 406
    assert api.get(path).status_code == 404


def test_default_exchange_is_amq_default_in_urls(api: httpx.Client) -> None:
    assert api.get("/api/exchanges/%2F/amq.default").json()["name"] == ""
    assert api.delete("/api/exchanges/%2F/amq.default").status_code == 403
    assert api.delete("/api/exchanges/%2F/amq.topic").status_code == 403


def test_queue_is_created_shown_and_deleted(api: httpx.Client) -> None:
    path = "/api/queues/%2F/life"
    arguments = {"x-max-length": 5, "x-queue-type": "classic"}
    assert api.put(path, json={"durable": True, "arguments": arguments}).status_code == 201
    assert api.get(path).json()["arguments"] == arguments
    body = {"properties": {}, "routing_key": "life", "payload": "x", "payload_encoding": "string"}
    api.post("/api/exchanges/%2F/amq.default/publish", json=body)
    assert api.get(path).json()["messages"] == 1
    assert api.delete(f"{path}?if-empty=true").status_code == 400
    assert api.delete(f"{path}/contents").status_code == 204
    assert api.get(path).json()["messages"] == 0
    assert api.delete(f"{path}?if-empty=true").status_code == 204
    assert api.get(path).status_code == 404


@pytest.mark.parametrize("kind", ["queues", "exchanges"])
def test_objects_are_transient_unless_durable(api: httpx.Client, kind: str) -> None:
    path = f"/api/{kind}/%2F/transient"
    assert api.put(path).status_code == 201
    assert api.put(path, json={}).status_code == 204
    assert api.get(path).json()["durable"] is False
    assert api.delete(path).status_code == 204
    assert api.put(path, json={"durable": True}).status_code == 201
    assert api.get(path).json()["durable"] is True
    assert api.delete(path).status_code == 204


def test_binding_is_created_shown_and_deleted(api: httpx.Client) -> None:
    api.put("/api/queues/%2F/bound", json={})
    between = "/api/bindings/%2F/e/amq.topic/q/bound"
    body = {"routing_key": "a.*", "arguments": {"x": "y"}}
    made = api.post(between, json=body)
    assert made.status_code == 201
    key = made.headers["location"].rpartition("/")[2]
    [binding] = api.get(between).json()
    assert quote(binding["properties_key"], "") == key
    assert (binding["routing_key"], binding["arguments"]) == ("a.*", {"x": "y"})
    assert api.get(f"{between}/{key}").json() == binding
    assert binding in api.get("/api/bindings/%2F").json()
    assert binding in api.get("/api/exchanges/%2F/amq.topic/bindings/source").json()
    default, second = api.get("/api/queues/%2F/bound/bindings").json()
    assert (default["source"], default["routing_key"], second) == ("", "bound", binding)
    assert api.delete(f"{between}/{key}").status_code == 204
    assert api.get(f"{between}/{key}").status_code == 404
    assert api.get(between).json() == []


def test_exchanges_are_bound_to_exchanges(api: httpx.Client) -> None:
    between = "/api/bindings/%2F/e/amq.topic/e/amq.fanout"
    assert api.post(between, json={"routing_key": "#"}).status_code == 201
    [binding] = api.get("/api/exchanges/%2F/amq.fanout/bindings/destination").json()
    assert (binding["source"], binding["destination_type"]) == ("amq.topic", "exchange")
    assert api.delete(f"{between}/{binding['properties_key']}").status_code in (204, 404)


def test_binding_a_missing_object_is_404(api: httpx.Client) -> None:
    for between in ("amq.topic/q/none", "none/q/bound", "none/e/amq.topic", "amq.topic/e/none"):
        assert api.get(f"/api/bindings/%2F/e/{between}").json() == []
    assert api.get("/api/bindings/none/e/amq.topic/q/bound").status_code == 404
    assert api.post("/api/bindings/%2F/e/amq.topic/q/none", json={}).status_code == 404
    assert api.post("/api/bindings/%2F/e/none/q/bound", json={}).status_code == 404
    assert api.post("/api/bindings/%2F/e/amq.topic/x/bound", json={}).status_code == 400


@pytest.fixture
def client(broker: Served) -> Iterator[BlockingConnection]:
    parameters = pika.URLParameters(broker.amqp_url)
    parameters.client_properties = {"connection_name": "tester"}
    connection = pika.BlockingConnection(parameters)
    yield connection
    if connection.is_open:
        connection.close()


def test_connections_channels_and_consumers(client: BlockingConnection, api: httpx.Client) -> None:
    channel = client.channel()
    channel.queue_declare("watched", exclusive=True)
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume("watched", lambda *_: None, consumer_tag="eye")
    [row] = [c for c in api.get("/api/connections").json() if c["user_provided_name"] == "tester"]
    path = f"/api/connections/{quote(row['name'], '')}"
    assert api.get(path).json()["user"] == "guest"
    [shown] = api.get(f"{path}/channels").json()
    assert (shown["number"], shown["consumer_count"]) == (1, 1)
    details = api.get(f"/api/channels/{quote(shown['name'], '')}").json()["consumer_details"]
    assert [one["consumer_tag"] for one in details] == ["eye"]
    [consumer] = api.get("/api/consumers/%2F").json()
    assert consumer["queue"] == {"name": "watched", "vhost": "/"}
    assert consumer["prefetch_count"] == 7
    queue = api.get("/api/queues/%2F/watched").json()
    assert [one["consumer_tag"] for one in queue["consumer_details"]] == ["eye"]
    assert len(api.get("/api/vhosts/%2F/channels").json()) == 1
    assert api.get("/api/overview").json()["object_totals"]["consumers"] == 1


def test_closed_connection_gets_the_reason(client: BlockingConnection, api: httpx.Client) -> None:
    [row] = [c for c in api.get("/api/connections").json() if c["user_provided_name"] == "tester"]
    path = f"/api/connections/{quote(row['name'], '')}"
    assert api.delete(path, headers={"X-Reason": "time for tea"}).status_code == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="time for tea"):
        client.process_data_events(time_limit=10)
    wait_until(lambda: api.get(path).status_code == 404)


def test_connections_of_other_users_are_hidden(
    broker: Served, client: BlockingConnection, api: httpx.Client
) -> None:
    body = {"password": "curious", "tags": "management"}
    api.put("/api/users/curious", json=body)
    [row] = [c for c in api.get("/api/connections").json() if c["user_provided_name"] == "tester"]
    path = f"/api/connections/{quote(row['name'], '')}"
    with broker.client("curious") as curious:
        assert curious.get("/api/connections").json() == []
        assert curious.get(path).status_code == 403
        assert curious.delete(path).status_code == 403
    assert client.is_open
