"""Whose turn it is: round robin among the consumers of the highest priority that have credit.

Thousands may leave at once, so who leaves is only noted; it is taken out of the line, and levels of
priority are put in order, when the line is next looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from queues.port import Consumer


class Rota:
    """`is_tidy`: nobody is in line who has left, and the levels are in order."""

    def __init__(self) -> None:
        self.is_tidy = True
        self._here: dict[Consumer, None] = {}
        self._gone: set[Consumer] = set()
        self._levels: dict[int, deque[Consumer]] = {}
        self._order: list[deque[Consumer]] = []
        self._active: Consumer | None = None

    def only_first(self) -> list[tuple[Consumer, int]]:
        """The single active consumer, if it has credit: it stays active until it leaves."""
        if self._active is None:
            self._active = next(iter(self), None)
        if self._active is None:
            return []
        credit = self._active.credit()
        return [(self._active, credit)] if credit > 0 else []

    @property
    def active(self) -> Consumer | None:
        """The single active consumer, or who will be with the next message."""
        return self._active or next(iter(self), None)

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, consumer: object) -> bool:
        return consumer in self._here

    def __iter__(self) -> Iterator[Consumer]:
        self.tidy()
        for level in self._order:
            yield from level

    def add(self, consumer: Consumer) -> None:
        if consumer in self._gone:
            self.tidy()
        self._here[consumer] = None
        level = self._levels.get(consumer.priority)
        if level is None:
            level = self._levels[consumer.priority] = deque()
            self.is_tidy = False
        level.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        del self._here[consumer]
        self._gone.add(consumer)
        self.is_tidy = False
        if consumer is self._active:
            self._active = None
        if not self._here:
            self.tidy()

    def tidy(self) -> None:
        """To be called soon after somebody has left: until then it is held here."""
        if self.is_tidy:
            return
        self.is_tidy = True
        gone, self._gone = self._gone, set()
        for priority in {consumer.priority for consumer in gone}:
            left = deque(one for one in self._levels.pop(priority) if one not in gone)
            if left:
                self._levels[priority] = left
        self._order = [self._levels[p] for p in sorted(self._levels, reverse=True)]

    def takers(self) -> list[tuple[Consumer, int]]:
        """Consumers with credit, in turn, all of one priority; empty when nobody can take."""
        if not self.is_tidy:
            self.tidy()
        for level in self._order:
            able = [(consumer, credit) for consumer in level if (credit := consumer.credit()) > 0]
            if able:
                return able
        return []

    def served(self, consumer: Consumer) -> None:
        """This one was served last: the next in line comes first from now on."""
        level = self._levels[consumer.priority]
        if len(level) > 1:
            while level[-1] is not consumer:
                level.rotate(-1)
