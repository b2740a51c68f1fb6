"""Memory of a crowd of connections that has gone, given back to the system.

Nothing of it is in use any more, but what allocators keep for the next crowd lies scattered among
it: free lists, which a full collection empties; names that the interpreter's cache of attributes
remembers (a few thousand, and pamqp makes new ones for every method it decodes); dead handles that
the event loop keeps; free pages inside the C library's heap. One object that lasts keeps the
megabyte around it, so what is needed here is made before a crowd comes, not when it has gone, and
what is made anew all the time (timers, futures, samples) leaves its place round by round.

Looked for when many have gone and some time after the last, since samples of their counters hold
them until they are next taken. Runs on the loop, the C library's part on a thread; a process with
much in memory is not collected, because walking that would take too long.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable

CROWD = 500
QUIET_SECONDS = 7.0
LONGEST_SECONDS = 60.0
MOST_BLOCKS = 400_000
"""Of memory in use, where a full collection takes some 20 ms."""
ROUNDS = 6
"""Of collecting, a second apart: what is made anew all the time goes through free lists, too."""
KEPT_HANDLES = 300
"""More than the 250 dead ones that uvloop keeps to use again."""


class Tidier:
    def __init__(self, renew: Callable[[], None]) -> None:
        self._renew = renew
        self._gone = self._rounds = 0
        self._first_at = self._last_at = 0.0
        self._trim: Callable[[], object] | None = None
        self.times = 0

    def __repr__(self) -> str:
        return f"<Tidier gone={self._gone} times={self.times}>"

    def went(self, now: float) -> None:
        """A connection has gone."""
        if not self._gone:
            self._first_at = now
        self._gone += 1
        self._last_at = now

    def look(self, now: float) -> None:
        if self._gone and self._trim is None:
            self._trim = _trimmer()
            self._give_back()
        is_quiet = now - self._last_at >= QUIET_SECONDS
        if self._gone >= CROWD and (is_quiet or now - self._first_at >= LONGEST_SECONDS):
            self._gone = 0
            self.tidy()
        elif self._rounds and is_quiet:
            self._collect()

    def tidy(self) -> None:
        self.times += 1
        clear = getattr(sys, "_clear_type_cache", None)
        if clear is not None:
            clear()
        loop = asyncio.get_running_loop()
        self._rounds = ROUNDS
        _replace_handles(loop)
        loop.call_soon(self._collect)

    def _collect(self) -> None:
        self._rounds -= 1
        if sys.getallocatedblocks() < MOST_BLOCKS:
            gc.collect()
        self._renew()
        self._give_back()

    def _give_back(self) -> None:
        if self._trim is not None:
            asyncio.get_running_loop().run_in_executor(None, self._trim)


def _replace_handles(loop: asyncio.AbstractEventLoop) -> None:
    """Let the loop keep dead handles that lie together, not those of a whole crowd."""
    scattered = [loop.call_soon(_nothing) for _ in range(KEPT_HANDLES)]
    together = [loop.call_soon(_nothing) for _ in range(KEPT_HANDLES)]

    def forget() -> None:
        together.clear()  # it keeps those that go first
        scattered.clear()

    loop.call_soon(forget)


def _nothing() -> None:
    """Something for a handle to call."""


def _trimmer() -> Callable[[], object]:
    """Only the GNU C library has this; others need it less."""
    import ctypes

    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return _nothing
    return lambda: trim(0)
