"""No broker outlives the test that started it."""

from collections.abc import Iterator

import pytest

from tests.torture.process import end_leftovers


@pytest.fixture(autouse=True)
def no_leftovers() -> Iterator[None]:
    yield
    end_leftovers()
