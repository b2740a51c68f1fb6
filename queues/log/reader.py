"""Reading a log from another process, beside a running broker or without one.

Takes no lock, writes nothing, and sees only whole batches whose checksums hold, up to what the
broker has synced.  Segments that retention removes meanwhile are stepped over; a segment that
compaction replaces is read either as it was or as it is.  One thread per reader.
"""

from collections.abc import Iterator
from pathlib import Path

from queues.log.batch import Batch, Record
from queues.log.errors import Damage, LogError
from queues.log.mark import load_log_id, load_mark
from queues.log.scan import Place, Span, recover_tail
from queues.log.segment import SegmentFile, SegmentInfo, list_segments
from queues.log.view import End, LogView

_MARK_TRIES = 3


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
        """Look again how far the log goes; returns the next offset."""
        while True:
            mark = next((m for _ in range(_MARK_TRIES) if (m := load_mark(self.directory))), None)
            segments = list_segments(self.directory)
            self._view.set_segments(segments)
            if mark is None:
                self._view.advance(self._find_end(segments))
                return self.next_offset
            self._view.advance(End(mark.segment, mark.position, mark.next_offset))
            self._view.hold_end()
            # A segment is compacted only when a later one is synced: then look again, because
            # the position of the mark may be one of the file that was replaced.
            now = load_mark(self.directory)
            if now is not None and now.segment == mark.segment:
                return mark.next_offset

    def read(self, offset: int, max_records: int = 1000, max_bytes: int = 1 << 20) -> list[Record]:
        return self._view.read(offset, max_records, max_bytes)

    def batches(self, start: int, stop: int | None = None) -> Iterator[Batch]:
        """Whole batches, whose columns are ready for Arrow; see `LogView.batches`."""
        return self._view.batches(start, stop)

    def offset_for_time(self, time_ms: int) -> int:
        return self._view.offset_for_time(time_ms)

    def damage(self) -> list[Damage]:
        return list(self._view.damage.values())

    def segments(self) -> list[SegmentInfo]:
        return self._view.segments()

    @property
    def first_offset(self) -> int:
        return self._view.first_offset

    @property
    def next_offset(self) -> int:
        return self._view.end.offset

    def close(self) -> None:
        self._view.close()

    def _find_end(self, segments: list[tuple[int, int]]) -> End:
        """The end of a log without a readable mark: its last whole batch."""
        if not segments:
            return End(0, 0, 0)
        base, size = segments[-1]
        place = Place(self._view.log_id, base)
        segment = SegmentFile(self.directory, place)
        try:
            tail = recover_tail(segment, place, Span(0, size, base))
        finally:
            segment.close()
        return End(base, tail.end, tail.next_offset)
