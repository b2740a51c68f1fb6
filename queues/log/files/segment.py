"""Reading one segment file: `<base offset, 20 digits>.log`, a sequence of batches.

Invariant: a segment contains the offsets from its base to the base of the next segment, ascending,
possibly with holes. Bytes below the bound that a caller passes never change, except that compaction
replaces the whole file. A `SegmentFile` is used under the lock of its `LogView`.
A crash leaves at most a torn tail, which only the newest segment can have.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leveret.queues.log.files.batch import HEADER_SIZE, Batch, parse_header
from leveret.queues.log.files.errors import Damage
from leveret.queues.log.files.index import SparseIndex, load_index, save_index
from leveret.queues.log.files.scan import SegmentId, Span, hop, walk

_STALE_INDEX = 4 * 64 * 1024


def log_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}.log"


def index_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}.index"


def list_segments(directory: Path) -> list[tuple[int, int]]:
    """Base offset and size of every segment file, in order."""
    segments: list[tuple[int, int]] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            stem, dot, suffix = entry.name.partition(".")
            if suffix == "log" and dot and len(stem) == 20 and stem.isdecimal():
                try:
                    segments.append((int(stem), entry.stat().st_size))
                except FileNotFoundError:
                    continue
    return sorted(segments)


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Properties of a segment that are known without opening it."""

    base_offset: int
    next_offset: int
    size: int
    sealed: bool


class SegmentFile:
    """An open segment and its index.

    `index` is given for the active segment, whose writer keeps it complete. Otherwise the index is
    loaded and completed from the segment; with `repair` it is saved again if it was incomplete.
    """

    def __init__(
        self,
        directory: Path,
        segment_id: SegmentId,
        index: SparseIndex | None = None,
        repair: bool = False,
    ) -> None:
        self.segment_id = segment_id
        self.bytes_read = 0
        self._directory = directory
        self._fd = os.open(log_path(directory, segment_id.segment), os.O_RDONLY | os.O_CLOEXEC)
        self._writer_index = index
        self._own_index: SparseIndex | None = None
        self._repair = repair

    def __repr__(self) -> str:
        return f"<SegmentFile {self.segment_id.segment} {self.size()} B>"

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        self.bytes_read += len(data)
        return data

    def close(self) -> None:
        os.close(self._fd)

    def walk_from(self, offset: int, bound: int) -> Iterator[Batch | Damage]:
        """Batches that may contain `offset` or later ones."""
        return walk(self, self.segment_id, self._start(bound, offset=offset))

    def walk_from_time(self, time_ms: int, bound: int) -> Iterator[Batch | Damage]:
        return walk(self, self.segment_id, self._start(bound, time_ms=time_ms))

    def walk_at(self, position: int, floor: int, bound: int) -> Iterator[Batch | Damage]:
        """Batches from a position that is known to be the start of one."""
        return walk(self, self.segment_id, Span(position, bound, floor))

    def complete_index(self, bound: int) -> SparseIndex:
        return self._index(bound)

    def last_time(self, bound: int) -> int | None:
        """The time of the newest record; None in an empty segment."""
        times = [
            item[1].last_time_ms
            for item in hop(self, self.segment_id, self._start(bound, offset=1 << 63))
            if not isinstance(item, Damage)
        ]
        return times[-1] if times else None

    def end_offset(self) -> int:
        """The offset after the last batch with a valid header; the base offset if there is none."""
        ends = [
            item[1].next_offset
            for item in hop(self, self.segment_id, self._start(self.size(), offset=1 << 63))
            if not isinstance(item, Damage)
        ]
        return ends[-1] if ends else self.segment_id.segment

    def first_time(self) -> int | None:
        """The time of the oldest record; None if the first header is not valid."""
        header = parse_header(self.read(0, HEADER_SIZE), 0, self.segment_id.log_id)
        return header.first_time_ms if header else None

    def _start(self, bound: int, offset: int = 0, time_ms: int | None = None) -> Span:
        span = self._lookup(self._index(bound), bound, offset, time_ms)
        if span.start and not self._points_at_batch(span.floor, span.start):
            rebuilt = self._completed(SparseIndex(), bound)
            if self._repair and self._writer_index is None:
                save_index(index_path(self._directory, self.segment_id.segment), rebuilt)
            self._writer_index, self._own_index = None, rebuilt
            span = self._lookup(rebuilt, bound, offset, time_ms)
        return span

    def _lookup(self, index: SparseIndex, bound: int, offset: int, time_ms: int | None) -> Span:
        at = index.before_offset(offset) if time_ms is None else index.before_time(time_ms)
        while at is not None and at >= 0:
            entry_offset, position = index.entry(at)
            if position < bound:
                return Span(position, bound, entry_offset)
            at -= 1
        return Span(0, bound, self.segment_id.segment)

    def _points_at_batch(self, offset: int, position: int) -> bool:
        header = parse_header(self.read(position, HEADER_SIZE), 0, self.segment_id.log_id)
        return header is not None and header.base_offset == offset

    def _index(self, bound: int) -> SparseIndex:
        if self._writer_index is not None:
            return self._writer_index
        if self._own_index is None:
            path = index_path(self._directory, self.segment_id.segment)
            loaded = load_index(path, self.segment_id.segment, bound)
            known = len(loaded)
            self._own_index = self._completed(loaded, bound)
            if self._repair and len(self._own_index) > known:
                save_index(path, self._own_index)
        elif bound - self._own_index.last_position > _STALE_INDEX:
            self._own_index = self._completed(self._own_index, bound)
        return self._own_index

    def _completed(self, index: SparseIndex, bound: int) -> SparseIndex:
        """The index, with the entries added that are missing at its end."""
        floor, start = self.segment_id.segment, 0
        if len(index):
            floor, start = index.entry(len(index) - 1)
            if not self._points_at_batch(floor, start):
                index, floor, start = SparseIndex(), self.segment_id.segment, 0
        for item in hop(self, self.segment_id, Span(start, bound, floor)):
            if not isinstance(item, Damage) and index.is_due(item[0]):
                index.add(item[1].base_offset, item[0], item[1].first_time_ms)
        return index
