"""Reading a log from another process, with or without a running broker.

Takes no lock, writes nothing, and returns only complete batches with valid checksums, up to the
checkpoint. Segments that retention deletes meanwhile are skipped; a segment that compaction
replaces is read either in its old or in its new form. One thread per reader.
"""

from collections.abc import Iterator
from pathlib import Path

from leveret.queues.log.files.batch import Batch, Record
from leveret.queues.log.files.checkpoint_file import load_checkpoint, load_log_id
from leveret.queues.log.files.errors import Damage, LogError
from leveret.queues.log.files.scan import SegmentId, Span, recover_tail
from leveret.queues.log.files.segment import SegmentFile, SegmentInfo, list_segments
from leveret.queues.log.files.segment_list import load_segment_list, without_copies
from leveret.queues.log.files.view import End, LogView

_CHECKPOINT_TRIES = 3


class LogReader:
    """The log in `directory` as it was at the last `refresh`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        log_id = load_log_id(directory, [base for base, _ in list_segments(directory)])
        if log_id is None:
            raise LogError(f"no log in {directory}")
        self._view = LogView(directory, log_id)
        self.refresh()

    def __repr__(self) -> str:
        return f"<LogReader {self.directory.name} {self.first_offset}..{self.next_offset}>"

    def __enter__(self) -> "LogReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def refresh(self) -> int:
        """Update the end of the log; returns the next offset."""
        while True:
            attempts = (load_checkpoint(self.directory) for _ in range(_CHECKPOINT_TRIES))
            checkpoint = next(filter(None, attempts), None)
            listed = load_segment_list(self.directory)
            segments = without_copies(listed, list_segments(self.directory))
            self._view.set_segments(segments)
            self._view.lost = listed.lost if listed is not None else []
            if checkpoint is None:
                self._view.advance(self._find_end(segments))
                return self.next_offset
            self._view.advance(End(checkpoint.segment, checkpoint.position, checkpoint.next_offset))
            self._view.hold_end()
            # A segment is compacted only after a later one is synced. Then try again, because
            # the position may belong to the file that was replaced.
            latest = load_checkpoint(self.directory)
            if latest is not None and latest.segment == checkpoint.segment:
                return checkpoint.next_offset

    def read(self, offset: int, max_records: int = 1000, max_bytes: int = 1 << 20) -> list[Record]:
        return self._view.read(offset, max_records, max_bytes)

    def batches(self, start: int, stop: int | None = None) -> Iterator[Batch]:
        """Complete batches, whose columns are ready for Arrow; see `LogView.batches`."""
        return self._view.batches(start, stop)

    def offset_for_time(self, time_ms: int) -> int:
        return self._view.offset_for_time(time_ms)

    def verify(self) -> list[Damage]:
        """Read everything once; returns all damage."""
        return self._view.verify()

    def damage(self) -> list[Damage]:
        """Missing segments, as far as the broker has recorded them, and damaged batches found."""
        return self._view.all_damage()

    def lost_between(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The ranges of offsets from `start` to `stop` that are known to be lost."""
        return self._view.lost_between(start, stop)

    def segments(self) -> list[SegmentInfo]:
        return self._view.segments()

    @property
    def first_offset(self) -> int:
        return self._view.first_offset

    @property
    def next_offset(self) -> int:
        return self._view.end.offset

    @property
    def start(self) -> int | None:
        """The offset below which retention has deleted records by now; None if it has not."""
        listed = load_segment_list(self.directory)
        return None if listed is None else listed.start

    def close(self) -> None:
        self._view.close()

    def _find_end(self, segments: list[tuple[int, int]]) -> End:
        """The end of a log without a valid checkpoint: its last complete batch."""
        if not segments:
            return End(0, 0, 0)
        base, size = segments[-1]
        segment_id = SegmentId(self._view.log_id, base)
        segment = SegmentFile(self.directory, segment_id)
        try:
            tail = recover_tail(segment, segment_id, Span(0, size, base))
        finally:
            segment.close()
        return End(base, tail.end, tail.next_offset)
