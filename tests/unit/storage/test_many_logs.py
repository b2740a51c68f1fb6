"""Records of very many logs are distributed over several batches."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest_asyncio

from leveret.model.definitions import QueueDefinition
from leveret.model.message import Address, Message
from leveret.model.store import DiskFull, LogRecords, MustNotLose
from leveret.queues.storage.sql_store import LOGS_PER_BATCH
from tests.contract.stores import Harness
from tests.support.polling import wait_until_async

COUNT = LOGS_PER_BATCH * 2 + 5


class Log:
    """A log in memory; its disk may be full."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ids: list[int] = []
        self.written = 0
        self.is_full = False

    def write(self, records: Sequence[LogRecords]) -> int:
        self.written = len(records)
        self.ids += [each.id for each in records if isinstance(each, Message)]
        return len(self.ids)

    def sync(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")

    def end(self) -> tuple[str, int]:
        return str(self.number), len(self.ids)

    def rollback(self) -> None:
        del self.ids[len(self.ids) - self.written :]


def record(number: int) -> Message:
    message = Message.build(Address.of("", "log"), b"\x00\x00", b"record")
    message.id = number
    return message


@pytest_asyncio.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    harness = Harness(tmp_path / "data")
    yield harness
    await harness.close()


def fill(harness: Harness, logs: list[Log], first_id: int = 1) -> None:
    for number, log in enumerate(logs, first_id):
        harness.store.append_log(log, record(number), 6)


async def test_each_batch_syncs_a_limited_number_of_logs(harness):
    logs = [Log(number) for number in range(COUNT)]
    fill(harness, logs)
    assert harness.store.backlog == COUNT * 6
    await harness.durable()
    sizes = [len(batch.logs) for batch in harness.committed]
    assert sizes == [LOGS_PER_BATCH, LOGS_PER_BATCH, 5]
    assert [log.ids for log in logs] == [[number] for number in range(1, COUNT + 1)]
    assert harness.store.backlog == 0


async def test_other_content_does_not_wait_for_the_later_batches(harness):
    store = harness.store
    fill(harness, [Log(number) for number in range(COUNT)])
    assert (store.current_batch_number, store.batch_number) == (1, 3)
    store.save(QueueDefinition(id=9, vhost="/", name="q", kind="classic", durable=True))
    store.flush()
    assert (store.current_batch_number, store.batch_number) == (2, 3)
    await harness.durable()
    assert [batch.batch_number for batch in harness.committed] == [1, 2, 3]


async def test_records_of_a_log_stay_in_order(harness):
    logs = [Log(number) for number in range(COUNT)]
    fill(harness, logs)
    fill(harness, logs, 1000)
    harness.store.flush()  # the first batch is with the writer: the second one has room
    fill(harness, logs[::-1], 2000)
    await harness.durable()
    for number, log in enumerate(logs):
        assert log.ids == [number + 1, number + 1000, 2000 + COUNT - 1 - number]


async def test_records_that_are_atomic_with_a_batch_are_in_it(harness):
    logs = [Log(number) for number in range(COUNT)]
    fill(harness, logs)
    harness.store.save(MustNotLose(tuple(range(1, COUNT + 1)), atomic=True))
    more = Log(COUNT)
    harness.store.append_log(more, record(COUNT + 1))
    assert harness.store.batch_number == 3
    await harness.durable()
    assert [(batch.batch_number, len(batch.logs)) for batch in harness.committed] == [
        (3, COUNT + 1)
    ]


async def test_nothing_is_written_after_the_definition_of_a_log_is_deleted(harness):
    logs = [Log(number) for number in range(COUNT)]
    fill(harness, logs)
    harness.store.delete(QueueDefinition(id=COUNT - 1, vhost="/", name="q", kind="stream"))
    await harness.durable()
    assert len(harness.committed) == 1


async def test_records_that_must_not_be_lost_survive_a_full_disk(harness):
    """Also those in a batch after the one that the disk has no room for."""
    logs = [Log(number) for number in range(COUNT)]
    fill(harness, logs)
    kept = [1, COUNT - 5, COUNT]
    harness.store.save(MustNotLose(tuple(kept), atomic=False))
    for log in logs:
        log.is_full = True
    harness.store.flush()
    await wait_until_async(lambda: len(harness.failed) >= 3)
    assert all(isinstance(failed.error, DiskFull) for failed in harness.failed)
    for log in logs:
        log.is_full = False
    await wait_until_async(lambda: bool(harness.committed))
    await harness.durable()
    stored = sorted(number for log in logs for number in log.ids)
    assert set(kept) <= set(stored)


async def test_all_waiting_batches_fail_with_the_store(harness):
    logs = [Log(number) for number in range(COUNT)]
    fill(harness, logs)
    await harness.sql.kill()
    assert harness.store.batch_number <= harness.failed[-1].batch_number
