"""Time as a port: wall time for display and stored deadlines, monotonic time for timers.

The wall clock is read once, at start, and then advanced by a clock that cannot be set: setting the
system clock of a running broker expires messages neither early nor late. A change takes effect at
the next start; even then time does not go back before the newest stored time (`not_before`), and
deadlines stored before are shifted with the clock (`anchor`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # also advances in standby
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Anchor(NamedTuple):
    """The offset of the wall clock from the time since boot.

    `boot` identifies the boot of the machine; empty if unknown.
    """

    boot: str
    offset_ms: int


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970; never decreases."""

    def monotonic(self) -> float:
        """Seconds; never decreases."""

    def not_before(self, time_ms: int) -> None:
        """Set the wall clock forward to this time if it is behind it."""

    def anchor(self) -> Anchor:
        """Constant while a broker runs."""


class SystemClock:
    def __init__(self) -> None:
        self._start_ns = time.time_ns() - time.clock_gettime_ns(_STEADY)

    def wall_ms(self) -> int:
        return (self._start_ns + time.clock_gettime_ns(_STEADY)) // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def not_before(self, time_ms: int) -> None:
        self._start_ns += max(0, time_ms - self.wall_ms()) * 1_000_000

    def anchor(self) -> Anchor:
        boot = ""
        with suppress(OSError):
            boot = _BOOT.read_text(encoding="ascii").strip()
        return Anchor(boot, self._start_ns // 1_000_000)


class ManualClock:
    """A clock that tests advance; `boot` and `up_ms` simulate a machine that has been up before."""

    def __init__(self, wall_ms: int = 1_700_000_000_000, boot: str = "", up_ms: int = 0) -> None:
        self._wall_ms = wall_ms
        self._seconds = 0.0
        self._boot = boot
        self.up_ms = up_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic(self) -> float:
        return self._seconds

    def advance(self, seconds: float) -> None:
        self._wall_ms += int(seconds * 1000)
        self.up_ms += int(seconds * 1000)
        self._seconds += seconds

    def not_before(self, time_ms: int) -> None:
        self._wall_ms = max(self._wall_ms, time_ms)

    def anchor(self) -> Anchor:
        return Anchor(self._boot, self._wall_ms - self.up_ms)
