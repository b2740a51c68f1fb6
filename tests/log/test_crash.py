"""kill -9 of members and of the broker: nothing confirmed is lost, nothing is skipped, commits
never go back and never run ahead (R-25, trimmed: 8 kills instead of 25; `make torture` has 200)."""

import pytest

from tests.torture.groups import kill_members_and_broker
from tests.torture.logs import cut_tails, flip_sealed

pytestmark = pytest.mark.timeout(300)
SEED = 25


async def test_killed_members_and_brokers_lose_nothing(tmp_path):
    outcome = await kill_members_and_broker(tmp_path, kills=8, seed=SEED)
    assert outcome.safe, str(outcome)


async def test_r09_files_cut_and_damaged_at_their_end(tmp_path):
    """On files; every cut of a tail in memory is in tests/unit/log/test_scan.py."""
    outcome = await cut_tails(tmp_path, flips=100, seed=SEED)
    assert outcome.safe, str(outcome)


async def test_r10_sealed_files_damaged(tmp_path):
    outcome = await flip_sealed(tmp_path, flips=60, seed=SEED)
    assert outcome.safe, str(outcome)
