"""A rate-limited log line: the first event is logged at once, then one a second with the total.

The last event of a burst is logged too, so the log never reports fewer events than happened. Runs
on the event loop. A timer is pending for a second after each line; a stop loses the last line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

INTERVAL_SECONDS = 1.0

CallLater = Callable[[float, Callable[[], None]], object]


def _call_later(seconds: float, callback: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(seconds, callback)


class RateLimitedLog:
    def __init__(
        self, write: Callable[[str, str, int], None], call_later: CallLater = _call_later
    ) -> None:
        """`write` logs one line for a host, a reason and the total number of events."""
        self._write = write
        self._call_later = call_later
        self._is_waiting = False
        self._pending: tuple[str, str] | None = None
        self.count = 0

    def __repr__(self) -> str:
        return f"<RateLimitedLog {self.count}>"

    def add(self, host: str, why: str) -> None:
        self.count += 1
        if self._is_waiting:
            self._pending = (host, why)
        else:
            self._log(host, why)

    def _log(self, host: str, why: str) -> None:
        self._is_waiting, self._pending = True, None
        self._call_later(INTERVAL_SECONDS, self._on_interval)
        self._write(host, why, self.count)

    def _on_interval(self) -> None:
        self._is_waiting = False
        if self._pending is not None:
            self._log(*self._pending)
