"""Full disks and broken ones: what is reported committed is there, and nothing else is claimed."""

from __future__ import annotations

import asyncio
import errno
import resource
import subprocess
import sys
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from leveret.model.history import EventKind
from leveret.model.store import (
    Committed,
    DiskFull,
    Failed,
    Indispensable,
    Live,
    Retention,
    Snapshot,
    StoreError,
    StoreFailed,
    StoreState,
    VhostDefinition,
)
from queues.storage.packing import unpack_ids
from queues.storage.writer import Writer
from tests.contract.stores import DEADLINE, Harness

LARGE = bytes(300_000)


async def limit_pages(harness: Harness, spare: int | None) -> None:
    """Let the database grow by so many pages and no further; None lifts the limit."""
    writer = await idle_writer(harness)
    used = writer._connection.execute("PRAGMA page_count").fetchone()[0]
    limit = 1 << 30 if spare is None else used + spare
    writer._connection.execute(f"PRAGMA max_page_count={limit}").fetchall()


async def idle_writer(harness: Harness) -> Writer:
    """Its connection may be used from here only while it has nothing to do."""
    writer = harness.sql._writer
    assert writer is not None
    await until(lambda: harness.sql._in_flight is None and writer._wal_pages == 0)
    return writer


class BadSink:
    """A log whose disk misbehaves."""

    def __init__(self, error: OSError, rollback_error: OSError | None = None) -> None:
        self.error: OSError | None = error
        self.rollback_error = rollback_error
        self.rolled_back = 0

    def write(self, records: Sequence[object]) -> object:
        return len(records)

    def sync(self) -> None:
        if self.error is not None:
            raise self.error

    def end(self) -> tuple[str, int]:
        return "log", 7

    def rollback(self) -> None:
        self.rolled_back += 1
        if self.rollback_error is not None:
            raise self.rollback_error


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture
async def harness(tmp_path: Path) -> Harness:
    harness = Harness(tmp_path)
    harness.declare()
    harness.publish_many(10)
    await harness.durable()
    return harness


async def test_a_full_disk_fails_the_batch_and_no_more(harness: Harness, tmp_path: Path):
    await limit_pages(harness, 0)
    lost = harness.publish(LARGE)
    harness.ack([1, 2])
    harness.store.save(VhostDefinition("defined meanwhile"))
    mark = await harness.durable()
    (failure,) = harness.failed
    assert (failure.mark, failure.is_fatal) == (mark, False)
    assert isinstance(failure.error, DiskFull)
    # The acks and the definition fit, and follow by themselves.
    await until(lambda: harness.store.state is StoreState.RUNNING)
    await limit_pages(harness, None)
    kept = harness.publish(LARGE)
    await harness.durable()
    await harness.close()
    again = Harness(tmp_path)
    assert again.live() == [*range(3, 11), kept]
    assert lost not in again.live()
    assert await again.bodies([kept]) == [LARGE]
    assert VhostDefinition("defined meanwhile") in again.recovered.definitions
    await again.close()


async def test_acks_wait_out_a_full_disk(harness: Harness, tmp_path: Path):
    await limit_pages(harness, 0)
    for first in (1, 3, 5):
        harness.publish(LARGE)
        harness.ack([first, first + 1])
        # Too much for the pages that are left, so that even the acks cannot be written.
        harness.store.save(VhostDefinition("large", "x" * 300_000))
        await harness.durable()
        assert harness.store.state is StoreState.DISK_FULL
    assert len(harness.failed) >= 3
    assert len(harness.committed) == 1
    await limit_pages(harness, None)
    await until(lambda: harness.store.state is StoreState.RUNNING)
    await harness.close()
    again = Harness(tmp_path)
    assert again.live() == [7, 8, 9, 10]
    assert again.recovered.clean
    await again.close()


async def test_nothing_is_recorded_about_a_message_that_was_lost(harness: Harness, tmp_path: Path):
    await limit_pages(harness, 0)
    lost = harness.publish(LARGE)
    await harness.durable()
    await limit_pages(harness, None)
    await until(lambda: harness.sql._retry is None)
    # The broker may still hold it in memory, deliver it and take a snapshot of its queue.
    harness.store.record(EventKind.DELIVERED, 1, lost)
    held = Live(array("Q", [*range(1, 11), lost]), array("I", [5] * 11))
    harness.store.save(Snapshot(1, (held,)))
    await harness.durable()
    harness.ack([lost, 1])
    await harness.durable()
    rows = harness.query("SELECT ids FROM events")
    assert all(lost not in unpack_ids(ids) for (ids,) in rows)
    await harness.close()
    again = Harness(tmp_path)
    assert again.live() == list(range(2, 11))
    await again.close()


async def test_closing_on_a_full_disk_ends(harness: Harness, tmp_path: Path):
    await limit_pages(harness, 0)
    harness.publish(LARGE)
    harness.ack([1])
    harness.store.save(VhostDefinition("large", "x" * 300_000))
    await harness.durable()
    told: list[StoreState] = []
    harness.store._on_failed = lambda _: told.append(harness.store.state)  # type: ignore[attr-defined]
    await harness.close()
    assert harness.store.state is StoreState.CLOSED
    assert told[-1] is StoreState.FAILED  # nobody goes on waiting for a batch that never comes
    again = Harness(tmp_path)
    assert not again.recovered.clean
    assert again.live() == list(range(1, 11))
    await again.close()


async def test_a_full_log_disk_fails_the_batch_whole(harness: Harness, tmp_path: Path):
    sink = BadSink(OSError(errno.ENOSPC, "No space left on device"))
    harness.store.append_log(sink, b"record")
    harness.publish()
    await harness.durable()
    assert isinstance(harness.failed[0].error, DiskFull)
    assert sink.rolled_back == 1
    sink.error = None
    harness.store.append_log(sink, b"record")
    await harness.durable()
    assert harness.committed[-1].logs == {sink: 1}
    await harness.close()
    again = Harness(tmp_path)
    assert again.live() == list(range(1, 11))
    await again.close()


async def test_a_failed_fsync_ends_the_store(harness: Harness, tmp_path: Path):
    sink = BadSink(OSError(errno.EIO, "Input/output error"))
    harness.store.append_log(sink, b"record")
    harness.publish()
    harness.store.flush()
    harness.publish()  # grows while the first one fails
    await harness.durable()
    assert [failure.is_fatal for failure in harness.failed] == [True, True]
    assert harness.store.state is StoreState.FAILED
    # It takes no more work, however good the disk is now.
    sink.error = None
    harness.publish()
    await harness.durable()
    assert isinstance(harness.failed[-1].error, StoreFailed)
    assert len(harness.committed) == 1
    assert await harness.bodies([1]) == [b"hello"]
    await harness.store.sweep(Retention(10))
    await harness.close()
    again = Harness(tmp_path)
    assert again.live() == list(range(1, 11))
    assert not again.recovered.clean
    await again.close()


async def test_a_log_that_cannot_roll_back_ends_the_store(harness: Harness):
    full, broken = OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "broken")
    harness.store.append_log(BadSink(full, broken), b"record")
    await harness.durable()
    assert harness.failed[0].is_fatal
    assert "then undoing failed" in str(harness.failed[0].error)
    await harness.close()


async def test_an_unexpected_error_ends_the_store(harness: Harness):
    writer = await idle_writer(harness)
    writer._connection.execute("DROP TABLE messages")
    harness.publish()
    await harness.durable()
    assert harness.failed[0].is_fatal
    assert "no such table" in str(harness.failed[0].error)
    await harness.close()


async def test_trouble_in_the_background_ends_the_store(harness: Harness):
    writer = await idle_writer(harness)
    writer._connection.execute("DROP TABLE origins")
    await harness.store.sweep(Retention(10))
    await until(lambda: harness.store.state is StoreState.FAILED)
    assert harness.failed[0].is_fatal  # told at once, not with the next batch
    harness.publish()
    await harness.durable()
    assert len(harness.failed) == 2
    await harness.close()


async def test_a_sweep_of_a_broken_store_is_answered(harness: Harness):
    writer = await idle_writer(harness)
    writer._broken = StoreFailed("broken while nobody looked")
    before = harness.store.usage
    async with asyncio.timeout(DEADLINE):
        assert await harness.store.sweep(Retention(10)) == before
    await harness.close()


async def test_a_listener_that_raises_does_not_stop_the_store(harness: Harness):
    raised = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))

    def trip(outcome: Committed | Failed) -> None:
        harness.hear(outcome)
        raise RuntimeError("listener")

    harness.store._on_committed = trip  # type: ignore[attr-defined]
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


async def test_a_process_that_forgets_to_close_still_ends(tmp_path: Path):
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
        print(harness.committed[-1].mark - 1, flush=True)
    print(harness.failed[0].is_fatal, harness.store.state.value, flush=True)

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs file size limits")
async def test_a_write_the_system_refuses_is_fatal_and_loses_nothing(tmp_path: Path):
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
    assert await harness.rotten(harness.live()) == []
    await harness.close()


async def test_what_is_indispensable_waits_out_a_full_disk(harness: Harness, tmp_path: Path):
    await limit_pages(harness, 0)
    kept, lost = harness.publish(LARGE), harness.publish(LARGE)
    harness.ack([1, 2])
    harness.store.save(Indispensable([kept]))
    await harness.durable()
    assert harness.store.state is StoreState.DISK_FULL
    assert harness.query("SELECT count(*) FROM messages") == [(10,)]
    await limit_pages(harness, None)
    await until(lambda: harness.store.state is StoreState.RUNNING)
    await harness.close()
    again = Harness(tmp_path)
    assert again.live() == [*range(3, 11), kept]
    assert await again.bodies([kept, lost]) == [LARGE, None]
    await again.close()


async def test_only_logs_that_the_batch_wrote_to_are_rolled_back(harness: Harness):
    class Full(BadSink):
        def write(self, records: Sequence[object]) -> object:
            raise OSError(errno.ENOSPC, "No space left on device")

    full, sound = Full(OSError()), BadSink(OSError())
    sound.error = None
    harness.store.append_log(sound, b"committed")
    await harness.durable()
    harness.store.append_log(full, b"refused")
    harness.store.append_log(sound, b"not reached")
    await harness.durable()
    assert isinstance(harness.failed[0].error, DiskFull)
    assert sound.rolled_back == 0
    await harness.close()
