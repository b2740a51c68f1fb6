"""R-02 and R-03 in forms short enough for every test run.

Trimmed: R-02 2 power failures in each of the four modes instead of 10, plus the control; R-03 100
states instead of 300. `make torture` runs the long forms.
"""

import random

import pytest

from tests.torture.crash_states import enumerate_states
from tests.torture.power_loss import cut_the_power
from tests.torture.writeback_fs import Disk, Mode

SEED = 20261116
pytestmark = pytest.mark.timeout(600)


async def test_r02_nothing_confirmed_is_lost_and_the_control_loses(tmp_path):
    outcome = await cut_the_power(tmp_path, cycles=2, seed=SEED)
    assert outcome.safe, str(outcome)


async def test_r03_every_crash_state_has_what_was_confirmed(tmp_path):
    outcome = await enumerate_states(tmp_path, states=100, seed=SEED)
    assert outcome.safe, str(outcome)


class TestDisk:
    """The file system that forgets must forget the right things."""

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

    def test_what_is_synced_stays_and_the_rest_goes(self):
        assert self.after(Mode.DROP, sync=True, sync_names=True) == b"a" * 8192
        assert self.after(Mode.DROP, sync=False, sync_names=True) == b""

    def test_a_name_needs_its_directory_synced(self):
        assert self.after(Mode.DROP, sync=True, sync_names=False) is None
        assert self.after(Mode.NAMES, sync=True, sync_names=False) is None
        assert self.after(Mode.NAMES, sync=True, sync_names=True) == b"b" * 8192

    def test_pages_survive_one_by_one(self):
        seen = {self.after(Mode.PAGES, sync=True, sync_names=True, seed=n) for n in range(40)}
        pages = {b"a" * 4096, b"b" * 4096}
        assert seen == {one + two for one in pages for two in pages}

    def test_a_torn_write_ends_at_a_sector(self):
        seen = {self.after(Mode.TEAR, sync=True, sync_names=True, seed=n) for n in range(40)}
        ends = {one.count(b"b") for one in seen if one is not None}
        assert len(ends) > 3
        assert all(end % 512 == 0 for end in ends)
