"""Fixtures of the tests with real client libraries."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from tests.support.brokers import Target
from tests.support.fixtures import broker, pytest_addoption

__all__ = ["broker", "pytest_addoption"]

_NUMBERS = itertools.count(1)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """Makes names that no other test uses."""
    test = request.node.originalname
    yield lambda: f"{test}-{os.getpid()}-{next(_NUMBERS)}"


@pytest.fixture
def url(broker: Target) -> str:
    return broker.url
