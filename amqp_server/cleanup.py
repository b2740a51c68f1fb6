"""How a connection or a channel releases what it holds: every step runs, even if another one fails.

An exception in a step is a bug. It is logged, only the first one of each cleanup. If the remaining
steps were skipped, messages would stay with a consumer that is gone, and the connection would stay
in the list of open connections.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec

log = logging.getLogger("leveret.amqp")

P = ParamSpec("P")


class Cleanup:
    __slots__ = ("_has_logged", "_owner")

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._has_logged = False

    def __repr__(self) -> str:
        return f"<Cleanup of {self._owner}>"

    def run(self, step: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            step(*args, **kwargs)
        except Exception:
            if not self._has_logged:
                self._has_logged = True
                log.exception("unexpected error while closing %s", self._owner)
