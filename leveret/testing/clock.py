"""The broker's clock in tests: real time, until a test advances or freezes it.

It is read on the broker's thread and moved from other threads: the broker registers a function that
jumps on its own thread, so the time never changes while the broker runs a step.
"""

from __future__ import annotations

from collections.abc import Callable

from leveret.model.clock import Anchor, SystemClock

Jump = Callable[[int, bool], None]
"""Called with milliseconds, and whether clients count as having sent heartbeats."""
ROUND_MS = 1_000
"""A frozen clock stands at a whole second, so that coarser deadlines are exact as well."""


class LeveretClock:
    """Implements `leveret.model.clock.Clock`."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self._ahead_ms = 0
        self._stopped: tuple[int, float] | None = None
        self.jump: Jump | None = None
        """Set by the broker that uses this clock; without it, only the time changes."""

    def wall_ms(self) -> int:
        return self._now()[0] + self._ahead_ms

    def monotonic(self) -> float:
        return self._now()[1] + self._ahead_ms / 1000

    def not_before(self, time_ms: int) -> None:
        self._ahead_ms += max(0, time_ms - self.wall_ms())

    def anchor(self) -> Anchor:
        """Return no usable anchor: a test's jumps must not be taken for clock drift."""
        return Anchor("", 0)

    def _now(self) -> tuple[int, float]:
        return self._stopped or (self._real.wall_ms(), self._real.monotonic())

    def freeze(self) -> None:
        """Stop the clock; only `advance` moves it, so nothing expires on a slow machine."""
        self._stopped = self._now()
        self._ahead_ms += -self.wall_ms() % ROUND_MS

    def unfreeze(self) -> None:
        """Let the clock run again from where it stopped."""
        if self._stopped is not None:
            stopped_at = self._stopped[1]
            self._stopped = None
            self._ahead_ms -= int((self._real.monotonic() - stopped_at) * 1000)

    def move(self, milliseconds: int) -> None:
        """Change only the time, without running timers."""
        self._ahead_ms += milliseconds

    def advance(self, seconds: float, *, heartbeats: bool = True) -> None:
        """Jump ahead; everything that falls due in between has happened when this returns.

        Clients count as having sent their heartbeats. With `heartbeats=False` they count as
        silent: connections that negotiated heartbeats are closed if the jump is too long.
        """
        if seconds < 0:
            raise ValueError(f"cannot move the clock back: advance({seconds})")
        milliseconds = round(seconds * 1000)
        if self.jump is None:
            self.move(milliseconds)
        else:
            self.jump(milliseconds, heartbeats)
