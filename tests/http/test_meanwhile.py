"""Who loses password, tag or account while a request of theirs waits does nothing more with it."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from http_admin.turns import AT_A_TIME
from leveret.broker import Broker
from leveret.broker.users import hash_password
from tests.http.conftest import Served

MALLORY = "mallory"
Change = Callable[[Broker], object]


def _deleted(hub: Broker) -> None:
    hub.delete_user(MALLORY)


def _gone(hub: Broker) -> None:
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
    broker.on_loop(_gone)


def _begin(broker: Served, request: str, body: bytes, *headers: str) -> socket.socket:
    """All of a request but the end of its body."""
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


def _wait(broker: Served, until: Callable[[Broker], object]) -> None:
    deadline = time.monotonic() + 60
    while not broker.on_loop(until):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_let_in(hub: Broker) -> bool:
    logins = hub.access.logins
    known = logins._cache.get(logins._digest(MALLORY, MALLORY))
    return known is not None and known[0] == hub.users.by_name[MALLORY].password_id


BACKDOOR = {"password_hash": "", "tags": "administrator"}
REQUESTS: list[tuple[str, Any]] = [
    ("PUT /api/users/backdoor", BACKDOOR),
    ("POST /api/definitions", {"users": [{"name": "backdoor", **BACKDOOR}]}),
]


@changed
@pytest.mark.parametrize(("request_line", "content"), REQUESTS)
def test_while_the_body_comes(
    broker: Served, change: Change, status: int, request_line: str, content: Any
) -> None:
    body = json.dumps(content).encode()
    basic = base64.b64encode(f"{MALLORY}:{MALLORY}".encode()).decode()
    raw = _begin(broker, request_line, body, f"Authorization: Basic {basic}")
    _wait(broker, _is_let_in)
    broker.on_loop(change)
    assert _end(raw, body) == status
    assert "backdoor" not in broker.hub.users.by_name


def test_signed_out_while_the_body_comes(broker: Served) -> None:
    with broker.client(None) as web:
        signed_in = web.post("/api/login", json={"username": MALLORY, "password": MALLORY})
        csrf, cookie = signed_in.json()["csrf"], signed_in.headers["set-cookie"].split(";")[0]
        body = json.dumps(BACKDOOR).encode()
        headers = (f"Cookie: {cookie}", f"X-CSRF-Token: {csrf}")
        (session,) = broker.app.state.doorkeeper._sessions.values()
        seen = session.seen
        raw = _begin(broker, "PUT /api/users/backdoor", body, *headers)
        _wait(broker, lambda hub: session.seen > seen)
        assert web.post("/api/logout", headers={"X-CSRF-Token": csrf}).status_code == 204
    assert _end(raw, body) == 401
    assert "backdoor" not in broker.hub.users.by_name


@changed
def test_while_a_password_is_hashed(broker: Served, change: Change, status: int) -> None:
    logins = broker.hub.access.logins
    hash_it = logins.hash

    async def and_meanwhile(password: str, by: str) -> str:
        hashed = await hash_it(password, by)
        change(broker.hub)
        return hashed

    with pytest.MonkeyPatch.context() as patch, broker.client(MALLORY) as client:
        patch.setattr(logins, "hash", and_meanwhile)
        wanted = {"password": "backdoor", "tags": "administrator"}
        answer = client.put("/api/users/backdoor", json=wanted)
    assert answer.status_code == status
    assert "backdoor" not in broker.hub.users.by_name


@changed
def test_while_waiting_for_a_turn(broker: Served, change: Change, status: int) -> None:
    turns = broker.app.state.turns
    for _ in range(AT_A_TIME):
        broker.on_loop(lambda hub: turns.take(MALLORY))
    with broker.client(MALLORY) as client, ThreadPoolExecutor(1) as others:
        answer = others.submit(client.get, "/api/definitions")
        _wait(broker, lambda hub: turns._lines[MALLORY].waiting)
        broker.on_loop(change)
        for _ in range(AT_A_TIME):
            broker.on_loop(lambda hub: turns.give(MALLORY))
        assert answer.result(60).status_code == status
        assert "password_hash" not in answer.result().text
    _wait(broker, lambda hub: MALLORY not in turns._lines)
