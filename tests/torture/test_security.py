"""R-16, R-18, R-30, R-33, R-41, R-43 and R-49 in short forms for every test run.

Trimmed: hundreds in place of tens of thousands, except for names: 10,000 queues and as many
bindings, 1,000 exchanges and 1,000 users. Passwords (R-39) and TLS (R-38) have cases in
tests/security; `make torture` runs all long forms.
"""

import pytest

from tests.torture.security.expensive_bodies import send_expensive_bodies
from tests.torture.security.fuzz import fuzz_live
from tests.torture.security.many_connections import (
    allocator_settings,
    churn,
    hold_idle_connections,
    return_memory,
)
from tests.torture.security.many_names import create_many_names
from tests.torture.security.revoked_permissions import revoke
from tests.torture.security.unauthenticated import hold_unauthenticated_connections

SEED = 20_261_116
pytestmark = pytest.mark.timeout(600)


async def test_r16_idle_connections_need_little_memory(tmp_path):
    outcome = await hold_idle_connections(tmp_path / "run", 150, SEED, watch=0.2, tries=20)
    assert outcome.safe, str(outcome)


async def test_r16_memory_of_closed_connections_is_returned(tmp_path):
    outcome = await return_memory(tmp_path / "run", 2_000, "with jemalloc", allocator_settings())
    assert outcome.safe, str(outcome)


async def test_r18_closed_connections_leak_nothing(tmp_path):
    outcome = await churn(tmp_path / "run", 100, SEED)
    assert outcome.safe, str(outcome)


async def test_r30_unauthenticated_connections_do_not_prevent_logins(tmp_path):
    outcome = await hold_unauthenticated_connections(tmp_path / "run", 40, SEED, seconds=4)
    assert outcome.safe, str(outcome)


async def test_r33_mutated_sessions_do_not_harm_the_broker(tmp_path):
    outcome = await fuzz_live(tmp_path / "run", 400, SEED)
    assert outcome.safe, str(outcome)


async def test_r41_revoked_permissions_stop_publishing_and_consuming(tmp_path):
    outcome = await revoke(tmp_path / "run", 1, SEED)
    assert outcome.safe, str(outcome)


async def test_r43_expensive_bodies_are_refused_quickly(tmp_path):
    outcome = await send_expensive_bodies(tmp_path / "run", 1, SEED)
    assert outcome.safe, str(outcome)


async def test_r49_names_beyond_the_limits_are_refused(tmp_path):
    outcome = await create_many_names(tmp_path / "run", 10_000, SEED, users=1_000)
    assert outcome.safe, str(outcome)
