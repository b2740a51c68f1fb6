"""TLS listeners: accept sockets, run the handshake, then hand over to the front's own protocol.

A socket counts as an unauthenticated connection from the moment it is accepted, before anything is
read from it. Each handshake uses the context that is current when it starts, so a renewed
certificate or a changed authority takes effect for new connections. A handshake that takes longer
than `HANDSHAKE_SECONDS` is cut off. After it, the front's own protocol takes over and counts the
connection itself.

There is one task per handshake, referenced here until it ends. Runs on the event loop; nothing
survives a crash.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from leveret.broker.access.rate_limited_log import RateLimitedLog
from leveret.broker.access.unauthenticated import UnauthenticatedConnection, UnauthenticatedLimits

HANDSHAKE_SECONDS = 5.0
BACKLOG = 1024
MAX_ACCEPTED_PER_CALL = 64
ACCEPT_RETRY_SECONDS = 1.0

CurrentContext = Callable[[], ssl.SSLContext]


class TlsListener:
    def __init__(
        self,
        context: CurrentContext,
        make_protocol: Callable[[], asyncio.Protocol],
        admit: Callable[[str, UnauthenticatedConnection], bool],
        unauthenticated: UnauthenticatedLimits,
        log: logging.Logger,
    ) -> None:
        """`make_protocol` makes the front's protocol; `admit` counts a connection or refuses it."""
        self._context = context
        self._make_protocol = make_protocol
        self._admit = admit
        self._unauthenticated = unauthenticated
        self._log = log
        self._failures = RateLimitedLog(self._write)
        self._handshakes: set[_Handshake] = set()
        self._sockets: dict[socket.socket, asyncio.TimerHandle | None] = {}
        """Listening sockets, each with the timer that resumes it if it is paused."""

    def __repr__(self) -> str:
        return f"<TlsListener handshakes={len(self._handshakes)} failed={self._failures.count}>"

    def __len__(self) -> int:
        """Return the number of handshakes that are running."""
        return len(self._handshakes)

    # Accepting ---------------------------------------------------------------------------------

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Accept on every address of this host; return the first address."""
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        sockets: list[socket.socket] = []
        try:
            for family, address in dict.fromkeys((info[0], info[4]) for info in infos):
                sockets.append(_bind(family, address))
        except OSError:
            for listening in sockets:
                listening.close()
            raise
        for listening in sockets:
            self.accept_on(listening)
        bound: tuple[str, int] = sockets[0].getsockname()[:2]
        return bound

    def accept_on(self, listening: socket.socket) -> None:
        """Accept from a non-blocking listening socket; `stop` closes it."""
        self._sockets[listening] = None
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(MAX_ACCEPTED_PER_CALL):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            accepted.setblocking(False)
            self._start_handshake(accepted, str(address[0]))

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Stop accepting for a second: most likely there are no file descriptors left."""
        self._log.error("cannot accept TLS connections: %s", error.strerror)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        retry = loop.call_later(ACCEPT_RETRY_SECONDS, self.accept_on, listening)
        self._sockets[listening] = retry

    # Handshakes --------------------------------------------------------------------------------

    def _start_handshake(self, accepted: socket.socket, host: str) -> None:
        handshake = _Handshake()
        if not self._admit(host, handshake):
            accepted.close()
            return
        self._handshakes.add(handshake)
        loop = asyncio.get_running_loop()
        handshake.task = loop.create_task(self._run(accepted, host, handshake))
        handshake.task.add_done_callback(partial(self._on_done, accepted, host, handshake))

    async def _run(self, accepted: socket.socket, host: str, handshake: _Handshake) -> None:
        uncount = partial(self._uncount, host, handshake)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _HandshakeProtocol(self._make_protocol, uncount),
                accepted,
                ssl=self._context(),
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        except (OSError, TimeoutError) as error:
            why = getattr(error, "reason", None) or str(error) or "the peer closed the connection"
            self._failures.add(host, why)

    def _uncount(self, host: str, handshake: _Handshake) -> None:
        self._unauthenticated.remove(host, handshake)
        self._handshakes.discard(handshake)

    def _on_done(
        self,
        accepted: socket.socket,
        host: str,
        handshake: _Handshake,
        task: asyncio.Task[None],
    ) -> None:
        if handshake in self._handshakes:
            self._uncount(host, handshake)
            accepted.close()  # no protocol has taken it over
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("cannot set up a TLS connection", exc_info=error)

    def _write(self, host: str, why: str, count: int) -> None:
        facts = {"event": "TLS handshake failed", "peer": host, "why": why, "count": count}
        self._log.warning(
            "TLS handshake with %s failed: %s (%d so far)", host, why, count, extra={"facts": facts}
        )

    def stop(self) -> None:
        """Stop accepting and cancel the running handshakes."""
        for listening, retry in self._sockets.items():
            if retry is not None:
                retry.cancel()
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        self._sockets.clear()
        for handshake in list(self._handshakes):
            handshake.drop()


class _Handshake:
    """A running handshake, counted as an unauthenticated connection."""

    task: asyncio.Task[None]

    def drop(self) -> None:
        self.task.cancel()


class _HandshakeProtocol(asyncio.Protocol):
    """Replaces itself with the front's protocol when the handshake is done."""

    def __init__(
        self, make_protocol: Callable[[], asyncio.Protocol], uncount: Callable[[], None]
    ) -> None:
        self._make_protocol = make_protocol
        self._uncount = uncount

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._uncount()
        protocol = self._make_protocol()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


def _bind(family: int, address: Any) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening
