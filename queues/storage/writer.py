"""The writer thread: the only thread that writes or checkpoints the database.

Work arrives in one queue: batches, retention requests, and finally `Close`, which therefore comes
after all earlier work. Each batch ends in exactly one report, `BatchCommitted` or `BatchFailed`.
Checkpoints happen here between batches: after the report, so that no confirm of the batch before
waits for one, and often, so that those of the next batch do not wait long.

A crash leaves the last committed batch and nothing of the next. A power failure may also take
batches since the last sync for which no client waits (`Batch.may_sync_later`). Any error other than
a full disk is final: after a failed fsync the contents of the disk are unknown, so nothing is
committed any more.
"""

import errno
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Final, TypeAlias, cast

from leveret.model.definitions import QueueDefinition
from leveret.model.store import (
    BatchCommitted,
    BatchFailed,
    DatabaseSize,
    DiskFull,
    LogSink,
    RetentionRequest,
    StoreError,
    StoreFailed,
    Usage,
)
from leveret.queues.storage import statements
from leveret.queues.storage.batch import Batch
from leveret.queues.storage.log_ends import LogEnds
from leveret.queues.storage.reader import is_damage
from leveret.queues.storage.retention import RetentionRun, database_size
from leveret.queues.storage.transaction import Transactor

CHECKPOINT_PAGES: Final = 600
"""About 5 MB. The next batch waits for a checkpoint, so this must not be much more than a batch."""
IDLE_SECONDS: Final = 0.25
SYNC_SECONDS: Final = 1.0
"""Deliveries and acks are synced this long after the last sync, even if no client waits."""
URGENT_STEPS: Final = 8
"""Steps of retention between two batches while the volume lacks free space."""
SYNC_THREADS: Final = 16
SYNCED_IN_TURN: Final = 8
"""Fewer logs than this are synced by the writer thread itself."""
_PAGES_PER_COMMIT: Final = 6
_LOW_DISK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class RetentionDone:
    """The report for every `RetentionRequest`; `usage` is None if the run could not finish."""

    usage: Usage | None


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The write-ahead log was copied into the database file, which has this size now."""

    size: DatabaseSize


@dataclass(frozen=True, slots=True)
class WriterFailed:
    """The store has failed outside a batch."""

    error: StoreError


@dataclass(frozen=True, slots=True)
class Close:
    """The last work item; `clean`: everything is decided and on disk."""

    clean: bool


@dataclass(frozen=True, slots=True)
class Closed:
    """The last report: the connection is closed."""


class DamageFound(StoreFailed):
    """A page of the database that is needed for writing is damaged."""


WorkItem: TypeAlias = Batch | RetentionRequest | Close
Report: TypeAlias = (
    BatchCommitted | BatchFailed | RetentionDone | Checkpointed | WriterFailed | Closed
)


class Writer:
    """Owns the connection from `start` until it reports `Closed`."""

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
        self._work_items: SimpleQueue[WorkItem] = SimpleQueue()
        self._retention: RetentionRun | None = None
        self._retention_requested = False
        self._wal_pages = 0
        self._log_ends = LogEnds()
        self._sync_by = 0.0
        self._has_unsynced = False
        self._written_sinks: list[LogSink] = []
        """Logs that this batch has written to: only these may be rolled back."""
        self._sync_threads: ThreadPoolExecutor | None = None
        self._error: StoreError | None = None
        self._thread = Thread(target=self._run, name="leveret-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, item: WorkItem) -> None:
        """Called on the loop thread; never blocks."""
        self._work_items.put(item)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while True:
            item = self._next_item()
            if isinstance(item, Batch):
                self._report(self._commit(item))
                if self._wal_pages > CHECKPOINT_PAGES:
                    self._in_background(self._checkpoint)
            elif isinstance(item, RetentionRequest):
                self._retention_requested = True
                self._in_background(lambda item=item: self._begin_retention(item))  # type: ignore[misc]
            elif item is None:
                self._in_background(
                    self._continue_retention if self._retention else self._use_idle_time
                )
            else:
                self._close(item)
                return

    def _next_item(self) -> WorkItem | None:
        """The next item, or None if there is time for background work."""
        try:
            if self._retention is not None:
                return self._work_items.get_nowait()
            return self._work_items.get(timeout=IDLE_SECONDS if self._wal_pages else None)
        except Empty:
            return None

    # -- batches ---------------------------------------------------------------------------------

    def _commit(self, batch: Batch) -> BatchCommitted | BatchFailed:
        if self._error is not None:
            return BatchFailed(batch.number, self._error)
        self._written_sinks = []
        try:
            logs = self._write_logs(batch) if batch.logs or batch.jobs else {}
            if logs:
                batch.log_ends = self._log_ends.due(logs)
            snapshots_due = self._write_sql(batch)
        except Exception as error:  # noqa: BLE001 - waiting clients must get an answer
            return BatchFailed(batch.number, self._roll_back(self._translate(error)))
        if logs:
            self._log_ends.on_committed(logs, batch.log_ends)
        for kind, key in batch.changes:
            if kind is QueueDefinition and not batch.changes[kind, key][1]:
                self._log_ends.forget(cast("int", key[0]))
        self._wal_pages += _PAGES_PER_COMMIT + batch.bytes * 5 // (statements.PAGE_SIZE * 4)
        return BatchCommitted(batch.number, logs, snapshots_due, batch.jobs)

    def _write_sql(self, batch: Batch) -> tuple[int, ...]:
        snapshots_due: tuple[int, ...] = ()
        if batch.may_sync_later and monotonic() < self._sync_by:
            snapshots_due = self._transactor.run_unsynced(batch, self._now_ms())
            self._has_unsynced = True
            return snapshots_due
        if batch.has_sql or self._transactor.has_log_cuts:
            snapshots_due = self._transactor.run(batch, self._now_ms())
        elif batch.requires_sync and self._has_unsynced:
            self._transactor.sync()
        else:
            return snapshots_due
        self._has_unsynced = False
        self._sync_by = monotonic() + SYNC_SECONDS
        return snapshots_due

    def _write_logs(self, batch: Batch) -> dict[LogSink, int]:
        self._transactor.save_log_cuts(batch)
        for job in batch.jobs:
            job.prepare()
        next_offsets: dict[LogSink, int] = {}
        for sink, records in batch.logs.items():
            self._written_sinks.append(sink)
            next_offsets[sink] = sink.write(records)
        self._sync_logs(list(batch.logs))
        for job in batch.jobs:
            job.finish()
        return next_offsets

    def _sync_logs(self, sinks: list[LogSink]) -> None:
        """Sync the logs of a batch, many of them in several threads while this one waits.

        A file system answers syncs that wait at the same time with one commit of its journal. On
        ext4, 600 logs took 0.4 s one after the other and 0.05 s in 16 threads.
        """
        if len(sinks) < SYNCED_IN_TURN:
            _sync_in_turn(sinks)
            return
        if self._sync_threads is None:
            self._sync_threads = ThreadPoolExecutor(SYNC_THREADS, "leveret-log-sync")
        shares = [sinks[first::SYNC_THREADS] for first in range(SYNC_THREADS)]
        futures = [self._sync_threads.submit(_sync_in_turn, share) for share in shares]
        wait(futures)  # all of them: a rollback must not begin while a log is being synced
        for future in futures:
            future.result()

    def _roll_back(self, error: StoreError) -> StoreError:
        try:
            self._transactor.roll_back()
            for sink in self._written_sinks:
                sink.rollback()
        except Exception as second:  # noqa: BLE001 - the state on disk is unknown: final
            error = StoreFailed(f"{error}; then the rollback failed: {second}")
        if not isinstance(error, DiskFull):
            self._error = error
        if isinstance(error, DamageFound):
            with suppress(sqlite3.Error):
                self._transactor.note_damage()
        return error

    def _translate(self, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        if is_disk_full(error) or (_is_shm_error(error) and self._free_bytes() < _LOW_DISK_BYTES):
            return DiskFull(f"no space left in the data directory ({error})")
        if isinstance(error, sqlite3.DatabaseError) and is_damage(error):
            return DamageFound(f"leveret.db is damaged ({error}): restart the broker to repair it")
        return StoreFailed(f"the store has failed: {type(error).__name__}: {error}")

    # -- background ------------------------------------------------------------------------------

    def _in_background(self, work: Callable[[], None]) -> None:
        """A full disk ends background work for now; any other error ends the store."""
        if self._error is not None:
            self._end_retention()
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 - reported, and final unless the disk is full
            problem = self._translate(error)
            with suppress(sqlite3.Error):
                self._transactor.roll_back()
            self._end_retention()
            self._wal_pages = 0
            if not isinstance(problem, DiskFull):
                self._error = problem
                self._report(WriterFailed(problem))

    def _use_idle_time(self) -> None:
        if self._log_ends.has_unrecorded:
            ends = self._log_ends.unrecorded()
            self._transactor.record_log_ends(ends)
            self._log_ends.on_committed({}, ends)
        self._checkpoint()

    def _begin_retention(self, request: RetentionRequest) -> None:
        self._retention = RetentionRun(
            self._connection, self._transactor, request, self._free_bytes
        )

    def _continue_retention(self) -> None:
        retention = self._retention
        if retention is None:
            return
        for _ in range(URGENT_STEPS if retention.is_urgent else 1):
            self._wal_pages += _PAGES_PER_COMMIT * 4
            if not retention.step():
                self._checkpoint()
                self._end_retention(retention.usage)
                return
        if self._wal_pages > CHECKPOINT_PAGES:
            self._checkpoint()

    def _end_retention(self, usage: Usage | None = None) -> None:
        self._retention = None
        if self._retention_requested:
            self._retention_requested = False
            self._report(RetentionDone(usage))

    def _checkpoint(self) -> None:
        self._connection.execute(statements.CHECKPOINT).fetchall()
        self._report(Checkpointed(database_size(self._connection.execute)))
        self._wal_pages = 0  # tests take 0 to mean that the connection is idle

    def _close(self, close: Close) -> None:
        self._end_retention()
        if self._error is None:
            with suppress(sqlite3.Error):
                if close.clean:
                    ends = self._log_ends.at_close()
                    if ends:
                        self._transactor.record_log_ends(ends)
                    self._transactor.set_meta("last_message_id", str(self._transactor.last_message))
                    self._transactor.set_meta("clean", "1")
                # If another process is reading, the write-ahead log stays for the next start.
                self._connection.execute(statements.SHORT_BUSY_TIMEOUT)
                self._connection.execute(statements.CHECKPOINT_AND_TRUNCATE).fetchall()
        with suppress(sqlite3.Error):
            self._connection.close()
        if self._sync_threads is not None:
            self._sync_threads.shutdown()
        self._report(Closed())


def _sync_in_turn(sinks: Sequence[LogSink]) -> None:
    for sink in sinks:
        sink.sync()


def is_disk_full(error: Exception) -> bool:
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _is_shm_error(error: Exception) -> bool:
    """SQLite reports a full disk as a plain I/O error when its shared-memory file must grow."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code in (sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMOPEN)
