"""uvicorn on sockets that are already listening, inside the broker's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import anyio._backends._asyncio  # noqa: F401 - else the first answer in pieces imports it, on the loop
import uvicorn

from http_admin.app import create_app
from http_admin.patience import patient
from http_admin.surroundings import HistorySource, Listener, Surroundings
from leveret.broker import Broker
from leveret.broker.access.handshakes import Context, Handshakes
from leveret.broker.access.strangers import Stranger, Strangers

log = logging.getLogger("leveret.http")
# Longer than clients keep an idle connection (httpx: 5 s), so that they are the ones to close it:
# else a request may meet a connection that is just being closed.
KEEP_ALIVE_SECONDS = 10
PROXIES = ["127.0.0.0/8", "::1", "::ffff:127.0.0.0/104"]
"""Whose word about where a request comes from is taken: this machine's own addresses. As IPv6
writes those of IPv4, too: for a listener on `::` a proxy at 127.0.0.1 has such a one, and if it
were not believed, everybody behind it would come from this machine."""


class _Quiet(uvicorn.Server):
    """The broker owns the signals and says itself when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.secure: Sequence[tuple[socket.socket, Context]] = ()
        self._handshakes: list[Handshakes] = []

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
            shaking = Handshakes(tls, make, self._admit, protocol.strangers, log)
            shaking.accept_on(listening)
            self._handshakes.append(shaking)
        self.ready.set()

    def _admit(self, host: str, stranger: Stranger) -> bool:
        protocol: Any = self.config.http_protocol_class
        shaking = sum(len(one) for one in self._handshakes)
        connections = len(self.server_state.connections) + shaking
        is_admitted: bool = protocol.admit(host, stranger, connections)
        return is_admitted

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for shaking in self._handshakes:
            shaking.stop()
        await super().shutdown(sockets)

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
        self.strangers = Strangers(broker.settings, log)
        config = uvicorn.Config(
            self.app,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=bool(broker.settings.http_hosts),
            forwarded_allow_ips=PROXIES,
            server_header=False,
            date_header=True,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            loop="none",
            ws="none",  # a connection that changes its protocol would leave its limits behind
            http=patient(broker.settings, self.strangers),
        )
        self._server = _Quiet(config)
        self._task: asyncio.Task[None] | None = None

    async def start(
        self,
        plain: Sequence[socket.socket],
        secure: Sequence[tuple[socket.socket, Context]] = (),
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
