"""A doorway stands in a plan for the queues behind an exchange that holds messages up.

It is a target, so that a message is given to it when it is routed (in a transaction: at
commit) and not when its way was worked out. What it does with a message is decided by whoever made
it. It keeps nothing. Doorways may stand one behind the other, thousands of them: whoever goes
through them keeps a list of those ahead instead of calling itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from exchange import Exchange
from leveret.model.history import Keep
from leveret.model.message import Message
from queues import Enqueued, Target

Taker = Callable[["Doorway", Message], Enqueued]


class Doorway:
    """Passes on what it is given, unless it `keeps` it for a queue of its own."""

    __slots__ = ("_take", "behind", "exchange", "keeps", "name", "touched")

    def __init__(self, exchange: Exchange, behind: list[Target], take: Taker, keeps: bool) -> None:
        self.exchange = exchange
        self.name = exchange.name
        self.touched = True  # there is never anything to hand out
        self.behind = behind
        self.keeps = keeps
        self._take = take

    @property
    def keep(self) -> Keep:
        return max((target.keep for target in ends(self.behind)), default=Keep.NOTHING)

    def enqueue(self, message: Message) -> Enqueued:
        return self._take(self, message)

    def dispatch(self) -> None:
        return None


def doors(targets: Iterable[Target]) -> Iterator[Doorway]:
    """All of them, those that stand behind others included."""
    ahead = [target for target in targets if isinstance(target, Doorway)]
    while ahead:
        door = ahead.pop()
        yield door
        ahead += [target for target in door.behind if isinstance(target, Doorway)]


def ends(targets: Iterable[Target]) -> Iterator[Target]:
    """The queues among them and behind their doorways."""
    ahead = list(targets)
    while ahead:
        target = ahead.pop()
        if isinstance(target, Doorway):
            ahead += target.behind
        else:
            yield target
