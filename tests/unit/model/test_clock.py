"""The broker's clock, which cannot be set while it runs."""

import time

from leveret.model.clock import ManualClock, SystemClock


def test_setting_the_system_clock_changes_nothing(monkeypatch):
    clock = SystemClock()
    before = clock.wall_ms()
    for jump in (-86_400, 3_600, 86_400):
        monkeypatch.setattr(time, "time_ns", lambda jump=jump: (before + jump * 1000) * 1_000_000)
        assert 0 <= clock.wall_ms() - before < 600_000


def test_clock_starts_at_system_time():
    before = time.time() * 1000
    assert before - 1 <= SystemClock().wall_ms() <= time.time() * 1000 + 1


def test_not_before_only_moves_the_clock_forward():
    for clock in (SystemClock(), ManualClock()):
        now = clock.wall_ms()
        clock.not_before(now - 1_000)
        assert clock.wall_ms() - now < 30_000
        clock.not_before(now + 60_000)
        assert 60_000 <= clock.wall_ms() - now < 90_000
