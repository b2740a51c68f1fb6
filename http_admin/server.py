"""uvicorn on sockets that are already listening, inside the broker's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import anyio._backends._asyncio  # noqa: F401 - else the first streamed response imports it, on the loop
import starlette
import uvicorn

from leveret.broker import Broker
from leveret.broker.access.tls_listener import CurrentContext, TlsListener
from leveret.broker.access.unauthenticated import UnauthenticatedConnection, UnauthenticatedLimits
from leveret.http_admin.app import create_app
from leveret.http_admin.context import AppContext, HistorySource, Listener
from leveret.http_admin.middleware.request_limits import limited_protocol

log = logging.getLogger("leveret.http")
SAFE_STARLETTE = [1, 3, 1]
"""Older versions have known vulnerabilities. They are allowed, because a FastAPI that an
application has pinned may need them (docs/decisions/0021)."""
# Longer than clients keep an idle connection (httpx: 5 s), so that the client closes it: else a
# request may be sent on a connection that the server is closing.
KEEP_ALIVE_SECONDS = 10
TRUSTED_PROXIES = ["127.0.0.0/8", "::1", "::ffff:127.0.0.0/104"]
"""Addresses whose X-Forwarded-For is trusted: this machine's own. For a listener on `::`, a proxy
at 127.0.0.1 has an address of the last form; if that were not trusted, all clients behind the proxy
would seem to connect from this machine."""


class _EmbeddedServer(uvicorn.Server):
    """A uvicorn server without signal handlers; it also accepts TLS connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.tls_sockets: Sequence[tuple[socket.socket, CurrentContext]] = ()
        self._tls_listeners: list[TlsListener] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        config = self.config
        protocol: Any = config.http_protocol_class
        make_protocol = partial(
            protocol,
            config=config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for listening, context in self.tls_sockets:
            listener = TlsListener(
                context, make_protocol, self._admit, protocol.unauthenticated, log
            )
            listener.accept_on(listening)
            self._tls_listeners.append(listener)
        self.ready.set()

    def _admit(self, host: str, connection: UnauthenticatedConnection) -> bool:
        protocol: Any = self.config.http_protocol_class
        handshakes = sum(len(listener) for listener in self._tls_listeners)
        connections = len(self.server_state.connections) + handshakes
        is_admitted: bool = protocol.admit(host, connection, connections)
        return is_admitted

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in self._tls_listeners:
            listener.stop()
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            # Its client does not read the response: a close would wait for it until the loop ends.
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def outdated_starlette(version: str) -> str:
    """Return a warning about a Starlette that is allowed next to an older FastAPI only."""
    numbers = [int(part) for part in version.split(".") if part.isdecimal()]
    if numbers >= SAFE_STARLETTE:
        return ""
    return (
        f"Starlette {version} has known vulnerabilities: use it in tests only, or upgrade FastAPI"
    )


class HttpServer:
    def __init__(
        self,
        broker: Broker,
        request_stop: Callable[[], None],
        listeners: Sequence[tuple[str, str, int]] = (),
        history: HistorySource | None = None,
        certificate_expires: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`listeners`: (protocol, host, port) of everything the broker listens on."""
        if outdated := outdated_starlette(starlette.__version__):
            log.warning(outdated)
        named = tuple(Listener(*listener) for listener in listeners)
        self._context = AppContext(request_stop, named, history)
        self._context.certificate_expires = certificate_expires
        self.app = create_app(broker, self._context)
        self.unauthenticated = UnauthenticatedLimits(broker.settings, log)
        config = uvicorn.Config(
            self.app,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=bool(broker.settings.http_hosts),
            forwarded_allow_ips=TRUSTED_PROXIES,
            server_header=False,
            date_header=True,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            loop="none",
            ws="none",  # a connection that upgrades to WebSocket would escape the limits
            http=limited_protocol(broker.settings, self.unauthenticated),
        )
        self._server = _EmbeddedServer(config)
        self._task: asyncio.Task[None] | None = None

    async def start(
        self,
        plain: Sequence[socket.socket],
        secure: Sequence[tuple[socket.socket, CurrentContext]] = (),
    ) -> None:
        self._server.tls_sockets = secure
        self._task = asyncio.create_task(self._server.serve(sockets=list(plain)))
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({ready, self._task}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()

    async def stop(self) -> None:
        self._context.stopping.set()
        self._server.should_exit = True
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
