"""Memory of a crowd of connections that has gone, given back to the system.

What connections kept lies apart (leveret/broker/apart.py) and is free. Some still hold memory:
tables that grew with the crowd, the interpreter's lists of dead objects for later use, its cache of
attributes (a few thousand names, and pamqp makes new ones for every method it decodes), and the C
library, which gives back pages when it is asked to.

Looked for when many have gone and some time after the last, since samples of their counters hold
them until they are next taken. Runs on the loop, the C library's part on a thread.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable

CROWD = 500
QUIET_SECONDS = 7.0
LONGEST_SECONDS = 60.0


class Tidier:
    def __init__(self, renew: Callable[[], None]) -> None:
        self._renew = renew
        self._gone = 0
        self._first_at = self._last_at = 0.0
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
        is_quiet = now - self._last_at >= QUIET_SECONDS
        if self._gone >= CROWD and (is_quiet or now - self._first_at >= LONGEST_SECONDS):
            self._gone = 0
            self.tidy()

    def tidy(self) -> None:
        self.times += 1
        self._renew()
        _clear_cache_of_attributes()
        _empty_free_lists()
        asyncio.get_running_loop().run_in_executor(None, _trim)


def _clear_cache_of_attributes() -> None:
    for name in ("_clear_internal_caches", "_clear_type_cache"):  # since 3.13, and before
        clear = getattr(sys, name, None)
        if clear is not None:
            clear()
            return


def _empty_free_lists() -> None:
    """A full collection does it; nothing is walked while everything that lives is frozen."""
    gc.freeze()
    gc.collect()
    gc.unfreeze()


def _trim() -> None:
    """Only the GNU C library has this; others need it less."""
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
