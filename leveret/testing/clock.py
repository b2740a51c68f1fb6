"""The broker's time in tests: runs as time does, until a test moves it or makes it stand still.

Read on the broker's thread, moved from any other: a broker that uses it registers how to jump, and
jumps on its own thread, so that nobody sees a time between two states.
"""

from __future__ import annotations

from collections.abc import Callable

from leveret.model.clock import Anchor, SystemClock

Jump = Callable[[int, bool], None]
"""By so many milliseconds, with heartbeats or without."""
ROUND_MS = 1_000
"""A clock stands at a whole second: what is timed more coarsely than that is due exactly, too."""


class LeveretClock:
    """Implements `leveret.model.clock.Clock`."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self._ahead_ms = 0
        self._stopped: tuple[int, float] | None = None
        self.jump: Jump | None = None
        """How the broker that uses this clock jumps; without one only the time changes."""

    def wall_ms(self) -> int:
        return self._now()[0] + self._ahead_ms

    def monotonic(self) -> float:
        return self._now()[1] + self._ahead_ms / 1000

    def not_before(self, time_ms: int) -> None:
        self._ahead_ms += max(0, time_ms - self.wall_ms())

    def anchor(self) -> Anchor:
        """None that would last: a test's jumps are meant to be believed."""
        return Anchor("", 0)

    def _now(self) -> tuple[int, float]:
        return self._stopped or (self._real.wall_ms(), self._real.monotonic())

    def freeze(self) -> None:
        """From now on time passes by `advance` alone: nothing expires on a slow machine."""
        self._stopped = self._now()
        self._ahead_ms += -self.wall_ms() % ROUND_MS

    def unfreeze(self) -> None:
        """Time runs again, on from where it stood."""
        if self._stopped is not None:
            stood = self._stopped[1]
            self._stopped = None
            self._ahead_ms -= int((self._real.monotonic() - stood) * 1000)

    def move(self, milliseconds: int) -> None:
        """Only the time changes; nobody looks at what falls due."""
        self._ahead_ms += milliseconds

    def advance(self, seconds: float, *, heartbeats: bool = True) -> None:
        """Jump ahead; when it returns, whatever falls due in between has happened, in its order.

        Clients count as having sent their heartbeats meanwhile. With `heartbeats=False` they
        have been silent: those that agreed on heartbeats are cut off if it was too long.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back: advance({seconds})")
        milliseconds = round(seconds * 1000)
        if self.jump is None:
            self.move(milliseconds)
        else:
            self.jump(milliseconds, heartbeats)
