"""Delayed and deduplicated messages under kill -9, short enough for every test run."""

import pytest

from tests.torture.schedule import kill_among_the_delayed

pytestmark = pytest.mark.timeout(600)


async def test_each_delayed_message_comes_once(tmp_path):
    outcome = await kill_among_the_delayed(tmp_path, cycles=3, seed=20261116)
    assert outcome.safe, str(outcome)
