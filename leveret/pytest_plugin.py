"""pytest fixtures: a broker per test, its URL and its clock. Found by pytest once installed.

Loading this module imports nothing of the broker; the first test that asks for a fixture does.
`-p no:leveret` switches it off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from leveret.testing import LeveretBroker, LeveretClock

MARKER = "leveret(**settings): settings of this test's broker, e.g. http_enabled=True"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def leveret_settings() -> dict[str, Any]:
    """Settings of every `leveret_broker`; override it in a conftest.py."""
    return {}


@pytest.fixture
def leveret_broker(
    request: pytest.FixtureRequest, leveret_settings: dict[str, Any]
) -> Iterator[LeveretBroker]:
    """A broker of this test's own: in process, in memory, on a free port."""
    from leveret.testing import LeveretBroker

    marker = request.node.get_closest_marker("leveret")
    with LeveretBroker(**{**leveret_settings, **(marker.kwargs if marker else {})}) as broker:
        yield broker


@pytest.fixture
def leveret_url(leveret_broker: LeveretBroker) -> str:
    """Where AMQP clients connect to, user and password included."""
    return leveret_broker.url


@pytest.fixture
def leveret_clock(leveret_broker: LeveretBroker) -> LeveretClock:
    """The broker's clock: `advance(seconds)` jumps, `freeze()` makes it stand still."""
    return leveret_broker.clock
