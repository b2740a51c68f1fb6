"""A real store deletes history while it is read: no row is missing without being named."""

from __future__ import annotations

import json
import random
from array import array
from itertools import chain

import pytest

from leveret.model.store import RetentionRequest
from leveret.spark_sink.data_loss import DataLossError
from leveret.spark_sink.datasource import BatchReader, StreamReader, parse_options
from tests.contract.stores import Harness

MESSAGES = 6_000
PER_SECOND = 100


@pytest.fixture
async def harness(tmp_path):
    harness = Harness(tmp_path / "data")
    harness.declare()
    yield harness
    await harness.close()


async def publish(harness, count):
    for _ in range(count // PER_SECOND):
        harness.publish_many(PER_SECOND)
        harness.clock.now_ms += 1_000
        await harness.durable()


async def delete_before(harness, message_id, live=()):
    """Retention with an age limit that the messages before this one exceed."""
    pack = "SELECT first_ms FROM message_packs WHERE last_id >= ? ORDER BY id"
    (before_ms,) = harness.query(pack, message_id)[0]
    (upto,) = harness.query("SELECT max(last_id) FROM message_packs")[0]
    request = RetentionRequest(upto, (array("Q", live),), before_ms=before_ms)
    await harness.store.apply_retention(request)


def options(harness, **more):
    source = {"table": "messages", "data_dir": str(harness._directory), "partition_rows": "500"}
    return parse_options(source | more)


async def test_incremental_reader_fails_after_retention_has_passed_it(harness):
    await publish(harness, 1_000)
    reader = StreamReader(options(harness), ("id",))
    position = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    await publish(harness, MESSAGES - 1_000)
    await delete_before(harness, 1_001)
    again = StreamReader(options(harness), ("id",))
    end = again.latestOffset(position, again.getDefaultReadLimit())
    assert end["next"] == MESSAGES + 1
    await delete_before(harness, 4_001)
    with pytest.raises(DataLossError, match="deleted 1001 to 4000 of table 'messages'"):
        again.latestOffset(position, again.getDefaultReadLimit())


@pytest.mark.parametrize("seed", range(3))
async def test_every_message_is_read_or_named_as_lost(harness, tmp_path, seed):
    """Retention runs between the tasks of one read, with some messages still in a queue."""
    pick = random.Random(seed)
    await publish(harness, MESSAGES)
    live = sorted(pick.sample(range(1, MESSAGES + 1), 200))
    log = tmp_path / "read"
    reader = BatchReader(options(harness, failOnDataLoss="false", read_log=str(log)), ("id",))
    tasks, read, deleted = list(reader.partitions()), set(), 1
    pick.shuffle(tasks)
    for task in tasks:
        if pick.random() < 0.5:
            deleted = pick.randrange(deleted, MESSAGES, PER_SECOND)
            await delete_before(harness, deleted, live)
            live = [message for message in live if pick.random() < 0.8]
        read |= {row["id"] for batch in reader.read(task) for row in batch.to_pylist()}
    spans = chain.from_iterable(json.loads(path.read_text())["lost"] for path in log.iterdir())
    lost = set(chain.from_iterable(range(first, end) for first, end in spans))
    assert read | lost == set(range(1, MESSAGES + 1))
    assert 0 < len(read) < MESSAGES


async def test_read_that_retention_does_not_reach_is_complete(harness):
    await publish(harness, MESSAGES)
    await delete_before(harness, 1_001)
    reader = BatchReader(options(harness), ("id",))
    rows = [
        row["id"]
        for task in reader.partitions()
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]
    assert rows == list(range(1_001, MESSAGES + 1))
