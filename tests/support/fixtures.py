"""The broker fixture of the semantics and the integration tests.

`--broker URL` (or LEVERET_BROKER in the environment) runs both against a broker that is already
running, usually RabbitMQ; without it one Leveret is started per test process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from tests.support.brokers import Target, running_leveret, target_of

WITHOUT_HTTP = {"LEVERET_HTTP_ENABLED": "false"}


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # already added by the conftest of the other folder
        parser.addoption("--broker", default=None, help="amqp:// URL of another broker to test")


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Iterator[Target]:
    """The broker under test."""
    url = request.config.getoption("--broker", default=None) or os.environ.get("LEVERET_BROKER")
    if url:
        yield target_of(url)
        return
    with running_leveret(environment=WITHOUT_HTTP) as target:
        yield target
