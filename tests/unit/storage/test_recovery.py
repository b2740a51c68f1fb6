"""The state after a restart, compared with a model of the queues."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import threading
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.model.definitions import (
    BindingDefinition,
    Definition,
    ExchangeDefinition,
    GroupOffset,
    Origin,
    ParameterDefinition,
    PermissionDefinition,
    PolicyDefinition,
    QueueDefinition,
    TopicPermissionDefinition,
    UserDefinition,
    VhostDefinition,
)
from leveret.model.history import EventKind, Keep, OriginKind
from leveret.model.store import LiveMessages, RetentionRequest, Snapshot, StoreError
from leveret.queues.storage import sql_store
from tests.contract.stores import Harness, memory_disk

SETTLING = [kind for kind in EventKind if kind.settles]

DEFINITIONS: list[Definition] = [
    VhostDefinition("/", '{"tags": ["a"]}'),
    UserDefinition("guest", "hash", "argon2id", "administrator"),
    PermissionDefinition("guest", "/", ".*", "^w", "r$"),
    TopicPermissionDefinition("guest", "/", "amq.topic", "a", "b"),
    ExchangeDefinition("/", "e'\"ž", "headers", True, True, '{"a": 1}'),
    QueueDefinition(1, "/", "q", "classic", True, True, False, '{"x-max-length": 5}', 9, 3),
    BindingDefinition("/", "e", "q", "queue", "key", '{"x-match": "all"}'),
    PolicyDefinition("/", "p", True, "^q", "queues", 7, '{"max-length": 2}'),
    PolicyDefinition("/", "p", False, "^q", "queues", 7, '{"max-length": 3}'),
    ParameterDefinition("", "", "cluster_name", '"hare"'),
    GroupOffset(1, "readers", 5, 6),
]


async def reopened(harness: Harness, directory: Path) -> Harness:
    await harness.close()
    return Harness(directory, harness.clock)


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda value: type(value).__name__)
async def test_definition_survives_until_it_is_deleted(tmp_path: Path, definition: Definition):
    harness = Harness(tmp_path)
    harness.store.save(definition)
    harness = await reopened(harness, tmp_path)
    assert harness.recovered.definitions == (definition,)
    harness.store.delete(definition)
    harness = await reopened(harness, tmp_path)
    assert harness.recovered.definitions == ()
    await harness.close()


async def test_last_change_of_a_batch_wins(tmp_path: Path):
    harness = Harness(tmp_path)
    store = harness.store
    store.save(VhostDefinition("v", "1"))
    store.delete(VhostDefinition("v"))
    store.save(VhostDefinition("v", "2"))
    store.save(VhostDefinition("gone"))
    store.delete(VhostDefinition("gone"))
    harness = await reopened(harness, tmp_path)
    assert harness.recovered.definitions == (VhostDefinition("v", "2"),)
    await harness.close()


async def test_many_definitions_in_one_batch(tmp_path: Path):
    harness = Harness(tmp_path)
    queues = {QueueDefinition(i, "/", f"q{i}") for i in range(1, 501)}
    bindings = {BindingDefinition("/", "e", f"q{i}", "queue", f"k{i}") for i in range(1, 501)}
    for definition in queues | bindings:
        harness.store.save(definition)
    harness = await reopened(harness, tmp_path)
    assert set(harness.recovered.definitions) == queues | bindings
    for definition in queues | bindings:
        harness.store.delete(definition)
    harness = await reopened(harness, tmp_path)
    assert harness.recovered.definitions == ()
    assert harness.recovered.last_queue_id == 500
    await harness.close()


async def test_saving_a_queue_again_keeps_its_snapshot(tmp_path: Path):
    harness = Harness(tmp_path)
    queue = harness.declare()
    ids = harness.publish_many(3)
    await harness.durable()
    live = LiveMessages(array("Q", ids), array("I", [5] * 3))
    harness.store.save(Snapshot(1, (live,), trim=True))
    await harness.durable()
    harness.store.save(queue)
    harness = await reopened(harness, tmp_path)
    assert harness.live() == ids
    await harness.close()


async def test_messages_keep_their_detail_and_size(tmp_path: Path):
    harness = Harness(tmp_path)
    harness.declare()
    harness.publish(b"low", detail="1")
    harness.publish(b"urgent", detail="9")
    harness.publish(b"lower", detail="1")
    harness = await reopened(harness, tmp_path)
    assert set(map(_plain, harness.recovered.live[1])) == {
        ("1", (1, 3), (3, 5)),
        ("9", (2,), (6,)),
    }
    await harness.close()


def _plain(live: LiveMessages) -> tuple[str | None, tuple[int, ...], tuple[int, ...]]:
    return live.detail, tuple(live.ids), tuple(live.sizes)


async def test_transient_messages_and_queues_are_not_recovered(tmp_path: Path):
    harness = Harness(tmp_path)
    harness.declare(1)
    harness.declare(2, durable=False)
    harness.store.record(EventKind.ENQUEUED_TRANSIENT, 1, harness.publish(queue_ids=()), size=5)
    harness.publish(queue_ids=(2,))
    harness = await reopened(harness, tmp_path)
    assert harness.recovered.live == {}
    assert [q.id for q in harness.recovered.definitions if isinstance(q, QueueDefinition)] == [1]
    await harness.close()


async def test_deleted_queue_is_not_recovered(tmp_path: Path):
    harness = Harness(tmp_path)
    queue = harness.declare()
    harness.publish()
    await harness.durable()
    harness.store.delete(queue)
    harness = await reopened(harness, tmp_path)
    assert harness.recovered.live == {}
    assert harness.recovered.last_queue_id == 1
    await harness.close()


async def test_ids_are_never_reused(tmp_path: Path):
    harness = Harness(tmp_path)
    harness.declare(7)
    harness.store.save(Origin(40, OriginKind.PUBLISHER))
    message_id = harness.publish(keep=Keep.NOTHING)
    await harness.durable()
    harness.ack([message_id])
    await harness.durable()
    await harness.store.apply_retention(RetentionRequest(message_id))
    assert harness.stored_ids() == []
    harness = await reopened(harness, tmp_path)
    recovered = harness.recovered
    assert (recovered.last_queue_id, recovered.last_origin_id) == (7, 40)
    assert next(harness.store.ids) == message_id + 1
    await harness.close()


async def test_ids_continue_above_the_delivered_ones(tmp_path: Path):
    harness = Harness(tmp_path)
    harness.store.save(QueueDefinition(1, "/", "q", delivered_to=900))
    harness = await reopened(harness, tmp_path)
    assert next(harness.store.ids) == 901
    await harness.close()


async def test_clean_stop_is_recorded(tmp_path: Path):
    harness = Harness(tmp_path)
    assert harness.recovered.clean
    harness.publish()
    harness = await reopened(harness, tmp_path)
    assert harness.recovered.clean
    await harness.close()


async def test_closing_does_not_wait_for_a_reader(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sql_store, "BUSY_SECONDS", 3600.0)
    harness = Harness(tmp_path)
    harness.declare()
    harness.publish()
    await harness.durable()
    reader = sqlite3.connect(f"file:{tmp_path / 'leveret.db'}?mode=ro", uri=True)
    rows = reader.execute("SELECT id FROM message_packs UNION ALL SELECT 2 UNION ALL SELECT 3")
    assert next(rows) == (1,)
    harness.publish()
    await harness.durable()
    await harness.close()
    reader.close()
    again = Harness(tmp_path)
    assert again.recovered.clean
    assert again.live() == [1, 2]
    await again.close()


async def test_snapshot_is_due_when_much_was_settled(tmp_path: Path):
    harness = Harness(tmp_path)
    harness.declare()
    ids = [next(harness.store.ids) for _ in range(10_001)]
    harness.store.record_many(EventKind.ENQUEUED, 1, ids, sizes=[0] * len(ids))
    await harness.durable()
    assert not harness.committed[-1].snapshots_due
    harness.ack(ids)
    await harness.durable()
    assert 1 in harness.committed[-1].snapshots_due
    harness.store.save(Snapshot(1, ()))
    harness.publish()
    await harness.durable()
    assert not harness.committed[-1].snapshots_due
    await harness.close()


async def test_trimming_snapshot_deletes_earlier_events(tmp_path: Path):
    harness = Harness(tmp_path)
    harness.declare()
    ids = harness.publish_many(5)
    await harness.durable()
    harness.ack(ids[:3])
    await harness.durable()
    harness.store.save(
        Snapshot(1, (LiveMessages(array("Q", ids[3:]), array("I", [5, 5])),), trim=True)
    )
    harness.ack([ids[3]])
    await harness.durable()
    rows = harness.query("SELECT kind FROM events ORDER BY id")
    assert [kind for (kind,) in rows] == [EventKind.SNAPSHOT, EventKind.ACKED]
    harness = await reopened(harness, tmp_path)
    assert harness.live() == [ids[4]]
    await harness.close()


async def test_million_messages_are_recovered(tmp_path: Path):
    harness = Harness(tmp_path)
    harness.declare()
    for _ in range(200):
        ids = [next(harness.store.ids) for _ in range(5000)]
        harness.store.record_many(EventKind.ENQUEUED, 1, ids, sizes=[1024] * 5000)
        await harness.durable()
    await harness.close()
    harness = Harness(tmp_path)
    (live,) = harness.recovered.live[1]
    assert len(live.ids) == 1_000_000
    assert (live.ids[0], live.ids[-1]) == (1, 1_000_000)
    await harness.close()


# -- random histories against a model ------------------------------------------------------------


@dataclass
class Model:
    """The expected messages of each queue, and their content."""

    queues: dict[int, dict[int, str | None]] = field(default_factory=lambda: {1: {}, 2: {}})
    bodies: dict[int, bytes] = field(default_factory=dict)


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("publish"),
            st.sets(st.sampled_from([1, 2]), min_size=1),
            st.binary(max_size=20),
            st.sampled_from([None, None, "9"]),
        ),
        st.tuples(
            st.just("settle"),
            st.sampled_from([1, 2]),
            st.sampled_from(SETTLING),
            st.sets(st.integers(0, 9), max_size=4),
        ),
        st.tuples(st.just("snapshot"), st.sampled_from([1, 2]), st.booleans()),
        st.tuples(st.just("flush")),
        st.tuples(st.just("durable")),
        st.tuples(st.just("retention")),
        st.tuples(st.just("restart")),
    ),
    max_size=40,
)


def do(harness: Harness, model: Model, step: tuple) -> None:  # type: ignore[type-arg]
    name, *values = step
    if name == "publish":
        queue_ids, body, detail = values
        message_id = harness.publish(body, queue_ids, detail=detail)
        model.bodies[message_id] = body
        for queue_id in queue_ids:
            model.queues[queue_id][message_id] = detail
    elif name == "settle":
        queue_id, kind, positions = values
        live = list(model.queues[queue_id])
        ids = [live[position] for position in positions if position < len(live)]
        harness.store.record_many(kind, queue_id, ids)
        for message_id in ids:
            del model.queues[queue_id][message_id]
    elif name == "snapshot":
        queue_id, trim = values
        harness.store.save(Snapshot(queue_id, parts_of(model, queue_id), trim))
    elif name == "flush":
        harness.store.flush()


def parts_of(model: Model, queue_id: int) -> tuple[LiveMessages, ...]:
    parts = []
    for detail in set(model.queues[queue_id].values()):
        ids = [i for i, own in model.queues[queue_id].items() if own == detail]
        sizes = [len(model.bodies[i]) for i in ids]
        parts.append(LiveMessages(array("Q", ids), array("I", sizes), detail))
    return tuple(parts)


async def check(harness: Harness, model: Model) -> None:
    for queue_id, details in model.queues.items():
        recovered = {
            message_id: (part.detail, size)
            for part in harness.recovered.live.get(queue_id, ())
            for message_id, size in zip(part.ids, part.sizes, strict=True)
        }
        assert recovered == {i: (detail, len(model.bodies[i])) for i, detail in details.items()}
        assert await harness.bodies(list(details)) == [model.bodies[i] for i in details]


async def run_steps(directory: Path, steps: list[tuple]) -> None:  # type: ignore[type-arg]
    harness, model = Harness(directory), Model()
    harness.declare(1)
    harness.declare(2)
    for step in [*steps, ("restart",)]:
        if step[0] == "durable":
            await harness.durable()
        elif step[0] == "retention":
            await harness.durable()
            live = tuple(array("Q", ids) for ids in model.queues.values())
            last = max(model.bodies, default=0)
            await harness.store.apply_retention(
                RetentionRequest(last, live, before_ms=harness.clock() + 1)
            )
        elif step[0] == "restart":
            harness = await reopened(harness, directory)
            await check(harness, model)
        else:
            do(harness, model, step)
    assert not harness.failed
    await harness.close()


@settings(max_examples=40)
@given(steps)
def test_random_histories_recover_the_queues(steps: list[tuple]):  # type: ignore[type-arg]
    with tempfile.TemporaryDirectory(dir=memory_disk()) as directory:
        asyncio.run(run_steps(Path(directory), steps))


@pytest.mark.parametrize("given_up", [True, False])
@pytest.mark.parametrize("steps", range(5))
async def test_close_ends_a_read_at_any_point(tmp_path: Path, steps: int, given_up: bool):
    """The reader's thread must not outlive the loop."""
    harness = Harness(tmp_path)
    harness.declare()
    harness.publish()
    await harness.durable()
    before = set(threading.enumerate())
    reading = asyncio.ensure_future(harness.store.load([1]))
    for _ in range(steps):
        await asyncio.sleep(0)
    readers = set(threading.enumerate()) - before
    if given_up:
        reading.cancel()
    await harness.close()
    for reader in readers:
        reader.join(60)
        assert not reader.is_alive()
    [answer] = await asyncio.gather(reading, return_exceptions=True)
    expected = asyncio.CancelledError if given_up else StoreError if steps == 0 else list
    assert isinstance(answer, expected)
