"""Fixtures of the semantics suite, and the option that runs it against another broker.

`pytest tests/semantics` starts a Leveret; `pytest tests/semantics --broker URL` runs the same cases
against the broker at this URL, usually RabbitMQ 3.10. Where the two differ on purpose, a case says
so with `expected(leveret=…, rabbitmq=…)` and passes on both.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pamqp import commands

from tests.support.brokers import Target
from tests.support.fixtures import broker, pytest_addoption
from tests.support.rawclient import RawChannel, RawClient

__all__ = ["broker", "pytest_addoption"]


@pytest.fixture
def expected(broker: Target) -> Callable[..., Any]:
    """Picks the expectation for the broker under test, where the two differ on purpose."""

    def pick(*, leveret: Any, rabbitmq: Any) -> Any:
        return rabbitmq if broker.is_rabbitmq else leveret

    return pick


class Names:
    """New names for one test; queues and exchanges with these names are deleted afterwards."""

    _numbers = itertools.count(1)

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}-{os.getpid()}"
        self.queues: list[str] = []
        self.exchanges: list[str] = []

    def queue(self) -> str:
        self.queues.append(self._new("q"))
        return self.queues[-1]

    def exchange(self) -> str:
        self.exchanges.append(self._new("x"))
        return self.exchanges[-1]

    def _new(self, kind: str) -> str:
        return f"{self._prefix}-{kind}{next(self._numbers)}"


@pytest.fixture
def names(request: pytest.FixtureRequest, broker: Target) -> Iterator[Names]:
    names = Names(request.node.name.split("_")[1])
    yield names
    if names.queues or names.exchanges:
        with broker.connect() as client:
            _delete_all(client, names)


def _delete_all(client: RawClient, names: Names) -> None:
    channel = client.channel()
    deletes: list[Any] = [commands.Queue.Delete(queue=queue) for queue in names.queues]
    deletes += [commands.Exchange.Delete(exchange=exchange) for exchange in names.exchanges]
    for delete in deletes:
        channel.send(delete)
        answer = client.next_on(channel.number).decode()
        if isinstance(answer, commands.Channel.Close):  # an exclusive queue that is being deleted
            channel.send(commands.Channel.CloseOk())
            channel.open()


@pytest.fixture
def connect(broker: Target, names: Names) -> Iterator[Callable[..., RawClient]]:
    """Opens connections with a finished handshake; all are closed after the test."""
    clients: list[RawClient] = []

    def make(**options: Any) -> RawClient:
        clients.append(broker.connect(**options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def raw(broker: Target) -> Iterator[Callable[[], RawClient]]:
    """Opens connections without a handshake."""
    clients: list[RawClient] = []

    def make() -> RawClient:
        clients.append(broker.socket())
        return clients[-1]

    yield make
    for client in clients:
        client.drop()


@pytest.fixture
def client(connect: Callable[..., RawClient]) -> RawClient:
    return connect()


@pytest.fixture
def channel(client: RawClient) -> RawChannel:
    return client.channel()


@pytest.fixture
def queue(channel: RawChannel, names: Names) -> str:
    """A declared queue."""
    name = names.queue()
    channel.declare(name)
    return name


@pytest.fixture
def make(channel, names):
    """Declares queues: `make(max_length=2)` has the argument x-max-length."""

    def declare(queue=None, **arguments):
        named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
        queue = queue or names.queue()
        channel.declare(queue, arguments=named)
        return queue

    return declare


@pytest.fixture
def dead_letter_queue(make):
    return make()


@pytest.fixture
def source(make, dead_letter_queue):
    """Declares queues that dead-letter to `dead_letter_queue`."""

    def declare(**arguments):
        return make(dead_letter_exchange="", dead_letter_routing_key=dead_letter_queue, **arguments)

    return declare
