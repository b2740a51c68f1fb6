"""Kills the brokers that a test started and left behind."""

from collections.abc import Iterator

import pytest

from tests.torture.process import kill_leftover_brokers


@pytest.fixture(autouse=True)
def no_leftovers() -> Iterator[None]:
    yield
    kill_leftover_brokers()
