"""Delayed and deduplicated messages under kill -9, in a short form for every test run."""

import pytest

from tests.torture.delayed_messages import kill_while_delaying

pytestmark = pytest.mark.timeout(600)


async def test_each_delayed_message_is_delivered_once(tmp_path):
    outcome = await kill_while_delaying(tmp_path, cycles=3, seed=20261116)
    assert outcome.safe, str(outcome)
