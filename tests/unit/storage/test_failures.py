"""Full and broken disks: exactly the batches reported committed are there."""

from __future__ import annotations

import asyncio
import errno
import resource
import subprocess
import sys
import threading
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest

from leveret.model.definitions import VhostDefinition
from leveret.model.history import EventKind
from leveret.model.message import Address, Message
from leveret.model.store import (
    BatchCommitted,
    BatchFailed,
    DiskFull,
    LiveMessages,
    LogRecords,
    MustNotLose,
    RetentionRequest,
    Snapshot,
    StoreError,
    StoreFailed,
    StoreState,
)
from leveret.queues.storage.packing import unpack_ids
from leveret.queues.storage.writer import Writer
from tests.contract.stores import DEADLINE, Harness
from tests.support.polling import wait_until_async

LARGE = bytes(300_000)


async def limit_pages(harness: Harness, spare: int | None) -> None:
    """Limit the growth of the database to `spare` pages; None lifts the limit."""
    writer = await idle_writer(harness)
    used = writer._connection.execute("PRAGMA page_count").fetchone()[0]
    limit = 1 << 30 if spare is None else used + spare
    writer._connection.execute(f"PRAGMA max_page_count={limit}").fetchall()


async def idle_writer(harness: Harness) -> Writer:
    """Tests may use the writer's connection only while it is idle."""
    writer = harness.sql._writer
    assert writer is not None
    await wait_until_async(lambda: harness.sql._in_flight is None and writer._wal_pages == 0)
    return writer


RECORD = Message.build(Address.of("", "log"), b"\x00\x00", b"record")


class BadSink:
    """A log whose disk fails."""

    def __init__(self, error: OSError, rollback_error: OSError | None = None) -> None:
        self.error: OSError | None = error
        self.rollback_error = rollback_error
        self.rolled_back = 0

    def write(self, records: Sequence[LogRecords]) -> int:
        return len(records)

    def sync(self) -> None:
        if self.error is not None:
            raise self.error

    def end(self) -> tuple[str, int]:
        return "1", 7

    def rollback(self) -> None:
        self.rolled_back += 1
        if self.rollback_error is not None:
            raise self.rollback_error


@pytest.fixture
async def harness(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.declare()
    harness.publish_many(10)
    await harness.durable()
    return harness


async def test_full_disk_fails_only_the_batch(harness: Harness, tmp_path: Path):
    await limit_pages(harness, 0)
    lost = harness.publish(LARGE)
    harness.ack([1, 2])
    harness.store.save(VhostDefinition("defined meanwhile"))
    number = await harness.durable()
    (failure,) = harness.failed
    assert (failure.batch_number, failure.is_fatal) == (number, False)
    assert isinstance(failure.error, DiskFull)
    # The acks and the definition fit, and are committed without further calls.
    await wait_until_async(lambda: harness.store.state is StoreState.RUNNING)
    await limit_pages(harness, None)
    stored = harness.publish(LARGE)
    await harness.durable()
    await harness.close()
    reopened = Harness(tmp_path)
    assert reopened.live() == [*range(3, 11), stored]
    assert lost not in reopened.live()
    assert await reopened.bodies([stored]) == [LARGE]
    assert VhostDefinition("defined meanwhile") in reopened.recovered.definitions
    await reopened.close()


async def test_acks_are_committed_after_a_full_disk(harness: Harness, tmp_path: Path):
    await limit_pages(harness, 0)
    for first in (1, 3, 5):
        harness.publish(LARGE)
        harness.ack([first, first + 1])
        # Too large for the remaining pages, so that not even the acks can be written.
        harness.store.save(VhostDefinition("large", "x" * 300_000))
        await harness.durable()
        assert harness.store.state is StoreState.DISK_FULL
    assert len(harness.failed) >= 3
    assert len(harness.committed) == 1
    await limit_pages(harness, None)
    await wait_until_async(lambda: harness.store.state is StoreState.RUNNING)
    await harness.close()
    reopened = Harness(tmp_path)
    assert reopened.live() == [7, 8, 9, 10]
    assert reopened.recovered.clean
    await reopened.close()


async def test_lost_messages_have_no_events(harness: Harness, tmp_path: Path):
    await limit_pages(harness, 0)
    lost = harness.publish(LARGE)
    await harness.durable()
    await limit_pages(harness, None)
    await wait_until_async(lambda: harness.sql._retry is None)
    # The broker may still hold it in memory, deliver it and take a snapshot of its queue.
    harness.store.record(EventKind.DELIVERED, 1, lost)
    live = LiveMessages(array("Q", [*range(1, 11), lost]), array("I", [5] * 11))
    harness.store.save(Snapshot(1, (live,)))
    await harness.durable()
    harness.ack([lost, 1])
    await harness.durable()
    rows = harness.query("SELECT ids FROM events")
    assert all(lost not in unpack_ids(ids) for (ids,) in rows)
    await harness.close()
    reopened = Harness(tmp_path)
    assert reopened.live() == list(range(2, 11))
    await reopened.close()


async def test_closing_on_a_full_disk_ends(harness: Harness, tmp_path: Path):
    await limit_pages(harness, 0)
    harness.publish(LARGE)
    harness.ack([1])
    harness.store.save(VhostDefinition("large", "x" * 300_000))
    await harness.durable()
    states: list[StoreState] = []
    harness.on_failed = lambda _: states.append(harness.store.state)
    await harness.close()
    assert harness.store.state is StoreState.CLOSED
    assert states[-1] is StoreState.FAILED  # clients must not wait for a batch that never commits
    reopened = Harness(tmp_path)
    assert not reopened.recovered.clean
    assert reopened.live() == list(range(1, 11))
    await reopened.close()


async def test_full_log_disk_fails_the_whole_batch(harness: Harness, tmp_path: Path):
    sink = BadSink(OSError(errno.ENOSPC, "No space left on device"))
    harness.store.append_log(sink, RECORD)
    harness.publish()
    await harness.durable()
    assert isinstance(harness.failed[0].error, DiskFull)
    assert sink.rolled_back == 1
    sink.error = None
    harness.store.append_log(sink, RECORD)
    await harness.durable()
    assert harness.committed[-1].logs == {sink: 1}
    await harness.close()
    reopened = Harness(tmp_path)
    assert reopened.live() == list(range(1, 11))
    await reopened.close()


class WaitingSink(BadSink):
    """A log whose sync takes until the test ends it."""

    def __init__(self) -> None:
        super().__init__(OSError())
        self.may_end = threading.Event()
        self.has_ended = False

    def sync(self) -> None:
        assert self.may_end.wait(DEADLINE)
        self.has_ended = True

    def rollback(self) -> None:
        assert self.has_ended
        super().rollback()


async def test_one_of_many_syncs_fails_and_all_logs_are_rolled_back(harness: Harness):
    """Many logs are synced in parallel; the rollback waits until none is being synced any more."""
    full, slow = BadSink(OSError(errno.ENOSPC, "No space left on device")), WaitingSink()
    others = [BadSink(OSError()) for _ in range(30)]
    for sink in others:
        sink.error = None
    for sink in (full, slow, *others):
        harness.store.append_log(sink, RECORD)
    asyncio.get_running_loop().call_later(0.05, slow.may_end.set)
    await harness.durable()
    assert isinstance(harness.failed[0].error, DiskFull)
    assert [sink.rolled_back for sink in (full, slow, *others)] == [1] * 32
    full.error = None
    harness.store.append_log(full, RECORD)
    await harness.durable()
    assert harness.committed[-1].logs == {full: 1}
    await harness.close()


async def test_failed_fsync_ends_the_store(harness: Harness, tmp_path: Path):
    sink = BadSink(OSError(errno.EIO, "Input/output error"))
    harness.store.append_log(sink, RECORD)
    harness.publish()
    harness.store.flush()
    harness.publish()  # joins the next batch while the first one fails
    await harness.durable()
    assert [failure.is_fatal for failure in harness.failed] == [True, True]
    assert harness.store.state is StoreState.FAILED
    # It accepts no more work, although the disk works again.
    sink.error = None
    harness.publish()
    await harness.durable()
    assert isinstance(harness.failed[-1].error, StoreFailed)
    assert len(harness.committed) == 1
    assert await harness.bodies([1]) == [b"hello"]
    await harness.store.apply_retention(RetentionRequest(10))
    await harness.close()
    reopened = Harness(tmp_path)
    assert reopened.live() == list(range(1, 11))
    assert not reopened.recovered.clean
    await reopened.close()


@pytest.mark.parametrize("phase", ["prepare", "finish"])
async def test_job_on_a_full_disk_fails_the_batch_and_is_dropped(harness: Harness, phase: str):
    class FullDiskJob:
        runs = 0

        def prepare(self) -> None:
            self.run("prepare")

        def finish(self) -> None:
            self.run("finish")

        def run(self, running: str) -> None:
            if running == phase:
                self.runs += 1
                raise OSError(errno.ENOSPC, "No space left on device")

    job, sink = FullDiskJob(), BadSink(OSError())
    sink.error = None
    harness.store.append_job(job)
    harness.store.append_log(sink, RECORD)
    await harness.durable()
    assert isinstance(harness.failed[0].error, DiskFull)
    assert sink.rolled_back == (phase == "finish")
    harness.store.append_log(sink, RECORD)
    await harness.durable()
    assert (job.runs, harness.committed[-1].jobs) == (1, [])
    await harness.close()


async def test_log_that_cannot_roll_back_ends_the_store(harness: Harness):
    full, broken = OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "broken")
    harness.store.append_log(BadSink(full, broken), RECORD)
    await harness.durable()
    assert harness.failed[0].is_fatal
    assert "then the rollback failed" in str(harness.failed[0].error)
    await harness.close()


async def test_unexpected_error_ends_the_store(harness: Harness):
    writer = await idle_writer(harness)
    writer._connection.execute("DROP TABLE message_packs")
    harness.publish()
    await harness.durable()
    assert harness.failed[0].is_fatal
    assert "no such table" in str(harness.failed[0].error)
    await harness.close()


async def test_error_in_background_work_ends_the_store(harness: Harness):
    writer = await idle_writer(harness)
    writer._connection.execute("DROP TABLE origins")
    await harness.store.apply_retention(RetentionRequest(10))
    await wait_until_async(lambda: harness.store.state is StoreState.FAILED)
    assert harness.failed[0].is_fatal  # reported at once, not with the next batch
    harness.publish()
    await harness.durable()
    assert len(harness.failed) == 2
    await harness.close()


async def test_retention_of_a_failed_store_returns(harness: Harness):
    writer = await idle_writer(harness)
    writer._error = StoreFailed("failed in the background")
    before = harness.store.usage
    async with asyncio.timeout(DEADLINE):
        assert await harness.store.apply_retention(RetentionRequest(10)) == before
    await harness.close()


async def test_listener_that_raises_does_not_stop_the_store(harness: Harness):
    raised = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))

    def trip(outcome: BatchCommitted | BatchFailed) -> None:
        harness.on_outcome(outcome)
        raise RuntimeError("listener")

    harness.on_committed = trip
    for _ in range(3):
        harness.publish()
        await harness.durable()
    await harness.close()
    assert len(raised) == 3


async def test_reading_a_closed_store_is_refused(harness: Harness):
    await harness.close()
    with pytest.raises(StoreError, match="closed"):
        await harness.store.load([1])


FORGET_TO_CLOSE = """
import asyncio, sys
from pathlib import Path
from tests.contract.stores import Harness

async def main():
    harness = Harness(Path(sys.argv[1]))
    harness.declare()
    harness.publish()
    await harness.durable()
    print(await harness.bodies([1]))

asyncio.run(main())
"""


async def test_process_that_does_not_close_the_store_still_exits(tmp_path: Path):
    child = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", FORGET_TO_CLOSE, str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert child.stdout == "[b'hello']\n", child.stderr
    assert child.returncode == 0
    harness = Harness(tmp_path)
    assert harness.live() == [1]
    assert not harness.recovered.clean
    await harness.close()


WRITE_UNTIL_IT_FAILS = """
import asyncio, resource, signal, sys
from pathlib import Path
from tests.contract.stores import Harness

async def main():
    harness = Harness(Path(sys.argv[1]))
    harness.declare()
    await harness.durable()
    while not harness.failed:
        harness.publish(bytes(1000))
        await harness.durable()
        print(harness.committed[-1].batch_number - 1, flush=True)
    print(harness.failed[0].is_fatal, harness.store.state.value, flush=True)

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs file size limits")
async def test_refused_write_is_fatal_and_loses_nothing(tmp_path: Path):
    child = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", WRITE_UNTIL_IT_FAILS, str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    lines = child.stdout.splitlines()
    assert lines[-1] == "True failed", child.stderr
    confirmed = int(lines[-2])
    assert confirmed > 5
    harness = Harness(tmp_path)
    assert harness.live()[:confirmed] == list(range(1, confirmed + 1))
    assert await harness.unreadable(harness.live()) == []
    await harness.close()


async def test_must_not_lose_messages_are_committed_after_a_full_disk(
    harness: Harness, tmp_path: Path
):
    await limit_pages(harness, 0)
    stored, lost = harness.publish(LARGE), harness.publish(LARGE)
    harness.ack([1, 2])
    harness.store.save(MustNotLose([stored]))
    await harness.durable()
    assert harness.store.state is StoreState.DISK_FULL
    assert len(harness.stored_ids()) == 10
    await limit_pages(harness, None)
    await wait_until_async(lambda: harness.store.state is StoreState.RUNNING)
    await harness.close()
    reopened = Harness(tmp_path)
    assert reopened.live() == [*range(3, 11), stored]
    assert await reopened.bodies([stored, lost]) == [LARGE, None]
    await reopened.close()


async def test_only_logs_that_the_batch_wrote_to_are_rolled_back(harness: Harness):
    class Full(BadSink):
        def write(self, records: Sequence[LogRecords]) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    full, intact = Full(OSError()), BadSink(OSError())
    intact.error = None
    harness.store.append_log(intact, RECORD)
    await harness.durable()
    harness.store.append_log(full, RECORD)
    harness.store.append_log(intact, RECORD)
    await harness.durable()
    assert isinstance(harness.failed[0].error, DiskFull)
    assert intact.rolled_back == 0
    await harness.close()
