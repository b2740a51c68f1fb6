"""Computes what a queue holds from its journal: last snapshot + enqueued - settled.

Pure. An id enters a queue at most once and is settled at most once, so the order of rows does not
matter, and an id that is read twice (in a snapshot and in an enqueued event) does no harm.
A message's delivery count is the highest number in any row, so order and repetition do not matter
there, either.
Works on slices of arrays: a million ids take tens of megabytes, and no dictionary of a million
integers is built.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import compress, islice
from operator import lt

from leveret.model.store import LiveMessages
from leveret.queues.storage.packing import ID_SIZE, unpack_ids, unpack_sizes

_SLICE = 1 << 14


class JournalReplay:
    """Collects the journal rows of one queue; `result` returns the messages that remain."""

    __slots__ = ("_delivery_counts", "_enqueued", "_settled", "rows")

    def __init__(self) -> None:
        self._enqueued: dict[str | None, tuple[list[bytes], list[bytes]]] = {}
        self._settled: list[bytes] = []
        self._delivery_counts: dict[int, int] = {}
        self.rows = 0

    def enqueue(self, detail: str | None, ids: bytes, sizes: bytes) -> None:
        """Packed ids and sizes, as they are stored: joining bytes is faster than joining arrays."""
        if len(ids) != 2 * len(sizes):
            raise ValueError("an event has as many ids as sizes")
        self.rows += 1
        earlier = self._enqueued.get(detail)
        if earlier is None:
            self._enqueued[detail] = ([ids], [sizes])
        else:
            earlier[0].append(ids)
            earlier[1].append(sizes)

    def settle(self, ids: bytes) -> None:
        self.rows += 1
        self._settled.append(ids)

    def deliver(self, ids: "array[int]", count: int) -> None:
        """At that time, each of these messages had been delivered `count` times."""
        counts = self._delivery_counts
        for message_id in ids:
            if counts.get(message_id, 0) < count:
                counts[message_id] = count

    @property
    def settled(self) -> int:
        return sum(map(len, self._settled)) // ID_SIZE

    def delivery_counts(self, parts: Sequence[LiveMessages]) -> dict[int, int]:
        """How often each live message was delivered, if at all."""
        return {
            message_id: count
            for message_id, count in self._delivery_counts.items()
            if any(_contains(part.ids, message_id) for part in parts)
        }

    def result(self) -> tuple[LiveMessages, ...]:
        settled = unpack_ids(b"".join(self._settled))
        if not is_ascending(settled):
            settled = array("Q", sorted(settled))
        parts = []
        for detail, (packed_ids, packed_sizes) in self._enqueued.items():
            ids = unpack_ids(b"".join(packed_ids))
            sizes = unpack_sizes(b"".join(packed_sizes))
            ids, sizes = _ascending(ids, sizes)
            if settled:
                ids, sizes = _without(ids, sizes, settled)
            if ids:
                parts.append(LiveMessages(ids, sizes, detail))
        return tuple(parts)


def is_ascending(ids: Sequence[int]) -> bool:
    """Strictly ascending: no id twice."""
    return all(map(lt, ids, islice(ids, 1, None)))


def slice_between(ids: "array[int]", first: int, last: int) -> "array[int]":
    """The part of an ascending array that lies in [first, last]."""
    return ids[bisect_left(ids, first) : bisect_right(ids, last)]


def _contains(ids: "array[int]", message_id: int) -> bool:
    position = bisect_left(ids, message_id)
    return position < len(ids) and ids[position] == message_id


def _ascending(ids: "array[int]", sizes: "array[int]") -> tuple["array[int]", "array[int]"]:
    if is_ascending(ids):
        return ids, sizes
    size_of = dict(zip(ids, sizes, strict=True))
    ordered = sorted(size_of)
    return array("Q", ordered), array("I", map(size_of.__getitem__, ordered))


def _without(
    ids: "array[int]", sizes: "array[int]", settled: "array[int]"
) -> tuple["array[int]", "array[int]"]:
    live_ids: array[int] = array("Q")
    live_sizes: array[int] = array("I")
    for start in range(0, len(ids), _SLICE):
        part, part_sizes = ids[start : start + _SLICE], sizes[start : start + _SLICE]
        settled_here = set(slice_between(settled, part[0], part[-1]))
        if settled_here:
            is_live = [message_id not in settled_here for message_id in part]
            live_ids.extend(compress(part, is_live))
            live_sizes.extend(compress(part_sizes, is_live))
        else:
            live_ids.extend(part)
            live_sizes.extend(part_sizes)
    return live_ids, live_sizes
