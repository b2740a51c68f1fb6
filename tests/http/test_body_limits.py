"""Tables in bodies have AMQP's limits, and values are counted before a body is parsed."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from pamqp import commands, frame

from leveret.broker.access.users import hash_password
from leveret.model.definitions import PermissionDefinition
from tests.http.conftest import Served

CPU_SECONDS = 0.15
"""Per body; it took at least 0.35 s when tables were encoded before they were counted."""
BOMBS = 8
DEEP: Any = None
for _ in range(40):
    DEEP = [DEEP]
TOO_MUCH: dict[str, tuple[Any, str]] = {
    "fields": ({f"k{n}": 1 for n in range(4097)}, "more than 4096 fields"),
    "array": ({"x": [{}] * 5_000}, "more than 4096 fields"),
    "levels": ({"x": DEEP}, "nested deeper than 32"),
    "values": ({"x": [{}] * 300_000}, "more than 32768 values"),
}
LONG = {"x": "x" * 400_000}


def _headers(table: Any) -> dict[str, Any]:
    return {"routing_key": "q", "payload": "", "properties": {"headers": table}}


def _record(table: Any) -> dict[str, Any]:
    return {"records": [{"value": "fine"}, {"value": "", "headers": table}]}


def _property(table: Any) -> dict[str, Any]:
    return {"records": [{"value": "", "properties": {"headers": table}}]}


def _arguments(table: Any) -> dict[str, Any]:
    return {"arguments": table}


def _routed(table: Any) -> dict[str, Any]:
    return {"exchange": "amq.headers", "headers": table}


PLACES: dict[str, tuple[str, str, Callable[[Any], dict[str, Any]]]] = {
    "publish": ("POST", "/api/exchanges/%2F/amq.default/publish", _headers),
    "record": ("POST", "/api/logs/%2F/l/publish", _record),
    "property": ("POST", "/api/logs/%2F/l/publish", _property),
    "queue": ("PUT", "/api/queues/%2F/refused", _arguments),
    "exchange": ("PUT", "/api/exchanges/%2F/refused", _arguments),
    "binding": ("POST", "/api/bindings/%2F/e/amq.headers/q/q", _arguments),
    "route": ("POST", "/api/route/%2F", _routed),
}


@pytest.fixture(scope="module", autouse=True)
def _made(broker: Served) -> None:
    with broker.client() as api:
        assert api.put("/api/queues/%2F/q", json={}).status_code == 201
        assert api.put("/api/logs/%2F/l", json={}).status_code == 201

    def add(hub: Any) -> None:
        hub.users.put_user("few", hash_password("few"), ("management",))
        hub.users.set_permission(PermissionDefinition("few", "/", "^mine", "^mine", "^mine"))

    broker.on_loop(add)


@pytest.fixture
def few(broker: Served) -> Iterator[httpx.Client]:
    with broker.client("few") as client:
        yield client


@pytest.mark.parametrize("what", TOO_MUCH)
@pytest.mark.parametrize("place", PLACES)
def test_table_beyond_the_amqp_limits_is_400(api: httpx.Client, place: str, what: str) -> None:
    method, path, wrap = PLACES[place]
    table, reason = TOO_MUCH[what]
    answer = api.request(method, path, json=wrap(table))
    assert answer.status_code == 400, answer.text
    assert reason in answer.json()["reason"]


@pytest.mark.parametrize("place", PLACES)
def test_table_longer_than_a_frame_is_400(api: httpx.Client, place: str) -> None:
    method, path, wrap = PLACES[place]
    answer = api.request(method, path, json=wrap(LONG))
    assert answer.status_code == 400, answer.text
    assert "longer than 131072" in answer.text or "larger than 131072" in answer.text


@pytest.mark.parametrize("place", PLACES)
def test_table_at_the_amqp_limits_is_accepted(api: httpx.Client, place: str) -> None:
    method, path, wrap = PLACES[place]
    path = path.replace("refused", "taken")
    for table in ({f"k{n}": 1 for n in range(4_095)}, {"x": "x" * 130_000}):
        answer = api.request(method, path, json=wrap(table))
        assert answer.status_code < 300, answer.text
        if path.endswith("taken"):
            api.delete(path)


def test_refused_records_append_nothing(api: httpx.Client) -> None:
    before = api.get("/api/logs/%2F/l").json()["messages"]
    assert api.post("/api/logs/%2F/l/publish", json=_record(LONG)).status_code == 400
    assert api.get("/api/logs/%2F/l").json()["messages"] == before


def test_record_above_the_maximum_message_size_is_400(
    api: httpx.Client, broker: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller = replace(broker.hub.settings, max_message_size=1_000_000)
    monkeypatch.setattr(broker.hub, "settings", smaller)
    value = "x" * 1_000_001
    answer = api.post("/api/logs/%2F/l/publish", json={"records": [{"value": value}]})
    assert answer.status_code == 400
    assert "larger than max size" in answer.json()["reason"]


@pytest.mark.parametrize("place", [place for place in PLACES if place not in ("binding", "route")])
def test_permissions_are_checked_before_the_body(few: httpx.Client, place: str) -> None:
    method, path, wrap = PLACES[place]
    for body in (wrap(TOO_MUCH["levels"][0]), {"records": 1, "arguments": 1}):
        assert few.request(method, path, json=body).status_code == 403


def test_commit_without_permission_is_403_whatever_its_body(
    few: httpx.Client, api: httpx.Client
) -> None:
    wrong = {"offsets": {f"a{n}": "b" for n in range(10_000)}}
    path = "/api/logs/%2F/l/groups/g/commit"
    assert few.post(path, json=wrong).status_code == 403
    answer = api.post(path, json=wrong)
    assert answer.status_code == 400
    assert "at most 1000 partitions" in answer.json()["reason"]


def test_at_most_twenty_mistakes_are_reported(api: httpx.Client) -> None:
    answer = api.put("/api/users/x", json={"password": "x", "tags": [0] * 1_000})
    assert answer.status_code == 400
    assert answer.json()["reason"].count("valid string") == 20


def test_body_with_many_values_costs_little_loop_time(broker: Served, few: httpx.Client) -> None:
    """Measured as processor time of the loop's thread, whatever else the machine does."""
    body = json.dumps({"arguments": {"x": [{}] * 340_000}}, separators=(",", ":")).encode()
    few.get("/api/whoami")
    began = broker.on_loop(lambda _: time.thread_time())
    for _ in range(BOMBS):
        assert few.put("/api/queues/%2F/mine", content=body).status_code == 400
    spent = broker.on_loop(lambda _: time.thread_time()) - began
    assert spent < BOMBS * CPU_SECONDS


def test_largest_headers_fit_into_a_frame(broker: Served, api: httpx.Client) -> None:
    api.delete("/api/queues/%2F/q/contents")
    fits = 131_072 - 8 - 12 - 2 - (4 + 1 + 1 + 1 + 4)  # frame, content header, flags, table
    path = "/api/exchanges/%2F/amq.default/publish"
    assert api.post(path, json=_headers({"x": "x" * (fits + 1)})).status_code == 400
    assert api.post(path, json=_headers({"x": "x" * fits})).json() == {"routed": True}
    assert max(_sizes_of_a_get(broker)) == 131_072


def _sizes_of_a_get(broker: Served) -> list[int]:
    """Sizes of the frames that respond to basic.get, with their headers and end bytes."""
    about: Any = {}
    said = [
        commands.Connection.StartOk(about, "PLAIN", "\0guest\0guest", "en_US"),
        commands.Connection.TuneOk(10, 131_072, 0),
        commands.Connection.Open("/"),
    ]
    where = urlsplit(broker.amqp_url)
    with socket.create_connection((where.hostname, where.port), timeout=60) as connection:
        connection.sendall(b"AMQP\x00\x00\x09\x01")
        connection.sendall(b"".join(frame.marshal(one, 0) for one in said))
        connection.sendall(frame.marshal(commands.Channel.Open(), 1))
        connection.sendall(frame.marshal(commands.Basic.Get(queue="q", no_ack=True), 1))
        with connection.makefile("rb") as stream:
            sizes: list[int] = []
            while True:
                kind, *_ = head = stream.read(7)
                size = int.from_bytes(head[3:], "big")
                stream.read(size + 1)
                sizes.append(size + 8)
                if kind == 2:
                    return sizes
