"""R-06 in a short form for every test run: 3 kills of 3,000 messages in place of 10 of 50,000.

`make torture` runs the long form.
"""

import pytest

from tests.torture.dead_letters import kill_while_dead_lettering

pytestmark = pytest.mark.timeout(600)


async def test_r06_each_message_is_in_exactly_one_queue(tmp_path):
    outcome = await kill_while_dead_lettering(tmp_path, cycles=3, seed=20261116)
    assert outcome.safe, str(outcome)
