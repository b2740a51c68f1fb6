"""R-13 and R-14 in forms short enough for every test run.

Trimmed: 60,000 messages of 1 KiB and 500 queues instead of 200,000 and 5,000; both on the same
backlog. `make torture` runs the long forms.
"""

import pytest

from tests.torture.slow_consumer import stall_a_consumer
from tests.torture.startup import start_and_stop

MESSAGES, QUEUES = 60_000, 500
pytestmark = pytest.mark.timeout(300)


async def test_r13_starts_and_stops_and_r14_slow_consumers(tmp_path):
    outcome = await start_and_stop(tmp_path, MESSAGES, QUEUES)
    assert outcome.safe, str(outcome)
    outcome = await stall_a_consumer(tmp_path, MESSAGES // 2, seconds=1.5)
    assert outcome.safe, str(outcome)
