"""Records in the database where each log ends, so that lost or older files are noticed.

The database says two things about a log (`LogEnd`): it had all offsets below `next_offset`, and
only offsets below `reserved_to` may have been assigned. The second is recorded ahead of need and
synced before the first of these records is confirmed, so no offset is assigned twice, whatever is
lost. The first is recorded when the writer is idle, once per second under load, and at a clean
stop, when both are exact. Therefore most batches of a log need no SQL.

Writer thread only.
"""

from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Final

from leveret.model.definitions import LogEnd
from leveret.model.store import LogSink

RESERVED_RECORDS: Final = 1 << 16
RECORD_SECONDS: Final = 1.0


class LogEnds:
    """The ends of the logs that were written since the start."""

    def __init__(self) -> None:
        self._recorded: dict[int, LogEnd] = {}
        self._unrecorded: dict[int, int] = {}
        """Committed ends that the database does not have yet, by queue id."""
        self._record_at = 0.0

    @property
    def has_unrecorded(self) -> bool:
        return bool(self._unrecorded)

    def due(self, written: Mapping[LogSink, int]) -> list[LogEnd]:
        """What must be committed with a batch that wrote these logs up to these offsets."""
        new = _by_queue(written)
        if monotonic() < self._record_at and all(map(self._is_reserved, new.items())):
            return []
        ends = {**self._unrecorded, **new}
        return [self._next_row(queue_id, end) for queue_id, end in ends.items()]

    def unrecorded(self) -> list[LogEnd]:
        return [self._next_row(queue_id, end) for queue_id, end in self._unrecorded.items()]

    def at_close(self) -> list[LogEnd]:
        """Nothing is written any more: the exact ends, with nothing reserved."""
        ends = {queue_id: row.next_offset for queue_id, row in self._recorded.items()}
        ends |= self._unrecorded
        return [LogEnd(queue_id, end, end) for queue_id, end in ends.items()]

    def on_committed(self, written: Mapping[LogSink, int], rows: Iterable[LogEnd]) -> None:
        self._unrecorded |= _by_queue(written)
        for row in rows:
            self._recorded[row.queue_id] = row
            self._unrecorded.pop(row.queue_id, None)
            self._record_at = monotonic() + RECORD_SECONDS

    def forget(self, queue_id: int) -> None:
        """The log was deleted."""
        self._recorded.pop(queue_id, None)
        self._unrecorded.pop(queue_id, None)

    def _is_reserved(self, queue_and_end: tuple[int, int]) -> bool:
        queue_id, end = queue_and_end
        recorded = self._recorded.get(queue_id)
        return recorded is not None and end <= recorded.reserved_to

    def _next_row(self, queue_id: int, end: int) -> LogEnd:
        recorded = self._recorded.get(queue_id)
        if recorded is not None and recorded.reserved_to - end > RESERVED_RECORDS // 2:
            return LogEnd(queue_id, end, recorded.reserved_to)
        return LogEnd(queue_id, end, end + RESERVED_RECORDS)


def _by_queue(written: Mapping[LogSink, int]) -> dict[int, int]:
    """A log that is being deleted has no end."""
    return {int(sink.end()[0]): end for sink, end in written.items() if end}
