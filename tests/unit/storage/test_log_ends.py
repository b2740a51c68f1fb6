"""When the end of a log is recorded in the database, and how much is reserved."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from leveret.model.definitions import LogEnd
from leveret.model.store import LogRecords
from leveret.queues.storage import log_ends
from leveret.queues.storage.log_ends import RECORD_SECONDS, RESERVED_RECORDS, LogEnds


class Sink:
    """A log that only has a name."""

    def __init__(self, queue_id: int) -> None:
        self._name = str(queue_id)

    def write(self, records: Sequence[LogRecords]) -> int:
        return 0

    def sync(self) -> None:
        return None

    def rollback(self) -> None:
        return None

    def end(self) -> tuple[str, int]:
        return self._name, 0


@pytest.fixture
def now(monkeypatch):
    """The clock, in seconds."""
    time = [100.0]
    monkeypatch.setattr(log_ends, "monotonic", lambda: time[0])
    return time


def commit(ends: LogEnds, sink: Sink, end: int) -> list[LogEnd]:
    """Commit a batch that wrote the log up to `end`; what was recorded with it."""
    rows = ends.due({sink: end})
    ends.on_committed({sink: end}, rows)
    return rows


def test_first_write_reserves_offsets_ahead(now):
    assert commit(LogEnds(), Sink(7), 3) == [LogEnd(7, 3, 3 + RESERVED_RECORDS)]


def test_later_writes_record_nothing_until_a_second_has_passed(now):
    ends, sink = LogEnds(), Sink(7)
    commit(ends, sink, 3)
    assert commit(ends, sink, 10) == []
    assert ends.has_unrecorded
    now[0] += RECORD_SECONDS
    assert commit(ends, sink, 12) == [LogEnd(7, 12, 3 + RESERVED_RECORDS)]
    assert not ends.has_unrecorded


def test_no_offset_is_confirmed_before_it_is_reserved(now):
    ends, sink = LogEnds(), Sink(7)
    commit(ends, sink, 1)
    assert commit(ends, sink, 1 + RESERVED_RECORDS) == []
    after = 2 + RESERVED_RECORDS
    assert commit(ends, sink, after) == [LogEnd(7, after, after + RESERVED_RECORDS)]


def test_idle_writer_records_the_exact_end(now):
    ends, sink = LogEnds(), Sink(7)
    commit(ends, sink, 3)
    commit(ends, sink, 10)
    rows = ends.unrecorded()
    assert [(row.queue_id, row.next_offset) for row in rows] == [(7, 10)]
    ends.on_committed({}, rows)
    assert ends.unrecorded() == []


def test_failed_batch_changes_nothing(now):
    ends, sink = LogEnds(), Sink(7)
    commit(ends, sink, 3)
    now[0] += RECORD_SECONDS
    assert ends.due({sink: 9}) != []
    assert (ends.unrecorded(), ends.at_close()) == ([], [LogEnd(7, 3, 3)])


def test_clean_stop_reserves_nothing(now):
    ends, first, second = LogEnds(), Sink(7), Sink(8)
    commit(ends, first, 3)
    commit(ends, second, 5)
    commit(ends, first, 4)
    assert sorted(ends.at_close(), key=lambda row: row.queue_id) == [
        LogEnd(7, 4, 4),
        LogEnd(8, 5, 5),
    ]


def test_deleted_log_is_forgotten(now):
    ends, sink = LogEnds(), Sink(7)
    commit(ends, sink, 3)
    commit(ends, sink, 4)
    ends.forget(7)
    assert (ends.unrecorded(), ends.at_close()) == ([], [])


def test_log_that_is_being_deleted_has_no_end(now):
    assert LogEnds().due({Sink(7): 0}) == []
