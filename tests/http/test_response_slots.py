"""Large responses take slots: however many a user requests, memory holds a few of them."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from leveret.broker import Broker
from leveret.broker.access.users import hash_password
from leveret.http_admin.errors import ApiError
from leveret.http_admin.middleware import concurrency
from leveret.http_admin.middleware.concurrency import (
    RELEASE_SLOT,
    SLOTS_PER_USER,
    SlotsByUser,
    WeightedSemaphore,
    take_response_slot,
)
from leveret.model.definitions import PermissionDefinition
from tests.http.conftest import Served
from tests.support.polling import wait_until

LARGE = 12 * 1024 * 1024
"""More than the buffers of a socket hold."""
PUBLISH = "/api/exchanges/%2F/amq.default/publish"


class Requests:
    """Requests that take slots; `release` ends the oldest one of a user."""

    def __init__(self) -> None:
        self.slots = SlotsByUser()
        self._with_slot: dict[str, list[Any]] = {}

    async def take(self, user: str) -> None:
        app = SimpleNamespace(state=SimpleNamespace(response_slots=self.slots))
        request: Any = SimpleNamespace(app=app, state=SimpleNamespace())
        owner: Any = SimpleNamespace(name=user)
        await take_response_slot(request, owner)
        self._with_slot.setdefault(user, []).append(request.state)

    def release(self, user: str) -> None:
        getattr(self._with_slot[user].pop(0), RELEASE_SLOT)()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    monkeypatch.setattr(concurrency, "require_unchanged", lambda request, user: None)
    return Requests()


async def _started(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    return task


async def test_request_without_a_free_slot_waits(requests: Requests) -> None:
    for _ in range(SLOTS_PER_USER):
        await requests.take("one")
    first, second = await _started(requests.take("one")), await _started(requests.take("one"))
    await requests.take("other")
    assert not first.done() and not second.done()
    requests.release("one")
    await first
    assert not second.done()
    requests.release("one")
    await second


async def test_cancelled_waiter_is_skipped(requests: Requests) -> None:
    for _ in range(SLOTS_PER_USER):
        await requests.take("one")
    cancelled, waiting = await _started(requests.take("one")), await _started(requests.take("one"))
    cancelled.cancel()
    await asyncio.sleep(0)
    requests.release("one")
    await waiting
    last = await _started(requests.take("one"))
    requests.release("one")
    last.cancel()  # after its slot was granted, before it could run
    await asyncio.sleep(0)
    for _ in range(SLOTS_PER_USER - 1):
        requests.release("one")
    del cancelled, last
    assert len(requests.slots) == 0


async def test_request_is_refused_if_many_wait(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrency, "MAX_WAITING_PER_USER", 1)
    for _ in range(SLOTS_PER_USER):
        await requests.take("one")
    waiting = await _started(requests.take("one"))
    with pytest.raises(ApiError, match="at a time"):
        await requests.take("one")
    requests.release("one")
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
    """Send a request and read nothing of the response."""
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


def _until(broker: Served, is_so: Callable[[SlotsByUser], bool]) -> None:
    wait_until(lambda: broker.on_loop(lambda _: is_so(broker.app.state.response_slots)))


def _usage(in_use: int, waiting: int) -> Callable[[SlotsByUser], bool]:
    def is_so(slots: SlotsByUser) -> bool:
        own = slots.get("guest", WeightedSemaphore(SLOTS_PER_USER))
        return (own.in_use, own.waiting) == (in_use, waiting)

    return is_so


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/queues/%2F/large/browse", b""),
        ("/api/queues/%2F/large/get", b'{"ackmode": "ack_requeue_true"}'),
        ("/api/queues/%2F/large/get", b'{"ackmode": "ack_requeue_true", "wait": 20}'),
    ],
)
def test_response_keeps_its_slot_until_it_is_read(
    broker: Served, sockets: ExitStack, path: str, body: bytes
) -> None:
    """A hundred clients of one user that did not read 64 MiB each once took 8 GB."""
    unread = []
    for number in range(1, SLOTS_PER_USER + 1):
        unread.append(_ask(broker, sockets, path, body))
        _until(broker, _usage(number, 0))
    late = _ask(broker, sockets, "/api/exchanges")
    _until(broker, _usage(SLOTS_PER_USER, 1))
    with broker.client("other") as other:
        assert other.get("/api/exchanges").status_code == 200
    unread.pop().close()
    assert late.recv(12) == b"HTTP/1.1 200"
    _until(broker, _usage(SLOTS_PER_USER - 1, 0))
    size = 0
    while size < LARGE:
        size += len(unread[0].recv(1 << 20))
    _until(broker, _usage(SLOTS_PER_USER - 2, 0))
    for connection in unread:
        connection.close()
    _until(broker, _usage(0, 0))


def test_views_of_a_stream_release_their_slots(broker: Served, api: httpx.Client) -> None:
    with api.stream("GET", "/api/stream", params={"view": "/api/exchanges"}) as answer:
        assert next(answer.iter_lines()) == "event: view"
        _until(broker, _usage(0, 0))
