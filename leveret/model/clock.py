"""Time as a port: one clock for display and stored deadlines, one that never jumps for timers.

The wall clock is read once, at start, and counted on by a clock that nobody can set: setting the
system clock of a running broker neither expires messages early nor late. It takes effect at the
next start, and even then time does not go back behind what is stored (`not_before`), and what was
stored before moves along with the clock (`anchor`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # counts on while asleep


_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Anchor(NamedTuple):
    """How the wall clock stands to one that only ever counts on, as long as the machine is up.

    `boot` names the boot of the machine; empty when that is not known.
    """

    boot: str
    offset_ms: int


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970; never goes back."""

    def monotonic(self) -> float:
        """Seconds that only grow."""

    def not_before(self, time_ms: int) -> None:
        """It is at least this late, whatever the system says."""

    def anchor(self) -> Anchor:
        """Does not change while a broker runs."""


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
    """A clock that tests move; with a `boot`, one that has been up for `up_ms` already."""

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
