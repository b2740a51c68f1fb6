"""Who waits for which batch to be on disk. Callbacks run in the order of their marks."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

log = logging.getLogger("leveret.broker")


class Commits:
    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Callable[[], None], Callable[[], None] | None]] = deque()
        self.committed = 0

    def after(
        self,
        mark: int,
        done: Callable[[], None],
        failed: Callable[[], None] | None = None,
    ) -> None:
        """Call `done` once everything up to `mark` is durable, at once if it is already."""
        if mark <= self.committed:
            done()
        else:
            self._waiting.append((mark, done, failed))

    def advance(self, mark: int) -> None:
        self.committed = max(self.committed, mark)
        while self._waiting and self._waiting[0][0] <= mark:
            _guarded(self._waiting.popleft()[1])

    def fail(self, mark: int) -> None:
        """The batch `mark` is lost: whoever waits for it learns so, and nobody waits any more."""
        self.committed = max(self.committed, mark)
        while self._waiting and self._waiting[0][0] <= mark:
            _, done, failed = self._waiting.popleft()
            _guarded(failed or done)


def _guarded(call: Callable[[], None]) -> None:
    """One that fails is our bug, but must not keep the others waiting."""
    try:
        call()
    except Exception:
        log.exception("unexpected error after a commit")
