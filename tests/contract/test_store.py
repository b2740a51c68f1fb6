"""The contract of every store, with or without a disk."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from leveret.model.definitions import VhostDefinition
from leveret.model.history import EventKind, Keep
from leveret.model.message import Address, Message
from leveret.model.store import (
    BatchCommitted,
    LiveMessages,
    LogRecords,
    RetentionRequest,
    Snapshot,
    StoredMessage,
    StoreError,
    StoreState,
    UnreadableMessage,
)
from tests.contract.stores import PROPERTIES, Harness, run_of_one

FRAMING = 28
"""What the frames of a message have beside its properties and its body."""


@pytest_asyncio.fixture(params=["memory", "sql"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    harness = Harness(None if request.param == "memory" else tmp_path / "data")
    yield harness
    await harness.close()


RECORD = Message.build(Address.of("", "log"), b"\x00\x00", b"record")


class RecordingSink:
    """A log that records its calls."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name = name
        self.calls = calls

    def write(self, records: Sequence[LogRecords]) -> int:
        self.calls.append(f"{self.name} write {len(records)}")
        return len(records)

    def sync(self) -> None:
        self.calls.append(f"{self.name} sync")

    def end(self) -> tuple[str, int]:
        return "1", 0

    def rollback(self) -> None:
        self.calls.append(f"{self.name} rollback")


class RecordingJob:
    """A writer job that records its calls."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def prepare(self) -> None:
        self.calls.append("prepare")

    def finish(self) -> None:
        self.calls.append("finish")


async def test_message_ids_start_at_one_and_ascend(harness: Harness):
    assert [next(harness.store.ids) for _ in range(3)] == [1, 2, 3]


async def test_store_without_work_has_no_batch(harness: Harness):
    store = harness.store
    assert (store.batch_number, store.committed, store.state) == (0, 0, StoreState.RUNNING)
    store.flush()
    assert store.batch_number == 0
    assert not harness.outcomes


async def test_batch_number_is_that_of_the_batch_with_the_work(harness: Harness):
    harness.publish()
    assert (harness.store.batch_number, harness.store.committed) == (1, 0)
    await harness.durable()
    assert (harness.store.batch_number, harness.store.committed) == (1, 1)
    harness.publish()
    assert harness.store.batch_number == 2


async def test_batch_number_covers_work_handed_to_the_writer(harness: Harness):
    harness.publish()
    harness.store.flush()
    assert harness.store.batch_number == 1
    await harness.wait_for(1)


async def test_work_added_during_a_commit_is_committed_next(harness: Harness):
    harness.publish()
    harness.store.flush()
    harness.publish()
    second = harness.store.batch_number
    harness.store.flush()
    await harness.wait_for(second)
    assert second == 2
    assert await harness.bodies([1, 2]) == [b"hello", b"hello"]


async def test_each_batch_is_reported_once_and_in_order(harness: Harness):
    for _ in range(20):
        harness.publish()
        await harness.durable()
    assert [report.batch_number for report in harness.committed] == list(range(1, 21))
    assert not harness.failed


async def test_flushing_without_new_work_reports_nothing(harness: Harness):
    harness.publish()
    await harness.durable()
    harness.store.flush()
    assert len(harness.outcomes) == 1


async def test_listener_may_add_work(harness: Harness):
    def publish_once_more(outcome: BatchCommitted) -> None:
        if outcome.batch_number == 1:
            harness.publish(b"second")
            harness.store.flush()
        harness.on_outcome(outcome)

    harness.on_committed = publish_once_more
    harness.publish(b"first")
    harness.store.flush()
    await harness.wait_for(2)
    assert await harness.bodies([1, 2]) == [b"first", b"second"]


@pytest.mark.parametrize(
    "body", [b"", b"\0", b"\0\xff\0" * 50, b"'\";--", "žluťoučký".encode(), bytes(100_000)]
)
async def test_content_is_read_back_byte_for_byte(harness: Harness, body: bytes):
    message_id = next(harness.store.ids)
    stored = (message_id, 123, 7, "exchange.ž", "key ✓", b"\x08\x00\xff", body)
    harness.store.append(run_of_one(*stored))
    harness.store.record(EventKind.ENQUEUED, 1, message_id, size=len(body))
    await harness.durable()
    assert await harness.store.load([message_id]) == [StoredMessage(*stored)]


async def test_load_returns_one_result_per_id_in_order(harness: Harness):
    for number in range(700):
        harness.publish(b"%d" % number)
    await harness.durable()
    ids = [700, 1, 350, 2, 1]
    assert await harness.bodies(ids) == [b"699", b"0", b"349", b"1", b"0"]
    assert await harness.bodies(range(1, 701)) == [b"%d" % n for n in range(700)]
    assert await harness.store.load([]) == []


async def test_load_reports_missing_messages(harness: Harness):
    harness.publish()
    await harness.durable()
    results = await harness.store.load([1, 99])
    assert isinstance(results[0], StoredMessage)
    assert results[1] == UnreadableMessage(99, "no such message")


async def test_content_is_kept_while_a_queue_holds_the_message(harness: Harness):
    harness.declare(1)
    harness.declare(2)
    message_id = harness.publish(b"shared", queue_ids=(1, 2), keep=Keep.NOTHING)
    await harness.durable()
    harness.ack([message_id], queue_id=1)
    await harness.durable()
    assert await harness.bodies([message_id]) == [b"shared"]
    await harness.store.apply_retention(RetentionRequest(message_id, (array("Q", [message_id]),)))
    assert await harness.bodies([message_id]) == [b"shared"]


async def test_content_is_removed_when_no_queue_holds_the_message(harness: Harness):
    harness.declare()
    first, second = harness.publish_many(2, keep=Keep.NOTHING)
    await harness.durable()
    harness.ack([first])
    await harness.durable()
    await harness.store.apply_retention(RetentionRequest(second, (array("Q", [second]),)))
    assert await harness.unreadable([first, second]) == [first]


async def test_message_acked_in_its_own_batch_leaves_no_content(harness: Harness):
    message_id = harness.publish(keep=Keep.NOTHING)
    harness.ack([message_id])
    await harness.durable()
    await harness.store.apply_retention(RetentionRequest(message_id))
    assert await harness.unreadable([message_id]) == [message_id]
    assert next(harness.store.ids) == message_id + 1


async def test_every_kind_of_work_needs_a_commit(harness: Harness):
    store = harness.store
    work = [
        lambda: store.append(run_of_one(next(store.ids), 1, 0, "", "k", b"\0\0", b"")),
        lambda: store.record(EventKind.DELIVERED, 1, 1),
        lambda: store.record_many(EventKind.ACKED, 1, [1, 2]),
        lambda: store.save(VhostDefinition("/")),
        lambda: store.delete(VhostDefinition("/")),
        lambda: store.save(Snapshot(1, (LiveMessages(array("Q", [1]), array("I", [5])),))),
        lambda: store.append_log(RecordingSink("log", []), RECORD),
        lambda: store.append_job(RecordingJob([])),
    ]
    for number, act in enumerate(work, start=1):
        act()
        assert await harness.durable() == number
    assert len(harness.committed) == len(work)


async def test_event_without_ids_is_not_recorded(harness: Harness):
    harness.store.record_many(EventKind.ACKED, 1, [])
    assert harness.store.batch_number == 0


async def test_sizes_must_match_the_ids(harness: Harness):
    with pytest.raises(ValueError, match="one size per message"):
        harness.store.record_many(EventKind.ENQUEUED, 1, [1, 2], sizes=[5])


async def test_logs_are_written_then_synced_and_their_results_reported(harness: Harness):
    calls: list[str] = []
    first, second = RecordingSink("first", calls), RecordingSink("second", calls)
    for sink in (first, second, first):
        harness.store.append_log(sink, RECORD)
    await harness.durable()
    assert calls == ["first write 2", "second write 1", "first sync", "second sync"]
    assert harness.committed[0].logs == {first: 2, second: 1}


async def test_many_logs_are_all_written_before_any_is_synced(harness: Harness):
    calls: list[str] = []
    sinks = [RecordingSink(f"{number}", calls) for number in range(30)]
    for sink in sinks:
        harness.store.append_log(sink, RECORD)
    await harness.durable()
    assert calls[:30] == [f"{number} write 1" for number in range(30)]
    assert sorted(calls[30:]) == sorted(f"{number} sync" for number in range(30))
    assert harness.committed[0].logs == dict.fromkeys(sinks, 1)


async def test_jobs_run_before_the_logs_are_written_and_after_they_are_synced(harness: Harness):
    calls: list[str] = []
    job = RecordingJob(calls)
    harness.store.append_log(RecordingSink("log", calls), RECORD)
    harness.store.append_job(job)
    await harness.durable()
    assert calls == ["prepare", "log write 1", "log sync", "finish"]
    assert list(harness.committed[0].jobs) == [job]


async def test_backlog_counts_content_not_yet_durable(harness: Harness):
    harness.publish(bytes(1000))
    harness.publish(bytes(500))
    assert harness.store.backlog == 1500 + 2 * (len(PROPERTIES) + FRAMING)
    await harness.durable()
    assert harness.store.backlog == 0


async def test_retention_reports_the_range_of_stored_content(harness: Harness):
    harness.publish_many(3)
    await harness.durable()
    usage = await harness.store.apply_retention(RetentionRequest(3, (array("Q", [1, 2, 3]),)))
    assert (usage.first_id, usage.last_id) == (1, 3)
    assert usage.first_ms == harness.clock()
    assert usage.bytes > 0
    assert harness.store.usage == usage


async def test_close_commits_accepted_work(harness: Harness):
    harness.publish()
    await harness.close()
    assert harness.store.state is StoreState.CLOSED
    assert [report.batch_number for report in harness.committed] == [1]


async def test_close_is_idempotent(harness: Harness):
    await harness.close()
    await harness.close()
    assert harness.store.state is StoreState.CLOSED


async def test_opening_twice_is_refused(harness: Harness):
    with pytest.raises(StoreError, match="already open"):
        harness.store.recover()


async def test_repr_shows_the_state(harness: Harness):
    harness.publish(bytes(10))
    waiting = 10 + len(PROPERTIES) + FRAMING
    assert f"running, committed 0, {waiting} bytes waiting" in repr(harness.store)
