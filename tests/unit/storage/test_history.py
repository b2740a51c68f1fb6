"""One message's life, as the stored history tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.model.history import EventKind, Keep, OriginKind
from leveret.model.store import NewMessage, Origin, StoreError
from queues.storage.directory import DATABASE_NAME
from queues.storage.history import HistoryReader
from tests.contract.stores import Harness

PUBLISHER = Origin(1, OriginKind.PUBLISHER, "/", "alice", "10.0.0.1:999 -> 10.0.0.2:5672", 3)
CONSUMER = Origin(2, OriginKind.CONSUMER, "/", "bob", "10.0.0.3:1 -> 10.0.0.2:5672", 1, "ctag")


async def test_a_life_is_told_in_order_with_names(tmp_path: Path):
    harness = Harness(tmp_path)
    store, clock = harness.store, harness.clock
    harness.declare(1)
    store.save(PUBLISHER)
    store.save(CONSUMER)
    for _ in range(5):
        next(store.ids)
    store.append(NewMessage(6, clock(), 1, "orders", "eu.new", b"\x00\x80\x02id", b"body"))
    store.append(NewMessage(7, clock(), 1, "orders", "eu.new", b"\x00\x80\x02xx", b"other"))
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
    life = await reader.life(6)
    assert life is not None
    assert (life.exchange, life.routing_key, life.body) == ("orders", "eu.new", b"body")
    assert life.publisher == PUBLISHER
    assert life.keep is Keep.FULL
    started = life.time_ms
    told = [
        (h.time_ms - started, h.kind, h.queue, h.actor and h.actor.user, h.detail, h.size)
        for h in life.happenings
    ]
    assert told == [
        (0, EventKind.PUBLISHED, "", "alice", None, None),
        (0, EventKind.ENQUEUED, "q1", "alice", None, 4),
        (20, EventKind.DELIVERED, "q1", "bob", None, None),
        (50, EventKind.DEAD_LETTERED, "q1", "bob", "rejected", None),
    ]
    assert [number for number, _ in await reader.find(b"\x02id")] == [6]
    found = await reader.find(b"\x00\x80")
    assert [number for number, _ in found] == [7, 6]
    assert found[1][1] == life.properties
    await harness.close()


async def test_bytes_that_match_across_two_ids_are_no_event(tmp_path: Path):
    harness = Harness(tmp_path)
    harness.declare()
    wanted = 1 << 32
    store = harness.store
    store.append(NewMessage(wanted, 1, 0, "", "q1", b"", b""))
    # Little-endian, its bytes stand across the first two of these.
    store.record_many(EventKind.ACKED, 1, [0, 1, 1 << 40])
    await harness.durable()
    life = await HistoryReader(tmp_path / DATABASE_NAME).life(wanted)
    assert life is not None
    assert life.happenings == ()
    await harness.close()


async def test_an_unknown_message_has_no_life(tmp_path: Path):
    harness = Harness(tmp_path)
    assert await HistoryReader(tmp_path / DATABASE_NAME).life(1) is None
    await harness.close()


async def test_a_missing_database_is_a_clear_error(tmp_path: Path):
    with pytest.raises(StoreError, match="cannot read the history"):
        await HistoryReader(tmp_path / DATABASE_NAME).life(1)
