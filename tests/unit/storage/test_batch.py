from __future__ import annotations

from array import array
from types import SimpleNamespace

import pytest

from leveret.model.history import EventKind
from leveret.model.store import (
    Lease,
    Live,
    NewMessage,
    Snapshot,
    VhostDefinition,
)
from queues.storage.batch import Batch, IdRanges


def message(message_id: int) -> NewMessage:
    return NewMessage(message_id, 1, 0, "", "k", b"", b"body")


def ranges(*batches: list[int]) -> IdRanges:
    lost = IdRanges()
    for ids in batches:
        batch = Batch(1)
        batch.rows.extend(message(i) for i in ids)
        lost.add_batch(batch)
    return lost


def test_ranges_hold_every_id_of_the_failed_batches():
    lost = ranges([5, 6, 7], [], [8, 9], [20, 22])
    assert [i for i in range(30) if i in lost] == [5, 6, 7, 8, 9, 20, 21, 22]
    assert bool(lost)
    assert not ranges()


def test_a_new_batch_is_empty():
    batch = Batch(1)
    assert batch.is_empty
    assert not batch.has_sql


def test_log_records_alone_need_no_sql():
    batch = Batch(1)
    batch.logs[object()] = [b"record"]  # type: ignore[index]
    assert not batch.is_empty
    assert not batch.has_sql


@pytest.fixture
def failed() -> Batch:
    batch = Batch(1)
    batch.rows = [message(10), message(11)]
    batch.events[EventKind.ENQUEUED, 1, 0, None] = (5, [10, 11], [4, 4])
    batch.events[EventKind.ACKED, 1, 0, None] = (5, [3, 10], None)
    batch.changes[VhostDefinition, ("/",)] = (VhostDefinition("/", "old"), True)
    batch.snapshots[1] = Snapshot(1, (Live(array("Q", [4, 11]), array("I", [9, 4])),))
    batch.discards = [3, 10]
    batch.strips = [2]
    batch.lease = Lease(100)
    batch.logs[object()] = [b"record"]  # type: ignore[index]
    return batch


def test_carry_keeps_everything_but_new_messages(failed: Batch):
    batch = Batch(2)
    batch.carry(failed, ranges([10, 11]))
    assert batch.rows == []
    assert batch.logs == {}
    assert batch.events == {(EventKind.ACKED, 1, 0, None): (5, [3], None)}
    assert batch.changes == failed.changes
    assert batch.snapshots[1].parts == (Live(array("Q", [4]), array("I", [9])),)
    assert (batch.discards, batch.strips, batch.lease) == ([3], [2], Lease(100))


def test_what_is_newer_wins_over_what_is_carried(failed: Batch):
    batch = Batch(2)
    batch.events[EventKind.ACKED, 1, 0, None] = (6, [4], None)
    batch.events[EventKind.ENQUEUED, 1, 0, None] = (6, [12], [7])
    batch.changes[VhostDefinition, ("/",)] = (VhostDefinition("/"), False)
    batch.lease = Lease(200)
    batch.carry(failed, ranges([10, 11]))
    assert batch.changes[VhostDefinition, ("/",)][1] is False
    assert batch.lease == Lease(200)
    assert batch.events[EventKind.ACKED, 1, 0, None][1] == [3, 4]
    assert batch.events[EventKind.ENQUEUED, 1, 0, None] == (5, [12], [7])


def test_what_is_indispensable_is_carried_with_all_that_is_said_about_it(failed: Batch):
    failed.firm, failed.bound = {11}, {11}
    lost = IdRanges()
    lost.add_batch(failed)
    assert [i for i in range(20) if i in lost] == [10]
    batch = Batch(2)
    batch.rows = [message(12)]
    batch.carry(failed, lost)
    assert [row[0] for row in batch.rows] == [11, 12]
    assert batch.events[EventKind.ENQUEUED, 1, 0, None] == (5, [11], [4])
    assert batch.snapshots[1].parts == (Live(array("Q", [4, 11]), array("I", [9, 4])),)
    assert (batch.firm, batch.bound, batch.bytes) == ({11}, {11}, 4)


def test_log_records_that_are_indispensable_come_before_newer_ones():
    sink = object()
    old, kept, newer = (SimpleNamespace(id=i, body_size=3) for i in (10, 11, 12))
    failed, batch = Batch(1), Batch(2)
    failed.logs[sink], failed.firm = [old, kept], {11}  # type: ignore[index]
    batch.logs[sink] = [newer]  # type: ignore[index]
    batch.carry(failed, IdRanges())
    assert list(batch.logs.values()) == [[kept, newer]]
    assert batch.log_bytes == 3
