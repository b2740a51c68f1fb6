"""A request that waits is refused if its user loses the password, a tag or the account."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from leveret.broker import Broker
from leveret.broker.access.users import hash_password
from leveret.http_admin.middleware.concurrency import SLOTS_PER_USER, WeightedSemaphore
from leveret.model.definitions import PermissionDefinition
from leveret.queues.spec import QueueSpec
from tests.http.conftest import Served
from tests.support.polling import wait_until

MALLORY = "mallory"
Change = Callable[[Broker], object]


def _deleted(hub: Broker) -> None:
    hub.delete_user(MALLORY)


def _delete_if_present(hub: Broker) -> None:
    if MALLORY in hub.users.by_name:
        _deleted(hub)


def _without_tag(hub: Broker) -> None:
    user = hub.users.by_name[MALLORY]
    hub.users.put_user(MALLORY, user.password_hash, ("monitoring",), user.hashing)


def _another_password(hub: Broker) -> None:
    hub.users.put_user(MALLORY, hash_password("other"), ("administrator",))


def _made_anew(hub: Broker) -> None:
    _deleted(hub)
    hub.users.put_user(MALLORY, hash_password(MALLORY), ("administrator",))


CHANGES = [(_deleted, 401), (_without_tag, 403), (_another_password, 401), (_made_anew, 401)]
changed = pytest.mark.parametrize(("change", "status"), CHANGES)


@pytest.fixture(autouse=True)
def mallory(broker: Served) -> Iterator[None]:
    def make(hub: Broker) -> None:
        hub.users.put_user(MALLORY, hash_password(MALLORY), ("administrator",))

    broker.on_loop(make)
    yield
    broker.on_loop(_delete_if_present)


def _begin(broker: Served, request: str, body: bytes, *headers: str) -> socket.socket:
    """Send a request without the end of its body."""
    url = httpx.URL(broker.url)
    raw = socket.create_connection((url.host, url.port or 80), 60)
    head = [f"{request} HTTP/1.1", f"Host: {url.host}", f"Content-Length: {len(body)}", *headers]
    raw.sendall("\r\n".join([*head, "Connection: close", "", ""]).encode() + body[:1])
    return raw


def _end(raw: socket.socket, body: bytes) -> int:
    with raw:
        raw.sendall(body[1:])
        answer = b""
        while b"\r\n" not in answer:
            answer += raw.recv(65536)
    return int(answer.split()[1])


def _wait(broker: Served, condition: Callable[[Broker], object]) -> None:
    wait_until(lambda: broker.on_loop(condition))


def _is_authenticated(hub: Broker) -> bool:
    authenticator = hub.authenticator
    known = authenticator._cache.get(authenticator._digest(MALLORY, MALLORY))
    return known is not None and known[0] == hub.users.by_name[MALLORY].password_id


BACKDOOR = {"password_hash": "", "tags": "administrator"}
REQUESTS: list[tuple[str, Any]] = [
    ("PUT /api/users/backdoor", BACKDOOR),
    ("POST /api/definitions", {"users": [{"name": "backdoor", **BACKDOOR}]}),
]


@changed
@pytest.mark.parametrize(("request_line", "content"), REQUESTS)
def test_revoked_while_the_body_arrives(
    broker: Served, change: Change, status: int, request_line: str, content: Any
) -> None:
    body = json.dumps(content).encode()
    basic = base64.b64encode(f"{MALLORY}:{MALLORY}".encode()).decode()
    raw = _begin(broker, request_line, body, f"Authorization: Basic {basic}")
    _wait(broker, _is_authenticated)
    broker.on_loop(change)
    assert _end(raw, body) == status
    assert "backdoor" not in broker.hub.users.by_name


def test_signed_out_while_the_body_arrives(broker: Served) -> None:
    with broker.client(None) as web:
        signed_in = web.post("/api/login", json={"username": MALLORY, "password": MALLORY})
        csrf, cookie = signed_in.json()["csrf"], signed_in.headers["set-cookie"].split(";")[0]
        body = json.dumps(BACKDOOR).encode()
        headers = (f"Cookie: {cookie}", f"X-CSRF-Token: {csrf}")
        (session,) = broker.app.state.sessions._sessions.values()
        seen = session.seen
        raw = _begin(broker, "PUT /api/users/backdoor", body, *headers)
        _wait(broker, lambda hub: session.seen > seen)
        assert web.post("/api/logout", headers={"X-CSRF-Token": csrf}).status_code == 204
    assert _end(raw, body) == 401
    assert "backdoor" not in broker.hub.users.by_name


@changed
def test_revoked_while_a_password_is_hashed(broker: Served, change: Change, status: int) -> None:
    authenticator = broker.hub.authenticator
    hash_it = authenticator.hash_password

    async def hash_and_change(password: str, by: str) -> str:
        hashed = await hash_it(password, by)
        change(broker.hub)
        return hashed

    with pytest.MonkeyPatch.context() as patch, broker.client(MALLORY) as client:
        patch.setattr(authenticator, "hash_password", hash_and_change)
        wanted = {"password": "backdoor", "tags": "administrator"}
        answer = client.put("/api/users/backdoor", json=wanted)
    assert answer.status_code == status
    assert "backdoor" not in broker.hub.users.by_name


def _permit(hub: Broker) -> None:
    if MALLORY in hub.users.by_name:
        hub.users.set_permission(PermissionDefinition(MALLORY, "/", ".*", ".*", ".*"))


@changed
def test_revoked_while_waiting_for_a_message(broker: Served, change: Change, status: int) -> None:
    queue: Any = broker.on_loop(lambda hub: hub.vhosts["/"].declare_queue(QueueSpec("polled")))
    broker.on_loop(_permit)
    with broker.client(MALLORY) as client, ThreadPoolExecutor(1) as threads:
        body = {"count": 1, "wait": 20, "ackmode": "ack_requeue_false"}
        response = threads.submit(client.post, "/api/queues/%2F/polled/get", json=body)
        _wait(broker, lambda hub: queue._get_waiters)
        broker.on_loop(change)
        broker.on_loop(_permit)
        with broker.client() as admin:
            message = {"routing_key": "polled", "payload": "secret", "payload_encoding": "string"}
            admin.post("/api/exchanges/%2F/amq.default/publish", json={"properties": {}, **message})
        assert response.result(60).status_code == status
        assert "secret" not in response.result().text
    assert broker.on_loop(lambda hub: queue.ready_count) == 1
    broker.on_loop(lambda hub: hub.vhosts["/"].delete_queue("polled"))


@changed
@pytest.mark.parametrize("name", ["read", "fetch", "fetch_as"])
def test_revoked_while_waiting_for_a_record(
    broker: Served, change: Change, status: int, name: str
) -> None:
    log = "/api/logs/%2F/polled"
    with broker.client(MALLORY) as client, broker.client() as admin:
        assert admin.put(log, json={}).status_code == 201
        broker.on_loop(_permit)
        member = client.post(f"{log}/groups/joined/members", json={}).json()["member"]
        service: Any = type(broker.hub.logs)
        wait_for_records = getattr(service, name)

        async def change_and_wait(*arguments: Any) -> Any:
            change(broker.hub)
            _permit(broker.hub)
            return await wait_for_records(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(service, name, change_and_wait)
            if name == "read":
                response = client.get(f"{log}/records", params={"wait": 0.01})
            else:
                group = "joined/members/" + member if name == "fetch_as" else "alone"
                response = client.post(f"{log}/groups/{group}/fetch", json={"wait": 0.01})
        assert admin.delete(log).status_code == 204
    assert response.status_code == status


@pytest.mark.parametrize("path", ["queues", "exchanges", "bindings", "consumers"])
def test_vhost_forbidden_while_waiting_for_a_slot(broker: Served, path: str) -> None:
    def make(hub: Broker) -> None:
        hub.users.put_user(MALLORY, hash_password(MALLORY), ("management",))

    broker.on_loop(make)
    broker.on_loop(_permit)
    own = WeightedSemaphore(SLOTS_PER_USER)
    broker.on_loop(lambda hub: broker.app.state.response_slots.update({MALLORY: own}))
    for _ in range(SLOTS_PER_USER):
        broker.on_loop(lambda hub: own.acquire())
    with broker.client(MALLORY) as client, ThreadPoolExecutor(1) as threads:
        response = threads.submit(client.get, f"/api/{path}/%2F")
        _wait(broker, lambda hub: own.waiting)
        broker.on_loop(lambda hub: hub.users.clear_permission(MALLORY, "/"))
        for _ in range(SLOTS_PER_USER):
            broker.on_loop(lambda hub: own.release())
        assert response.result(60).status_code == 403


@changed
def test_revoked_while_waiting_for_a_slot(broker: Served, change: Change, status: int) -> None:
    slots = broker.app.state.response_slots
    own = [WeightedSemaphore(SLOTS_PER_USER)]
    broker.on_loop(lambda hub: slots.update({MALLORY: own[0]}))
    for _ in range(SLOTS_PER_USER):
        broker.on_loop(lambda hub: own[0].acquire())
    with broker.client(MALLORY) as client, ThreadPoolExecutor(1) as threads:
        response = threads.submit(client.get, "/api/definitions")
        _wait(broker, lambda hub: own[0].waiting)
        broker.on_loop(change)
        for _ in range(SLOTS_PER_USER):
            broker.on_loop(lambda hub: own[0].release())
        assert response.result(60).status_code == status
        assert "password_hash" not in response.result().text
    _wait(broker, lambda hub: not own[0].in_use)
    own.clear()
    _wait(broker, lambda hub: MALLORY not in slots)
