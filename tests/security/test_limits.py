"""Limits on those who have proved nothing yet: strangers, bytes before login, slow requests."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import socket
import time
from collections.abc import AsyncIterator, Callable

import pytest

import leveret
from leveret.broker.access.passwords import hash_password
from leveret.broker.access.strangers import Stranger
from leveret.model.clock import ManualClock
from tests.torture.security.raw import start_ok

HEADER = b"AMQP\x00\x00\x09\x01"
PATIENCE = 30.0


@contextlib.asynccontextmanager
async def _running(**changes: object) -> AsyncIterator[leveret.Broker]:
    async with leveret.Broker(leveret.in_process_settings(**changes)) as running:
        yield running


async def _connect(running: leveret.Broker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*running.amqp_address)


async def _ends(reader: asyncio.StreamReader) -> bytes:
    """Everything the broker says until it ends the connection."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), PATIENCE)
    return b""


async def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def test_strangers_beyond_the_limit_are_cut_off_and_users_are_not() -> None:
    async with _running(unauthenticated_max_per_address=2) as running:
        first = await _connect(running)
        second = await _connect(running)
        await _until(lambda: len(running.amqp.strangers) == 2)
        third = await _connect(running)
        assert await _ends(third[0]) == b""
        for _, writer in (first, second, third):
            writer.close()
        await _until(lambda: len(running.amqp.strangers) == 0)
        import aio_pika

        clients = [await aio_pika.connect(running.url) for _ in range(4)]  # users do not count
        assert len(running.amqp.strangers) == 0
        for client in clients:
            await client.close()
        assert running.amqp.strangers.turned_away == 1


async def test_connections_beyond_the_limit_are_cut_off() -> None:
    async with _running(connection_max=1) as running:
        _, writer = await _connect(running)
        await _until(lambda: len(running.amqp.sessions) == 1)
        refused = await _connect(running)
        assert await _ends(refused[0]) == b""
        refused[1].close()
        writer.close()


@pytest.mark.parametrize("said", [b"", HEADER[:3], HEADER, HEADER + b"\x01\x00\x00\x00\x00\x10"])
async def test_who_does_not_log_in_is_dropped(said: bytes) -> None:
    clock = ManualClock()
    async with leveret.Broker(leveret.in_process_settings(handshake_timeout=5), clock) as running:
        reader, writer = await _connect(running)
        writer.write(said)
        heard = await reader.read(65_536) if said.startswith(HEADER) else b""
        ending = asyncio.ensure_future(_ends(reader))
        while not ending.done():
            clock.advance(6)
            await asyncio.sleep(0.05)
        heard += await ending
        assert (b"PLAIN" in heard) is said.startswith(HEADER)
        writer.close()


@pytest.mark.parametrize(("octets", "is_answered"), [(8_000, True), (60_000, False)])
async def test_much_before_login_is_not_kept(
    octets: int, is_answered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """While a password is being checked nothing is read; what had come before is bounded."""
    async with _running(login_buffer=8192) as running:
        reader, writer = await _connect(running)
        writer.write(HEADER + start_ok("nobody", "wrong") + bytes(octets))
        if is_answered:
            await asyncio.wait_for(reader.readuntil(b"ACCESS_REFUSED"), PATIENCE)
        else:
            assert b"ACCESS_REFUSED" not in await _ends(reader)
            await _until(lambda: not running.amqp.sessions)
        assert ("has sent too much before it logged in" in caplog.text) is not is_answered
        writer.close()


@pytest.mark.parametrize("size", [8193, 200_000, 0xFFFFFFFF])
async def test_frame_too_large_before_login_is_refused_unread(size: int) -> None:
    async with _running() as running:
        reader, writer = await _connect(running)
        writer.write(HEADER + b"\x01\x00\x00" + size.to_bytes(4, "big"))
        heard = await _ends(reader)
        assert b"FRAME_ERROR" in heard
        writer.close()


async def test_limit_of_queues_holds_in_every_vhost() -> None:
    async with _running(queue_max=2) as running:
        import aio_pika

        running.broker.add_vhost("more")
        assert running.broker.vhosts["more"].most_queues == 2
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
async def test_slow_request_is_cut_off(said: bytes) -> None:
    async with _running(http_enabled=True, http_timeout=0.3) as running:
        await running.http_ready()
        assert running.http_address is not None
        reader, writer = await asyncio.open_connection(*running.http_address)
        writer.write(said)
        assert await _ends(reader) == b""
        writer.close()


async def test_body_of_a_stranger_is_not_waited_for() -> None:
    async with _running(http_enabled=True) as running:
        await running.http_ready()
        assert running.http_address is not None
        reader, writer = await asyncio.open_connection(*running.http_address)
        writer.write(b"PUT /api/queues/%2F/q HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{")
        line = await asyncio.wait_for(reader.readline(), PATIENCE)
        assert line.startswith(b"HTTP/1.1 40")
        writer.close()


HEAD = b"GET / HTTP/1.1\r\nhost: localhost\r\n"
CHUNKED = (
    b"POST /api/login HTTP/1.1\r\nhost: localhost\r\n"
    b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
)  # fmt: skip


async def test_head_without_an_end_is_refused() -> None:
    """A path, many headers, one header, many trailers, one trailer."""
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
    heard = asyncio.create_task(_ends(reader))
    with contextlib.suppress(ConnectionError):
        for _ in range(200):  # 10 MB, if somebody would take them
            if heard.done():
                break
            writer.write(more)
            await writer.drain()
            await asyncio.sleep(0)
    assert (await heard)[:12] in (b"", b"HTTP/1.1 431")  # sending on may cost one the answer
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize(("octets", "status"), [(60_000, (b"401",)), (70_000, (b"431", b""))])
async def test_large_head_is_refused_when_it_comes_at_once(
    octets: int, status: tuple[bytes, ...]
) -> None:
    """Nothing is left of it to wait for. What was not read may cost one the answer."""
    said = b"GET /api/overview HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: "
    async with _running(http_enabled=True) as running:
        assert running.http_address is not None
        reader, writer = await asyncio.open_connection(*running.http_address)
        writer.write(said + b"y" * octets + b"\r\n\r\n")
        assert (await _ends(reader))[9:12] in status
        writer.transport.abort()


async def test_who_does_not_read_the_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _running(http_enabled=True, http_timeout=0.3) as running:
        await running.http_ready()
        assert running.http_address is not None and running._http_start is not None
        strangers = running._http_start.result().strangers
        admitted: list[str] = []
        admit = strangers.admit

        def noted(host: str, stranger: Stranger, no_room: str | None = None) -> bool:
            admitted.append(host)
            return admit(host, stranger, no_room)

        monkeypatch.setattr(strangers, "admit", noted)
        loop = asyncio.get_running_loop()
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.setblocking(False)
        await loop.sock_connect(deaf, running.http_address)
        ask = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(loop.sock_sendall(deaf, ask * 500), PATIENCE)
        await _until(lambda: len(admitted) == 1 and len(strangers) == 0)
        deaf.close()


async def test_no_other_protocol_is_spoken() -> None:
    """A connection that became a web socket would be out of reach of the limits."""
    async with _running(http_enabled=True) as running:
        await running.http_ready()
        assert running.http_address is not None and running._http_start is not None
        strangers = running._http_start.result().strangers
        reader, writer = await asyncio.open_connection(*running.http_address)
        writer.write(
            b"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n"
            b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
            b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert b"401" in await asyncio.wait_for(reader.readline(), PATIENCE)
        assert len(strangers) == 1
        writer.close()
        await _until(lambda: len(strangers) == 0)


async def test_strangers_of_http_are_counted_until_they_are_known() -> None:
    async with _running(http_enabled=True, unauthenticated_max_per_address=1) as running:
        await running.http_ready()
        assert running.http_address is not None
        known = await asyncio.open_connection(*running.http_address)
        assert running._http_start is not None
        strangers = running._http_start.result().strangers
        await _until(lambda: len(strangers) == 1)
        refused = await asyncio.open_connection(*running.http_address)
        assert await _ends(refused[0]) == b""
        known[1].write(
            b"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\n"
            b"authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"
        )
        assert b"200" in await asyncio.wait_for(known[0].readline(), PATIENCE)
        assert len(strangers) == 0
        again = await asyncio.open_connection(*running.http_address)
        await _until(lambda: len(strangers) == 1)
        for _, writer in (known, refused, again):
            writer.close()
        await _until(lambda: len(strangers) == 0)


async def test_http_connections_beyond_the_limit_are_cut_off() -> None:
    async with _running(http_enabled=True, http_connection_max=1) as running:
        await running.http_ready()
        assert running.http_address is not None
        kept = await asyncio.open_connection(*running.http_address)
        kept[1].write(b"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"401" in await asyncio.wait_for(kept[0].readline(), PATIENCE)
        refused = await asyncio.open_connection(*running.http_address)
        assert await _ends(refused[0]) == b""
        for _, writer in (kept, refused):
            writer.close()


async def test_one_user_leaves_half_of_the_http_connections_to_others() -> None:
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
        assert await _ends(held[4][1])  # the reason, and the end
        assert [(await ask("other"))[0] for _ in range(2)] == [200, 200]
        held[0][2].close()
        deadline = time.monotonic() + PATIENCE
        while (await ask("guest"))[0] != 200:  # it has gone soon
            assert time.monotonic() < deadline


async def _ask(
    address: tuple[str, int], open_ones: contextlib.AsyncExitStack, user: str
) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
    """On a connection that stays open; the status of the answer."""
    reader, writer = await asyncio.open_connection(*address)
    open_ones.callback(writer.close)
    basic = base64.b64encode(f"{user}:{user}".encode()).decode()
    head = f"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic {basic}\r\n\r\n"
    writer.write(head.encode())
    line = await asyncio.wait_for(reader.readline(), PATIENCE)
    return int(line.split()[1]), reader, writer


async def test_limit_of_connections_is_a_health_check() -> None:
    import httpx

    async with _running(http_enabled=True, connection_max=1) as running:
        await running.http_ready()
        path = "/api/health/checks/below-node-connection-limit"
        async with httpx.AsyncClient(
            base_url=running.http_url, auth=("guest", "guest"), timeout=PATIENCE
        ) as api:
            assert (await api.get(path)).json() == {"status": "ok", "current": 0, "limit": 1}
            import aio_pika

            client = await aio_pika.connect(running.url)
            assert (await api.get(path)).status_code == 503
            await client.close()


async def test_vanished_peers_are_looked_for_without_heartbeats() -> None:
    async with _running() as running:
        _, writer = await _connect(running)
        await _until(lambda: len(running.amqp.sessions) == 1)
        (session,) = running.amqp.sessions
        raw = session.line._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 50_000
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 20
        writer.close()


async def test_broker_that_was_stopped_reads_first_and_judges_later() -> None:
    """After a pause of its own it does not hold the silence against its clients."""
    async with _running() as running:
        _, writer = await _connect(running)
        await _until(lambda: len(running.amqp.sessions) == 1)
        (session,) = running.amqp.sessions
        session.last_received = session.connected = running.broker.clock.monotonic() - 1000
        running.amqp._wake(asyncio.get_running_loop().time() - 5)
        assert running.broker.clock.monotonic() - session.connected < 500
        assert session in running.amqp.sessions
        writer.close()
