"""After a crash: messages that may have gone on, and been seen, right before it.

What the broker sends on under a new id (dead letters, messages whose delay is over) is handed out
before it is on disk, as everything is. A crash then undoes the move but not the delivery: the old
message is back and goes on once more, under another id. That one is marked as redelivered, if the
queue it gets to had consumers: it may come a second time. Event-loop thread only; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterable

from leveret.broker.doorway import ends
from queues import ClassicQueue, Target


class Aftermath:
    __slots__ = ("upto",)

    def __init__(self) -> None:
        self.upto = 0
        """The last id before the crash; 0 after a clean stop."""

    def mark(self, old: int, new: int, targets: Iterable[Target]) -> None:
        """Message `old` has just gone to these queues as `new`."""
        if old > self.upto:
            return
        for target in ends(targets):
            if isinstance(target, ClassicQueue) and target.paging is not None:
                target.paging.comes_again(new)
