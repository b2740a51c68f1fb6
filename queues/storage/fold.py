"""What a queue holds, from its journal: last snapshot + enqueued - settled.

Pure. An id enters a queue at most once and is settled at most once, so the order of rows does not
matter and a row met twice (a snapshot and the enqueued event beside it) does no harm.
How often a message was handed out is the highest number any row says, so order and repetition do
not matter there, either.
Works on arrays in slices: a million ids cost tens of megabytes and no dictionary of a million
integers.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import compress, islice
from operator import lt

from leveret.model.store import Live

_SLICE = 1 << 14


class Fold:
    """Collects the rows of one queue; `result` gives what is left."""

    __slots__ = ("_attempts", "_entered", "_settled", "rows")

    def __init__(self) -> None:
        self._entered: dict[str | None, tuple[array[int], array[int]]] = {}
        self._settled: array[int] = array("Q")
        self._attempts: dict[int, int] = {}
        self.rows = 0

    def enter(self, detail: str | None, ids: "array[int]", sizes: "array[int]") -> None:
        self.rows += 1
        known = self._entered.get(detail)
        if known is None:
            self._entered[detail] = (ids, sizes)
        else:
            known[0].extend(ids)
            known[1].extend(sizes)

    def settle(self, ids: "array[int]") -> None:
        self.rows += 1
        self._settled.extend(ids)

    def hand_out(self, ids: "array[int]", times: int) -> None:
        """By then these had been handed out so many times."""
        known = self._attempts
        for message_id in ids:
            if known.get(message_id, 0) < times:
                known[message_id] = times

    @property
    def settled(self) -> int:
        return len(self._settled)

    def attempts(self, parts: Sequence[Live]) -> dict[int, int]:
        """How often each of the live messages was handed out, if ever."""
        return {
            message_id: times
            for message_id, times in self._attempts.items()
            if any(_has(part.ids, message_id) for part in parts)
        }

    def result(self) -> tuple[Live, ...]:
        settled = self._settled
        if not is_ascending(settled):
            settled = array("Q", sorted(settled))
        parts = []
        for detail, (ids, sizes) in self._entered.items():
            left = _without(*_ascending(ids, sizes), settled)
            if left[0]:
                parts.append(Live(left[0], left[1], detail))
        return tuple(parts)


def is_ascending(ids: Sequence[int]) -> bool:
    """Strictly: no id twice."""
    return all(map(lt, ids, islice(ids, 1, None)))


def slice_between(ids: "array[int]", first: int, last: int) -> "array[int]":
    """The part of an ascending array that lies in [first, last]."""
    return ids[bisect_left(ids, first) : bisect_right(ids, last)]


def _has(ids: "array[int]", message_id: int) -> bool:
    place = bisect_left(ids, message_id)
    return place < len(ids) and ids[place] == message_id


def _ascending(ids: "array[int]", sizes: "array[int]") -> tuple["array[int]", "array[int]"]:
    if is_ascending(ids):
        return ids, sizes
    size_of = dict(zip(ids, sizes, strict=True))
    ordered = sorted(size_of)
    return array("Q", ordered), array("I", map(size_of.__getitem__, ordered))


def _without(
    ids: "array[int]", sizes: "array[int]", settled: "array[int]"
) -> tuple["array[int]", "array[int]"]:
    left_ids: array[int] = array("Q")
    left_sizes: array[int] = array("I")
    for start in range(0, len(ids), _SLICE):
        part, part_sizes = ids[start : start + _SLICE], sizes[start : start + _SLICE]
        gone = set(slice_between(settled, part[0], part[-1]))
        if gone:
            stays = [message_id not in gone for message_id in part]
            left_ids.extend(compress(part, stays))
            left_sizes.extend(compress(part_sizes, stays))
        else:
            left_ids.extend(part)
            left_sizes.extend(part_sizes)
    return left_ids, left_sizes
