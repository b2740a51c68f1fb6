"""uvicorn on a socket that is already listening, inside the broker's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence

import uvicorn

from http_admin.app import create_app
from http_admin.patience import patient
from http_admin.surroundings import HistorySource, Listener, Surroundings
from leveret.broker import Broker


class _Quiet(uvicorn.Server):
    """The broker owns the signals and says itself when it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
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
    ) -> None:
        """`listeners`: (protocol, host, port) of everything the broker listens on."""
        named = tuple(Listener(*one) for one in listeners)
        self._surroundings = Surroundings(request_stop, named, history)
        self.app = create_app(broker, self._surroundings)
        config = uvicorn.Config(
            self.app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            date_header=True,
            timeout_graceful_shutdown=1,
            loop="none",
            http=patient(broker.settings.http_timeout, broker.settings.http_connection_max),
        )
        self._server = _Quiet(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self, listening: socket.socket) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]))
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({ready, self._task}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()

    async def stop(self) -> None:
        self._surroundings.stopping.set()
        self._server.should_exit = True
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
