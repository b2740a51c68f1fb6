"""The schedule of a delayed exchange over HTTP."""

import time


def declare(client, name, **arguments):
    body = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "direct", **arguments}}
    assert client.put(f"/api/exchanges/%2F/{name}", json=body).status_code == 201
    assert client.put(f"/api/queues/%2F/{name}-q", json={}).status_code == 201
    bind = client.post(f"/api/bindings/%2F/e/{name}/q/{name}-q", json={"routing_key": "k"})
    assert bind.status_code == 201


def publish(client, name, payload, delay):
    properties = {"delivery_mode": 2, "headers": {"x-delay": delay}}
    body = {"routing_key": "k", "payload": payload, "properties": properties}
    body["payload_encoding"] = "string"
    assert client.post(f"/api/exchanges/%2F/{name}/publish", json=body).json() == {"routed": True}


def test_list_and_cancel(broker):
    with broker.client() as client:
        declare(client, "later")
        assert client.get("/api/exchanges/%2F/later/scheduled").json() == []
        before = time.time() * 1000
        publish(client, "later", "second", 120_000)
        publish(client, "later", "first", 60_000)
        rows = client.get("/api/exchanges/%2F/later/scheduled").json()
        assert [row["payload"] for row in rows] == ["first", "second"]
        assert before + 59_000 < rows[0]["due_ms"] < before + 90_000
        assert rows[0]["properties"]["headers"] == {"x-delay": 60_000}
        assert client.get("/api/exchanges/%2F/later").json()["messages_delayed"] == 2
        where = f"/api/exchanges/%2F/later/scheduled/{rows[0]['id']}"
        assert client.delete(where).status_code == 204
        assert client.delete(where).status_code == 404
        page = client.get("/api/exchanges/%2F/later/scheduled?offset=0&count=1").json()
        assert [row["payload"] for row in page] == ["second"]


def test_other_exchange_types_have_no_schedule(broker):
    with broker.client() as client:
        answer = client.get("/api/exchanges/%2F/amq.topic/scheduled")
        assert answer.status_code == 400
        assert "not x-delayed-message" in answer.json()["reason"]
        assert client.get("/api/exchanges/%2F/none/scheduled").status_code == 404


def test_overview_lists_the_exchange_types(broker):
    with broker.client() as client:
        names = {row["name"] for row in client.get("/api/overview").json()["exchange_types"]}
    assert {"x-delayed-message", "x-consistent-hash", "x-message-deduplication"} <= names
