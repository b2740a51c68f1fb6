"""R-31, R-32 and R-36 in forms short enough for every test run.

Trimmed: a round of announcements instead of hundreds, dozens of examples for each target instead of
tens of thousands (tests/unit/amqp has more of them), and atheris not at all. `make torture` runs
the long forms.
"""

import pytest

from tests.torture.security import round_trips
from tests.torture.security.extremes import announce_much, open_all_channels

SEED = 20_261_116
pytestmark = pytest.mark.timeout(300)


async def test_r31_what_is_announced_too_large_is_refused_unread(tmp_path):
    outcome = await announce_much(tmp_path / "run", 10, SEED)
    assert outcome.safe, str(outcome)


@pytest.mark.parametrize("target", round_trips.TARGETS)
def test_r32_round_trips(target):
    round_trips.run_target(target, 40, SEED)


@pytest.mark.parametrize("name", round_trips.worst_inputs())
def test_r32_worst_tables_take_no_more_memory_than_they_may(name):
    assert not round_trips.too_large(name)


async def test_r36_all_channels_open_and_open_again(tmp_path):
    outcome = await open_all_channels(tmp_path / "run", 1, SEED)
    assert outcome.safe, str(outcome)
