"""R-02 and R-03 in short forms for every test run.

Trimmed: R-02 2 power failures in each of the four modes in place of 10, plus the control; R-03 100
states in place of 300. `make torture` runs the long forms.
"""

import random

import pytest

from tests.torture.crash_states import enumerate_states
from tests.torture.power_loss import fail_power
from tests.torture.writeback_fs import Disk, Mode

SEED = 20261116
pytestmark = pytest.mark.timeout(600)


async def test_r02_no_confirmed_message_is_lost_except_by_the_control(tmp_path):
    outcome = await fail_power(tmp_path, cycles=2, seed=SEED)
    assert outcome.safe, str(outcome)


async def test_r03_every_crash_state_has_all_confirmed_messages(tmp_path):
    outcome = await enumerate_states(tmp_path, states=100, seed=SEED)
    assert outcome.safe, str(outcome)


class TestDisk:
    """The file system loses exactly what each mode says."""

    def after(self, mode: Mode, *, sync: bool, sync_names: bool, seed: int = 1) -> bytes | None:
        disk = Disk()
        file = disk.make("/file")
        disk.write(file, 0, b"a" * 8192)
        if sync:
            disk.sync(file)
        if sync_names:
            disk.sync_names("/")
        disk.write(file, 0, b"b" * 8192)
        disk.fail(mode, random.Random(seed))
        left = disk.names.get("/file")
        return None if left is None else bytes(left.seen)

    def test_synced_data_survives_and_the_rest_is_lost(self):
        assert self.after(Mode.DROP, sync=True, sync_names=True) == b"a" * 8192
        assert self.after(Mode.DROP, sync=False, sync_names=True) == b""

    def test_name_survives_only_if_its_directory_was_synced(self):
        assert self.after(Mode.DROP, sync=True, sync_names=False) is None
        assert self.after(Mode.NAMES, sync=True, sync_names=False) is None
        assert self.after(Mode.NAMES, sync=True, sync_names=True) == b"b" * 8192

    def test_pages_survive_independently(self):
        seen = {self.after(Mode.PAGES, sync=True, sync_names=True, seed=n) for n in range(40)}
        pages = {b"a" * 4096, b"b" * 4096}
        assert seen == {first + second for first in pages for second in pages}

    def test_torn_write_ends_at_a_sector(self):
        seen = {self.after(Mode.TEAR, sync=True, sync_names=True, seed=n) for n in range(40)}
        ends = {content.count(b"b") for content in seen if content is not None}
        assert len(ends) > 3
        assert all(end % 512 == 0 for end in ends)
