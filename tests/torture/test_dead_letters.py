"""R-06 in a form short enough for every test run: 3 kills of 3,000 messages instead of 10 of
50,000. `make torture` runs the long form."""

import pytest

from tests.torture.dead_letters import kill_among_the_dying

pytestmark = pytest.mark.timeout(600)


async def test_r06_each_is_in_exactly_one_place(tmp_path):
    outcome = await kill_among_the_dying(tmp_path, cycles=3, seed=20261116)
    assert outcome.safe, str(outcome)
