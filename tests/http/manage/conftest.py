"""A real broker per test module, on its own thread, and clients for its HTTP API.

Each test gets a vhost of its own, so that tests of one module see nothing of each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest

from leveret.broker import Broker
from leveret.launch import ThreadedBroker, in_process_settings
from tests.http.manage.client import Api
from tests.http.response_checker import Checker

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def leveret() -> Iterator[ThreadedBroker]:
    with ThreadedBroker(in_process_settings(http_enabled=True, queue_window=100)) as running:
        yield running


@pytest.fixture(scope="module")
def hub(leveret: ThreadedBroker) -> Broker:
    """For reading only: it belongs to the broker's thread."""
    assert leveret.running is not None
    return leveret.running.broker


@pytest.fixture
def sign_in(leveret: ThreadedBroker) -> Iterator[Callable[[str, str], Api]]:
    made: list[Api] = []

    def open_api(user: str, password: str) -> Api:
        api = Api(leveret.http_url, user, password)
        api.http.event_hooks["response"].append(lambda answer: Checker.of(leveret)(answer))
        made.append(api)
        return api

    yield open_api
    for one in made:
        one.http.close()


@pytest.fixture
def api(sign_in: Callable[[str, str], Api]) -> Api:
    return sign_in("guest", "guest")


@pytest.fixture
def vhost(api: Api) -> Iterator[str]:
    name = f"test/{next(_numbers)}"
    api.put("vhosts", name)
    yield name
    api.call("DELETE", "vhosts", name)


@pytest.fixture
def connect(leveret: ThreadedBroker) -> Iterator[Callable[..., pika.BlockingConnection]]:
    """`connect(vhost, user, password)`: a pika connection that is closed after the test."""
    made: list[pika.BlockingConnection] = []

    def open_connection(vhost: str, user: str = "guest", password: str = "guest") -> Any:
        host, port = leveret.amqp_address
        credentials = pika.PlainCredentials(user, password)
        made.append(
            pika.BlockingConnection(pika.ConnectionParameters(host, port, vhost, credentials))
        )
        return made[-1]

    yield open_connection
    for one in made:
        if one.is_open:
            one.close()


@pytest.fixture
def channel(connect: Callable[..., Any], vhost: str) -> Any:
    """A pika channel in the test's vhost."""
    return connect(vhost).channel()


@pytest.fixture
def moved(api):
    """Definitions that a test imports are deleted after it."""
    yield "moved"
    api.call("DELETE", "vhosts", "moved")
    api.call("DELETE", "users", "porter")
