"""R-13 to R-15, R-17, R-19, R-20 and R-22 in short forms for every test run.

Trimmed: 60,000 messages of 1 KiB and 500 queues in place of 200,000 and 5,000, both on the same
backlog; one flood, one second of mixed load, one stop, one client that is cut off behind a relay in
place of a network namespace; 1,000 queues with bindings in place of 5,000. Time limits are judged
by `make torture`, which runs the long forms.
"""

import pytest

from tests.torture.security.half_open import cut_relay
from tests.torture.security.loop_lag import measure_loop_lag
from tests.torture.security.many_queues import hold_many_queues
from tests.torture.security.memory_alarm import MIB, flood_memory
from tests.torture.security.paused_broker import pause_broker
from tests.torture.slow_consumer import stall_consumers
from tests.torture.startup import start_and_stop

SEED = 20_261_116
MESSAGES, QUEUES = 60_000, 500
pytestmark = pytest.mark.timeout(600)


async def test_r13_start_and_stop_and_r14_slow_consumers(tmp_path):
    outcome = await start_and_stop(tmp_path, MESSAGES, QUEUES)
    assert outcome.safe, str(outcome)
    outcome = await stall_consumers(tmp_path, MESSAGES // 2, seconds=1.5)
    assert outcome.safe, str(outcome)


async def test_r15_flooding_publishers_are_blocked_and_unblocked(tmp_path):
    outcome = await flood_memory(
        tmp_path / "run", 0, SEED, watermark=64 * MIB, heartbeat=2, modes=("memory",)
    )
    assert outcome.safe, str(outcome)


async def test_r17_idle_queues_cost_only_memory(tmp_path):
    outcome = await hold_many_queues(tmp_path / "run", 1_000, SEED)
    assert outcome.safe, str(outcome)


async def test_r19_mixed_load_is_served_and_nothing_blocks_the_loop(tmp_path):
    """The delay of the loop is judged by `make torture`."""
    outcome = await measure_loop_lag(tmp_path / "run", 1, SEED, idle=0)
    assert outcome.safe, str(outcome)


async def test_r20_no_client_is_closed_after_the_broker_was_stopped(tmp_path):
    outcome = await pause_broker(tmp_path / "run", 1, SEED, heartbeat=1)
    assert outcome.safe, str(outcome)


async def test_r22_messages_of_a_vanished_client_are_requeued(tmp_path):
    outcome = await cut_relay(tmp_path / "run", 1, SEED, heartbeat=2)
    assert outcome.safe, str(outcome)
