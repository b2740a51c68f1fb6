"""The part of a queue that is on disk only: ids and sizes, twelve octets a message."""

from __future__ import annotations

from array import array

from leveret.model.store import Live

_COMPACT_AT = 65_536


class Backlog:
    """First in, first out. Taken from the front in slices, when content is read ahead."""

    def __init__(self) -> None:
        self._ids = array("Q")
        self._sizes = array("I")
        self._head = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._ids) - self._head

    def append(self, message_id: int, size: int) -> None:
        self._ids.append(message_id)
        self._sizes.append(size)
        self.bytes += size

    def extend(self, ids: array[int], sizes: array[int]) -> None:
        self._ids.extend(ids)
        self._sizes.extend(sizes)
        self.bytes += sum(sizes)

    def take(self, most: int, most_bytes: int) -> Live:
        """From the front: at most so many, or so many octets, but at least one."""
        head, stop, room = self._head, self._head, most_bytes
        last = min(len(self._ids), head + most)
        while stop < last and (room > 0 or stop == head):
            room -= self._sizes[stop]
            stop += 1
        taken = Live(self._ids[head:stop], self._sizes[head:stop])
        self.bytes -= sum(taken.sizes)
        self._head = stop
        if stop > _COMPACT_AT and stop * 2 > len(self._ids):
            del self._ids[:stop], self._sizes[:stop]
            self._head = 0
        return taken

    def part(self) -> Live:
        """A copy of all of it."""
        return Live(self._ids[self._head :], self._sizes[self._head :])

    def clear(self) -> array[int]:
        gone = self.part().ids
        self._ids, self._sizes = array("Q"), array("I")
        self._head = self.bytes = 0
        return gone
