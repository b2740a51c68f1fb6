"""Whose turn it is: round robin among the consumers of the highest priority that have credit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from queues.port import Consumer


class Rota:
    def __init__(self) -> None:
        self._levels: dict[int, deque[Consumer]] = {}
        self._order: list[deque[Consumer]] = []

    def __len__(self) -> int:
        return sum(map(len, self._order))

    def __iter__(self) -> Iterator[Consumer]:
        for level in self._order:
            yield from level

    def add(self, consumer: Consumer) -> None:
        self._levels.setdefault(consumer.priority, deque()).append(consumer)
        self._sort()

    def remove(self, consumer: Consumer) -> None:
        level = self._levels[consumer.priority]
        level.remove(consumer)
        if not level:
            del self._levels[consumer.priority]
        self._sort()

    def _sort(self) -> None:
        self._order = [self._levels[p] for p in sorted(self._levels, reverse=True)]

    def takers(self) -> list[tuple[Consumer, int]]:
        """Consumers with credit, in turn, all of one priority; empty when nobody can take."""
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
