"""R-04, R-11, R-12: bad disks, in short forms for every test run.

Trimmed: R-04 8 faults in place of 40; R-11 100 flipped bits in place of 1,000, and 32 damaged pages
in place of all; R-12 one disk with the alarm, one without and one full of history in place of 3
each. `make torture` runs the long forms.
"""

import pytest

from tests.torture.bit_flips import flip_bits
from tests.torture.disk_full import fill_disk
from tests.torture.faults import inject_faults
from tests.torture.page_damage import damage_pages

SEED = 20261116
pytestmark = pytest.mark.timeout(600)


async def test_r04_messages_of_failed_syncs_and_writes_are_not_confirmed(tmp_path):
    outcome = await inject_faults(tmp_path, cycles=8, seed=SEED)
    assert outcome.safe, str(outcome)


async def test_r11_no_wrong_payload_is_delivered_and_no_start_loops(tmp_path):
    outcome = await flip_bits(tmp_path, flips=100, seed=SEED)
    assert outcome.safe, str(outcome)


async def test_r11_a_damaged_page_costs_what_was_on_it_and_nothing_else(tmp_path):
    outcome = await damage_pages(tmp_path, cases=32, seed=SEED)
    assert outcome.safe, str(outcome)


async def test_r12_full_disks_block_or_nack_and_lose_nothing(tmp_path):
    outcome = await fill_disk(tmp_path, cycles=1, seed=SEED)
    assert outcome.safe, str(outcome)
