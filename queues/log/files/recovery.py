"""Recovery: opening a log after a crash, damage or a normal stop.

Steps: 1. remove temporary files of an interrupted compaction or repair; 2. load the log id; 3. list
the segments; 4. walk the batches from the checkpoint on (without one, from the previous segment on)
to find the last time, the producer state and the end; 5. cut the torn tail of the newest segment;
6. compare the segments with `segments.json`, and the end with the checkpoint and with what the
broker has recorded elsewhere: what is missing is lost. Sealed segments are not changed, and read
only if their size is not the listed one: other damage is detected when they are read.

Invariant: no byte below the checkpoint is cut unless its batch was never committed, no segment is
deleted, and no offset below the checkpoint's, or below the recorded end, is ever assigned again.
Runs once, in the thread that opens the log; it can be killed and repeated.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from leveret.queues.log.files.batch import Batch
from leveret.queues.log.files.checkpoint_file import (
    NO_SNAPSHOT,
    Checkpoint,
    create_log_id,
    load_checkpoint,
    load_log_id,
    read_log_id,
    save_checkpoint,
)
from leveret.queues.log.files.errors import MISSING_END, MISSING_SEGMENT, TRUNCATED, Damage
from leveret.queues.log.files.scan import SegmentId, Span, Tail, hop, recover_tail, walk
from leveret.queues.log.files.segment import SegmentFile, index_path, list_segments, log_path
from leveret.queues.log.files.segment_list import (
    SegmentList,
    compare,
    load_segment_list,
    without_copies,
)


@dataclass(slots=True)
class RecoveredLog:
    """The state of a log on disk."""

    log_id: int
    segments: list[tuple[int, int]]
    position: int = 0
    next_offset: int = 0
    last_time_ms: int = 0
    snapshot: int = NO_SNAPSHOT
    cut_bytes: int = 0
    is_clean: bool = False
    is_list_saved: bool = True
    lost_to: int = 0
    producers: dict[bytes, int] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    listed: SegmentList = field(default_factory=SegmentList)

    def continue_at(self, end: int, reason: str) -> None:
        """Never assign an offset below `end` again: those that no batch has are lost."""
        if self.next_offset < end:
            base = self.segments[-1][0] if self.segments else self.next_offset
            self.listed.lost.append(Damage(base, self.position, 0, self.next_offset, end, reason))
            self.next_offset = end
            self.producers.clear()

    def add_producers(self, batch: Batch) -> None:
        """Update the producer state with one batch.

        Batches before lost ones do not count: the next number of a producer would look like a gap.
        """
        if not batch.header.producers_length or batch.header.base_offset < self.lost_to:
            return
        if self.snapshot == NO_SNAPSHOT or not batch.header.record_count:
            self.snapshot = batch.position
        for ident, sequence in batch.producers().items():
            self.producers.pop(ident, None)
            self.producers[ident] = sequence


@dataclass(frozen=True, slots=True)
class RecordedEnd:
    """The end of a log as recorded outside of its directory.

    The log had all offsets below `next_offset`; those below `reserved_to` may have been assigned.
    """

    next_offset: int
    reserved_to: int


def recover(
    directory: Path, recorded: RecordedEnd | None = None, is_compacted: bool = False
) -> RecoveredLog:
    """Make the directory ready for appending; returns its state."""
    for temporary in directory.glob("*.tmp"):
        temporary.unlink()
    known = load_segment_list(directory)
    segments = without_copies(known, list_segments(directory))
    log_id = load_log_id(directory, [base for base, _ in segments])
    if log_id is None or read_log_id(directory) is None:
        log_id = create_log_id(directory, log_id)
    state = RecoveredLog(log_id, segments)
    if known is not None:
        state.lost_to = max((lost.next_offset or 0 for lost in known.lost), default=0)
    checkpoint = load_checkpoint(directory)
    if segments:
        _walk_from_checkpoint(directory, state, checkpoint)
    if known is not None and not segments:
        state.next_offset = min(known.sealed, default=known.active)
    state.listed = compare(
        known,
        dict(state.segments),
        lambda base, ceiling: _end_of(directory, SegmentId(log_id, base, ceiling)),
        is_compacted,
    )
    if known is not None:
        state.next_offset = max(state.next_offset, state.lost_to)  # reported at an earlier start
        state.continue_at(known.active, MISSING_SEGMENT)
    if checkpoint is not None:
        _compare_with_checkpoint(state, checkpoint)
    if recorded is not None and state.next_offset < recorded.next_offset:
        state.continue_at(recorded.reserved_to, TRUNCATED)
        state.is_clean = False
    state.is_list_saved = known == state.listed or not (state.listed.sealed or state.listed.lost)
    return state


def _compare_with_checkpoint(state: RecoveredLog, checkpoint: Checkpoint) -> None:
    if any(damage.next_offset is None for damage in state.damage):
        state.next_offset = max(state.next_offset, checkpoint.next_offset)  # damaged, not missing
    state.continue_at(checkpoint.next_offset, MISSING_END)
    state.last_time_ms = max(state.last_time_ms, checkpoint.last_time_ms)
    end = (state.segments[-1][0], state.position, state.next_offset) if state.segments else None
    state.is_clean = end == (checkpoint.segment, checkpoint.position, checkpoint.next_offset)


def _end_of(directory: Path, segment_id: SegmentId) -> int:
    segment = SegmentFile(directory, segment_id)
    try:
        return segment.end_offset()
    finally:
        segment.close()


def cut_from(directory: Path, offset: int) -> None:
    """Remove the records from `offset` on, synced or not: their batch was never committed.

    It was the newest batch, so all of them are in the newest segment. Can be killed and repeated.
    """
    segments = list_segments(directory)
    log_id = load_log_id(directory, [base for base, _ in segments])
    if not segments or log_id is None:
        return
    base, size = segments[-1]
    position = _position_of(offset, directory, SegmentId(log_id, base), size)
    checkpoint = load_checkpoint(directory)
    if checkpoint is not None and checkpoint.segment == base and checkpoint.position > position:
        earlier = replace(checkpoint, position=position, next_offset=offset, snapshot=0)
        save_checkpoint(directory, earlier)
    if position < size:
        index_path(directory, base).unlink(missing_ok=True)
        _truncate(directory, base, position)


def _position_of(offset: int, directory: Path, segment_id: SegmentId, size: int) -> int:
    """Position of the first batch from `offset` on.

    An empty batch at the start of a segment does not count: it holds earlier producer state.
    """
    segment = SegmentFile(directory, segment_id)
    try:
        for item in hop(segment, segment_id, Span(0, size, segment_id.segment)):
            if isinstance(item, Damage) or item[1].base_offset < offset:
                continue
            position, header = item
            if position or header.record_count:
                return position
    finally:
        segment.close()
    return size


def _walk_from_checkpoint(
    directory: Path, state: RecoveredLog, checkpoint: Checkpoint | None
) -> None:
    bases = [base for base, _ in state.segments]
    active = bases[-1]
    if checkpoint is not None and checkpoint.segment not in bases:
        checkpoint = None
    first = checkpoint.segment if checkpoint else bases[-2:][0]
    for base, size in state.segments[bases.index(first) :]:
        flushed, start = 0, 0
        if checkpoint is not None and base == checkpoint.segment:
            flushed = checkpoint.position
            snapshot = checkpoint.snapshot
            start = checkpoint.position if snapshot == NO_SNAPSHOT else snapshot
        if start > size:
            start = 0
        segment = SegmentFile(directory, SegmentId(state.log_id, base))
        at_checkpoint = checkpoint is not None and base == checkpoint.segment and start == flushed
        floor = checkpoint.next_offset if checkpoint is not None and at_checkpoint else base
        try:
            if base == active:
                _recover_active(state, segment, Span(start, size, floor), flushed)
            else:
                _recover_sealed(state, segment, Span(start, size, floor))
        finally:
            segment.close()
    if state.position != state.segments[-1][1]:
        _set_length(directory, state)


def _recover_sealed(state: RecoveredLog, segment: SegmentFile, span: Span) -> None:
    state.snapshot = NO_SNAPSHOT
    for batch in walk(segment, segment.segment_id, span):
        if isinstance(batch, Batch):
            state.add_producers(batch)
            state.last_time_ms = batch.header.last_time_ms
        else:
            state.damage.append(batch)


def _recover_active(state: RecoveredLog, segment: SegmentFile, span: Span, flushed: int) -> None:
    state.snapshot = NO_SNAPSHOT
    tail: Tail = recover_tail(segment, segment.segment_id, span, flushed, state.add_producers)
    state.damage += tail.damage
    state.position, state.next_offset = tail.end, tail.next_offset
    state.last_time_ms = max(state.last_time_ms, tail.last_time_ms)
    state.cut_bytes = tail.cut


def _set_length(directory: Path, state: RecoveredLog) -> None:
    """Cut the torn tail, or fill the missing part of a damaged batch with zeros."""
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
