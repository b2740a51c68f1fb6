"""Opening a log after whatever happened to it.

Steps: 1. remove what an interrupted compaction or repair left aside; 2. learn the log id; 3. list
the segments; 4. from the committed mark on (from the previous segment on, if there is no mark)
walk the batches, to find the last time, the producers and the end; 5. cut the torn tail of the
newest segment.  Sealed segments are neither read nor changed: their damage shows when read.

Invariant: no byte below the mark is cut unless its batch was never committed, no segment is
deleted, no offset below the mark's is ever given out again. Runs once, in the thread that opens the
log; it can be killed and repeated.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from queues.log.batch import Batch
from queues.log.errors import Damage
from queues.log.mark import NO_SNAPSHOT, Mark, create_log_id, load_log_id, load_mark, save_mark
from queues.log.scan import Place, Span, Tail, hop, recover_tail, walk
from queues.log.segment import SegmentFile, index_path, list_segments, log_path


@dataclass(slots=True)
class Recovered:
    """The state of a log as found on disk."""

    log_id: int
    segments: list[tuple[int, int]]
    position: int = 0
    next_offset: int = 0
    last_time_ms: int = 0
    snapshot: int = NO_SNAPSHOT
    cut_bytes: int = 0
    is_clean: bool = False
    producers: dict[bytes, int] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)

    def take(self, batch: Batch) -> None:
        """Fold one batch into the state of the producers."""
        if not batch.header.producers_length:
            return
        if self.snapshot == NO_SNAPSHOT or not batch.header.record_count:
            self.snapshot = batch.position
        for ident, sequence in batch.producers().items():
            self.producers.pop(ident, None)
            self.producers[ident] = sequence


def recover(directory: Path) -> Recovered:
    """Bring the directory into a state that can be appended to, and describe it."""
    for leftover in directory.glob("*.tmp"):
        leftover.unlink()
    segments = list_segments(directory)
    log_id = load_log_id(directory, [base for base, _ in segments])
    if log_id is None or not (directory / "log.id").exists():
        log_id = create_log_id(directory, log_id)
    state = Recovered(log_id, segments)
    mark = load_mark(directory)
    if segments:
        _walk_from_mark(directory, state, mark)
    if mark is not None and mark.next_offset > state.next_offset:
        base = segments[-1][0] if segments else mark.segment
        lost = (base, state.position, 0, state.next_offset, mark.next_offset)
        if segments and not any(d.next_offset is None for d in state.damage):
            state.damage.append(Damage(*lost, "missing at the end"))
        state.next_offset = mark.next_offset
    if mark is not None:
        state.last_time_ms = max(state.last_time_ms, mark.last_time_ms)
        end = (segments[-1][0], state.position, state.next_offset) if segments else None
        state.is_clean = end == (mark.segment, mark.position, mark.next_offset)
    return state


def cut_from(directory: Path, offset: int) -> None:
    """Cut off the records from `offset` on, synced or not: their batch was never committed.

    It was the newest batch, so all of them are in the newest segment. Can be killed and repeated.
    """
    segments = list_segments(directory)
    log_id = load_log_id(directory, [base for base, _ in segments])
    if not segments or log_id is None:
        return
    base, size = segments[-1]
    position = _position_of(offset, directory, Place(log_id, base), size)
    mark = load_mark(directory)
    if mark is not None and mark.segment == base and mark.position > position:
        save_mark(directory, replace(mark, position=position, next_offset=offset, snapshot=0))
    if position < size:
        index_path(directory, base).unlink(missing_ok=True)
        _truncate(directory, base, position)


def _position_of(offset: int, directory: Path, place: Place, size: int) -> int:
    """Where the batches from `offset` on begin; an empty one at the head of a segment tells of
    the producers before it and is none of them."""
    segment = SegmentFile(directory, place)
    try:
        for found in hop(segment, place, Span(0, size, place.segment)):
            if isinstance(found, Damage) or found[1].base_offset < offset:
                continue
            position, header = found
            if position or header.record_count:
                return position
    finally:
        segment.close()
    return size


def _walk_from_mark(directory: Path, state: Recovered, mark: Mark | None) -> None:
    bases = [base for base, _ in state.segments]
    active = bases[-1]
    if mark is not None and mark.segment not in bases:
        mark = None
    first = mark.segment if mark else bases[-2:][0]
    for base, size in state.segments[bases.index(first) :]:
        flushed, start = 0, 0
        if mark is not None and base == mark.segment:
            flushed = mark.position
            start = mark.position if mark.snapshot == NO_SNAPSHOT else mark.snapshot
        if start > size:
            start = 0
        segment = SegmentFile(directory, Place(state.log_id, base))
        at_mark = mark is not None and base == mark.segment and start == flushed
        floor = mark.next_offset if mark is not None and at_mark else base
        try:
            if base == active:
                _recover_active(state, segment, Span(start, size, floor), flushed)
            else:
                _pass_sealed(state, segment, Span(start, size, floor))
        finally:
            segment.close()
    if state.position != state.segments[-1][1]:
        _set_length(directory, state)


def _pass_sealed(state: Recovered, segment: SegmentFile, span: Span) -> None:
    state.snapshot = NO_SNAPSHOT
    for found in walk(segment, segment.place, span):
        if isinstance(found, Batch):
            state.take(found)
            state.last_time_ms = found.header.last_time_ms
        else:
            state.damage.append(found)


def _recover_active(state: Recovered, segment: SegmentFile, span: Span, flushed: int) -> None:
    state.snapshot = NO_SNAPSHOT
    tail: Tail = recover_tail(segment, segment.place, span, flushed, state.take)
    state.damage += tail.damage
    state.position, state.next_offset = tail.end, tail.next_offset
    state.last_time_ms = max(state.last_time_ms, tail.last_time_ms)
    state.cut_bytes = tail.cut


def _set_length(directory: Path, state: Recovered) -> None:
    """Cut the torn tail; or fill up with zeros what is missing of a damaged batch."""
    base = state.segments[-1][0]
    _truncate(directory, base, state.position)
    state.segments[-1] = (base, state.position)


def _truncate(directory: Path, base: int, position: int) -> None:
    fd = os.open(log_path(directory, base), os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, position)
        os.fsync(fd)
    finally:
        os.close(fd)
