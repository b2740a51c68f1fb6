"""A doorway stands in a plan for the queues behind an exchange that holds messages up.

It is a target, so that a message is given to it when it is routed (in a transaction: at
commit) and not when its way was worked out. What it does with a message is decided by whoever made
it. It keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from exchange import Exchange
from leveret.model.history import Keep
from leveret.model.message import Message
from queues import Enqueued, Target

Taker = Callable[[Message], Enqueued]


class Doorway:
    """Passes on what it is given."""

    def __init__(self, exchange: Exchange, behind: list[Target], take: Taker) -> None:
        self.exchange = exchange
        self.name = exchange.name
        self.touched = True  # there is never anything to hand out
        self.behind = behind
        self._take = take

    @property
    def keep(self) -> Keep:
        return max((target.keep for target in self.behind), default=Keep.NOTHING)

    def enqueue(self, message: Message) -> Enqueued:
        return self._take(message)

    def dispatch(self) -> None:
        return None


def once(targets: Sequence[Target], seen: set[Target] | None = None) -> list[Target]:
    """Each once, whichever ways lead there: a queue may hold a message only once."""
    seen = set() if seen is None else seen
    kept = [target for target in targets if target not in seen]
    seen.update(kept)
    for target in kept:
        if isinstance(target, Doorway):
            target.behind = once(target.behind, seen)
    return kept
