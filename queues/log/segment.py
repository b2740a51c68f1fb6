"""One segment file, read side: `<base offset, 20 digits>.log`, batches one after the other.

Invariant: a segment holds the offsets from its base to the base of the next segment; holes are
allowed, going backwards is not.  Bytes below the bound a caller gives never change, except that
compaction replaces the whole file.  A `SegmentFile` is used under the lock of its `LogView`.
A crash leaves at most a torn end, which only the newest segment can have.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from queues.log.batch import HEADER_SIZE, Batch, parse_header
from queues.log.errors import Damage
from queues.log.index import SparseIndex, load_index, save_index
from queues.log.scan import Place, Span, hop, walk

_STALE_INDEX = 4 * 64 * 1024


def log_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}.log"


def index_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}.index"


def list_segments(directory: Path) -> list[tuple[int, int]]:
    """Base offset and size of every segment file, in order."""
    found: list[tuple[int, int]] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            stem, dot, suffix = entry.name.partition(".")
            if suffix == "log" and dot and len(stem) == 20 and stem.isdecimal():
                try:
                    found.append((int(stem), entry.stat().st_size))
                except FileNotFoundError:
                    continue
    return sorted(found)


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What is known about a segment without opening it."""

    base_offset: int
    next_offset: int
    size: int
    sealed: bool


class SegmentFile:
    """An open segment and its index.

    `index` is given for the segment being written (its writer keeps it complete); otherwise it is
    loaded, completed from the log, and with `repair` stored again if it was incomplete.
    """

    def __init__(
        self, directory: Path, place: Place, index: SparseIndex | None = None, repair: bool = False
    ) -> None:
        self.place = place
        self.bytes_read = 0
        self._directory = directory
        self._fd = os.open(log_path(directory, place.segment), os.O_RDONLY | os.O_CLOEXEC)
        self._shared = index
        self._own: SparseIndex | None = None
        self._repair = repair

    def __repr__(self) -> str:
        return f"<SegmentFile {self.place.segment} {self.size()} B>"

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        self.bytes_read += len(data)
        return data

    def close(self) -> None:
        os.close(self._fd)

    def walk_from(self, offset: int, bound: int) -> Iterator[Batch | Damage]:
        """Batches that may hold `offset` or what follows it."""
        return walk(self, self.place, self._start(bound, offset=offset))

    def walk_from_time(self, time_ms: int, bound: int) -> Iterator[Batch | Damage]:
        return walk(self, self.place, self._start(bound, time_ms=time_ms))

    def walk_at(self, position: int, floor: int, bound: int) -> Iterator[Batch | Damage]:
        """Batches from a position where one is known to start."""
        return walk(self, self.place, Span(position, bound, floor))

    def complete_index(self, bound: int) -> SparseIndex:
        return self._index(bound)

    def last_time(self, bound: int) -> int | None:
        """The time of the newest record; None in an empty segment."""
        times = [
            found[1].last_time_ms
            for found in hop(self, self.place, self._start(bound, offset=1 << 63))
            if not isinstance(found, Damage)
        ]
        return times[-1] if times else None

    def first_time(self) -> int | None:
        """The time of the oldest record; None where the first header is not whole."""
        header = parse_header(self.read(0, HEADER_SIZE), 0, self.place.log_id)
        return header.first_time_ms if header else None

    def _start(self, bound: int, offset: int = 0, time_ms: int | None = None) -> Span:
        span = self._lookup(self._index(bound), bound, offset, time_ms)
        if span.start and not self._points_at_batch(span.floor, span.start):
            rebuilt = self._completed(SparseIndex(), bound)
            if self._repair and self._shared is None:
                save_index(index_path(self._directory, self.place.segment), rebuilt)
            self._shared, self._own = None, rebuilt
            span = self._lookup(rebuilt, bound, offset, time_ms)
        return span

    def _lookup(self, index: SparseIndex, bound: int, offset: int, time_ms: int | None) -> Span:
        at = index.before_offset(offset) if time_ms is None else index.before_time(time_ms)
        while at is not None and at >= 0:
            entry_offset, position = index.entry(at)
            if position < bound:
                return Span(position, bound, entry_offset)
            at -= 1
        return Span(0, bound, self.place.segment)

    def _points_at_batch(self, offset: int, position: int) -> bool:
        header = parse_header(self.read(position, HEADER_SIZE), 0, self.place.log_id)
        return header is not None and header.base_offset == offset

    def _index(self, bound: int) -> SparseIndex:
        if self._shared is not None:
            return self._shared
        if self._own is None:
            path = index_path(self._directory, self.place.segment)
            loaded = load_index(path, self.place.segment, bound)
            known = len(loaded)
            self._own = self._completed(loaded, bound)
            if self._repair and len(self._own) > known:
                save_index(path, self._own)
        elif bound - self._own.last_position > _STALE_INDEX:
            self._own = self._completed(self._own, bound)
        return self._own

    def _completed(self, index: SparseIndex, bound: int) -> SparseIndex:
        """The index with the entries that are missing at its end."""
        floor, start = self.place.segment, 0
        if len(index):
            floor, start = index.entry(len(index) - 1)
            if not self._points_at_batch(floor, start):
                index, floor, start = SparseIndex(), self.place.segment, 0
        for found in hop(self, self.place, Span(start, bound, floor)):
            if not isinstance(found, Damage) and index.is_due(found[0]):
                index.add(found[1].base_offset, found[0], found[1].first_time_ms)
        return index
