"""A real broker with its HTTP API for each module, and clients that log in to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

import leveret
from leveret.broker import Broker
from tests.http.response_checker import Checker, app_of


@dataclass(frozen=True, slots=True)
class Served:
    """A broker on its own thread, and clients for it."""

    threaded: leveret.ThreadedBroker

    @property
    def url(self) -> str:
        return self.threaded.http_url

    @property
    def amqp_url(self) -> str:
        return self.threaded.url

    @property
    def hub(self) -> Broker:
        assert self.threaded.running is not None
        return self.threaded.running.broker

    @property
    def app(self) -> Any:
        """The FastAPI application of the broker."""
        return app_of(self.threaded)

    def client(self, user: str | None = "guest", password: str = "") -> httpx.Client:
        auth = None if user is None else (user, password or user)
        # Loading the system's certificates would take longer than most tests.
        return httpx.Client(
            base_url=self.url,
            auth=auth,
            timeout=120,
            verify=False,
            event_hooks={"response": [self.check]},
        )

    def check(self, answer: httpx.Response) -> None:
        """Check that the response matches the OpenAPI document."""
        Checker.of(self.threaded)(answer)

    def on_loop(self, call: Callable[[Broker], Awaitable[Any] | Any]) -> Any:
        """Call a function on the broker's thread and return its result."""

        async def run() -> Any:
            result = call(self.hub)
            return await result if asyncio.iscoroutine(result) else result

        loop = self.threaded._loop
        assert loop is not None
        return asyncio.run_coroutine_threadsafe(run(), loop).result(30)


def serve(**settings: Any) -> leveret.ThreadedBroker:
    return leveret.ThreadedBroker(leveret.in_process_settings(http_enabled=True, **settings))


@pytest.fixture(scope="module")
def broker() -> Iterator[Served]:
    with serve() as threaded:
        yield Served(threaded)


@pytest.fixture(scope="module")
def stored_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A broker with a data directory, and therefore with history."""
    with serve(data_dir=tmp_path_factory.mktemp("data")) as threaded:
        yield Served(threaded)


@pytest.fixture
def api(broker: Served) -> Iterator[httpx.Client]:
    with broker.client() as client:
        yield client
