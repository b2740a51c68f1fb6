"""How close memory is to its watermark, and how soon to look again.

What messages take is known, of their headers roughly; what the process takes is measured. Both
count: messages alone may reach the watermark; once the whole process has, messages may have half of
it. Less than that cannot be asked for: memory that was freed often stays with the process, and
publishers must not wait for it. Owned by the loop; nothing of it outlives the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from secrets import randbelow

from queues import Entry

SHARE_WHEN_FULL = 0.5
CLEAR = 0.9
MOST_ASKED = 100
LONGEST_SECONDS = 0.25
SOONEST_SECONDS = 0.02


def resident_bytes() -> int:
    """What the process takes; 0 where nobody knows."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def header_bytes(count: int, entries: Iterable[Entry]) -> int:
    """Octets of the headers of so many; of more than a few, as some of them tell."""
    step = count // MOST_ASKED + 1
    some = islice(entries, randbelow(step), None, step)
    return step * sum([entry.message.header_size for entry in some])


class Watermark:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.is_passed = False
        self.room = limit
        """Octets that may still come before it is passed."""
        self.excess = 0
        """Octets that have to go before publishers are read again; 0 while they are."""

    def look(self, held: int, resident: int) -> bool:
        """Whether publishers have to wait, now that messages take `held` and all `resident`."""
        is_full = resident > self._limit
        most = self._limit * SHARE_WHEN_FULL if is_full else self._limit
        self.room = int(most - held)
        if not is_full:
            self.room = min(self.room, self._limit - resident)
        if held > most:
            self.is_passed = True
        elif held < most * CLEAR:
            self.is_passed = False
        self.excess = int(held - most * CLEAR) + 1 if self.is_passed else 0
        return self.is_passed


class Pace:
    """Looks again after half the time in which what is left would be used up at the last pace."""

    def __init__(self) -> None:
        self._left, self._at = 0, 0.0

    def next_look(self, left: int, now: float) -> float:
        used, elapsed = self._left - left, now - self._at
        self._left, self._at = left, now
        if left <= 0 or used <= 0:
            return LONGEST_SECONDS
        return min(LONGEST_SECONDS, max(SOONEST_SECONDS, left / used * elapsed / 2))
