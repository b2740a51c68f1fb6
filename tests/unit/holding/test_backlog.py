"""What is on disk stays in its place until it has arrived, whatever happens to a read."""

import asyncio
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

from leveret.model.store import Live, StoreError
from queues import ClassicQueue, QueueSpec
from queues.backlog import Backlog
from queues.port import Upward


def filled(*ids: int) -> Any:
    backlog = Backlog()
    backlog.extend(Live(array("Q", ids), array("I", [10] * len(ids))))
    return backlog


async def settled():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_read_hands_over_in_order_and_leaves_nothing():
    backlog = filled(1, 2, 3)
    arrived: list[int] = []

    async def load(ids):
        assert len(backlog) == 4  # what is being read is not gone yet
        return list(ids)

    backlog.read(load, arrived.extend, arrived.append)
    backlog.append(4, 10)
    await settled()
    assert (arrived, backlog.part().ids.tolist(), backlog.bytes) == ([1, 2, 3], [4], 10)


async def test_a_failed_read_changes_nothing_and_can_be_repeated():
    backlog = filled(1, 2)
    arrived: list[int] = []
    errors: list[StoreError] = []
    tries: list[list[int]] = []

    async def load(ids):
        tries.append(list(ids))
        if len(tries) == 1:
            raise StoreError("too many open files")
        return list(ids)

    backlog.read(load, arrived.extend, errors.append)
    await settled()
    assert (len(errors), arrived, backlog.part().ids.tolist()) == (1, [], [1, 2])
    backlog.read(load, arrived.extend, errors.append)
    await settled()
    assert (arrived, len(backlog), tries) == ([1, 2], 0, [[1, 2], [1, 2]])


async def test_clearing_ends_a_read():
    backlog = filled(1, 2)
    arrived: list[int] = []

    async def load(ids):
        await asyncio.sleep(0)
        return list(ids)

    backlog.read(load, arrived.extend, arrived.append)
    assert backlog.clear().tolist() == [1, 2]
    await settled()
    assert (arrived, len(backlog), backlog.bytes) == ([], 0, 0)


def test_whoever_waits_for_the_head_is_told_when_there_is_none_any_more():
    endings: list[Callable[[ClassicQueue], int]] = [
        lambda queue: queue.purge(),
        lambda queue: queue.close(deleted=True),
    ]
    for ending in endings:
        queue = ClassicQueue(QueueSpec("q"), 1, Upward())
        told: list[str] = []
        queue.backlog.append(1, 10)
        queue.when_head(partial(told.append, "yes"))
        queue.dispatch()
        assert not told
        ending(queue)
        queue.dispatch()
        assert told == ["yes"]
