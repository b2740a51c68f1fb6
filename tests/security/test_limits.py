"""Limits before login: connections, bytes received, slow requests."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import socket
import time
from collections.abc import AsyncIterator

import pytest

import leveret
from leveret.broker.access.passwords import hash_password
from leveret.broker.access.unauthenticated import UnauthenticatedConnection
from leveret.model.clock import ManualClock
from tests.support.polling import wait_until_async
from tests.torture.security.raw import start_ok

HEADER = b"AMQP\x00\x00\x09\x01"
SECONDS = 30.0


@contextlib.asynccontextmanager
async def _running(**changes: object) -> AsyncIterator[leveret.Broker]:
    async with leveret.Broker(leveret.in_process_settings(**changes)) as running:
        yield running


async def _connect(running: leveret.Broker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*running.amqp_address)


async def _read_to_end(reader: asyncio.StreamReader) -> bytes:
    """Read until the broker closes the connection."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), SECONDS)
    return b""


async def test_limit_of_unauthenticated_connections_does_not_affect_users() -> None:
    async with _running(unauthenticated_max_per_address=2) as running:
        first = await _connect(running)
        second = await _connect(running)
        await wait_until_async(lambda: len(running.amqp.unauthenticated) == 2)
        third = await _connect(running)
        assert await _read_to_end(third[0]) == b""
        for _, writer in (first, second, third):
            writer.close()
        await wait_until_async(lambda: len(running.amqp.unauthenticated) == 0)
        import aio_pika

        clients = [await aio_pika.connect(running.url) for _ in range(4)]  # users do not count
        assert len(running.amqp.unauthenticated) == 0
        for client in clients:
            await client.close()
        assert running.amqp.unauthenticated.rejected == 1


async def test_connections_beyond_the_limit_are_closed() -> None:
    async with _running(connection_max=1) as running:
        _, writer = await _connect(running)
        await wait_until_async(lambda: len(running.amqp.connections) == 1)
        refused = await _connect(running)
        assert await _read_to_end(refused[0]) == b""
        refused[1].close()
        writer.close()


@pytest.mark.parametrize("said", [b"", HEADER[:3], HEADER, HEADER + b"\x01\x00\x00\x00\x00\x10"])
async def test_connection_without_login_is_closed_after_the_timeout(said: bytes) -> None:
    clock = ManualClock()
    async with leveret.Broker(leveret.in_process_settings(handshake_timeout=5), clock) as running:
        reader, writer = await _connect(running)
        writer.write(said)
        heard = await reader.read(65_536) if said.startswith(HEADER) else b""
        ending = asyncio.ensure_future(_read_to_end(reader))
        while not ending.done():
            clock.advance(6)
            await asyncio.sleep(0.05)
        heard += await ending
        assert (b"PLAIN" in heard) is said.startswith(HEADER)
        writer.close()


@pytest.mark.parametrize(("size", "is_answered"), [(8_000, True), (60_000, False)])
async def test_input_before_login_is_bounded(
    size: int, is_answered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is read while a password is checked; input received before is bounded."""
    async with _running(login_buffer=8192) as running:
        reader, writer = await _connect(running)
        writer.write(HEADER + start_ok("nobody", "wrong") + bytes(size))
        if is_answered:
            await asyncio.wait_for(reader.readuntil(b"ACCESS_REFUSED"), SECONDS)
        else:
            assert b"ACCESS_REFUSED" not in await _read_to_end(reader)
            await wait_until_async(lambda: not running.amqp.connections)
        assert ("bytes before it logged in" in caplog.text) is not is_answered
        writer.close()


@pytest.mark.parametrize("size", [8193, 200_000, 0xFFFFFFFF])
async def test_large_frame_before_login_is_refused_unread(size: int) -> None:
    async with _running() as running:
        reader, writer = await _connect(running)
        writer.write(HEADER + b"\x01\x00\x00" + size.to_bytes(4, "big"))
        heard = await _read_to_end(reader)
        assert b"FRAME_ERROR" in heard
        writer.close()


async def test_queue_limit_applies_in_every_vhost() -> None:
    async with _running(queue_max=2) as running:
        import aio_pika

        running.broker.add_vhost("more")
        assert running.broker.vhosts["more"].max_queues == 2
        client = await aio_pika.connect(running.url)
        channel = await client.channel()
        for name in ("a", "b"):
            await channel.declare_queue(name)
        with pytest.raises(aio_pika.exceptions.ChannelPreconditionFailed, match="queue limit"):
            await channel.declare_queue("c")
        await client.close()


# HTTP --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET /api/overview HT",
        b"PUT /api/queues/%2F/q HTTP/1.1\r\nhost: localhost\r\n"
        b"authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\ncontent-length: 10\r\n\r\n{",
    ],
)
async def test_slow_request_is_closed(said: bytes) -> None:
    async with _running(http_enabled=True, http_timeout=0.3) as running:
        await running.http_ready()
        assert running.http_address is not None
        reader, writer = await asyncio.open_connection(*running.http_address)
        writer.write(said)
        assert await _read_to_end(reader) == b""
        writer.close()


async def test_body_of_an_unauthenticated_request_is_not_awaited() -> None:
    async with _running(http_enabled=True) as running:
        await running.http_ready()
        assert running.http_address is not None
        reader, writer = await asyncio.open_connection(*running.http_address)
        writer.write(b"PUT /api/queues/%2F/q HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{")
        line = await asyncio.wait_for(reader.readline(), SECONDS)
        assert line.startswith(b"HTTP/1.1 40")
        writer.close()


HEAD = b"GET / HTTP/1.1\r\nhost: localhost\r\n"
CHUNKED = (
    b"POST /api/login HTTP/1.1\r\nhost: localhost\r\n"
    b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
)  # fmt: skip


async def test_endless_head_is_refused() -> None:
    """The path, many headers, one header, many trailers, one trailer."""
    async with _running(http_enabled=True) as running:
        await running.http_ready()
        assert running.http_address is not None
        for start in (b"GET /", HEAD, HEAD + b"x: ", CHUNKED, CHUNKED + b"x: "):
            await _send_without_end(running.http_address, start)


async def _send_without_end(address: tuple[str, int], start: bytes) -> None:
    is_line = not start.endswith(b"\n")
    more = b"x" * 50_000 if is_line else b"name: value\r\n" * 4_000
    reader, writer = await asyncio.open_connection(*address)
    writer.write(start)
    heard = asyncio.create_task(_read_to_end(reader))
    with contextlib.suppress(ConnectionError):
        for _ in range(200):  # 10 MB, if the broker read them
            if heard.done():
                break
            writer.write(more)
            await writer.drain()
            await asyncio.sleep(0)
    assert (await heard)[:12] in (b"", b"HTTP/1.1 431")  # the answer may be lost while sending
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize(("size", "status"), [(60_000, (b"401",)), (70_000, (b"431", b""))])
async def test_large_head_sent_at_once_is_refused(size: int, status: tuple[bytes, ...]) -> None:
    """The head is complete. Unread input may cause the answer to be lost."""
    said = b"GET /api/overview HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: "
    async with _running(http_enabled=True) as running:
        assert running.http_address is not None
        reader, writer = await asyncio.open_connection(*running.http_address)
        writer.write(said + b"y" * size + b"\r\n\r\n")
        assert (await _read_to_end(reader))[9:12] in status
        writer.transport.abort()


async def test_client_that_does_not_read_the_answer_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _running(http_enabled=True, http_timeout=0.3) as running:
        await running.http_ready()
        assert running.http_address is not None and running._http_start is not None
        unauthenticated = running._http_start.result().unauthenticated
        admitted: list[str] = []
        admit = unauthenticated.admit

        def noted(
            host: str, connection: UnauthenticatedConnection, no_room: str | None = None
        ) -> bool:
            admitted.append(host)
            return admit(host, connection, no_room)

        monkeypatch.setattr(unauthenticated, "admit", noted)
        loop = asyncio.get_running_loop()
        silent = socket.socket()
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.setblocking(False)
        await loop.sock_connect(silent, running.http_address)
        ask = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(loop.sock_sendall(silent, ask * 500), SECONDS)
        await wait_until_async(lambda: len(admitted) == 1 and len(unauthenticated) == 0)
        silent.close()


async def test_protocol_upgrades_are_refused() -> None:
    """A web socket connection would escape the limits."""
    async with _running(http_enabled=True) as running:
        await running.http_ready()
        assert running.http_address is not None and running._http_start is not None
        unauthenticated = running._http_start.result().unauthenticated
        reader, writer = await asyncio.open_connection(*running.http_address)
        writer.write(
            b"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n"
            b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
            b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert b"401" in await asyncio.wait_for(reader.readline(), SECONDS)
        assert len(unauthenticated) == 1
        writer.close()
        await wait_until_async(lambda: len(unauthenticated) == 0)


async def test_http_connections_are_counted_until_authenticated() -> None:
    async with _running(http_enabled=True, unauthenticated_max_per_address=1) as running:
        await running.http_ready()
        assert running.http_address is not None
        known = await asyncio.open_connection(*running.http_address)
        assert running._http_start is not None
        unauthenticated = running._http_start.result().unauthenticated
        await wait_until_async(lambda: len(unauthenticated) == 1)
        refused = await asyncio.open_connection(*running.http_address)
        assert await _read_to_end(refused[0]) == b""
        known[1].write(
            b"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\n"
            b"authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"
        )
        assert b"200" in await asyncio.wait_for(known[0].readline(), SECONDS)
        assert len(unauthenticated) == 0
        again = await asyncio.open_connection(*running.http_address)
        await wait_until_async(lambda: len(unauthenticated) == 1)
        for _, writer in (known, refused, again):
            writer.close()
        await wait_until_async(lambda: len(unauthenticated) == 0)


async def test_http_connections_beyond_the_limit_are_closed() -> None:
    async with _running(http_enabled=True, http_connection_max=1) as running:
        await running.http_ready()
        assert running.http_address is not None
        kept = await asyncio.open_connection(*running.http_address)
        kept[1].write(b"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"401" in await asyncio.wait_for(kept[0].readline(), SECONDS)
        refused = await asyncio.open_connection(*running.http_address)
        assert await _read_to_end(refused[0]) == b""
        for _, writer in (kept, refused):
            writer.close()


async def test_one_user_may_use_half_of_the_http_connections() -> None:
    async with (
        _running(http_enabled=True, http_connection_max=8) as running,
        contextlib.AsyncExitStack() as open_ones,
    ):
        running.broker.users.put_user("other", hash_password("other"), ("management",))
        await running.http_ready()
        assert running.http_address is not None
        ask = functools.partial(_ask, running.http_address, open_ones)
        held = [await ask("guest") for _ in range(5)]
        assert [status for status, _, _ in held] == [200] * 4 + [429]
        assert await _read_to_end(held[4][1])  # the reason, then the end
        assert [(await ask("other"))[0] for _ in range(2)] == [200, 200]
        held[0][2].close()
        deadline = time.monotonic() + SECONDS
        while (await ask("guest"))[0] != 200:  # until the connection is closed
            assert time.monotonic() < deadline


async def _ask(
    address: tuple[str, int], open_ones: contextlib.AsyncExitStack, user: str
) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request on a connection that stays open; return the status."""
    reader, writer = await asyncio.open_connection(*address)
    open_ones.callback(writer.close)
    basic = base64.b64encode(f"{user}:{user}".encode()).decode()
    head = f"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic {basic}\r\n\r\n"
    writer.write(head.encode())
    line = await asyncio.wait_for(reader.readline(), SECONDS)
    return int(line.split()[1]), reader, writer


async def test_connection_limit_has_a_health_check() -> None:
    import httpx

    async with _running(http_enabled=True, connection_max=1) as running:
        await running.http_ready()
        path = "/api/health/checks/below-node-connection-limit"
        async with httpx.AsyncClient(
            base_url=running.http_url, auth=("guest", "guest"), timeout=SECONDS
        ) as api:
            assert (await api.get(path)).json() == {"status": "ok", "current": 0, "limit": 1}
            import aio_pika

            client = await aio_pika.connect(running.url)
            assert (await api.get(path)).status_code == 503
            await client.close()


async def test_keepalive_detects_lost_peers_without_heartbeats() -> None:
    async with _running() as running:
        _, writer = await _connect(running)
        await wait_until_async(lambda: len(running.amqp.connections) == 1)
        (connection,) = running.amqp.connections
        raw = connection.transport._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 50_000
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 20
        writer.close()


async def test_suspended_broker_reads_before_it_closes_idle_connections() -> None:
    """After the process was suspended, clients are not closed for missing heartbeats."""
    async with _running() as running:
        _, writer = await _connect(running)
        await wait_until_async(lambda: len(running.amqp.connections) == 1)
        (connection,) = running.amqp.connections
        connection.restart_timeouts(running.broker.clock.monotonic() - 1000)
        running.amqp._tick(asyncio.get_running_loop().time() - 5)
        assert running.broker.clock.monotonic() - connection.connected < 500
        assert connection in running.amqp.connections
        writer.close()
