"""The sparse index of a segment: offset and time of one batch in every 64 KiB, and its position.

Invariant: offsets, positions and times never decrease. An index is an optimization, never a source
of truth: each stored entry has its own CRC-32C, loading stops at the first invalid entry, missing
entries are rebuilt from the batch headers, and an entry that does not point at its batch makes the
segment rebuild the whole index.

The writer thread appends to the index of the active segment while readers search it: the three
arrays only grow, positions last, and readers use no more entries than there are positions.
"""

import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path

from leveret.model.checksum import checksum

INDEX_INTERVAL = 64 * 1024
_ENTRY = struct.Struct("<QQqI")
_CHECKED = struct.Struct("<QQq")


class SparseIndex:
    """Entries in the order of the batches they point at."""

    __slots__ = ("_offsets", "_positions", "_times")

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._times = array("q")
        self._positions = array("Q")

    def __len__(self) -> int:
        return len(self._positions)

    def __repr__(self) -> str:
        return f"<SparseIndex {len(self)} entries>"

    @property
    def last_position(self) -> int:
        return self._positions[-1] if self._positions else 0

    def is_due(self, position: int, interval: int = INDEX_INTERVAL) -> bool:
        return not self._positions or position - self._positions[-1] >= interval

    def add(self, offset: int, position: int, time_ms: int) -> None:
        self._offsets.append(offset)
        self._times.append(time_ms)
        self._positions.append(position)

    def truncate_to(self, position: int) -> None:
        """Remove the entries at or beyond `position`."""
        while self._positions and self._positions[-1] >= position:
            self._positions.pop()
            self._times.pop()
            self._offsets.pop()

    def entry(self, at: int) -> tuple[int, int]:
        """Offset and position of an entry."""
        return self._offsets[at], self._positions[at]

    def before_offset(self, offset: int) -> int | None:
        """The last entry at or below `offset`."""
        at = bisect_right(self._offsets, offset, hi=len(self)) - 1
        return at if at >= 0 else None

    def before_time(self, time_ms: int) -> int | None:
        """The last entry whose batch starts before `time_ms`."""
        at = bisect_left(self._times, time_ms, hi=len(self)) - 1
        return at if at >= 0 else None

    def encode(self) -> bytes:
        return b"".join(
            encode_entry(*fields)
            for fields in zip(self._offsets, self._positions, self._times, strict=True)
        )


def encode_entry(offset: int, position: int, time_ms: int) -> bytes:
    head = _CHECKED.pack(offset, position, time_ms)
    return head + checksum(head).to_bytes(4, "little")


def decode_index(data: bytes, base_offset: int, bound: int) -> SparseIndex:
    """The entries of an index file up to the first invalid one."""
    index = SparseIndex()
    last = (base_offset, -1, -(1 << 63))
    for at in range(0, len(data) - _ENTRY.size + 1, _ENTRY.size):
        offset, position, time_ms, crc = _ENTRY.unpack_from(data, at)
        if checksum(data[at : at + _CHECKED.size]) != crc or position >= bound:
            break
        if offset < last[0] or position <= last[1] or time_ms < last[2]:
            break
        index.add(offset, position, time_ms)
        last = (offset, position, time_ms)
    return index


def load_index(path: Path, base_offset: int, bound: int) -> SparseIndex:
    try:
        data = path.read_bytes()
    except OSError:
        data = b""
    return decode_index(data, base_offset, bound)


def save_index(path: Path, index: SparseIndex) -> None:
    """Replace the index file; not synced, because it can be rebuilt."""
    temporary = path.with_suffix(".index.tmp")
    temporary.write_bytes(index.encode())
    os.replace(temporary, path)
