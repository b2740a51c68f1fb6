"""History: the trace of one message, its size, and its export as Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pika
import pytest

from leveret.broker.access.users import hash_password
from leveret.model.definitions import PermissionDefinition
from tests.http.conftest import Served

TRACED = ["published", "enqueued", "got", "requeued", "got", "acked"]


@pytest.fixture(scope="module", autouse=True)
def traffic(stored_broker: Served) -> None:
    def users(hub: Any) -> None:
        hub.add_vhost("elsewhere")
        for name, tags, vhost, read in (
            ("outsider", ("management",), "elsewhere", ".*"),
            ("blind", ("management",), "/", "^nothing$"),
            ("reader", ("management",), "/", "^q$"),
            ("watcher", ("monitoring",), "elsewhere", ".*"),
        ):
            hub.users.put_user(name, hash_password(name), tags)
            hub.users.set_permission(PermissionDefinition(name, vhost, "", "", read))

    stored_broker.on_loop(users)
    with pika.BlockingConnection(pika.URLParameters(stored_broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        for number, body in enumerate((b"hello", b"\xff\x00")):
            properties = pika.BasicProperties(message_id=f"m-{number}", delivery_mode=2)
            channel.basic_publish("", "q", body, properties)
        tag = channel.basic_get("q")[0].delivery_tag
        channel.basic_nack(tag)
        tag = channel.basic_get("q")[0].delivery_tag
        channel.basic_ack(tag)
        channel.basic_publish("", "q", b"again", pika.BasicProperties(message_id="m-1"))


@pytest.fixture
def api(stored_broker: Served) -> Iterator[httpx.Client]:
    with stored_broker.client() as client:
        yield client


def test_trace_by_message_id(api: httpx.Client) -> None:
    life = api.get("/api/trace?message_id=m-0").json()
    assert [event["event"] for event in life["events"]] == TRACED
    times = [event["time_ms"] for event in life["events"]]
    assert times == sorted(times)
    assert {event["user"] for event in life["events"]} == {"guest"}
    assert {event["queue"] for event in life["events"][1:]} == {"q"}
    message = life["message"]
    assert (message["payload"], message["payload_encoding"]) == ("hello", "string")
    assert (message["routing_key"], message["vhost"], message["exchange"]) == ("q", "/", "")
    assert message["properties"]["message_id"] == "m-0"
    assert api.get("/api/trace", params={"id": message["id"]}).json() == life


def test_messages_with_the_same_message_id_are_traced_together(api: httpx.Client) -> None:
    life = api.get("/api/trace?message_id=m-1").json()
    assert len({event["message"] for event in life["events"]}) == 2
    assert life["message"]["payload_encoding"] == "base64"


def test_bcc_keys_are_hidden(stored_broker: Served, api: httpx.Client) -> None:
    with pika.BlockingConnection(pika.URLParameters(stored_broker.amqp_url)) as connection:
        channel = connection.channel()
        arguments = {"x-delayed-type": "direct"}
        channel.exchange_declare("later", "x-delayed-message", durable=True, arguments=arguments)
        channel.confirm_delivery()
        headers = {"x-delay": 3_600_000, "BCC": ["blind-copy-key"]}
        properties = pika.BasicProperties(message_id="later", delivery_mode=2, headers=headers)
        channel.basic_publish("later", "k", b"", properties)
    life = api.get("/api/trace?message_id=later").json()
    assert [event["event"] for event in life["events"]] == ["published", "enqueued"]
    assert "blind-copy-key" not in str(life)
    due = life["events"][1]["detail"]
    assert due.isdecimal()
    pa = pytest.importorskip("pyarrow")
    answer = api.get("/api/history/export?table=events&columns=detail,event,queue")
    assert b"blind-copy-key" not in answer.content
    rows = pa.ipc.open_stream(answer.content).read_all().to_pylist()
    assert [row["event"] for row in rows if row["detail"] == due] == ["enqueued"]


@pytest.mark.parametrize("query", ["id=999999", "message_id=m-", "message_id=m-0&vhost=elsewhere"])
def test_missing_object_is_404(api: httpx.Client, query: str) -> None:
    assert api.get(f"/api/trace?{query}").status_code == 404


@pytest.mark.parametrize("query", ["", "id=1&message_id=x", "id=0", "id=x", "message_id="])
def test_invalid_trace_query_is_400(api: httpx.Client, query: str) -> None:
    assert api.get(f"/api/trace?{query}").status_code == 400


def test_trace_is_hidden_in_other_vhosts_and_its_body_without_read(
    stored_broker: Served,
) -> None:
    with stored_broker.client("outsider") as client:
        assert client.get("/api/trace?message_id=m-0").status_code == 404
    with stored_broker.client("blind") as client:
        assert "payload" not in client.get("/api/trace?message_id=m-0").json()["message"]
    with stored_broker.client("reader") as client:
        assert client.get("/api/trace?message_id=m-0").json()["message"]["payload"] == "hello"


def test_queues_without_history_are_not_traced(stored_broker: Served) -> None:
    """Their journal is hidden; events of the message in other queues are shown."""
    with stored_broker.client() as guest:
        policy = {"pattern": "^quiet", "definition": {"history": "off"}, "apply-to": "queues"}
        assert guest.put("/api/policies/%2F/quiet", json=policy).status_code == 201
        for name in ("quiet", "loud"):
            assert guest.put(f"/api/queues/%2F/{name}", json={"durable": True}).status_code == 201
            arguments = {"routing_key": "both"}
            answer = guest.post(f"/api/bindings/%2F/e/amq.direct/q/{name}", json=arguments)
            assert answer.status_code == 201
        for exchange, key in (("amq.direct", "both"), ("amq.default", "quiet")):
            properties = {"delivery_mode": 2, "message_id": f"h-{key}"}
            message = {"routing_key": key, "payload": "x", "properties": properties}
            publish = f"/api/exchanges/%2F/{exchange}/publish"
            assert guest.post(publish, json=message).status_code == 200
        taken = {"count": 9, "ackmode": "ack_requeue_false", "encoding": "auto"}
        assert len(guest.post("/api/queues/%2F/quiet/get", json=taken).json()) == 2

        def events() -> list[tuple[str, str | None]]:
            told = guest.get("/api/trace?message_id=h-both").json()["events"]
            return [(event["event"], event["queue"]) for event in told]

        assert events() == [("published", None), ("enqueued", "loud")]
        assert guest.get("/api/trace?message_id=h-quiet").status_code == 404
        assert guest.delete("/api/policies/%2F/quiet").status_code == 204
        assert ("acked", "quiet") in events()


def test_size_and_range(api: httpx.Client) -> None:
    history = api.get("/api/history").json()
    assert history["mode"] == "full"
    assert history["messages"] >= 3
    assert history["events"] >= len(TRACED)
    assert 0 < history["size_bytes"] < history["limit_bytes"]
    assert history["first_time"] <= history["last_time"]


def test_broker_in_memory_keeps_no_history(broker: Served) -> None:
    with broker.client() as client:
        history = client.get("/api/history").json()
        assert (history["mode"], history["messages"]) == ("memory", 0)
        assert client.get("/api/trace?id=1").status_code == 404
        answer = client.get("/api/history/ranges")
        assert (answer.status_code, answer.json()["error"]) == (501, "not_implemented")


def test_export_as_arrow(api: httpx.Client) -> None:
    pa = pytest.importorskip("pyarrow")
    ranges = api.get("/api/history/ranges?table=events&count=1").json()
    answer = api.get("/api/history/export?table=events&columns=event,message")
    assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.column_names == ["event", "message"]
    assert table.num_rows == ranges["count"]["rows"]
    first = ranges["messages"][0]
    of_first = [row["event"] for row in table.to_pylist() if row["message"] == first]
    assert of_first == TRACED


@pytest.mark.parametrize(
    "query", ["table=none", "table=events&columns=none", "table=events&from_id=x"]
)
def test_export_with_invalid_parameters_is_400(api: httpx.Client, query: str) -> None:
    pytest.importorskip("pyarrow")
    answer = api.get(f"/api/history/export?{query}")
    assert answer.status_code == 400
    assert answer.json()["reason"]


@pytest.mark.parametrize("number", ["9" * 30, "9" * 5000, str(1 << 63)])
@pytest.mark.parametrize("name", ["to_id", "until", "since"])
def test_ids_beyond_the_database_range_are_400(api: httpx.Client, name: str, number: str) -> None:
    pytest.importorskip("pyarrow")
    for path in ("ranges?table=events&count=1", "export?table=events"):
        answer = api.get(f"/api/history/{path}&{name}={number}")
        assert answer.status_code == 400, (path, answer.text)
    assert api.get(f"/api/history/ranges?table=events&count=1&{name}={(1 << 63) - 1}").is_success


def test_export_has_only_vhosts_that_the_user_may_read(stored_broker: Served) -> None:
    pa = pytest.importorskip("pyarrow")
    with stored_broker.client("watcher") as client:
        answer = client.get("/api/history/export?table=messages")
        assert answer.status_code == 200
        assert pa.ipc.open_stream(answer.content).read_all().num_rows == 0


def test_export_of_deleted_queues_needs_read_on_them(stored_broker: Served) -> None:
    """Permissions on a deleted queue were once not checked."""
    pa = pytest.importorskip("pyarrow")

    def prepare(hub: Any) -> None:
        hub.add_vhost("shared")
        hub.users.put_user("half", hash_password("half"), ("monitoring",))
        for user, read in (("half", "^mine"), ("guest", ".*")):
            hub.users.set_permission(PermissionDefinition(user, "shared", ".*", ".*", read))

    stored_broker.on_loop(prepare)
    message = {"routing_key": "secret", "payload": "x", "properties": {"delivery_mode": 2}}
    with stored_broker.client() as guest, stored_broker.client("half") as half:

        def seen() -> int:
            answer = half.get("/api/history/export?table=messages&vhost=shared")
            assert answer.status_code == 200
            return int(pa.ipc.open_stream(answer.content).read_all().num_rows)

        publish = "/api/exchanges/shared/amq.default/publish"
        for name in ("mine", "secret"):
            assert (
                guest.put(f"/api/queues/shared/{name}", json={"durable": True}).status_code == 201
            )
        assert guest.post(publish, json=message).status_code == 200
        assert seen() == 0
        assert guest.delete("/api/queues/shared/secret").status_code == 204
        assert seen() == 0
        rights = {"configure": "", "write": "", "read": ".*"}
        assert guest.put("/api/permissions/shared/half", json=rights).status_code == 204
        assert seen() == 1


def _permit(stored_broker: Served, user: str, vhost: str, read: str) -> None:
    def permit(hub: Any) -> None:
        if vhost not in hub.vhosts:
            hub.add_vhost(vhost)
        hub.users.put_user(user, hash_password(user), ("monitoring",))
        for name, allowed in ((user, read), ("guest", ".*")):
            hub.users.set_permission(PermissionDefinition(name, vhost, ".*", ".*", allowed))

    stored_broker.on_loop(permit)


def _exported(client: httpx.Client, vhost: str) -> list[bytes]:
    pa = pytest.importorskip("pyarrow")
    answer = client.get("/api/history/export", params={"table": "messages", "vhost": vhost})
    assert answer.status_code == 200
    bodies: list[bytes] = pa.ipc.open_stream(answer.content).read_all()["body"].to_pylist()
    return bodies


def _publish(client: httpx.Client, vhost: str, exchange: str, body: str, **headers: int) -> None:
    properties = {"delivery_mode": 2, "headers": headers, "message_id": body}
    message = {"routing_key": "q", "payload": body, "properties": properties}
    path = f"/api/exchanges/{vhost}/{exchange}/publish"
    assert client.post(path, json=message).status_code == 200


def test_export_of_unrouted_messages_needs_read_on_exchanges(
    stored_broker: Served,
) -> None:
    _permit(stored_broker, "half", "bare", "^nothing$")
    late = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "direct"}}
    with stored_broker.client() as guest, stored_broker.client("half") as half:
        assert guest.put("/api/exchanges/bare/late", json=late).status_code == 201
        _publish(guest, "bare", "amq.direct", "unroutable")
        _publish(guest, "bare", "late", "delayed", **{"x-delay": 3_600_000})
        assert _exported(half, "bare") == []
        _permit(stored_broker, "half", "bare", ".*")
        assert sorted(_exported(half, "bare")) == [b"delayed", b"unroutable"]


def test_history_of_a_deleted_vhost_is_hidden_after_its_name_is_reused(
    stored_broker: Served,
) -> None:
    def again(hub: Any) -> None:
        hub.delete_vhost("tenant")
        hub.add_vhost("tenant")

    with stored_broker.client() as guest, stored_broker.client("next") as tenant:
        for body in ("before", "after"):
            _permit(stored_broker, "next", "tenant", ".*")
            queue = guest.put("/api/queues/tenant/q", json={"durable": True})
            assert queue.status_code == 201
            _publish(guest, "tenant", "amq.default", body)
            assert tenant.get(f"/api/trace?message_id={body}").json()["message"]["payload"] == body
            if body == "before":
                assert _exported(tenant, "tenant") == [b"before"]
                stored_broker.on_loop(again)
        assert tenant.get("/api/trace?message_id=before").status_code == 404
        assert guest.get("/api/trace?message_id=before").status_code == 200
        assert _exported(tenant, "tenant") == []  # as long as there is history of both
        assert sorted(_exported(guest, "tenant")) == [b"after", b"before"]


def test_policy_pattern_does_not_block_the_export(stored_broker: Served) -> None:
    """Policies are matched with RE2, like in the broker; `re` would not end."""
    pytest.importorskip("pyarrow")
    with stored_broker.client() as guest:
        policy = {"pattern": "^(a+)+$", "definition": {"history": "off"}, "apply-to": "queues"}
        assert guest.put("/api/policies/%2F/slow", json=policy).status_code == 201
        assert guest.put(f"/api/queues/%2F/{'a' * 60}!", json={"durable": True}).status_code == 201
        assert guest.get("/api/history/export?table=messages").status_code == 200
        assert guest.delete("/api/policies/%2F/slow").status_code == 204


def test_missing_pyarrow_is_reported(
    stored_broker: Served, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithoutArrow:
        async def ranges(self, *_: Any) -> Any:
            raise ModuleNotFoundError("No module named 'pyarrow'")

        export = ranges

    monkeypatch.setattr(stored_broker.app.state.context, "history", WithoutArrow())
    for path in ("ranges", "export?table=events"):
        answer = api.get(f"/api/history/{path}")
        assert answer.status_code == 501
        assert "pip install 'leveret[spark]'" in answer.json()["reason"]
