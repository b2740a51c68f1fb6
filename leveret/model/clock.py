"""Time as a port: one clock for display and stored deadlines, one that never jumps for timers.

The wall clock is read once, at start, and counted on by a clock that nobody can set: setting the
system clock of a running broker neither expires messages early nor late. It takes effect at the
next start, and even then time does not go back behind what is stored (`not_before`).
"""

from __future__ import annotations

import time
from typing import Protocol

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # counts on while asleep


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970; never goes back."""

    def monotonic(self) -> float:
        """Seconds that only grow."""

    def not_before(self, time_ms: int) -> None:
        """It is at least this late, whatever the system says."""


class SystemClock:
    def __init__(self) -> None:
        self._start_ns = time.time_ns() - time.clock_gettime_ns(_STEADY)

    def wall_ms(self) -> int:
        return (self._start_ns + time.clock_gettime_ns(_STEADY)) // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def not_before(self, time_ms: int) -> None:
        self._start_ns += max(0, time_ms - self.wall_ms()) * 1_000_000


class ManualClock:
    """A clock that tests move."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._seconds = 0.0

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic(self) -> float:
        return self._seconds

    def advance(self, seconds: float) -> None:
        self._wall_ms += int(seconds * 1000)
        self._seconds += seconds

    def not_before(self, time_ms: int) -> None:
        self._wall_ms = max(self._wall_ms, time_ms)
