"""uvicorn on a socket that is already listening, inside the broker's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn

from http_admin.app import create_app
from leveret.broker import Broker


class _Quiet(uvicorn.Server):
    """The broker owns the signals and says itself when it is ready."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    def __init__(self, broker: Broker, request_stop: Callable[[], None]) -> None:
        config = uvicorn.Config(
            create_app(broker, request_stop),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            date_header=True,
            timeout_graceful_shutdown=1,
            loop="none",
        )
        self._server = _Quiet(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self, listening: socket.socket) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
