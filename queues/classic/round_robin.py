"""The order in which consumers are served: round robin among those of the highest priority.

Thousands of consumers may leave at once, so `remove` only records that a consumer has left. Its
place is removed, and priorities are sorted, in `compact`, when the order is next used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from leveret.queues.port import Consumer


class RoundRobin:
    """`is_compact`: no consumer that has left still has a place, and priorities are sorted."""

    def __init__(self) -> None:
        self.is_compact = True
        self._consumers: dict[Consumer, None] = {}
        self._removed: set[Consumer] = set()
        self._levels: dict[int, deque[Consumer]] = {}
        self._order: list[deque[Consumer]] = []
        self._active: Consumer | None = None

    @property
    def active(self) -> Consumer | None:
        """The single active consumer, or the one that the next message will make active."""
        return self._active or next(iter(self), None)

    def __len__(self) -> int:
        return len(self._consumers)

    def __contains__(self, consumer: object) -> bool:
        return consumer in self._consumers

    def __iter__(self) -> Iterator[Consumer]:
        self.compact()
        for level in self._order:
            yield from level

    def add(self, consumer: Consumer) -> None:
        if consumer in self._removed:
            self.compact()
        self._consumers[consumer] = None
        level = self._levels.get(consumer.priority)
        if level is None:
            level = self._levels[consumer.priority] = deque()
            self.is_compact = False
        level.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        del self._consumers[consumer]
        self._removed.add(consumer)
        self.is_compact = False
        if consumer is self._active:
            self._active = None
        if not self._consumers:
            self.compact()

    def compact(self) -> None:
        """Call this soon after `remove`: until then the removed consumer stays in memory."""
        if self.is_compact:
            return
        self.is_compact = True
        removed, self._removed = self._removed, set()
        for priority in {consumer.priority for consumer in removed}:
            level = self._levels.pop(priority)
            remaining = deque(consumer for consumer in level if consumer not in removed)
            if remaining:
                self._levels[priority] = remaining
        self._order = [self._levels[p] for p in sorted(self._levels, reverse=True)]

    def with_credit(self) -> list[tuple[Consumer, int]]:
        """Consumers with credit and their credit, in turn; all have the same priority."""
        if not self.is_compact:
            self.compact()
        for level in self._order:
            able = [(consumer, credit) for consumer in level if (credit := consumer.credit()) > 0]
            if able:
                return able
        return []

    def active_with_credit(self) -> list[tuple[Consumer, int]]:
        """The single active consumer, if it has credit. It stays active until it leaves."""
        if self._active is None:
            self._active = next(iter(self), None)
        if self._active is None:
            return []
        credit = self._active.credit()
        return [(self._active, credit)] if credit > 0 else []

    def rotate_past(self, consumer: Consumer) -> None:
        """This consumer was served last: the one after it is next."""
        level = self._levels[consumer.priority]
        if len(level) > 1:
            while level[-1] is not consumer:
                level.rotate(-1)
