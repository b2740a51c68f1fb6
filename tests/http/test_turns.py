"""Long answers take turns: however many are asked for, memory holds a few of them."""

from __future__ import annotations

import asyncio
import base64
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from http_admin import turns
from http_admin.errors import ApiError
from http_admin.turns import AT_A_TIME, Turns
from leveret.broker import Broker
from leveret.broker.users import hash_password
from leveret.model.store import PermissionDefinition
from tests.http.conftest import Served

LARGE = 12 * 1024 * 1024
"""More than the buffers of a socket hold."""
PUBLISH = "/api/exchanges/%2F/amq.default/publish"


async def _started(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    return task


async def test_who_finds_no_place_waits_for_one() -> None:
    line = Turns()
    for _ in range(AT_A_TIME):
        await line.take("one")
    first, second = await _started(line.take("one")), await _started(line.take("one"))
    await line.take("other")
    assert not first.done() and not second.done()
    line.give("one")
    await first
    assert not second.done()
    line.give("one")
    await second


async def test_a_place_goes_past_who_no_longer_waits() -> None:
    line = Turns()
    for _ in range(AT_A_TIME):
        await line.take("one")
    gone, waiting = await _started(line.take("one")), await _started(line.take("one"))
    gone.cancel()
    await asyncio.sleep(0)
    line.give("one")
    await waiting
    last = await _started(line.take("one"))
    line.give("one")
    last.cancel()  # in the moment in which it has got its place
    await asyncio.sleep(0)
    for _ in range(AT_A_TIME - 1):
        line.give("one")
    assert repr(line) == "<Turns of 0 users>"


async def test_who_finds_many_waiting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MOST_WAITING", 1)
    line = Turns()
    for _ in range(AT_A_TIME):
        await line.take("one")
    waiting = await _started(line.take("one"))
    with pytest.raises(ApiError, match="at a time"):
        await line.take("one")
    line.give("one")
    await waiting


# Over a socket -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _large(broker: Served) -> None:
    def prepare(hub: Broker) -> None:
        hub.users.put_user("other", hash_password("other"), ("administrator",))
        hub.users.set_permission(PermissionDefinition("other", "/", ".*", ".*", ".*"))

    broker.on_loop(prepare)
    with broker.client() as api:
        assert api.put("/api/queues/%2F/large", json={}).status_code == 201
        message = {"routing_key": "large", "payload": "x" * LARGE, "properties": {}}
        assert api.post(PUBLISH, json=message).json() == {"routed": True}


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def _ask(broker: Served, sockets: ExitStack, path: str, body: bytes = b"") -> socket.socket:
    """Send a request and read nothing of its answer."""
    url = httpx.URL(broker.url)
    asking = sockets.enter_context(socket.socket())
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asking.settimeout(60)
    asking.connect((url.host, url.port))
    known = base64.b64encode(b"guest:guest").decode()
    head = f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Authorization: Basic {known}\r\nContent-Length: {len(body)}\r\n\r\n"
    asking.sendall(head.encode() + body)
    return asking


def _until(broker: Served, is_so: Callable[[Turns], bool]) -> None:
    deadline = time.monotonic() + 60
    while not broker.on_loop(lambda _: is_so(broker.app.state.turns)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _line(taken: int, waiting: int) -> Callable[[Turns], bool]:
    def is_so(found: Turns) -> bool:
        line = found._lines.get("guest", turns._Line())
        return (line.taken, len(line.waiting)) == (taken, waiting)

    return is_so


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/queues/%2F/large/browse", b""),
        ("/api/queues/%2F/large/get", b'{"ackmode": "ack_requeue_true"}'),
        ("/api/queues/%2F/large/get", b'{"ackmode": "ack_requeue_true", "wait": 20}'),
    ],
)
def test_an_answer_keeps_its_place_until_it_is_read(
    broker: Served, sockets: ExitStack, path: str, body: bytes
) -> None:
    """A hundred clients that did not read 64 MiB each took 8 GB, of one user with few rights."""
    unread = []
    for number in range(1, AT_A_TIME + 1):
        unread.append(_ask(broker, sockets, path, body))
        _until(broker, _line(number, 0))
    late = _ask(broker, sockets, "/api/exchanges")
    _until(broker, _line(AT_A_TIME, 1))
    with broker.client("other") as other:
        assert other.get("/api/exchanges").status_code == 200
    unread.pop().close()
    assert late.recv(12) == b"HTTP/1.1 200"
    _until(broker, _line(AT_A_TIME - 1, 0))
    size = 0
    while size < LARGE:
        size += len(unread[0].recv(1 << 20))
    _until(broker, _line(AT_A_TIME - 2, 0))
    for one in unread:
        one.close()
    _until(broker, _line(0, 0))


def test_views_inside_a_stream_leave_no_place_taken(broker: Served, api: httpx.Client) -> None:
    with api.stream("GET", "/api/stream", params={"view": "/api/exchanges"}) as answer:
        assert next(answer.iter_lines()) == "event: view"
        _until(broker, _line(0, 0))
