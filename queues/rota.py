"""Whose turn it is: round robin among the consumers of the highest priority that have credit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from queues.port import Consumer


class Rota:
    def __init__(self) -> None:
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
        if consumer is self._active:
            self._active = None
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
