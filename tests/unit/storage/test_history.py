"""The history of one message."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.model.definitions import Origin
from leveret.model.history import EventKind, Keep, OriginKind
from leveret.model.store import StoreError
from leveret.queues.storage.directory import DATABASE_NAME
from leveret.queues.storage.history import HistoryReader
from tests.contract.stores import Harness, run_of_one

PUBLISHER = Origin(1, OriginKind.PUBLISHER, "/", "alice", "10.0.0.1:999 -> 10.0.0.2:5672", 3)
CONSUMER = Origin(2, OriginKind.CONSUMER, "/", "bob", "10.0.0.3:1 -> 10.0.0.2:5672", 1, "ctag")


async def test_events_of_a_message_are_in_order_with_names(tmp_path: Path):
    harness = Harness(tmp_path)
    store, clock = harness.store, harness.clock
    harness.declare(1)
    store.save(PUBLISHER)
    store.save(CONSUMER)
    for _ in range(5):
        next(store.ids)
    store.append(run_of_one(6, clock(), 1, "orders", "eu.new", b"\x00\x80\x02id", b"body"))
    store.append(run_of_one(7, clock(), 1, "orders", "eu.new", b"\x00\x80\x02xx", b"other"))
    store.record_many(EventKind.PUBLISHED, 0, [6, 7], actor=1)
    store.record_many(EventKind.ENQUEUED, 1, [7, 6], actor=1, sizes=[5, 4])
    await harness.durable()
    clock.now_ms += 20
    store.record(EventKind.DELIVERED, 1, 6, actor=2)
    await harness.durable()
    clock.now_ms += 30
    store.record(EventKind.DEAD_LETTERED, 1, 6, actor=2, detail="rejected")
    await harness.durable()

    reader = HistoryReader(tmp_path / DATABASE_NAME)
    history = await reader.message(6)
    assert history is not None
    assert (history.exchange, history.routing_key, history.body) == ("orders", "eu.new", b"body")
    assert history.publisher == PUBLISHER
    assert history.keep is Keep.FULL
    started = history.time_ms
    events = [
        (
            event.time_ms - started,
            event.kind,
            event.queue,
            event.actor and event.actor.user,
            event.detail,
            event.size,
        )
        for event in history.events
    ]
    assert events == [
        (0, EventKind.PUBLISHED, "", "alice", None, None),
        (0, EventKind.ENQUEUED, "q1", "alice", None, 4),
        (20, EventKind.DELIVERED, "q1", "bob", None, None),
        (50, EventKind.DEAD_LETTERED, "q1", "bob", "rejected", None),
    ]
    assert [number for number, _ in await reader.find(b"\x02id")] == [6]
    matches = await reader.find(b"\x00\x80")
    assert [number for number, _ in matches] == [7, 6]
    assert matches[1][1] == history.properties
    await harness.close()


async def test_bytes_that_span_two_ids_do_not_match(tmp_path: Path):
    harness = Harness(tmp_path)
    harness.declare()
    message_id = 1 << 32
    store = harness.store
    store.append(run_of_one(message_id, 1, 0, "", "q1", b"\0\0", b""))
    # In little-endian order its bytes span the first two of these ids.
    store.record_many(EventKind.ACKED, 1, [0, 1, 1 << 40])
    await harness.durable()
    history = await HistoryReader(tmp_path / DATABASE_NAME).message(message_id)
    assert history is not None
    assert history.events == ()
    await harness.close()


async def test_unknown_message_has_no_history(tmp_path: Path):
    harness = Harness(tmp_path)
    assert await HistoryReader(tmp_path / DATABASE_NAME).message(1) is None
    await harness.close()


async def test_missing_database_is_a_clear_error(tmp_path: Path):
    with pytest.raises(StoreError, match="cannot read the history"):
        await HistoryReader(tmp_path / DATABASE_NAME).message(1)
