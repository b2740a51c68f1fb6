"""Lines about what comes in floods: the first at once, then one a second, with how many there were.

The last of a flood is told, too, so that a log never says less than has happened. Runs on the loop;
a timer is held for a second after each line, and a stop loses what would have been told then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SECONDS = 1.0

Later = Callable[[float, Callable[[], None]], object]


def _on_the_loop(seconds: float, call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(seconds, call)


class Tally:
    def __init__(self, tell: Callable[[str, str, int], None], later: Later = _on_the_loop) -> None:
        """`tell` makes the line: from where, why, and how many there have been."""
        self._tell = tell
        self._later = later
        self._is_quiet = False
        self._untold: tuple[str, str] | None = None
        self.count = 0

    def __repr__(self) -> str:
        return f"<Tally {self.count}>"

    def add(self, host: str, why: str) -> None:
        self.count += 1
        if self._is_quiet:
            self._untold = (host, why)
        else:
            self._say(host, why)

    def _say(self, host: str, why: str) -> None:
        self._is_quiet, self._untold = True, None
        self._later(SECONDS, self._again)
        self._tell(host, why, self.count)

    def _again(self) -> None:
        self._is_quiet = False
        if self._untold is not None:
            self._say(*self._untold)
