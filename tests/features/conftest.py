"""Hubs that tests start and stop by themselves; a broker for a module, where time stands still."""

import pytest

from leveret.testing import LeveretBroker
from tests.features.hub import Hub


@pytest.fixture
async def hub():
    started = await Hub.start()
    yield started
    await started.stop()


@pytest.fixture(scope="module")
def broker():
    with LeveretBroker() as running:
        running.clock.freeze()
        yield running


@pytest.fixture
def clock(broker):
    return broker.clock
