"""The unacknowledged deliveries of one channel, in the order of their delivery tags.

Each `Delivery` has a range of tags; ranges do not overlap. Their first tags ascend, so a tag is
found by bisection. A delivery that is settled leaves an empty place. `add` removes empty places
when they are more than half, so a call takes no longer if there are many deliveries.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from leveret.queues.delivery import Delivery

_MIN_EMPTY = 32


class UnackedTags:
    __slots__ = ("_count", "_deliveries", "_empty", "_first", "_first_tags")

    def __init__(self) -> None:
        self._first_tags: list[int] = []
        self._deliveries: list[Delivery | None] = []
        self._first = 0  # no place before this one is in use
        self._empty = 0
        self._count = 0

    def __len__(self) -> int:
        """The number of messages."""
        return self._count

    def __iter__(self) -> Iterator[Delivery]:
        return (each for each in self._deliveries[self._first :] if each is not None)

    def __repr__(self) -> str:
        return f"<UnackedTags {self._count}>"

    def add(self, delivery: Delivery, first_tag: int) -> None:
        """Its tags are higher than all others."""
        if self._empty > _MIN_EMPTY and self._empty * 2 > len(self._deliveries):
            self._remove_empty_places()
        self._first_tags.append(first_tag)
        self._deliveries.append(delivery)
        self._count += delivery.count

    def __contains__(self, tag: int) -> bool:
        place = bisect_right(self._first_tags, tag) - 1
        delivery = self._deliveries[place] if place >= 0 else None
        return delivery is not None and delivery.has(tag)

    def take(self, first: int, last: int) -> list[Delivery]:
        """Remove the messages with these tags and return them; there may be none of some tags."""
        deliveries, first_tags = self._deliveries, self._first_tags
        while self._first < len(deliveries) and deliveries[self._first] is None:
            self._first += 1
        start = max(bisect_right(first_tags, first, self._first) - 1, self._first)
        end = start + 1 if first == last else bisect_right(first_tags, last, start)
        taken: list[Delivery] = []
        for place in range(start, min(end, len(deliveries))):
            delivery = deliveries[place]
            if delivery is None:
                continue
            is_whole = first <= delivery.first_tag and delivery.last_tag <= last
            part = delivery if is_whole else delivery.take(first, last)
            if part is not None:
                taken.append(part)
                self._count -= part.count
                if part is delivery:
                    deliveries[place] = None
                    self._empty += 1
        if not self._count:
            self._first_tags, self._deliveries = [], []
            self._first = self._empty = 0
        return taken

    def take_all(self) -> list[Delivery]:
        return self.take(0, sys.maxsize)

    def take_each(self, tags: list[int]) -> tuple[list[Delivery], int | None]:
        """Remove these messages one after the other; returns them, and the first unknown tag."""
        first, last = tags[0], tags[-1]
        if len(tags) == 1:
            taken = self.take(first, first)
            return taken, None if taken else first
        if last - first == len(tags) - 1 and tags == [*range(first, last + 1)]:
            taken = self.take(first, last)
        else:
            taken = self._take_together(sorted(set(tags)))
        if sum([delivery.count for delivery in taken]) == len(tags):
            return taken, None
        self.restore(taken)
        taken = []
        for tag in tags:
            found = self.take(tag, tag)
            if not found:
                return taken, tag
            taken += found
        return taken, None

    def _take_together(self, tags: list[int]) -> list[Delivery]:
        """Remove messages with these tags, which ascend: at once if they are of one delivery."""
        taken: list[Delivery] = []
        first_tags, start = self._first_tags, 0
        while start < len(tags):
            place = bisect_right(first_tags, tags[start])
            following = first_tags[place] if place < len(first_tags) else sys.maxsize
            end = bisect_left(tags, following, start)
            first, last = tags[start], tags[end - 1]
            if last - first == end - start - 1:
                taken += self.take(first, last)
            else:
                taken += self._take_some(place - 1, tags[start:end])
            start = end
        return taken

    def _take_some(self, place: int, tags: list[int]) -> list[Delivery]:
        delivery = self._deliveries[place] if 0 <= place < len(self._deliveries) else None
        part = delivery.take_some(tags) if delivery is not None else None
        if part is None:
            return []
        self._count -= part.count
        if part is delivery:
            self._deliveries[place] = None
            self._empty += 1
        return [part]

    def restore(self, deliveries: list[Delivery]) -> None:
        """Add deliveries whose tags are anywhere among the others."""
        pieces = [piece for each in (*self, *deliveries) for piece in each.split_all()]
        self._first_tags, self._deliveries = [], []
        self._first = self._empty = self._count = 0
        for piece in sorted(pieces, key=lambda piece: piece.first_tag):
            self.add(piece, piece.first_tag)

    def _remove_empty_places(self) -> None:
        used = [place for place, each in enumerate(self._deliveries) if each is not None]
        self._first_tags = [self._first_tags[place] for place in used]
        self._deliveries = [self._deliveries[place] for place in used]
        self._first = self._empty = 0
