"""R-04, R-11, R-12: bad disks, in forms short enough for every test run.

Trimmed: R-04 8 faults instead of 40; R-11 100 flipped bits instead of 200; R-12 one disk with the
alarm and one without instead of 3 each. `make torture` runs the long forms.
"""

import pytest

from tests.torture.disk_full import fill_the_disk
from tests.torture.faults import inject_faults
from tests.torture.rot import flip_bits

SEED = 20261116
pytestmark = pytest.mark.timeout(600)


async def test_r04_failed_syncs_and_writes_confirm_nothing(tmp_path):
    outcome = await inject_faults(tmp_path, cycles=8, seed=SEED)
    assert outcome.safe, str(outcome)


async def test_r11_no_wrong_payload_and_no_crash_loop(tmp_path):
    outcome = await flip_bits(tmp_path, flips=100, seed=SEED)
    assert outcome.safe, str(outcome)


async def test_r12_full_disks_block_or_nack_and_lose_nothing(tmp_path):
    outcome = await fill_the_disk(tmp_path, cycles=1, seed=SEED)
    assert outcome.safe, str(outcome)
