"""A doorway stands in a plan for the queues behind an exchange that holds messages up.

It looks like a queue, so that a message is given to it when it is routed (in a transaction: at
commit) and not when its way was worked out. What it does with a message is decided by whoever made
it. It keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from exchange import Exchange
from leveret.model.history import Keep
from leveret.model.message import Message
from queues import Enqueued, Entry, HeldQueue, Outcome, QueueSpec
from queues.counters import QueueCounters
from queues.port import Consumer

Taker = Callable[[Message], Enqueued]


class Doorway:
    """A queue that keeps nothing: it passes on what it is given."""

    def __init__(self, exchange: Exchange, behind: list[HeldQueue], take: Taker) -> None:
        self.exchange = exchange
        self.name = exchange.name
        self.spec = QueueSpec(exchange.name)
        self.id = 0
        self.owner: object | None = None
        self.touched = True  # there is never anything to hand out
        self.counters = QueueCounters()
        self.behind = behind
        self._take = take

    @property
    def keep(self) -> Keep:
        return max((queue.keep for queue in self.behind), default=Keep.NOTHING)

    @property
    def ready_count(self) -> int:
        return 0

    @property
    def unacked_count(self) -> int:
        return 0

    @property
    def consumers(self) -> Sequence[Consumer]:
        return ()

    def enqueue(self, message: Message) -> Enqueued:
        return self._take(message)

    def dispatch(self) -> None:
        return None

    def take(self, actor: int, no_ack: bool) -> Entry | None:
        return None

    def when_head(self, call: Callable[[], None]) -> None:
        return None

    def settle(self, entries: Sequence[Entry], outcome: Outcome, actor: int) -> None:
        return None

    def add_consumer(self, consumer: Consumer) -> None:
        return None

    def remove_consumer(self, consumer: Consumer) -> None:
        return None

    def purge(self) -> int:
        return 0

    def close(self, deleted: bool) -> int:
        return 0


def once(queues: Sequence[HeldQueue], seen: set[HeldQueue] | None = None) -> list[HeldQueue]:
    """Each queue once, whichever ways lead there: it may hold a message only once."""
    seen = set() if seen is None else seen
    kept = [queue for queue in queues if queue not in seen]
    seen.update(kept)
    for queue in kept:
        if isinstance(queue, Doorway):
            queue.behind = once(queue.behind, seen)
    return kept
