"""How a connection or a channel gives back what it held: every step is taken, whatever one raises.

A step that raises is our bug. It is logged, the first of each end only: were the others left out,
messages would stay with a consumer that has gone, and a connection in the list of those there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec

log = logging.getLogger("leveret.amqp")

P = ParamSpec("P")


class Ending:
    __slots__ = ("_is_told", "_whose")

    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._is_told = False

    def __repr__(self) -> str:
        return f"<Ending of {self._whose}>"

    def take(self, step: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            step(*args, **kwargs)
        except Exception:
            if not self._is_told:
                self._is_told = True
                log.exception("unexpected error at the end of %s", self._whose)
