"""Ready entries, in delivery order.

A plain queue uses a deque. A priority queue has one deque per priority and has the same interface:
the highest priority comes first, and entries of one priority are first in, first out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from leveret.queues.entry import Entry, by_id
from leveret.queues.port import Consumer

MAX_INSERTED, MIN_DISTANCE = 64, 64
"""Up to `MAX_INSERTED` entries that belong more than `MIN_DISTANCE` places each from the front are
inserted one by one: `deque.insert` moves as many entries, but without a Python step for each."""

BATCH_BYTES = 128 * 1024
BYTES_PER_MESSAGE = 100
"""Counted in addition to the body: a message with an empty body takes time, too."""


class Ready(Protocol):
    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Entry]: ...

    def __getitem__(self, index: int) -> Entry: ...

    def append(self, entry: Entry) -> None: ...

    def extend(self, entries: Iterable[Entry]) -> None: ...

    def popleft(self) -> Entry: ...

    def clear(self) -> None: ...


class PriorityReady:
    """Only the first and the last entry, [0] and [-1], can be read by index."""

    def __init__(self, max_priority: int) -> None:
        self._levels: list[deque[Entry]] = [deque() for _ in range(max_priority + 1)]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        for level in reversed(self._levels):
            yield from level

    def __getitem__(self, index: int) -> Entry:
        order = reversed(self._levels) if index == 0 else iter(self._levels)
        for level in order:
            if level:
                return level[index]
        raise IndexError(index)

    def append(self, entry: Entry) -> None:
        self._levels[self._priority(entry)].append(entry)
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
            returned.setdefault(self._priority(entry), []).append(entry)
        for priority, group in returned.items():
            self._count += len(group)
            _merge(group, self._levels[priority])

    def _priority(self, entry: Entry) -> int:
        return min(entry.message.scan.priority or 0, len(self._levels) - 1)


def make_ready(max_priority: int | None) -> Ready:
    return deque() if max_priority is None else PriorityReady(max_priority)


def newest(ready: Ready) -> list[Entry]:
    """The last entry of each priority."""
    if isinstance(ready, PriorityReady):
        return ready.newest()
    return [ready[-1]] if ready else []


def put_back(ready: Ready, entries: list[Entry]) -> None:
    """Return entries to their original places."""
    if isinstance(ready, PriorityReady):
        ready.put_back(entries)
    else:
        assert isinstance(ready, deque)
        _merge(entries, ready)


def _merge(entries: list[Entry], ready: deque[Entry]) -> None:
    """Returned entries belong near the front, so only the front is sorted."""
    if not entries:
        return
    front, last_id = list(entries), max(map(by_id, entries))
    distance = MIN_DISTANCE * len(entries)
    if len(entries) <= MAX_INSERTED and distance < len(ready) and ready[distance].id < last_id:
        for entry in entries:
            ready.insert(bisect_left(ready, entry.id, key=by_id), entry)
        return
    while ready and ready[0].id < last_id:
        front.append(ready.popleft())
    ready.extendleft(sorted(front, key=by_id, reverse=True))


# Taking entries for delivery --------------------------------------------------------------------
#
# Entries are taken from the front, about `BATCH_BYTES` at a time. An entry that expires is taken
# alone, because the clock is checked before each of them. `last_id` is the last message id that may
# be delivered.


def take_batch(ready: Ready, credit: int, last_id: int) -> list[Entry]:
    """The next entries for a consumer with this much credit."""
    entries: list[Entry] = []
    budget = BATCH_BYTES
    while credit and ready and budget > 0 and ready[0].id <= last_id:
        if ready[0].expires_ms and entries:
            break
        entry = ready.popleft()
        budget -= entry.message.body_size + BYTES_PER_MESSAGE
        entries.append(entry)
        credit -= 1
    return entries


def take_in_turn(
    ready: Ready, consumers: list[tuple[Consumer, int]], last_id: int
) -> tuple[list[list[Entry]], Consumer]:
    """The next entries for each of several consumers, dealt out one by one in turn.

    Returns a list of entries per consumer, and the consumer that got the last one.
    """
    batches: list[list[Entry]] = [[] for _ in consumers]
    credits = [credit for _, credit in consumers]
    budget, turn, idle = BATCH_BYTES, 0, 0
    last = consumers[0][0]
    while ready and budget > 0 and idle < len(consumers) and ready[0].id <= last_id:
        if ready[0].expires_ms and any(batches):
            break
        if credits[turn]:
            entry = ready.popleft()
            budget -= entry.message.body_size + BYTES_PER_MESSAGE
            batches[turn].append(entry)
            credits[turn] -= 1
            last, idle = consumers[turn][0], 0
        else:
            idle += 1
        turn = (turn + 1) % len(consumers)
    return batches, last
