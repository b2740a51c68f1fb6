"""pytest fixtures: a broker per test, its URL and its clock. pytest finds them once installed.

Loading this module imports nothing of the broker; the first test that uses a fixture does.
`-p no:leveret` disables it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from leveret.testing import LeveretBroker, LeveretClock

MARKER = (
    "leveret(on_disk=False, **settings): settings for this test's broker, such as "
    "http_enabled=True; on_disk=True keeps its data in tmp_path, so that it can be restarted"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("leveret")
    group.addoption(
        "--leveret-url",
        metavar="URL",
        default="",
        help="run the tests against this broker (amqp://user:password@host) instead of an "
        "in-process one; tests that move the clock or inject faults are skipped",
    )
    group.addoption(
        "--leveret-http-url",
        metavar="URL",
        default="",
        help="the management API of that broker (default http://HOST:15672)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skip a test that turns out to need the in-process broker."""
    if not item.config.getoption("--leveret-url"):
        return (yield)
    from leveret.testing.remote import NotInProcess

    try:
        return (yield)
    except NotInProcess as error:
        pytest.skip(str(error))


@pytest.fixture
def leveret_settings() -> dict[str, Any]:
    """Settings for every `leveret_broker`; override this fixture in a conftest.py."""
    return {}


@pytest.fixture
def leveret_broker(
    request: pytest.FixtureRequest, leveret_settings: dict[str, Any]
) -> Iterator[LeveretBroker]:
    """A broker for this test only: in process, in memory, on a free port."""
    if url := request.config.getoption("--leveret-url"):
        from leveret.testing.remote import RemoteBroker

        with RemoteBroker(url, request.config.getoption("--leveret-http-url")) as remote:
            yield cast("LeveretBroker", remote)
        return
    from leveret.testing import LeveretBroker

    marker = request.node.get_closest_marker("leveret")
    settings = {**leveret_settings, **(marker.kwargs if marker else {})}
    if settings.pop("on_disk", False):
        settings.setdefault("data_dir", request.getfixturevalue("tmp_path") / "leveret")
    with LeveretBroker(**settings) as broker:
        yield broker


@pytest.fixture
def leveret_url(leveret_broker: LeveretBroker) -> str:
    """The URL for AMQP clients, with user and password."""
    return leveret_broker.url


@pytest.fixture
def leveret_clock(leveret_broker: LeveretBroker, request: pytest.FixtureRequest) -> LeveretClock:
    """The broker's clock: `advance(seconds)` jumps, `freeze()` stops it."""
    if request.config.getoption("--leveret-url"):
        pytest.skip("the clock of another broker cannot be moved: run without --leveret-url")
    return leveret_broker.clock
