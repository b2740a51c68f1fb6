"""Attacks over HTTP by users with few permissions. Each of them once succeeded."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pika
import pytest

from leveret.broker import Broker
from leveret.broker.access.users import hash_password
from leveret.http_admin.middleware.raw_path import normalized
from leveret.http_admin.middleware.security import is_change
from leveret.http_admin.routes.live import MAX_STREAMS
from leveret.model.definitions import PermissionDefinition
from tests.http.conftest import Served
from tests.http.route_permissions import RULES

VHOST = "v"
MINE = "^(a$|mine)"


@pytest.fixture(scope="module", autouse=True)
def _users(broker: Served) -> None:
    broker.on_loop(_prepare)


def _prepare(hub: Broker) -> None:
    hub.add_vhost(VHOST)
    hub.users.set_permission(PermissionDefinition("guest", VHOST, ".*", ".*", ".*"))
    for name in ("management", "policymaker"):
        hub.users.put_user(name, hash_password(name), (name,))
        hub.users.set_permission(PermissionDefinition(name, VHOST, MINE, MINE, MINE))


@pytest.fixture
def little(broker: Served) -> Iterator[httpx.Client]:
    with broker.client("management") as client:
        yield client


# Streams -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        "/api/stream?view=/api/whoami",
        "/api//stream?view=/api/whoami",
        "/api/stream/?view=/api/whoami",
        "/api/stream//",
        "/api/stream#?",
        "/api/str\team?view=/api/whoami",
        "/api/history//export?table=events",
        "/api/history/export/",
        "/metrics",
        "//evil.example/api/whoami",
    ],
)
def test_endless_views_are_refused(api: httpx.Client, view: str) -> None:
    """A stream inside a stream once polled for its end and blocked the loop."""
    assert api.get("/api/stream", params={"view": view}).status_code == 400


@pytest.mark.parametrize(
    "view", ["/api/streamé?view=/api/whoami", "/api/str%65am", "/api/%2Fstream"]
)
def test_views_are_escaped_like_client_requests(api: httpx.Client, view: str) -> None:
    with api.stream("GET", "/api/stream", params={"view": view}) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        assert next(lines) == "event: view" and '"status":404' in next(lines)


def test_endless_inner_response_does_not_block_other_requests(
    api: httpx.Client, broker: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a view were endless, only its own stream would wait for it."""
    monkeypatch.setattr("leveret.http_admin.routes.live._ENDLESS", ())
    with api.stream("GET", "/api/stream", params={"view": "/api/stream?view=/api/whoami"}) as open_:
        assert open_.status_code == 200
        with broker.client() as other:
            assert other.get("/api/whoami").status_code == 200


def test_concurrent_streams_are_counted(broker: Served) -> None:
    streams = broker.app.state.context.streams
    with broker.client() as api:
        streams["guest"] += MAX_STREAMS
        try:
            answer = api.get("/api/stream", params={"view": "/api/whoami"})
        finally:
            streams["guest"] -= MAX_STREAMS
    assert answer.status_code == 429


# The audit log -----------------------------------------------------------------------------------

_CARRIES_MESSAGES = ("publish", "get", "fetch", "commit", "login", "logout")


@pytest.mark.parametrize("line", RULES)
def test_changes_are_audited_and_messages_are_not(line: str) -> None:
    method, path = line.split(" ", 1)
    carries = path.rpartition("/")[2] in _CARRIES_MESSAGES or path.startswith("/api/route/")
    assert is_change(method, path) is (method != "GET" and not carries)


@pytest.mark.parametrize("name", ["get", "publish", "commit", "x%2Fget", "route", "login"])
def test_no_name_hides_a_change_from_the_audit_log(api: httpx.Client, name: str) -> None:
    for method, path in (
        ("PUT", f"/api/users/{name}"),
        ("PUT", f"/api/queues/v/{name}"),
        ("POST", f"/api/bindings/v/e/amq.topic/q/{name}"),
        ("DELETE", f"/api/queues/v/{name}/"),
        ("DELETE", f"/api//users/{name}"),
    ):
        body: Any = {"tags": "administrator", "password_hash": ""} if "users" in path else {}
        content = None if method == "DELETE" else body
        assert api.request(method, path, json=content).status_code < 300
        (entry,) = api.get("/api/audit", params={"count": 1}).json()
        assert entry["action"] == f"{method} {normalized(path)}"


# Rights by another way ---------------------------------------------------------------------------


def test_super_stream_needs_permission_on_its_streams(
    api: httpx.Client, little: httpx.Client
) -> None:
    """A user with permissions on the exchange alone could once bind streams of other users."""
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    assert api.put("/api/queues/v/a-secret", json=stream).status_code == 201
    path = "/api/stream/super-streams/v/a"
    assert little.put(path, json={"binding-keys": "secret"}).status_code == 403
    assert little.put(path, json={"binding-keys": "new"}).status_code == 403
    assert api.get("/api/exchanges/v/a").status_code == 404
    mine = "/api/stream/super-streams/v/mine"
    assert little.put(mine, json={"binding-keys": "x,y"}).status_code == 201
    assert len(api.get("/api/exchanges/v/mine/bindings/source").json()) == 2


def test_super_stream_cannot_have_another_type(little: httpx.Client) -> None:
    dying = {"x-queue-type": "classic", "x-dead-letter-exchange": "amq.fanout"}
    path = "/api/stream/super-streams/v/mine-too"
    answer = little.put(path, json={"partitions": 1, "arguments": dying})
    assert answer.status_code == 400


def test_policymaker_cannot_lift_vhost_limits(api: httpx.Client, broker: Served) -> None:
    path, value = "/api/parameters/vhost-limits/v/limits", {"value": {"max-queues": 100}}
    assert api.put(path, json=value).status_code == 201
    with broker.client("policymaker") as maker:
        assert maker.put(path, json={"value": {"max-queues": 10_000}}).status_code == 403
        assert maker.put(path + "2", json=value).status_code == 403
        assert maker.delete(path).status_code == 403
        assert maker.get(path).json()["value"] == {"max-queues": 100}
    assert api.delete(path).status_code == 204


def test_exclusive_queue_of_a_connection_cannot_be_bound(api: httpx.Client, broker: Served) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.queue_declare("held", exclusive=True)
    channel.queue_bind("held", "amq.topic", "k")
    path = "/api/bindings/%2F/e/amq.topic/q/held"
    assert "exclusive" in api.post(path, json={"routing_key": "#"}).json()["reason"]
    assert "exclusive" in api.delete(f"{path}/k").json()["reason"]
    connection.close()


def test_exclusive_queue_of_a_connection_cannot_be_read_or_purged(
    api: httpx.Client, broker: Served
) -> None:
    path = "/api/queues/%2F/held"
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("held", exclusive=True)
        channel.basic_publish("", "held", b"secret")
        for method, part in (
            ("GET", "/browse"), ("POST", "/get"), ("DELETE", "/contents"), ("DELETE", "")
        ):  # fmt: skip
            answer = api.request(method, path + part, json={} if method == "POST" else None)
            assert answer.status_code == 400, part
            assert "exclusive" in answer.json()["reason"]
        assert channel.basic_get("held", auto_ack=True)[2] == b"secret"
    assert api.get(f"{path}-none/browse").status_code == 404


# Odd values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        ("name,name.x", {"name": "wide"}),
        ("name.x,name", {"name": "wide"}),
        ("arguments.b.c,arguments,arguments.b", {"arguments": {"x-max-length": 5}}),
        (
            "arguments.x-max-length,arguments.a.b",
            {"arguments": {"x-max-length": 5, "a": {"b": None}}},
        ),
    ],
)
def test_column_inside_another_column(api: httpx.Client, columns: str, row: Any) -> None:
    made = {"arguments": {"x-max-length": 5}}
    assert api.put("/api/queues/v/wide", json=made).status_code in (201, 204)
    found = api.get("/api/queues/v", params={"columns": columns, "name": "wide"}).json()
    assert found == [row]
    assert api.get("/api/queues/v/wide").json()["arguments"] == {"x-max-length": 5}


@pytest.mark.parametrize("columns", ["a." * 2000 + "b", ",".join(f"c{n}" for n in range(201))])
def test_too_many_columns_are_refused(api: httpx.Client, columns: str) -> None:
    answer = api.get("/api/queues", params={"columns": columns})
    assert answer.status_code == 400 and "at most 200 columns" in answer.json()["reason"]


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("depth", [64, 65, 500, 960, 975])
def test_too_deep_parameters_are_refused(
    api: httpx.Client, opening: str, closing: str, depth: int
) -> None:
    inner = "1" if closing == "}" else ""
    value = opening * depth + inner + closing * depth
    for path in ("/api/parameters/deep/v/p", "/api/global-parameters/deep"):
        status = api.put(path, content=f'{{"value": {value}}}').status_code
        assert status in ((201, 204) if depth < 64 + (not inner) else (400,)), path
    row = f'{{"vhost": "v", "component": "deep", "name": "p", "value": {value}}}'
    imported = api.post("/api/definitions", content=f'{{"parameters": [{row}]}}').status_code
    assert imported == (204 if depth < 64 + (not inner) else 400)
    for path in ("parameters", "global-parameters", "definitions"):
        assert api.get(f"/api/{path}").status_code == 200


def test_messages_of_one_response_are_bounded_in_bytes(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request could ask for ten thousand messages of 16 MiB."""
    monkeypatch.setattr("leveret.broker.messages.MAX_BODY_BYTES", 10)
    assert api.put("/api/queues/v/large", json={}).status_code == 201
    message: Any = {"routing_key": "large", "payload": "x" * 6, "properties": {}}
    for _ in range(5):
        assert api.post("/api/exchanges/v/amq.default/publish", json=message).json()["routed"]
    assert len(api.get("/api/queues/v/large/browse").json()) == 2
    got = api.post("/api/queues/v/large/get", json={"count": 5, "ackmode": "ack_requeue_false"})
    assert [one["message_count"] for one in got.json()] == [4, 3]
    left = api.get("/api/queues/v/large/browse", params={"offset": 1}).json()
    assert [one["position"] for one in left] == [2, 3]


# Heads that two servers could read in two ways ---------------------------------------------------

_HEAD = b"Host: localhost\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
_POST = b"POST /api/route/%2F HTTP/1.1\r\n" + _HEAD
_GET = b"GET /api/whoami HTTP/1.1\r\n" + _HEAD
_NO_BODY = b"Content-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (_POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + _GET, 400),
        (_POST + b"Content-Length: 2\r\nContent-Length: 5\r\n\r\n{}" + _GET, 400),
        (_POST + b"Content-Length: +2\r\n\r\n{}", 400),
        (_POST + b"Transfer-Encoding: chunked, x\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n", 400),
        (_GET + b"X : y\r\n\r\n", 400),
        (_GET + b"X: a\r\n b\r\n\r\n", 400),
        (_GET + b"X: a\x00b\r\n\r\n", 400),
        (_GET.replace(b"\r\n", b"\n") + b"\n", 400),
        (_GET + b"Host: evil.example\r\n\r\n", 400),
        (_GET.replace(b"localhost", b"localhost@evil.example") + b"\r\n", 400),
        (b"FOO /api/queues/%2F/x HTTP/1.1\r\n" + _HEAD + b"\r\n", 400),
        (_POST.replace(b"route/%2F", b"queues/%2F/x") + b"X-HTTP-Method: PUT\r\n" + _NO_BODY, 405),
        (_POST + b"Origin: http://[\r\n" + _NO_BODY, 403),
        (_POST + b"Origin: http://localhost:1\r\n" + _NO_BODY, 403),
        (b"GET /api/%71ueues HTTP/1.1\r\n" + _HEAD + b"\r\n", 404),
        (b"GET /api/queues/../users HTTP/1.1\r\n" + _HEAD + b"\r\n", 404),
        (_GET + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n", 200),
    ],
)  # fmt: skip
def test_heads_that_mean_two_things_are_refused(
    broker: Served, request_: bytes, status: int
) -> None:
    """An ambiguous request closes the connection: bytes behind it are no request."""
    address = httpx.URL(broker.url)
    with socket.create_connection((address.host, address.port or 0), timeout=60) as connection:
        connection.sendall(request_)
        answer = connection.makefile("rb")
        head = b"".join(iter(answer.readline, b"\r\n"))
        assert head.startswith(b"HTTP/1.1 %d " % status), head
        if b"connection: close" in head:
            assert b"HTTP/1.1 " not in answer.read()
