"""uvicorn on sockets that are already listening, inside the broker's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import uvicorn

from http_admin.app import create_app
from http_admin.patience import patient
from http_admin.surroundings import HistorySource, Listener, Surroundings
from leveret.broker import Broker

TLS_HANDSHAKE_SECONDS = 5.0


class _Quiet(uvicorn.Server):
    """The broker owns the signals and says itself when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.secure: Sequence[tuple[socket.socket, ssl.SSLContext]] = ()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        config = self.config
        protocol: Any = config.http_protocol_class
        make = partial(
            protocol,
            config=config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for listening, tls in self.secure:
            server = await asyncio.get_running_loop().create_server(
                make, sock=listening, ssl=tls, ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS
            )
            self.servers.append(server)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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
        named = tuple(Listener(*one) for one in listeners)
        self._surroundings = Surroundings(request_stop, named, history)
        self._surroundings.certificate_expires = certificate_expires
        self.app = create_app(broker, self._surroundings)
        config = uvicorn.Config(
            self.app,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=bool(broker.settings.http_hosts),
            server_header=False,
            date_header=True,
            timeout_graceful_shutdown=1,
            loop="none",
            http=patient(broker.settings.http_timeout, broker.settings.http_connection_max),
        )
        self._server = _Quiet(config)
        self._task: asyncio.Task[None] | None = None

    async def start(
        self,
        plain: Sequence[socket.socket],
        secure: Sequence[tuple[socket.socket, ssl.SSLContext]] = (),
    ) -> None:
        self._server.secure = secure
        self._task = asyncio.create_task(self._server.serve(sockets=list(plain)))
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({ready, self._task}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()

    async def stop(self) -> None:
        self._surroundings.stopping.set()
        self._server.should_exit = True
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
