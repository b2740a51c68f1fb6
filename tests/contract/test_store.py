"""What every store promises, whatever it keeps the data in."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from leveret.model.history import EventKind, Keep
from leveret.model.store import (
    Committed,
    Failed,
    Lease,
    Live,
    NewMessage,
    Retention,
    Rotten,
    Snapshot,
    StoredMessage,
    StoreError,
    StoreState,
    VhostDefinition,
)
from tests.contract.stores import PROPERTIES, Harness


@pytest_asyncio.fixture(params=["memory", "sql"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    harness = Harness(None if request.param == "memory" else tmp_path / "data")
    yield harness
    await harness.close()


class RecordingSink:
    """A log that remembers what was asked of it."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name = name
        self.calls = calls

    def write(self, records: Sequence[object]) -> object:
        self.calls.append(f"{self.name} write {len(records)}")
        return (self.name, len(records))

    def sync(self) -> None:
        self.calls.append(f"{self.name} sync")

    def end(self) -> tuple[str, int]:
        return "log", 0

    def rollback(self) -> None:
        self.calls.append(f"{self.name} rollback")


async def test_message_ids_start_at_one_and_grow(harness: Harness):
    assert [next(harness.store.ids) for _ in range(3)] == [1, 2, 3]


async def test_nothing_done_means_nothing_to_wait_for(harness: Harness):
    store = harness.store
    assert (store.mark, store.committed, store.state) == (0, 0, StoreState.RUNNING)
    store.flush()
    assert store.mark == 0
    assert not harness.outcomes


async def test_mark_is_the_batch_that_holds_the_work(harness: Harness):
    harness.publish()
    assert (harness.store.mark, harness.store.committed) == (1, 0)
    await harness.durable()
    assert (harness.store.mark, harness.store.committed) == (1, 1)
    harness.publish()
    assert harness.store.mark == 2


async def test_mark_covers_work_already_handed_over(harness: Harness):
    harness.publish()
    harness.store.flush()
    assert harness.store.mark == 1
    await harness.wait_for(1)


async def test_work_done_while_a_batch_commits_follows_by_itself(harness: Harness):
    harness.publish()
    harness.store.flush()
    harness.publish()
    second = harness.store.mark
    harness.store.flush()
    await harness.wait_for(second)
    assert second == 2
    assert await harness.bodies([1, 2]) == [b"hello", b"hello"]


async def test_each_batch_is_reported_once_and_in_order(harness: Harness):
    for _ in range(20):
        harness.publish()
        await harness.durable()
    assert [report.mark for report in harness.committed] == list(range(1, 21))
    assert not harness.failed


async def test_flushing_without_new_work_reports_nothing(harness: Harness):
    harness.publish()
    await harness.durable()
    harness.store.flush()
    assert len(harness.outcomes) == 1


async def test_a_listener_may_do_more_work(harness: Harness):
    heard = harness.hear

    def publish_once_more(outcome: Committed | Failed) -> None:
        if outcome.mark == 1:
            harness.publish(b"second")
            harness.store.flush()
        heard(outcome)

    harness.hear = publish_once_more  # type: ignore[method-assign]
    harness.store._on_committed = publish_once_more  # type: ignore[attr-defined]
    harness.publish(b"first")
    harness.store.flush()
    await harness.wait_for(2)
    assert await harness.bodies([1, 2]) == [b"first", b"second"]


@pytest.mark.parametrize(
    "body", [b"", b"\0", b"\0\xff\0" * 50, b"'\";--", "žluťoučký".encode(), bytes(100_000)]
)
async def test_content_comes_back_byte_for_byte(harness: Harness, body: bytes):
    message = NewMessage(
        next(harness.store.ids), 123, 7, "exchange.ž", "key ✓", b"\xff\x00\xfe", body, Keep.FULL
    )
    harness.store.append(message)
    harness.store.record(EventKind.ENQUEUED, 1, message.id, size=len(body))
    await harness.durable()
    assert await harness.store.load([message.id]) == [StoredMessage(*message[:7])]


async def test_load_answers_each_id_in_the_order_asked(harness: Harness):
    for number in range(700):
        harness.publish(b"%d" % number)
    await harness.durable()
    wanted = [700, 1, 350, 2, 1]
    assert await harness.bodies(wanted) == [b"699", b"0", b"349", b"1", b"0"]
    assert await harness.bodies(range(1, 701)) == [b"%d" % n for n in range(700)]
    assert await harness.store.load([]) == []


async def test_load_names_what_is_not_there(harness: Harness):
    harness.publish()
    await harness.durable()
    found = await harness.store.load([1, 99])
    assert isinstance(found[0], StoredMessage)
    assert found[1] == Rotten(99, "no such message")


async def test_content_stays_while_one_queue_still_holds_it(harness: Harness):
    harness.declare(1)
    harness.declare(2)
    message_id = harness.publish(b"shared", queue_ids=(1, 2), keep=Keep.NOTHING)
    await harness.durable()
    harness.ack([message_id], queue_id=1)
    await harness.durable()
    assert await harness.bodies([message_id]) == [b"shared"]
    await harness.store.sweep(Retention(message_id, (array("Q", [message_id]),)))
    assert await harness.bodies([message_id]) == [b"shared"]


async def test_content_nobody_wants_goes(harness: Harness):
    harness.declare()
    first, second = harness.publish_many(2, keep=Keep.NOTHING)
    await harness.durable()
    harness.ack([first])
    harness.store.discard([first])
    await harness.durable()
    assert await harness.rotten([first, second]) == [first]


async def test_a_message_that_came_and_went_in_one_batch_leaves_no_content(harness: Harness):
    message_id = harness.publish(keep=Keep.NOTHING)
    harness.ack([message_id])
    harness.store.discard([message_id])
    await harness.durable()
    assert await harness.rotten([message_id]) == [message_id]
    assert next(harness.store.ids) == message_id + 1


async def test_every_kind_of_work_needs_a_commit(harness: Harness):
    store = harness.store
    work = [
        lambda: store.append(NewMessage(next(store.ids), 1, 0, "", "k", b"", b"")),
        lambda: store.record(EventKind.DELIVERED, 1, 1),
        lambda: store.record_many(EventKind.ACKED, 1, [1, 2]),
        lambda: store.discard([1]),
        lambda: store.save(VhostDefinition("/")),
        lambda: store.delete(VhostDefinition("/")),
        lambda: store.save(Lease(1000)),
        lambda: store.save(Snapshot(1, (Live(array("Q", [1]), array("I", [5])),))),
        lambda: store.append_log(RecordingSink("log", []), b"record"),
    ]
    for number, act in enumerate(work, start=1):
        act()
        assert await harness.durable() == number
    assert len(harness.committed) == len(work)


async def test_no_ids_are_no_work(harness: Harness):
    harness.store.record_many(EventKind.ACKED, 1, [])
    harness.store.discard([])
    assert harness.store.mark == 0


async def test_sizes_must_match_the_ids(harness: Harness):
    with pytest.raises(ValueError, match="one size per message"):
        harness.store.record_many(EventKind.ENQUEUED, 1, [1, 2], sizes=[5])


async def test_logs_are_written_then_synced_and_their_answers_reported(harness: Harness):
    calls: list[str] = []
    one, two = RecordingSink("one", calls), RecordingSink("two", calls)
    for sink in (one, two, one):
        harness.store.append_log(sink, b"record")
    await harness.durable()
    assert calls == ["one write 2", "two write 1", "one sync", "two sync"]
    assert harness.committed[0].logs == {one: ("one", 2), two: ("two", 1)}


async def test_backlog_is_the_content_not_yet_durable(harness: Harness):
    harness.publish(bytes(1000))
    harness.publish(bytes(500))
    assert harness.store.backlog == 1500 + 2 * len(PROPERTIES)
    await harness.durable()
    assert harness.store.backlog == 0


async def test_sweep_reports_the_range_of_what_is_stored(harness: Harness):
    harness.publish_many(3)
    await harness.durable()
    usage = await harness.store.sweep(Retention(3, (array("Q", [1, 2, 3]),)))
    assert (usage.first_id, usage.last_id) == (1, 3)
    assert usage.first_ms == harness.clock()
    assert usage.bytes > 0
    assert harness.store.usage == usage


async def test_close_commits_what_was_taken(harness: Harness):
    harness.publish()
    await harness.close()
    assert harness.store.state is StoreState.CLOSED
    assert [report.mark for report in harness.committed] == [1]


async def test_closing_twice_is_free(harness: Harness):
    await harness.close()
    await harness.close()
    assert harness.store.state is StoreState.CLOSED


async def test_opening_twice_is_refused(harness: Harness):
    with pytest.raises(StoreError, match="already open"):
        harness.store.recover()


async def test_its_repr_tells_its_state(harness: Harness):
    harness.publish(bytes(10))
    waiting = 10 + len(PROPERTIES)
    assert f"running, committed 0, {waiting} bytes waiting" in repr(harness.store)
