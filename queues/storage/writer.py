"""The writer thread: the only one that writes or checkpoints the database.

Work arrives in one queue: batches, a sweep, and at last the closing sentinel, which therefore comes
after all earlier work. Each batch ends in exactly one report, `Committed` or `Failed`. Checkpoints
happen here between batches, after the report, so that no confirm waits for one.

A crash leaves the last committed batch and nothing of the next. A power failure may also take
batches since the last sync for which nobody waits (`Batch.may_sync_later`). Any error other than a
full disk is final: after a failed fsync nobody knows what is on disk, so nothing is committed any
more.
"""

import errno
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Final, TypeAlias

from leveret.model.store import (
    Committed,
    DiskFull,
    Failed,
    LogSink,
    Retention,
    StoreError,
    StoreFailed,
    Usage,
)
from queues.storage import statements
from queues.storage.batch import Batch
from queues.storage.sweeper import Sweeper
from queues.storage.transaction import Transactor

CHECKPOINT_PAGES: Final = 2_000
IDLE_SECONDS: Final = 0.25
SYNC_SECONDS: Final = 1.0
"""So long after the last sync, deliveries and acks are synced even if nobody waits for them."""
_PAGES_PER_COMMIT: Final = 6
_LITTLE_SPACE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Swept:
    """The answer to every `Retention`; no usage when the sweep could not be finished."""

    usage: Usage | None


@dataclass(frozen=True, slots=True)
class Broken:
    """The store has failed outside a batch."""

    error: StoreError


@dataclass(frozen=True, slots=True)
class Closing:
    """The sentinel; `clean` says that everything is settled and on disk."""

    clean: bool


@dataclass(frozen=True, slots=True)
class Closed:
    pass


Job: TypeAlias = Batch | Retention | Closing
Report: TypeAlias = Committed | Failed | Swept | Broken | Closed


class Writer:
    """Owns the connection from `start` until `Closed` is reported."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        transactor: Transactor,
        *,
        now_ms: Callable[[], int],
        free_bytes: Callable[[], int],
        report: Callable[[Report], None],
    ) -> None:
        self._connection = connection
        self._transactor = transactor
        self._now_ms = now_ms
        self._free_bytes = free_bytes
        self._report = report
        self._inbox: SimpleQueue[Job] = SimpleQueue()
        self._sweeper: Sweeper | None = None
        self._sweep_asked = False
        self._wal_pages = 0
        self._sync_by = 0.0
        self._has_unsynced = False
        self._in_doubt: list[LogSink] = []
        """Logs that this batch has written to: only these may be rolled back."""
        self._broken: StoreError | None = None
        self._thread = Thread(target=self._run, name="leveret-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, job: Job) -> None:
        """Called on the loop thread; never blocks."""
        self._inbox.put(job)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while True:
            job = self._next_job()
            if isinstance(job, Batch):
                self._report(self._commit(job))
                if self._wal_pages > CHECKPOINT_PAGES:
                    self._guarded(self._checkpoint)
            elif isinstance(job, Retention):
                self._sweep_asked = True
                self._guarded(lambda job=job: self._begin_sweep(job))  # type: ignore[misc]
            elif job is None:
                self._guarded(self._sweep_on if self._sweeper else self._checkpoint)
            else:
                self._close(job)
                return

    def _next_job(self) -> Job | None:
        """The next job, or None when there is time for the background."""
        try:
            if self._sweeper is not None:
                return self._inbox.get_nowait()
            return self._inbox.get(timeout=IDLE_SECONDS if self._wal_pages else None)
        except Empty:
            return None

    # -- batches ---------------------------------------------------------------------------------

    def _commit(self, batch: Batch) -> Committed | Failed:
        if self._broken is not None:
            return Failed(batch.mark, self._broken)
        try:
            logs = self._write_logs(batch)
            due = self._write_sql(batch)
        except Exception as error:  # noqa: BLE001 - or those who wait would wait for ever
            return Failed(batch.mark, self._undo(self._translate(error)))
        self._wal_pages += _PAGES_PER_COMMIT + batch.bytes * 5 // (statements.PAGE_SIZE * 4)
        return Committed(batch.mark, logs, due)

    def _write_sql(self, batch: Batch) -> tuple[int, ...]:
        due: tuple[int, ...] = ()
        if batch.may_sync_later and monotonic() < self._sync_by:
            due = self._transactor.run_unsynced(batch, self._now_ms())
            self._has_unsynced = True
            return due
        if batch.has_sql or self._transactor.has_announced:
            due = self._transactor.run(batch, self._now_ms())
        elif batch.synced and self._has_unsynced:
            self._transactor.sync()
        else:
            return due
        self._has_unsynced = False
        self._sync_by = monotonic() + SYNC_SECONDS
        return due

    def _write_logs(self, batch: Batch) -> dict[LogSink, object]:
        self._in_doubt = []
        if not batch.logs:
            return {}
        self._transactor.announce(batch)
        answers: dict[LogSink, object] = {}
        for sink, records in batch.logs.items():
            self._in_doubt.append(sink)
            answers[sink] = sink.write(records)
        for sink in batch.logs:
            sink.sync()
        return answers

    def _undo(self, error: StoreError) -> StoreError:
        try:
            self._transactor.roll_back()
            for sink in self._in_doubt:
                sink.rollback()
        except Exception as second:  # noqa: BLE001 - the state on disk is unknown: final
            error = StoreFailed(f"{error}; then undoing failed: {second}")
        if not isinstance(error, DiskFull):
            self._broken = error
        return error

    def _translate(self, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        if is_disk_full(error) or (_is_shm_error(error) and self._free_bytes() < _LITTLE_SPACE):
            return DiskFull(f"no space left in the data directory ({error})")
        return StoreFailed(f"the store has failed: {type(error).__name__}: {error}")

    # -- background ------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> None:
        """Background work: a full disk ends it for now, anything else ends the store."""
        if self._broken is not None:
            self._end_sweep()
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 - reported, and final unless the disk is full
            problem = self._translate(error)
            with suppress(sqlite3.Error):
                self._transactor.roll_back()
            self._end_sweep()
            self._wal_pages = 0
            if not isinstance(problem, DiskFull):
                self._broken = problem
                self._report(Broken(problem))

    def _begin_sweep(self, retention: Retention) -> None:
        self._sweeper = Sweeper(self._connection, self._transactor, retention)

    def _sweep_on(self) -> None:
        if self._sweeper is not None and not self._sweeper.step():
            self._end_sweep(self._sweeper.usage)
        self._wal_pages += _PAGES_PER_COMMIT * 4
        if self._wal_pages > CHECKPOINT_PAGES:
            self._checkpoint()

    def _end_sweep(self, usage: Usage | None = None) -> None:
        self._sweeper = None
        if self._sweep_asked:
            self._sweep_asked = False
            self._report(Swept(usage))

    def _checkpoint(self) -> None:
        self._connection.execute(statements.CHECKPOINT).fetchall()
        self._wal_pages = 0  # only now: until then the connection is busy

    def _close(self, closing: Closing) -> None:
        self._end_sweep()
        if self._broken is None:
            with suppress(sqlite3.Error):
                if closing.clean:
                    self._transactor.set_meta("last_message_id", str(self._transactor.last_message))
                    self._transactor.set_meta("clean", "1")
                # Somebody may still be reading; then the log stays, and the next start uses it.
                self._connection.execute(statements.DO_NOT_WAIT)
                self._connection.execute(statements.CHECKPOINT_AND_TRUNCATE).fetchall()
        with suppress(sqlite3.Error):
            self._connection.close()
        self._report(Closed())


def is_disk_full(error: Exception) -> bool:
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _is_shm_error(error: Exception) -> bool:
    """SQLite reports a full disk as a plain I/O error when its shared memory file must grow."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code in (sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMOPEN)
