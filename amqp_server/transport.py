"""One client's socket as an asyncio protocol: it moves bytes and knows nothing about AMQP."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast

from leveret.amqp_server.tls_info import TlsInfo, maybe_tls_info

if TYPE_CHECKING:
    from leveret.amqp_server.connection import AmqpConnection
    from leveret.amqp_server.server import AmqpServer

WRITE_HIGH_WATER = 256 * 1024
DEAD_PEER_MS = 50_000
_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class AmqpTransport(asyncio.Protocol):
    def __init__(self, server: AmqpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._connection: AmqpConnection | None = None
        self._is_lost = False
        self._is_unauthenticated = False
        self._abort_timer: asyncio.TimerHandle | None = None
        self.peer: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.tls: TlsInfo | None = None

    # As asyncio sees it ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.peer = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))
        self.tls = maybe_tls_info(transport)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _enable_keepalive(raw)
        if not self._server.admit(self.peer[0], self):
            self._transport.abort()
            return
        self._is_unauthenticated = True
        self._connection = self._server.add_connection(self)

    def data_received(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.flow.receive(data)

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.flow.on_write_buffer_full()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.resume_writing()

    def eof_received(self) -> bool:
        if self._connection is not None:
            self._connection.flow.read_to_end()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._set_abort_timer(None)  # it would keep this object alive until it is due
        self.on_authenticated()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.on_connection_lost()
            self._server.remove_connection(connection)

    # As the connection sees it -----------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def on_authenticated(self) -> None:
        if self._is_unauthenticated:
            self._is_unauthenticated = False
            self._server.unauthenticated.remove(self.peer[0], self)

    def pause_reading(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def close_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        timer = self._abort_timer
        if not self._is_lost and (timer is None or due < timer.when()):
            self._set_abort_timer(loop.call_at(due, self.drop))

    def _set_abort_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._abort_timer = timer

    def drop(self) -> None:
        """Close at once, without sending what is buffered; the caller has logged the reason."""
        if self._connection is not None:
            self._connection.on_connection_aborted()
        if self._transport is not None and not self._is_lost:
            self._transport.abort()


def _enable_keepalive(raw: socket.socket) -> None:
    """Detect a peer that has vanished within a minute, even without AMQP heartbeats."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)


def _address(name: object) -> tuple[str, int]:
    if isinstance(name, tuple) and len(name) >= 2:
        return str(name[0]), int(name[1])
    return "", 0
