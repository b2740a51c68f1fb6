"""`segments.json`: which sealed segments a log has, and which of its offsets are known to be lost.

A missing or cut segment file is recognized by comparison with this list: the directory alone cannot
tell it from a segment that retention has deleted or that compaction has emptied. The list is
written when the first segment is sealed and after every change, synced, with a CRC-32C. After a
crash it may be older than the directory: segments that it does not name are accepted. A lost or
damaged list is made again from the segments; then only gaps between them are found.

`start` is the offset below which retention has deleted the log; None before it deletes anything.
The first segment does not tell, because compaction deletes segments, too.

Lost offsets stay in the list until retention has deleted the records before and after them. The
lock is for the writer and the thread that compacts.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Lock

from leveret.model.checksum import checksum
from leveret.queues.log.files.errors import CUT_SEGMENT, MISSING_SEGMENT, Damage

NAME = "segments.json"


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """The offsets and the size of a segment that is no longer written."""

    base_offset: int
    next_offset: int
    size: int


@dataclass(slots=True)
class SegmentList:
    """`active` is the segment that was being written when the list was made."""

    sealed: dict[int, SealedSegment] = field(default_factory=dict)
    active: int = 0
    lost: list[Damage] = field(default_factory=list)
    start: int | None = None
    lock: Lock = field(default_factory=Lock, compare=False, repr=False)

    def seal(self, segment: SealedSegment, active: int) -> None:
        with self.lock:
            self.sealed[segment.base_offset] = segment
            self.active = active

    def drop(self, bases: Iterable[int], first_offset: int) -> None:
        """Retention deletes these segments; what was lost before `first_offset` is forgotten."""
        with self.lock:
            for base in bases:
                self.sealed.pop(base, None)
            self.lost = [lost for lost in self.lost if (lost.next_offset or 0) > first_offset]
            self.start = first_offset

    def replace(self, base: int, size: int | None) -> None:
        """Compaction has rewritten a segment, or removed it: size None."""
        with self.lock:
            before = self.sealed.pop(base, None)
            if before is not None and size is not None:
                self.sealed[base] = SealedSegment(base, before.next_offset, size)

    def save(self, directory: Path, durable: bool) -> None:
        with self.lock:
            content = {
                "active": self.active,
                "sealed": [astuple(segment) for segment in self.sealed.values()],
                "lost": [astuple(lost) for lost in self.lost],
                "start": self.start,
            }
            text = json.dumps(content, indent=1).encode()
            temporary = directory / f"{NAME}.tmp"
            with open(temporary, "wb") as file:
                file.write(b"%08x\n%s\n" % (checksum(text), text))
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(temporary, directory / NAME)


def load_segment_list(directory: Path) -> SegmentList | None:
    """None if there is no list, or a damaged one."""
    try:
        head, _, text = (directory / NAME).read_bytes().partition(b"\n")
        if int(head, 16) != checksum(text[:-1]):
            return None
    except (OSError, ValueError):
        return None
    content = json.loads(text)
    sealed = [SealedSegment(*fields) for fields in content["sealed"]]
    return SegmentList(
        {segment.base_offset: segment for segment in sealed},
        content["active"],
        [Damage(*fields) for fields in content["lost"]],
        content.get("start"),
    )


def without_copies(
    known: SegmentList | None, segments: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The segments except files whose base offset is inside another, listed segment."""
    if known is None:
        return segments
    existing = dict(segments)
    inside = [each for base, each in known.sealed.items() if base in existing]
    return [
        (base, size)
        for base, size in segments
        if base in known.sealed
        or not any(each.base_offset < base < each.next_offset for each in inside)
    ]


def compare(
    known: SegmentList | None,
    sizes: Mapping[int, int],
    end_of: Callable[[int, int], int],
    is_compacted: bool,
) -> SegmentList:
    """The list of the segments that exist, with the offsets of those that are missing or cut.

    `sizes`: the size of each existing segment by base offset, in order; the last one is active.
    `end_of(base, ceiling)` is the end of a segment's batches. Compaction leaves gaps between the
    batches of a segment, so then only missing segments are found.
    """
    bases = list(sizes)
    found = SegmentList()
    nexts = dict(pairwise(bases))
    listed = _listed(known, nexts, sizes)
    if known is not None:
        found.active, found.start = known.active, known.start
        found.lost = [lost for lost in known.lost if not _is_back(lost, sizes)]
        missing = {base: listed[base].next_offset for base in listed if base not in sizes}
        if known.active not in sizes:
            later = [base for base in bases if base > known.active]
            missing |= {known.active: later[0]} if later else {}
        for base, after in missing.items():
            if bases and base < bases[-1]:  # otherwise the end of the log is missing
                found.lost.append(Damage(base, 0, 0, base, after, MISSING_SEGMENT))
    if bases:
        found.active = bases[-1]
    for base in nexts:
        entry, size = listed[base], sizes[base]
        found.sealed[base] = SealedSegment(base, entry.next_offset, size)
        if entry.size != size and not is_compacted:
            end = end_of(base, entry.next_offset)
            if end < entry.next_offset:
                reason = CUT_SEGMENT if known is not None else MISSING_SEGMENT
                found.lost.append(Damage(base, size, 0, end, entry.next_offset, reason))
    return found


def _listed(
    known: SegmentList | None, nexts: Mapping[int, int], sizes: Mapping[int, int]
) -> dict[int, SealedSegment]:
    """The listed segments, and those that exist without being listed. Size -1: not known."""
    sealed = dict(known.sealed) if known is not None else {}
    lost = known.lost if known is not None else []
    returned = {each.first_offset: each.next_offset for each in lost if _is_segment(each)}
    for base, after in nexts.items():
        if base not in sealed:
            is_new = known is not None and base >= known.active
            end = returned.get(base) or after
            sealed[base] = SealedSegment(base, end, sizes[base] if is_new else -1)
    return sealed


def _is_segment(lost: Damage) -> bool:
    return lost.reason == MISSING_SEGMENT


def _is_back(lost: Damage, sizes: Mapping[int, int]) -> bool:
    """Whether a missing segment exists again, or the file of a cut one was replaced."""
    if lost.reason == CUT_SEGMENT:
        return sizes.get(lost.segment) != lost.position
    return _is_segment(lost) and lost.first_offset in sizes
