"""A broker without sockets for each test, and a broker with a frozen clock for each module."""

import pytest

from leveret.testing import LeveretBroker
from tests.features.harness import BrokerHarness


@pytest.fixture
async def harness():
    harness = await BrokerHarness.start()
    yield harness
    await harness.stop()


@pytest.fixture(scope="module")
def broker():
    with LeveretBroker() as broker:
        broker.clock.freeze()
        yield broker


@pytest.fixture
def clock(broker):
    return broker.clock
