"""HTTP bodies are read after authentication, and within a memory budget."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import leveret
from leveret.broker.access.passwords import hash_password
from leveret.http_admin.middleware.concurrency import SMALL_BODY, BodyBudget
from leveret.http_admin.middleware.request_body import MAX_UNAUTHENTICATED_BODY, has_more_values
from leveret.model.definitions import PermissionDefinition

TIMEOUT = 30.0
MIB = 1024 * 1024
LONG = 20 * MIB
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def _running(**changes: object) -> AsyncIterator[leveret.Broker]:
    settings = leveret.in_process_settings(http_enabled=True, **changes)
    async with leveret.Broker(settings) as running:
        await running.http_ready()
        yield running


@pytest.fixture(scope="module")
def served() -> Iterator[leveret.Broker]:
    with leveret.ThreadedBroker(leveret.in_process_settings(http_enabled=True)) as threaded:
        assert threaded.running is not None
        yield threaded.running


async def _ask(
    running: leveret.Broker, path: str, *headers: str, begun: bytes = b"", user: str = ""
) -> Streams:
    """Send the beginning of a request."""
    assert running.http_address is not None
    reader, writer = await asyncio.open_connection(*running.http_address)
    lines = [f"POST {path} HTTP/1.1", "host: localhost", *headers]
    if user:
        token = base64.b64encode(f"{user}:{user}".encode()).decode()
        lines.append(f"authorization: Basic {token}")
    writer.write("\r\n".join([*lines, "", ""]).encode() + begun)
    return reader, writer


async def _drop(writer: asyncio.StreamWriter) -> None:
    """Disconnect without sending the rest."""
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def _status(reader: asyncio.StreamReader) -> int:
    line = await asyncio.wait_for(reader.readline(), TIMEOUT)
    return int(line.split()[1])


@pytest.mark.parametrize(
    ("path", "length", "status"),
    [
        ("/api/definitions", LONG, 401),
        ("/api/definitions", LONG + 1, 401),
        ("//api//definitions/", LONG, 413),
        ("/api/exchanges/%2F/amq.default/publish", LONG, 401),
        ("/api/nothing", LONG, 401),
        ("/api/login", MAX_UNAUTHENTICATED_BODY + 1, 413),
        ("/api/login/", LONG, 413),
        ("/elsewhere", LONG, 413),
    ],
)
async def test_unauthenticated_clients_are_refused_before_their_body_is_read(
    served: leveret.Broker, path: str, length: int, status: int
) -> None:
    reader, writer = await _ask(served, path, f"content-length: {length}", begun=b"{")
    assert await _status(reader) == status
    await _drop(writer)
    begun = b"%x\r\n" % (64 * 1024) + b" " * (64 * 1024) + b"\r\n"
    reader, writer = await _ask(served, path, "transfer-encoding: chunked", begun=begun)
    assert await _status(reader) == status
    await _drop(writer)


async def test_many_unauthenticated_large_bodies_are_refused(served: leveret.Broker) -> None:
    length = f"content-length: {LONG}"
    begun = b"x" * 256 * 1024
    asked = [await _ask(served, "/api/definitions", length, begun=begun) for _ in range(50)]
    assert {await _status(reader) for reader, _ in asked} == {401}
    for _, writer in asked:
        await _drop(writer)


async def test_wrong_password_is_refused_before_the_body_is_read(served: leveret.Broker) -> None:
    length = f"content-length: {LONG}"
    reader, writer = await _ask(served, "/api/definitions", length, user="nobody")
    assert await _status(reader) == 401
    await _drop(writer)


async def test_large_bodies_need_a_permission() -> None:
    async with _running() as running:
        users = running.broker.users
        users.put_user("few", hash_password("few"), ("management",))
        length = f"content-length: {2 * MIB}"
        for path in ("/api/definitions", "/api/exchanges/%2F/amq.default/publish"):
            reader, writer = await _ask(running, path, length, user="few")
            assert await _status(reader) == 413
            await _drop(writer)
        running.broker.add_vhost("other")
        users.set_permission(PermissionDefinition("few", "/", "", "^mine", ""))
        users.set_permission(PermissionDefinition("few", "other", "", "", ".*"))
        for path, status in (
            ("/api/exchanges/%2F/mine.x/publish", 400),  # taken, and found not to be JSON
            ("/api/logs/%2F/mine.l/publish", 400),
            ("/api/exchanges/%2F/amq.default/publish", 413),
            ("/api/exchanges/other/mine.x/publish", 413),
            ("/api/exchanges/none/mine.x/publish", 413),
            ("/api/logs/%2F/l/publish", 413),
            ("/api/queues/%2F/mine.x/publish", 413),
        ):
            reader, writer = await _ask(running, path, length, user="few", begun=b" " * 2 * MIB)
            assert await _status(reader) == status, path
            await _drop(writer)


JSON = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


def _places(value: Any) -> int:
    """The number of values at all levels; an empty object or array counts as one more."""
    if not isinstance(value, dict | list):
        return 0
    inside = value.values() if isinstance(value, dict) else value
    return max(1, len(value)) + sum(map(_places, inside))


@given(JSON, st.integers(0, 40))
def test_values_are_counted_without_parsing(value: Any, most: int) -> None:
    body = json.dumps(value).encode()
    # A value takes at least two bytes, so a short body is not counted.
    expected = _places(value) > most and len(body) > 2 * most
    assert has_more_values(body, most) == expected
    assert has_more_values(json.dumps(value, ensure_ascii=False).encode(), most) in (
        expected,
        _places(value) > most,
    )


@pytest.mark.parametrize("text", [",", "[{", '\\"', "\\\\", '",\\",'])
def test_separators_inside_strings_are_not_counted(text: str) -> None:
    body = json.dumps({"payload": text * 100_000, "properties": {}}).encode()
    assert not has_more_values(body, 100)
    assert has_more_values(b"[" + b",".join([body] * 60) + b"]", 100)


async def test_large_bodies_beyond_the_budget_wait_and_small_ones_do_not() -> None:
    async with _running(http_bodies_max=MIB, http_max_import=MIB) as running:
        whole = json.dumps({"users": []}).encode().ljust(MIB)
        length = f"content-length: {MIB}"
        first = await _ask(running, "/api/definitions", length, begun=whole[:-1], user="guest")
        second = await _ask(running, "/api/definitions", length, begun=whole, user="guest")
        third = await _ask(
            running, "/api/definitions", "content-length: 2", begun=b"{}", user="guest"
        )
        assert await _status(third[0]) == 204
        answered = asyncio.create_task(_status(second[0]))
        await asyncio.sleep(0.05)
        assert not answered.done()
        first[1].write(whole[-1:])
        assert await _status(first[0]) == 204
        assert await answered == 204
        for _, writer in (first, second, third):
            await _drop(writer)


async def test_disconnected_client_releases_its_body_budget() -> None:
    async with _running(http_bodies_max=MIB, http_max_import=MIB) as running:
        length = f"content-length: {MIB}"
        for _ in range(3):
            _, writer = await _ask(running, "/api/definitions", length, begun=b"{", user="guest")
            await _drop(writer)
        whole = b"{}".ljust(MIB)
        reader, writer = await _ask(running, "/api/definitions", length, begun=whole, user="guest")
        assert await _status(reader) == 204
        await _drop(writer)


async def test_body_budget_is_granted_in_order() -> None:
    budget, order = BodyBudget(10 * SMALL_BODY), []

    async def hold(name: str, size: int, until: asyncio.Event) -> None:
        async with budget.reserve(size):
            order.append(name)
            await until.wait()

    done = asyncio.Event()
    tasks = [
        asyncio.create_task(hold(name, size, done))
        for name, size in (
            ("a", 6 * SMALL_BODY),
            ("b", 5 * SMALL_BODY),
            ("c", 3 * SMALL_BODY),
            ("d", SMALL_BODY),
        )
    ]
    await asyncio.sleep(0)
    assert order == ["a", "d"]
    tasks[1].cancel()
    await asyncio.sleep(0)
    done.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["a", "d", "c"]
    assert budget.in_use == 0


async def test_body_larger_than_the_budget_does_not_wait_forever() -> None:
    budget = BodyBudget(2 * SMALL_BODY)
    async with budget.reserve(9 * SMALL_BODY):
        assert budget.in_use == 2 * SMALL_BODY
    assert budget.in_use == 0
