"""Time as a port: one clock for display and stored deadlines, one that never jumps for timers."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970."""

    def monotonic(self) -> float:
        """Seconds that only grow."""


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


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
