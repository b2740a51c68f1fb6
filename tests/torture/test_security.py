"""R-16, R-18, R-30, R-33, R-41, R-43 and R-49 in forms short enough for every test run.

Trimmed: hundreds instead of tens of thousands, but for the names: 10,000 queues and as many
bindings, 1,000 exchanges and 1,000 users. Passwords (R-39) and TLS (R-38) have their cases in
tests/security; `make torture` runs the long forms of all.
"""

import pytest

from tests.torture.security.bombs import drop_bombs
from tests.torture.security.crowd import churn, give_back, stay_idle
from tests.torture.security.fuzz import fuzz_live
from tests.torture.security.names import flood_names
from tests.torture.security.revoking import revoke
from tests.torture.security.strangers import keep_silent

SEED = 20_261_116
pytestmark = pytest.mark.timeout(600)


async def test_r16_idle_connections_are_small(tmp_path):
    outcome = await stay_idle(tmp_path / "run", 150, SEED, watch=0.2, tries=20)
    assert outcome.safe, str(outcome)


async def test_r16_memory_of_a_crowd_is_given_back(tmp_path):
    outcome = await give_back(tmp_path / "run", 2_000, "as it comes")
    assert outcome.safe, str(outcome)


async def test_r18_connections_that_come_and_go_leave_nothing(tmp_path):
    outcome = await churn(tmp_path / "run", 100, SEED)
    assert outcome.safe, str(outcome)


async def test_r30_strangers_keep_nobody_out(tmp_path):
    outcome = await keep_silent(tmp_path / "run", 40, SEED, seconds=4)
    assert outcome.safe, str(outcome)


async def test_r33_mutated_sessions_do_no_harm(tmp_path):
    outcome = await fuzz_live(tmp_path / "run", 400, SEED)
    assert outcome.safe, str(outcome)


async def test_r41_rights_are_taken_from_who_publishes_and_consumes(tmp_path):
    outcome = await revoke(tmp_path / "run", 1, SEED)
    assert outcome.safe, str(outcome)


async def test_r43_bodies_that_would_take_long_do_not(tmp_path):
    outcome = await drop_bombs(tmp_path / "run", 1, SEED)
    assert outcome.safe, str(outcome)


async def test_r49_flood_of_names_is_refused(tmp_path):
    outcome = await flood_names(tmp_path / "run", 10_000, SEED, users=1_000)
    assert outcome.safe, str(outcome)
