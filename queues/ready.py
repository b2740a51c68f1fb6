"""Ready entries, in the order they will be handed out.

A plain queue uses a deque. A priority queue has one per level and looks like one: the highest
level that holds something is the front, first in first out within it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from queues.entry import Entry

FEW, FAR = 64, 64
"""Few entries that belong behind so many others each are put in one by one, which moves those
others all the same, but without a step of Python for each."""


class Ready(Protocol):
    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Entry]: ...

    def __getitem__(self, place: int) -> Entry: ...

    def append(self, entry: Entry) -> None: ...

    def extend(self, entries: Iterable[Entry]) -> None: ...

    def popleft(self) -> Entry: ...

    def clear(self) -> None: ...


class PriorityReady:
    def __init__(self, highest: int) -> None:
        self._levels: list[deque[Entry]] = [deque() for _ in range(highest + 1)]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        for level in reversed(self._levels):
            yield from level

    def __getitem__(self, place: int) -> Entry:
        order = reversed(self._levels) if place == 0 else iter(self._levels)
        for level in order:
            if level:
                return level[place]
        raise IndexError(place)

    def append(self, entry: Entry) -> None:
        self._level(entry).append(entry)
        self._count += 1

    def extend(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.append(entry)

    def popleft(self) -> Entry:
        for level in reversed(self._levels):
            if level:
                self._count -= 1
                return level.popleft()
        raise IndexError("nothing is ready")

    def clear(self) -> None:
        for level in self._levels:
            level.clear()
        self._count = 0

    def newest(self) -> list[Entry]:
        return [level[-1] for level in self._levels if level]

    def put_back(self, entries: Iterable[Entry]) -> None:
        returned: dict[int, list[Entry]] = {}
        for entry in entries:
            returned.setdefault(self._number(entry), []).append(entry)
        for number, some in returned.items():
            self._count += len(some)
            self._levels[number] = _merged(some, self._levels[number])

    def _number(self, entry: Entry) -> int:
        return min(entry.message.scan.priority or 0, len(self._levels) - 1)

    def _level(self, entry: Entry) -> deque[Entry]:
        return self._levels[self._number(entry)]


def make_ready(max_priority: int | None) -> Ready:
    return deque() if max_priority is None else PriorityReady(max_priority)


def newest(ready: Ready) -> list[Entry]:
    """What came last, of each priority."""
    if isinstance(ready, PriorityReady):
        return ready.newest()
    return [ready[-1]] if ready else []


def by_id(entry: Entry) -> int:
    return entry.id


def put_back(ready: Ready, entries: list[Entry]) -> Ready:
    """Entries return to their original places; what holds them now."""
    if isinstance(ready, PriorityReady):
        ready.put_back(entries)
        return ready
    assert isinstance(ready, deque)
    return _merged(entries, ready)


def _merged(entries: list[Entry], ready: deque[Entry]) -> deque[Entry]:
    """What comes back belongs near the front, so only that is looked at."""
    if not entries:
        return ready
    front, last = list(entries), max(map(by_id, entries))
    far = FAR * len(entries)
    if len(entries) <= FEW and far < len(ready) and ready[far].id < last:
        for entry in entries:
            ready.insert(bisect_left(ready, entry.id, key=by_id), entry)
        return ready
    while ready and ready[0].id < last:
        front.append(ready.popleft())
    ready.extendleft(sorted(front, key=by_id, reverse=True))
    return ready
