"""Ready messages, in delivery order.

A plain queue keeps entries, and parts of runs whose messages nothing has looked at one by one
(`RunPart`). A priority queue has one deque of entries per priority and has the same interface: the
highest priority comes first, and messages of one priority are first in, first out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain

from leveret.model.run import Run
from leveret.queues.entry import Entry, RunPart, by_id, entries_of, stored_ids
from leveret.queues.port import Consumer

MAX_INSERTED, MIN_DISTANCE = 64, 64
"""Up to `MAX_INSERTED` entries that belong more than `MIN_DISTANCE` places each from the front are
inserted one by one: `deque.insert` moves as many entries, but without a Python step for each."""

MIN_PART = 8
"""Smaller parts of runs are taken as entries, together with what follows them."""
MIN_DEALT = 4
"""Fewer messages of a run per consumer are dealt out as entries, which takes no longer."""

BATCH_BYTES = 128 * 1024
BYTES_PER_MESSAGE = 100
"""Counted in addition to the body: a message with an empty body takes time, too."""


class FifoReady:
    """`first_id`, `last_id` and `first_expires_ms` are those of a queue that is not empty."""

    def __init__(self) -> None:
        self._items: deque[Entry | RunPart] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        """Entries of messages in runs are made for the caller: changes to them have no effect."""
        for item in self._items:
            if isinstance(item, RunPart):
                yield from item.entries()
            else:
                yield item

    @property
    def first_id(self) -> int:
        return self._items[0].id

    @property
    def last_id(self) -> int:
        last = self._items[-1]
        return last.last_id if isinstance(last, RunPart) else last.id

    @property
    def first_expires_ms(self) -> int:
        first = self._items[0]
        return 0 if isinstance(first, RunPart) else first.expires_ms

    @property
    def first_time_ms(self) -> int:
        first = self._items[0]
        return first.run.time_ms if isinstance(first, RunPart) else first.message.time_ms

    def first(self) -> Entry:
        """The first entry, which stays."""
        first = self._items[0]
        if isinstance(first, RunPart):
            first = self._pop_of_run(first)
            self._items.appendleft(first)
        return first

    def append(self, entry: Entry) -> None:
        self._items.append(entry)
        self._count += 1

    def append_run(self, run: Run, expires_ms: int = 0) -> None:
        """All messages of a run, which expire at the same time (0: never)."""
        if run.is_packed and not expires_ms:
            self._items.append(RunPart(run, 0, len(run)))
        else:
            self._items += entries_of(run, expires_ms)
        self._count += len(run)

    def popleft(self) -> Entry:
        first = self._items[0]
        self._count -= 1
        if isinstance(first, RunPart):
            return self._pop_of_run(first)
        self._items.popleft()
        return first

    def _pop_of_run(self, part: RunPart) -> Entry:
        entry = Entry(part.run.make_message(part.start))
        if part.count == 1:
            self._items.popleft()
        else:
            part.start += 1
            part.count -= 1
        return entry

    def clear(self) -> None:
        self._items.clear()
        self._count = 0

    def newest(self) -> list[Entry]:
        """The last entry, unless it is part of a run."""
        last = self._items[-1] if self._items else None
        return [last] if isinstance(last, Entry) else []

    def stored_ids(self) -> list[int]:
        """The ids of all messages whose content is in the store."""
        ids: list[int] = []
        for item in self._items:
            if isinstance(item, RunPart):
                ids += item.stored_ids
            elif item.message.stored:
                ids.append(item.id)
        return ids

    def persistent(self) -> Iterator[tuple[int, int]]:
        """Id and body size of each persistent message."""
        for item in self._items:
            if isinstance(item, Entry):
                if item.message.scan.persistent:
                    yield item.id, item.message.body_size
            elif item.run.persistent:
                yield from zip(item.ids, item.body_sizes, strict=True)

    def header_sizes(self) -> Iterator[int]:
        for item in self._items:
            if isinstance(item, RunPart):
                yield from item.header_sizes
            else:
                yield item.message.header_size

    def delivery_counts(self) -> dict[int, int]:
        """How often delivery of a message has failed, if it has."""
        entries = [item for item in self._items if isinstance(item, Entry)]
        return {entry.id: entry.delivery_count for entry in entries if entry.delivery_count}

    def take(self, credit: int, last_id: int) -> list[Entry] | RunPart:
        """The next messages for a consumer with this much credit, about `BATCH_BYTES` at most.

        `last_id` is the last message id that may be delivered; the first message may. An entry that
        expires is taken alone, because the clock is checked before each of them.
        """
        part = self._items[0]
        if isinstance(part, Entry) or (part.count < MIN_PART and len(self._items) > 1):
            return self._take_entries(credit, last_id)
        count = min(credit, part.count)
        if count > 1:
            if part.last_id > last_id:
                count = min(count, part.count_before(last_id + 1))
            sizes, start = part.run.body_sizes, part.start
            if sum(sizes[start : start + count]) + count * BYTES_PER_MESSAGE > BATCH_BYTES:
                count = _count_within(BATCH_BYTES, sizes, start, count)
        self._count -= count
        if count < part.count:
            return part.split(count)
        self._items.popleft()
        return part

    def _take_entries(self, credit: int, last_id: int) -> list[Entry]:
        items, budget = self._items, BATCH_BYTES
        entries: list[Entry] = []
        while credit and items and budget > 0:
            entry = items[0]
            if entry.id > last_id:
                break
            if isinstance(entry, RunPart):
                if entry.count >= MIN_PART:
                    break
                entry = self._pop_of_run(entry)
            elif entry.expires_ms and entries:
                break
            else:
                items.popleft()
            budget -= entry.message.body_size + BYTES_PER_MESSAGE
            entries.append(entry)
            credit -= 1
        self._count -= len(entries)
        return entries

    def put_back(self, entries: list[Entry]) -> None:
        """Returned entries belong near the front, so only the front is sorted."""
        if not entries:
            return
        items, last_id = self._items, max(map(by_id, entries))
        self._count += len(entries)
        distance = MIN_DISTANCE * len(entries)
        if len(entries) <= MAX_INSERTED and distance < len(items) and items[distance].id < last_id:
            for entry in entries:
                self._insert(entry)
            return
        front: list[Entry] = list(entries)
        while items and items[0].id < last_id:
            first = items.popleft()
            if isinstance(first, Entry):
                front.append(first)
                continue
            if first.last_id > last_id:
                rest = first
                first = rest.split(rest.count_before(last_id))
                items.appendleft(rest)
            front += first.entries()
        front.sort(key=by_id, reverse=True)
        items.extendleft(front)

    def _insert(self, entry: Entry) -> None:
        items = self._items
        index = bisect_left(items, entry.id, key=_first_id)
        before = items[index - 1] if index else None
        if isinstance(before, RunPart) and before.last_id > entry.id:
            items[index - 1] = before.split(before.count_before(entry.id))
            items.insert(index, before)
        items.insert(index, entry)


def _first_id(item: Entry | RunPart) -> int:
    return item.id


def _count_within(budget: int, sizes: Sequence[int], start: int, count: int) -> int:
    """How many of these messages, at least one, use up the budget."""
    for taken in range(1, count):
        budget -= sizes[start + taken - 1] + BYTES_PER_MESSAGE
        if budget <= 0:
            return taken
    return count


class PriorityReady:
    """`last_id` is the id of the message that would be delivered last, not the highest one."""

    def __init__(self, max_priority: int) -> None:
        self._levels = [FifoReady() for _ in range(max_priority + 1)]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        return chain.from_iterable(reversed(self._levels))

    @property
    def first_id(self) -> int:
        return self._highest().first_id

    @property
    def last_id(self) -> int:
        return next(level.last_id for level in self._levels if level)

    @property
    def first_expires_ms(self) -> int:
        return self._highest().first_expires_ms

    @property
    def first_time_ms(self) -> int:
        return self._highest().first_time_ms

    def first(self) -> Entry:
        return self._highest().first()

    def append(self, entry: Entry) -> None:
        self._levels[self._priority(entry)].append(entry)
        self._count += 1

    def append_run(self, run: Run, expires_ms: int = 0) -> None:
        for entry in entries_of(run, expires_ms):
            self.append(entry)

    def popleft(self) -> Entry:
        self._count -= 1
        return self._highest().popleft()

    def take(self, credit: int, last_id: int) -> list[Entry] | RunPart:
        taken = self._highest().take(credit, last_id)
        self._count -= len(taken)
        return taken

    def clear(self) -> None:
        for level in self._levels:
            level.clear()
        self._count = 0

    def newest(self) -> list[Entry]:
        """The last entry of each priority."""
        return [entry for level in self._levels for entry in level.newest()]

    def stored_ids(self) -> list[int]:
        return stored_ids(self)

    def persistent(self) -> Iterator[tuple[int, int]]:
        return chain.from_iterable(level.persistent() for level in self._levels)

    def header_sizes(self) -> Iterator[int]:
        return chain.from_iterable(level.header_sizes() for level in self._levels)

    def delivery_counts(self) -> dict[int, int]:
        return {key: n for level in self._levels for key, n in level.delivery_counts().items()}

    def put_back(self, entries: list[Entry]) -> None:
        self._count += len(entries)
        returned: dict[int, list[Entry]] = {}
        for entry in entries:
            returned.setdefault(self._priority(entry), []).append(entry)
        for priority, group in returned.items():
            self._levels[priority].put_back(group)

    def _highest(self) -> FifoReady:
        return next(level for level in reversed(self._levels) if level)

    def _priority(self, entry: Entry) -> int:
        return min(entry.message.scan.priority or 0, len(self._levels) - 1)


Ready = FifoReady | PriorityReady


def make_ready(max_priority: int | None) -> Ready:
    return FifoReady() if max_priority is None else PriorityReady(max_priority)


def take_in_turn(
    ready: Ready, consumers: list[tuple[Consumer, int]], last_id: int
) -> tuple[Sequence[list[Entry] | RunPart], Consumer]:
    """The next messages for each of several consumers, dealt out one by one in turn.

    Returns what each consumer gets, without those at the end that get nothing, and the consumer
    that gets the last message. Otherwise like `FifoReady.take`.
    """
    count = len(consumers)
    taken = ready.take(count * min([credit for _, credit in consumers]), last_id)
    last = consumers[(len(taken) - 1) % count][0]
    if isinstance(taken, RunPart):
        if len(taken) >= MIN_DEALT * count:
            return taken.deal(count), last
        taken = taken.entries()
    return [taken[place::count] for place in range(min(count, len(taken)))], last
