"""R-01, R-05, R-07, R-08: kill -9, in short forms for every test run.

R-01 is complete: 25 kills, five of them aimed at commits and checkpoints, and 100,000 confirms.
Trimmed: R-05 10 kills in place of 30; R-07 8 in place of 25; R-08 8 in place of 25. `make torture`
runs the long forms.
"""

import pytest

from tests.torture.acks import kill_after_acks
from tests.torture.crashes import kill_under_load
from tests.torture.definitions import kill_while_defining
from tests.torture.transactions import kill_during_commit

SEED = 20261116
pytestmark = pytest.mark.timeout(600)


async def test_r01_no_confirmed_message_is_lost(tmp_path):
    outcome = await kill_under_load(tmp_path, cycles=25, seed=SEED, confirms=100_000)
    assert outcome.safe, str(outcome)


async def test_r05_no_transaction_is_torn(tmp_path):
    outcome = await kill_during_commit(tmp_path, cycles=10, seed=SEED)
    assert outcome.safe, str(outcome)


async def test_r07_acked_messages_are_not_redelivered(tmp_path):
    outcome = await kill_after_acks(tmp_path, cycles=8, seed=SEED)
    assert outcome.safe, str(outcome)


async def test_r08_answered_changes_survive(tmp_path):
    outcome = await kill_while_defining(tmp_path, cycles=8, seed=SEED)
    assert outcome.safe, str(outcome)
