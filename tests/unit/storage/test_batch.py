from __future__ import annotations

from array import array

import pytest

from leveret.model.definitions import VhostDefinition
from leveret.model.history import EventKind
from leveret.model.message import Address, Message
from leveret.model.run import Run
from leveret.model.store import LiveMessages, Snapshot
from leveret.queues.storage.batch import Batch, IdRanges, IdSet
from tests.contract.stores import run_of_one


def message(message_id: int) -> Run:
    return run_of_one(message_id, 1, 0, "", "k", b"\0\0", b"body")


def ranges(*batches: list[int]) -> IdRanges:
    lost = IdRanges()
    for ids in batches:
        batch = Batch(1)
        batch.runs.extend(message(i) for i in ids)
        lost.add_batch(batch)
    return lost


def test_id_ranges_contain_every_id_of_failed_batches():
    lost = ranges([5, 6, 7], [], [8, 9], [20, 22])
    assert [i for i in range(30) if i in lost] == [5, 6, 7, 8, 9, 20, 21, 22]
    assert bool(lost)
    assert not ranges()


def log_message(message_id: int) -> Message:
    message = Message.build(Address.of("", "log"), b"\x00\x00", b"abc")
    message.id = message_id
    return message


def test_new_batch_is_empty():
    batch = Batch(1)
    assert batch.is_empty
    assert not batch.has_sql


def test_log_records_alone_need_no_sql():
    batch = Batch(1)
    batch.logs[object()] = [log_message(9)]  # type: ignore[index]
    assert not batch.is_empty
    assert not batch.has_sql


@pytest.fixture
def failed() -> Batch:
    batch = Batch(1)
    batch.runs = [message(10), message(11)]
    batch.events[EventKind.ENQUEUED, 1, 0, None] = (5, [10, 11], [4, 4])
    batch.events[EventKind.ACKED, 1, 0, None] = (5, [3, 10], None)
    batch.changes[VhostDefinition, ("/",)] = (VhostDefinition("/", "old"), True)
    batch.snapshots[1] = Snapshot(1, (LiveMessages(array("Q", [4, 11]), array("I", [9, 4])),))
    batch.logs[object()] = [log_message(9)]  # type: ignore[index]
    return batch


def test_carry_keeps_everything_but_new_messages(failed: Batch):
    batch = Batch(2)
    batch.carry(failed, ranges([10, 11]))
    assert batch.runs == []
    assert batch.logs == {}
    assert batch.events == {(EventKind.ACKED, 1, 0, None): (5, [3], None)}
    assert batch.changes == failed.changes
    assert batch.snapshots[1].parts == (LiveMessages(array("Q", [4]), array("I", [9])),)


def test_newer_changes_win_over_carried_ones(failed: Batch):
    batch = Batch(2)
    batch.events[EventKind.ACKED, 1, 0, None] = (6, [4], None)
    batch.events[EventKind.ENQUEUED, 1, 0, None] = (6, [12], [7])
    batch.changes[VhostDefinition, ("/",)] = (VhostDefinition("/"), False)
    batch.carry(failed, ranges([10, 11]))
    assert batch.changes[VhostDefinition, ("/",)][1] is False
    assert batch.events[EventKind.ACKED, 1, 0, None][1] == [3, 4]
    assert batch.events[EventKind.ENQUEUED, 1, 0, None] == (5, [12], [7])


def test_must_not_lose_messages_are_carried_with_their_events(failed: Batch):
    failed.must_not_lose, failed.atomic = IdSet([11]), IdSet([11])
    lost = IdRanges()
    lost.add_batch(failed)
    assert [i for i in range(20) if i in lost] == [10]
    batch = Batch(2)
    batch.runs = [message(12)]
    batch.carry(failed, lost)
    assert [run.ids[0] for run in batch.runs] == [11, 12]
    assert batch.events[EventKind.ENQUEUED, 1, 0, None] == (5, [11], [4])
    assert batch.snapshots[1].parts == (LiveMessages(array("Q", [4, 11]), array("I", [9, 4])),)
    assert (set(batch.must_not_lose), set(batch.atomic), batch.bytes) == (
        {11},
        {11},
        message(11).content_size,
    )


def test_carried_log_records_precede_newer_ones():
    sink = object()
    old, must_not_lose, newer = (log_message(i) for i in (10, 11, 12))
    failed, batch = Batch(1), Batch(2)
    failed.logs[sink], failed.must_not_lose = [old, must_not_lose], IdSet([11])  # type: ignore[index]
    batch.logs[sink] = [newer]  # type: ignore[index]
    batch.carry(failed, IdRanges())
    assert list(batch.logs.values()) == [[must_not_lose, newer]]
    assert batch.log_bytes == 3
