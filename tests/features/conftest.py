"""Hubs that tests start, and stop by themselves."""

import pytest

from tests.features.hub import Hub


@pytest.fixture
async def hub():
    started = await Hub.start()
    yield started
    await started.stop()
