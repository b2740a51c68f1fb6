"""Messages stay in the disk backlog until they are loaded, whatever happens to a read."""

import asyncio
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

from leveret.model.store import LiveMessages, StoreError
from leveret.queues.classic.classic_queue import ClassicQueue, QueueCallbacks
from leveret.queues.classic.disk_backlog import DiskBacklog
from leveret.queues.spec import QueueSpec


def backlog_of(*ids: int) -> Any:
    backlog = DiskBacklog()
    backlog.extend(LiveMessages(array("Q", ids), array("I", [10] * len(ids))))
    return backlog


async def run_tasks():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_read_loads_in_order_and_removes_the_loaded_messages():
    backlog = backlog_of(1, 2, 3)
    loaded: list[int] = []

    async def load(ids):
        assert len(backlog) == 4  # messages that are being read are still counted
        return list(ids)

    backlog.read(load, loaded.extend, loaded.append)
    backlog.append(4, 10)
    await run_tasks()
    assert (loaded, backlog.stored().ids.tolist(), backlog.bytes) == ([1, 2, 3], [4], 10)


async def test_failed_read_changes_nothing_and_can_be_repeated():
    backlog = backlog_of(1, 2)
    loaded: list[int] = []
    errors: list[StoreError] = []
    reads: list[list[int]] = []

    async def load(ids):
        reads.append(list(ids))
        if len(reads) == 1:
            raise StoreError("too many open files")
        return list(ids)

    backlog.read(load, loaded.extend, errors.append)
    await run_tasks()
    assert (len(errors), loaded, backlog.stored().ids.tolist()) == (1, [], [1, 2])
    backlog.read(load, loaded.extend, errors.append)
    await run_tasks()
    assert (loaded, len(backlog), reads) == ([1, 2], 0, [[1, 2], [1, 2]])


async def test_clear_stops_a_read():
    backlog = backlog_of(1, 2)
    loaded: list[int] = []

    async def load(ids):
        await asyncio.sleep(0)
        return list(ids)

    backlog.read(load, loaded.extend, loaded.append)
    assert backlog.clear().tolist() == [1, 2]
    await run_tasks()
    assert (loaded, len(backlog), backlog.bytes) == ([], 0, 0)


def test_get_waiters_are_called_when_the_queue_is_purged_or_deleted(monkeypatch):
    monkeypatch.setattr(DiskBacklog, "read", lambda *_: None)
    endings: list[Callable[[ClassicQueue], int]] = [
        lambda queue: queue.purge(),
        lambda queue: queue.close(deleted=True),
    ]
    for ending in endings:
        queue = ClassicQueue(QueueSpec("q"), 1, QueueCallbacks())
        calls: list[str] = []
        queue.backlog.append(1, 10)
        queue.when_readable(partial(calls.append, "called"))
        queue.dispatch()
        assert not calls
        ending(queue)
        queue.dispatch()
        assert calls == ["called"]
