"""The store on SQLite: the event-loop side of the writer thread.

Threads: everything here runs on the event-loop thread; reports of the writer arrive through
`call_soon_threadsafe`. At most one batch is with the writer; while it commits, the next one grows,
and it is handed over when the report arrives. So commits are grouped, and there is no lock. Records
of very many logs are distributed over several batches (docs/decisions/0024). Only a
batch of deliveries and acks is held back for `HOLD_SECONDS`, so that a publish that arrives
meanwhile joins it instead of waiting for its commit (docs/decisions/0007).

A crash loses the batches not reported committed and nothing else.
"""

import asyncio
import os
import sqlite3
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

from leveret.model.store import (
    BatchCommitted,
    BatchFailed,
    LoadedRun,
    LoadResult,
    OnCommitted,
    OnFailed,
    RecoveredState,
    RetentionRequest,
    Spill,
    StoreError,
    StoreFailed,
    StoreState,
    UnreadableMessage,
    Usage,
)
from leveret.queues.storage import compiled_statements as compiled
from leveret.queues.storage import statements
from leveret.queues.storage.batch import Batch, IdRanges
from leveret.queues.storage.batch_builder import BatchBuilder, wall_clock_ms
from leveret.queues.storage.damage.repair import find_damage, read_lost, repair
from leveret.queues.storage.directory import (
    DATABASE_NAME,
    NEW_SUFFIX,
    DataDirectory,
    advice,
    sync_file,
)
from leveret.queues.storage.migrations import check_columns, migrate, stored_version
from leveret.queues.storage.old_messages import RowsOutOfOrder
from leveret.queues.storage.reader import Reader, is_damage, is_undecodable
from leveret.queues.storage.recovery import Recovery, lost_journal_rows, read_meta
from leveret.queues.storage.retention import database_size, measure
from leveret.queues.storage.spill import SpillFolder
from leveret.queues.storage.transaction import LAST_EVENT_ID, NEEDS_REPAIR, Transactor
from leveret.queues.storage.writer import (
    Checkpointed,
    Close,
    Report,
    RetentionDone,
    Writer,
    WriterFailed,
    is_disk_full,
)

Loaded = TypeVar("Loaded", LoadResult, LoadedRun)

RETRY_SECONDS: Final = 0.25
"""The delay before the next attempt after the disk was full."""

LOGS_PER_BATCH: Final = 32
"""Syncing so many logs takes some milliseconds, and confirms of other clients wait for it."""

HOLD_SECONDS: Final = 0.002
"""How long deliveries and acks that nobody waits for may wait for a publish to join them."""

BUSY_SECONDS: Final = 30.0
"""How long to wait for another process that writes to our database; there should be none."""

WEAKER_SYNC_FOR_TESTS: Final = "LEVERET_TEST_SYNCHRONOUS"
"""The negative control of the power-loss tests: with NORMAL, confirmed messages must get lost."""


class SqlStore(BatchBuilder):
    """Implements `leveret.model.store.Store` on one SQLite file in the data directory."""

    def __init__(
        self,
        data_directory: Path,
        *,
        on_committed: OnCommitted,
        on_failed: OnFailed,
        now_ms: Callable[[], int] = wall_clock_ms,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """`notes` are stored in `meta`, for programs that read the data without the broker."""
        super().__init__(
            on_committed=on_committed,
            on_failed=on_failed,
            now_ms=now_ms,
            max_logs=LOGS_PER_BATCH,
        )
        self._path = data_directory
        self._notes = dict(notes or {})
        self._directory: DataDirectory | None = None
        self._writer: Writer | None = None
        self._reader = Reader(data_directory / DATABASE_NAME)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_flight: Batch | None = None
        self._lost = IdRanges()
        self._retry: asyncio.TimerHandle | None = None
        self._hold: asyncio.TimerHandle | None = None
        self._retention: asyncio.Future[Usage] | None = None
        self._closing: asyncio.Future[None] | None = None
        self._close_sent = False
        self._spill = SpillFolder(data_directory, lambda: self.on_spilled())

    # -- opening ---------------------------------------------------------------------------------

    def recover(self) -> RecoveredState:
        if self.state is not StoreState.OPENING:
            raise StoreError("the store is already open")
        self._directory = DataDirectory(self._path)
        self._spill.delete_all()
        try:
            recovered, writer = self._open(self._directory)
        except (sqlite3.Error, OSError, ValueError) as error:
            self._directory.release()
            text = " ".join(str(error).split())[:100]
            if isinstance(error, sqlite3.DatabaseError) and is_damage(error):
                text += f"; {advice(self._path)}"
            raise StoreError(f"cannot open the data in {self._path}: {text}") from error
        except StoreError:
            self._directory.release()
            raise
        self.ids = count(recovered.last_message_id + 1)
        self.state = StoreState.RUNNING
        self._writer = writer
        writer.start()
        return recovered

    def _open(self, directory: DataDirectory) -> tuple[RecoveredState, Writer]:
        """A damaged database is repaired once; what is unreadable then stays so."""
        directory.require_database()
        if not (directory.path / DATABASE_NAME).exists():
            _create(directory.path / DATABASE_NAME)
        try:
            return self._open_sound(directory, must_be_sound=True)
        except DamagedDatabase as damage:
            repair(directory, damage.found)
        except sqlite3.OperationalError as error:
            if not is_undecodable(error):
                raise
            repair(directory, [str(error)])
        return self._open_sound(directory, must_be_sound=False)

    def _open_sound(
        self, directory: DataDirectory, *, must_be_sound: bool
    ) -> tuple[RecoveredState, Writer]:
        database = directory.path / DATABASE_NAME
        connection = _connect(database)
        try:
            if not connection.execute(compiled.TABLE_NAMES).fetchone():
                raise StoreError(f"leveret.db in {self._path} has no tables; {advice(self._path)}")
            if must_be_sound:
                _require_sound(connection, database)
                # The check has opened and closed the file itself, which by the rules of POSIX has
                # released this connection's lock on it: another program could remove the
                # write-ahead log.
                connection.close()
                connection = _connect(database)
            _migrate(connection, must_be_sound=must_be_sound)
            check_columns(connection)
            directory.sync()
            return self._recover_from(connection, directory, must_be_sound=must_be_sound)
        except BaseException:
            connection.close()
            raise

    def _recover_from(
        self, connection: sqlite3.Connection, directory: DataDirectory, *, must_be_sound: bool
    ) -> tuple[RecoveredState, Writer]:
        meta = read_meta(connection)
        recovery = Recovery(connection)
        recovery.read_journals()
        if recovery.damaged and must_be_sound:
            # Older rows may have what these have lost; a repair replays all that are left.
            raise DamagedDatabase([f"the journal of queue {queue}" for queue in recovery.damaged])
        recovered = recovery.result(meta)
        self.lost = (*read_lost(directory.path), *lost_journal_rows(recovered))
        recovered = replace(recovered, lost=self.lost)
        last_event = max(recovery.number(compiled.LAST_EVENT), int(meta.get(LAST_EVENT_ID, 0)))
        transactor = Transactor(connection, last_event, recovered.last_message_id)
        transactor.journal_sizes = recovery.journal_sizes
        transactor.has_log_cuts = bool(recovered.log_cuts)
        last_part = recovery.number(compiled.LAST_PART)
        transactor.has_parts = last_part > 0
        self._part_ids = count(last_part + 1)
        try:
            self._mark_as_running(connection, transactor)
        except sqlite3.OperationalError as error:
            # After a crash on a full disk `clean` is 0 already, and the messages must be readable.
            if recovered.clean or not is_disk_full(error):
                raise
            transactor.roll_back()
        self.usage = measure(connection.execute)
        self.database_size = database_size(connection.execute)
        connection.execute(statements.FREE_CACHE)  # what was read for the start is not needed again
        writer = Writer(
            connection,
            transactor,
            now_ms=self._now_ms,
            free_bytes=directory.free_bytes,
            report=self._report_from_writer,
        )
        return recovered, writer

    def _mark_as_running(self, connection: sqlite3.Connection, transactor: Transactor) -> None:
        now_ms = self._now_ms()
        connection.execute(statements.BEGIN)
        transactor.set_meta("clean", "0")
        for key, value in self._notes.items():
            transactor.set_meta(key, value)
        if "id" not in read_meta(connection):
            transactor.set_meta("id", str(uuid.uuid4()))
        connection.execute(compiled.RETIRE_TRANSIENT_QUEUES, (now_ms,))
        connection.execute(compiled.CLOSE_ORIGINS, (now_ms,))
        connection.execute(statements.COMMIT)

    # -- batches ---------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        in_flight = self._in_flight.size if self._in_flight else 0
        return super().backlog + in_flight + self._spill.unwritten_bytes

    def flush(self) -> None:
        if self._batch.is_empty:
            if self._batch.must_not_lose:
                self._batch.forget_guarantees()
        elif self._in_flight is None and self._retry is None:
            if self._may_hold:
                self._hold_batch()
            else:
                self._hand_over()

    @property
    def _may_hold(self) -> bool:
        batch = self._batch
        may_wait = batch.may_sync_later and not batch.is_awaited
        return may_wait and self.state is StoreState.RUNNING and self._closing is None

    def _hold_batch(self) -> None:
        if self._hold is None:
            self._hold = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._end_hold)

    def _end_hold(self) -> None:
        """Hand over what is there, even if it is a later batch that was held for less time."""
        self._hold = None
        if self._in_flight is None and self._retry is None and not self._batch.is_empty:
            self._hand_over()

    def _hand_over(self) -> None:
        if self.state is StoreState.FAILED or self._writer is None:
            self._fail_batch(StoreFailed("the store has failed"))
            return
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if self._lost:
            self._batch.drop(self._lost)
        self._in_flight = self._take_batch()
        self._writer.put(self._in_flight)

    def _report_from_writer(self, report: Report) -> None:
        """Called on the writer thread. If the loop is closed, there is nothing left to notify."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_report, report)

    def _on_report(self, report: Report) -> None:
        if isinstance(report, BatchCommitted):
            self._in_flight = None
            self.committed = report.batch_number
            if self.state is not StoreState.FAILED:  # killed while the batch was written
                self.state = StoreState.RUNNING
            try:
                self._on_committed(report)
            finally:  # the next batch is handed over even if the listener raises
                self._continue()
        elif isinstance(report, BatchFailed):
            self._on_batch_failed(report)
        elif isinstance(report, RetentionDone):
            self._on_retention_done(report.usage)
        elif isinstance(report, Checkpointed):
            self.database_size = report.size
        elif isinstance(report, WriterFailed):
            self.state = StoreState.FAILED
            self._fail_batch(report.error)
        else:
            self._on_closed()

    def _on_batch_failed(self, report: BatchFailed) -> None:
        batch, self._in_flight = self._in_flight, None
        self.committed = report.batch_number
        if report.is_fatal or batch is None:
            self.state = StoreState.FAILED
        else:
            self.state = StoreState.DISK_FULL
            self._lost.add_batch(batch)
            self._batch.carry(batch, self._lost)
            if self._closing is None and self._loop is not None:
                self._retry = self._loop.call_later(RETRY_SECONDS, self._try_again)
        try:
            self._on_failed(report)
        finally:
            self._continue()

    def _try_again(self) -> None:
        self._retry = None
        if self._batch.is_empty and self.state is StoreState.DISK_FULL:
            # Nothing of the failed batch was kept, and blocked publishers send no other.
            self.state = StoreState.RUNNING
        self._continue()

    def _continue(self) -> None:
        """The writer is idle: hand over the next batch, or end."""
        if self._in_flight is not None or self._retry is not None:
            return
        if self._closing is not None and (self._batch.is_empty or self._has_given_up):
            self._end_writer()
        elif not self._batch.is_empty:
            if self._may_hold:
                self._hold_batch()
            else:
                self._hand_over()

    @property
    def _has_given_up(self) -> bool:
        return self.state is not StoreState.RUNNING

    def _fail_batch(self, error: StoreError) -> None:
        """Fail everything not handed over, even if it is empty: the listener must learn of it."""
        self._join_batches()
        batch = self._take_batch()
        if self._in_flight is None:
            self.committed = batch.number
        self._on_failed(BatchFailed(batch.number, error))

    # -- spilling --------------------------------------------------------------------------------

    @property
    def spilled_bytes(self) -> int:
        return self._spill.file_bytes

    @property
    def can_spill(self) -> bool:
        return True

    def open_spill(self) -> Spill:
        return self._spill.open()

    # -- reading and retention -------------------------------------------------------------------

    async def load(self, message_ids: Sequence[int]) -> list[LoadResult]:
        self._require_open()
        results = await self._reader.load(message_ids)
        return [self._lost_or(result) for result in results] if self._lost else results

    async def load_runs(self, message_ids: Sequence[int]) -> list[LoadedRun]:
        self._require_open()
        results = await self._reader.load_runs(message_ids)
        return [self._lost_or(result) for result in results] if self._lost else results

    def _require_open(self) -> None:
        if self._writer is None or self._closing is not None:
            raise StoreError("the store is closed")

    def _lost_or(self, result: Loaded) -> Loaded | UnreadableMessage:
        """Messages that a full disk has lost are missing, but not because of damage."""
        if isinstance(result, UnreadableMessage) and result.id in self._lost:
            return UnreadableMessage(result.id, "not stored: the disk was full", was_lost=True)
        return result

    async def apply_retention(self, request: RetentionRequest) -> Usage:
        """One run at a time: a second call waits for the same run."""
        if self._retention is None:
            if self.state is StoreState.FAILED or self._writer is None or self._closing:
                return self.usage
            self._loop = asyncio.get_running_loop()
            self._retention = self._loop.create_future()
            self._writer.put(request)
        return await asyncio.shield(self._retention)

    def _on_retention_done(self, usage: Usage | None) -> None:
        retention, self._retention = self._retention, None
        self.usage = usage or self.usage
        if retention is not None and not retention.done():
            retention.set_result(self.usage)

    # -- closing ---------------------------------------------------------------------------------

    async def close(self) -> None:
        if self._writer is None:
            self._release()
            return
        if self._closing is None:
            self._loop = asyncio.get_running_loop()
            self._closing = self._loop.create_future()
            if self._retry is not None:
                self._retry.cancel()
                self._retry = None
                self.state = StoreState.RUNNING  # one more attempt
            await self._reader.close()
            self._continue()
        await asyncio.shield(self._closing)

    async def kill(self) -> None:
        """The batch that is being written is finished; the one that is being built is lost."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self.state = StoreState.FAILED
        await self.close()

    def _end_writer(self) -> None:
        is_clean = not self._has_given_up
        if not self._batch.is_empty:
            self.state = StoreState.FAILED  # there is no next batch to wait for
            self._fail_batch(StoreFailed("the store is closing and cannot write"))
        if self._writer is not None and not self._close_sent:
            self._close_sent = True
            self._writer.put(Close(is_clean))

    def _on_closed(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.join()
        self._release()
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(None)

    def _release(self) -> None:
        if self._directory is not None:
            self._spill.close()
            self._directory.release()
        self.state = StoreState.CLOSED


class DamagedDatabase(Exception):
    """Pages of the database cannot be used; the rest can be copied to a new one."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(", ".join(found))
        self.found = found


def _require_sound(connection: sqlite3.Connection, database: Path) -> None:
    """Check the database, unless the disk is too full to bring the file up to date.

    Not that of another program or a newer version, which `migrate` refuses.
    """
    if not _is_ours(connection):
        return
    try:
        found = find_damage(connection, database)
        if not found and read_meta(connection).get(NEEDS_REPAIR) == "1":
            found = ["a page that was needed while the broker ran"]
    except sqlite3.OperationalError as error:
        if is_disk_full(error):
            return
        raise
    if found:
        raise DamagedDatabase(found)


def _migrate(connection: sqlite3.Connection, *, must_be_sound: bool) -> None:
    """A migration reads pages that the check has not looked at."""
    try:
        migrate(connection)
    except (sqlite3.DatabaseError, RowsOutOfOrder) as error:
        if must_be_sound and (isinstance(error, RowsOutOfOrder) or is_damage(error)):
            raise DamagedDatabase([f"a page of messages ({error})"]) from error
        raise


def _is_ours(connection: sqlite3.Connection) -> bool:
    names = {name for (name,) in connection.execute(compiled.TABLE_NAMES)}
    if "meta" not in names:
        return False
    try:
        (result,) = connection.execute(statements.check_table("meta")).fetchone()
        return result != "ok" or stored_version(connection) <= statements.SCHEMA_VERSION
    except (sqlite3.DatabaseError, StoreError):
        return True  # the version is unreadable: damage


def _create(database: Path) -> None:
    """Make an empty database. It has its name when it is complete: an empty file is a loss."""
    new = database.with_name(DATABASE_NAME + NEW_SUFFIX)
    new.unlink(missing_ok=True)
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        for statement in (*statements.AT_CREATION, *statements.WITHOUT_JOURNAL):
            connection.execute(statement).fetchall()
        migrate(connection)
    sync_file(new)
    os.replace(new, database)


def _connect(database: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        database,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    try:
        _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    testing = statements.WEAKER_SYNC.get(os.environ.get(WEAKER_SYNC_FOR_TESTS, ""), ())
    for statement in (*statements.AT_WRITER_START, *testing):
        connection.execute(statement).fetchall()
