"""Reading a log: its segments, the end of the readable data, and hints for sequential readers.

Invariant: no record at or beyond `end` is returned, and none with an invalid checksum.
The cost of a read depends on what it returns, not on the length of the log: a bisection over the
base offsets, one index lookup, then batches in order. A reader that continues where it stopped does
not even need the lookup.

Any thread may read. One lock is held for the duration of a read and for each change of the list of
segments, so the writer thread waits for a reader only when it rolls or deletes a segment.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from leveret.queues.log.files.batch import Batch, Record
from leveret.queues.log.files.errors import Damage
from leveret.queues.log.files.index import SparseIndex
from leveret.queues.log.files.scan import SegmentId
from leveret.queues.log.files.segment import SegmentFile, SegmentInfo

_MAX_OPEN_SEGMENTS = 16
_MAX_HINTS = 8
_MAX_HINT_BYTES = 2 << 20
_MAX_DAMAGE = 1000
_MAX_LOCKED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class End:
    """The end for readers: `position` in segment `segment`; `offset` is the next offset."""

    segment: int
    position: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Hint:
    """Where a reader that continues after a read must start."""

    segment: int
    position: int
    floor: int
    batch: Batch | None


class LogView:
    """The readable part of a log directory."""

    def __init__(self, directory: Path, log_id: int, repair: bool = False) -> None:
        self.directory = directory
        self.log_id = log_id
        self.lock = Lock()
        self.damage: dict[tuple[int, int], Damage] = {}
        self.lost: list[Damage] = []
        """Offsets of missing files; set by the owner, replaced as a whole."""
        self._lost_spans: tuple[object, list[tuple[int, int]]] = (None, [])
        self.batches_read = 0
        self._closed_bytes = 0
        self._repair = repair
        self._bases: list[int] = []
        self._sizes: dict[int, int] = {}
        self._end = End(0, 0, 0)
        self._open: OrderedDict[int, SegmentFile] = OrderedDict()
        self._hints: OrderedDict[int, _Hint] = OrderedDict()
        self._active_index: tuple[int, SparseIndex] | None = None

    def __repr__(self) -> str:
        return f"<LogView {self.first_offset}..{self._end.offset} in {len(self._bases)} segments>"

    # Called by the owner.

    def set_segments(self, segments: list[tuple[int, int]]) -> None:
        with self.lock:
            gone = set(self._bases) - {base for base, _ in segments}
            self._bases = [base for base, _ in segments]
            self._sizes = dict(segments)
            for base in gone:
                self._forget_segment(base)

    def set_active(self, base: int, index: SparseIndex, sealed_size: int | None) -> None:
        """Set the segment being written; the one before it was sealed at `sealed_size`."""
        with self.lock:
            if sealed_size is not None:
                self._sizes[self._bases[-1]] = sealed_size
            if base not in self._sizes:
                self._bases.append(base)
                self._sizes[base] = 0
            self._active_index = (base, index)

    def advance(self, end: End) -> None:
        self._end = end

    def hold_end(self) -> None:
        """Open the last readable segment, so that its current file stays readable."""
        with self.lock:
            self._segment(self._end.segment)

    def replaced(self, base: int, size: int) -> None:
        """The file of a sealed segment was replaced. Called under the lock."""
        self._sizes[base] = size
        self._forget_segment(base)

    def dropped(self, base: int) -> None:
        """The file of a sealed segment was deleted. Called under the lock."""
        self._bases.remove(base)
        del self._sizes[base]
        self._forget_segment(base)

    def close(self) -> None:
        with self.lock:
            for base in list(self._open):
                self._forget_segment(base)

    # Called by readers.

    @property
    def end(self) -> End:
        return self._end

    @property
    def bases(self) -> list[int]:
        return self._bases

    @property
    def first_offset(self) -> int:
        bases = self._bases
        return bases[0] if bases else self._end.offset

    @property
    def bytes_read(self) -> int:
        return self._closed_bytes + sum(s.bytes_read for s in self._open.values())

    @property
    def size(self) -> int:
        """Bytes of all readable batches."""
        end = self._end
        return sum(s for base, s in self._sizes.items() if base < end.segment) + end.position

    @property
    def has_lost(self) -> bool:
        """Whether any offset is known to be lost; nearly always False."""
        return bool(self.damage or self.lost)

    def all_damage(self) -> list[Damage]:
        return [*self.lost, *self.damage.values()]

    def lost_between(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The ranges of offsets from `start` to `stop` that are known to be lost, in order."""
        if not self.has_lost:
            return []
        return [
            (max(first, start), min(after, stop))
            for first, after in self._lost_ranges()
            if first < stop and start < after
        ]

    def count_lost(self, start: int, stop: int) -> int:
        return sum(after - first for first, after in self.lost_between(start, stop))

    def _lost_ranges(self) -> list[tuple[int, int]]:
        """All lost offsets as disjoint ranges; computed again when damage was found."""
        bases, end = self._bases, self._end.offset
        state = (len(self.damage), id(self.lost), len(bases), end if self.damage else 0)
        if self._lost_spans[0] != state:
            ranges: list[tuple[int, int]] = []
            for damage in sorted(self.all_damage(), key=lambda each: each.first_offset):
                at = bisect_right(bases, damage.segment)
                until = damage.next_offset or (bases[at] if at < len(bases) else end)
                first = max(damage.first_offset, ranges[-1][1] if ranges else 0)
                if first < until:
                    ranges.append((first, until))
            self._lost_spans = (state, ranges)
        return self._lost_spans[1]

    def segments(self) -> list[SegmentInfo]:
        with self.lock:
            bases, end = list(self._bases), self._end
            nexts = [*bases[1:], end.offset]
            return [
                SegmentInfo(base, max(after, base), self._bound(base, end), base < bases[-1])
                for base, after in zip(bases, nexts, strict=True)
            ]

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[Record]:
        """Records from `offset` on; at least one if there is one, whatever its size."""
        records: list[Record] = []
        with self.lock:
            last: tuple[Batch, int] | None = None
            for batch in self._batches(offset):
                count = batch.header.record_count
                start = batch.index_of(offset)
                if start >= count:
                    continue
                stop = batch.stop_for(start, max_records - len(records), max_bytes)
                if stop == start and not records:
                    stop = start + 1
                records += batch.records(start, stop)
                max_bytes -= batch.body_bytes(start, stop)
                last = batch, stop
                if stop < count or len(records) >= max_records or max_bytes <= 0:
                    break
            if last is not None:
                self._add_hint(*last, records)
        return records

    def batches(self, start: int, stop: int | None = None) -> Iterator[Batch]:
        """Complete batches with offsets from `start` up to but not including `stop`.

        For bulk readers. The first and the last batch may contain records outside that range. The
        lock is held for about a MiB of batches at a time.
        """
        stop = self._end.offset if stop is None else stop
        while batches := self._locked_batches(start, stop):
            yield from batches
            start = batches[-1].header.next_offset

    def _locked_batches(self, start: int, stop: int) -> list[Batch]:
        batches: list[Batch] = []
        size = 0
        with self.lock:
            for batch in self._batches(start):
                h = batch.header
                if h.base_offset >= stop or size > _MAX_LOCKED_BYTES:
                    break
                if h.next_offset > start and h.record_count:
                    batches.append(batch)
                    size += h.length
            if batches:
                self._add_hint(batches[-1], batches[-1].header.record_count, [])
        return batches

    def offset_for_time(self, time_ms: int) -> int:
        """The first offset with that time or later; the next offset if there is none."""
        with self.lock:
            end = self._end
            for base in self._bases[self._segment_for_time(time_ms) :]:
                if base > end.segment:
                    break
                segment = self._segment(base)
                if segment is None:
                    continue
                for batch in self._valid(segment.walk_from_time(time_ms, _limit(segment, end))):
                    at = batch.index_of_time(time_ms)
                    if at < batch.header.record_count:
                        return batch.header.base_offset + int(batch.offset_deltas[at])
            return end.offset

    def last_time(self, base: int) -> int | None:
        """The time of the newest record of a segment."""
        with self.lock:
            segment = self._segment(base)
            return segment.last_time(_limit(segment, self._end)) if segment else None

    def first_time(self, base: int) -> int | None:
        with self.lock:
            segment = self._segment(base) if self._bound(base, self._end) else None
            return segment.first_time() if segment else None

    def verify(self) -> list[Damage]:
        """Read everything once; returns all damage that is known then."""
        for base in list(self._bases):
            end = self._end
            with suppress(FileNotFoundError):
                segment = SegmentFile(self.directory, self._segment_id(base))
                try:
                    for _ in self._valid(segment.walk_at(0, base, _limit(segment, end))):
                        pass
                finally:
                    segment.close()
        return self.all_damage()

    # Under the lock.

    def _batches(self, offset: int) -> Iterator[Batch]:
        """Valid batches in order; the first may end before `offset`."""
        end, bases = self._end, self._bases
        hint = self._hints.get(offset)
        at = max(bisect_right(bases, offset) - 1, 0)
        if hint is not None:
            if hint.batch is not None:
                yield hint.batch
            at = bisect_right(bases, hint.segment) - 1
        while at < len(bases) and bases[at] <= end.segment and offset < end.offset:
            segment = self._segment(bases[at])
            if segment is not None:
                bound = _limit(segment, end)
                if hint is not None:
                    walked = segment.walk_at(hint.position, hint.floor, bound)
                else:
                    walked = segment.walk_from(offset, bound)
                yield from self._valid(walked)
            hint = None
            at += 1

    def _valid(self, walked: Iterator[Batch | Damage]) -> Iterator[Batch]:
        for item in walked:
            if isinstance(item, Batch):
                self.batches_read += 1
                yield item
            elif len(self.damage) < _MAX_DAMAGE:
                self.damage[item.segment, item.position] = item

    def _add_hint(self, batch: Batch, stop: int, records: list[Record]) -> None:
        h = batch.header
        rest = batch if stop < h.record_count and h.length <= _MAX_HINT_BYTES else None
        after = _Hint(batch.segment, batch.position + h.length, h.next_offset, rest)
        if stop < h.record_count and rest is None:
            after = _Hint(batch.segment, batch.position, h.base_offset, None)
        key = records[-1].offset + 1 if stop < h.record_count and records else h.next_offset
        self._hints[key] = after
        self._hints.move_to_end(key)
        if len(self._hints) > _MAX_HINTS:
            self._hints.popitem(last=False)

    def _bound(self, base: int, end: End) -> int:
        if base > end.segment:
            return 0
        return end.position if base == end.segment else self._sizes[base]

    def _segment(self, base: int) -> SegmentFile | None:
        """The open file of a segment; None if it was deleted meanwhile."""
        segment = self._open.get(base)
        if segment is None:
            index = self._active_index
            shared = index[1] if index and index[0] == base else None
            with suppress(FileNotFoundError):
                segment = SegmentFile(self.directory, self._segment_id(base), shared, self._repair)
                self._open[base] = segment
            if len(self._open) > _MAX_OPEN_SEGMENTS:
                self._close(next(base for base in self._open if base != self._end.segment))
        else:
            self._open.move_to_end(base)
        return segment

    def _segment_id(self, base: int) -> SegmentId:
        after = bisect_right(self._bases, base)
        if after == len(self._bases):
            return SegmentId(self.log_id, base)
        return SegmentId(self.log_id, base, self._bases[after])

    def _segment_for_time(self, time_ms: int) -> int:
        """Index of the last segment that starts before `time_ms`; bisection over first times."""
        low, high = 0, len(self._bases)
        while low < high:
            middle = (low + high) // 2
            first = self._known_first_time(middle, high)
            if first is not None and first < time_ms:
                low = middle + 1
            else:
                high = middle
        return max(low - 1, 0)

    def _known_first_time(self, at: int, high: int) -> int | None:
        """First time of the segment at `at`, or of the next one with a valid first header."""
        for base in self._bases[at:high]:
            segment = self._segment(base) if self._bound(base, self._end) else None
            first = segment.first_time() if segment else None
            if first is not None:
                return first
        return None

    def _close(self, base: int) -> None:
        segment = self._open.pop(base, None)
        if segment is not None:
            self._closed_bytes += segment.bytes_read
            segment.close()
        # When it is opened again, compaction may have replaced the file.
        for key in [k for k, hint in self._hints.items() if hint.segment == base]:
            del self._hints[key]

    def _forget_segment(self, base: int) -> None:
        self._close(base)
        self.damage = {key: d for key, d in self.damage.items() if key[0] != base}


def _limit(segment: SegmentFile, end: End) -> int:
    """The end of the readable bytes of an open segment."""
    base = segment.segment_id.segment
    if base == end.segment:
        return end.position
    return segment.size() if base < end.segment else 0
