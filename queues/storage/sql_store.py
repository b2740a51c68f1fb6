"""The store on SQLite: the loop side of the writer thread.

Threads: everything here runs on the event-loop thread; reports of the writer arrive through
`call_soon_threadsafe`. At most one batch is with the writer; while it commits, the next one grows,
and it is handed over when the report arrives. So commits group themselves without a timer, and
there is no lock.

A crash loses the batches not reported committed and nothing else.
"""

import asyncio
import os
import sqlite3
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

from leveret.model.store import (
    Committed,
    Failed,
    OnCommitted,
    OnFailed,
    Recovered,
    Retention,
    Rotten,
    StoredMessage,
    StoreError,
    StoreFailed,
    StoreState,
    Usage,
)
from queues.storage import statements
from queues.storage.batch import Batch, IdRanges
from queues.storage.directory import DATABASE_NAME, DataDirectory
from queues.storage.filling import FillingStore, wall_clock_ms
from queues.storage.migrations import check_columns, migrate
from queues.storage.reader import Reader
from queues.storage.recovery import Recovery, read_meta
from queues.storage.sweeper import measure
from queues.storage.transaction import Transactor
from queues.storage.writer import Broken, Closing, Report, Swept, Writer, is_disk_full

T = TypeVar("T")

RETRY_SECONDS: Final = 0.25
"""How soon to try again after the disk was full."""


BUSY_SECONDS: Final = 30.0
"""How long to wait for somebody who opened our database to write; only we should."""

WEAKER_SYNC_FOR_TESTS: Final = "LEVERET_TEST_SYNCHRONOUS"
"""The power-loss tests' negative control: with NORMAL, confirmed messages must get lost."""


class SqlStore(FillingStore):
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
        """`notes` are written beside the data, for those who read it without the broker."""
        super().__init__(on_committed=on_committed, on_failed=on_failed, now_ms=now_ms)
        self._path = data_directory
        self._notes = dict(notes or {})
        self._directory: DataDirectory | None = None
        self._writer: Writer | None = None
        self._reader = Reader(data_directory / DATABASE_NAME)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_flight: Batch | None = None
        self._lost = IdRanges()
        self._retry: asyncio.TimerHandle | None = None
        self._sweeping: asyncio.Future[Usage] | None = None
        self._closing: asyncio.Future[None] | None = None
        self._sentinel_sent = False

    # -- opening ---------------------------------------------------------------------------------

    def recover(self) -> Recovered:
        if self.state is not StoreState.OPENING:
            raise StoreError("the store is already open")
        self._directory = DataDirectory(self._path)
        try:
            recovered, writer = self._open(self._directory)
        except (sqlite3.Error, OSError, ValueError) as error:
            self._directory.release()
            raise StoreError(f"cannot open the data in {self._path}: {_plainly(error)}") from error
        except StoreError:
            self._directory.release()
            raise
        self.ids = count(recovered.last_message_id + 1)
        self.state = StoreState.RUNNING
        self._writer = writer
        writer.start()
        return recovered

    def _open(self, directory: DataDirectory) -> tuple[Recovered, Writer]:
        connection = _connect(directory.path / DATABASE_NAME)
        try:
            migrate(connection)
            check_columns(connection)
            directory.sync()
            return self._recover_from(connection, directory)
        except BaseException:
            connection.close()
            raise

    def _recover_from(
        self, connection: sqlite3.Connection, directory: DataDirectory
    ) -> tuple[Recovered, Writer]:
        meta = read_meta(connection)
        recovery = Recovery(connection)
        recovery.read_journals()
        recovered = recovery.result(meta)
        transactor = Transactor(
            connection, recovery.number(statements.LAST_EVENT), recovered.last_message_id
        )
        transactor.tallies = recovery.tallies
        transactor.has_announced = bool(recovered.log_ends)
        try:
            self._mark_as_running(connection, transactor)
        except sqlite3.OperationalError as error:
            # After a crash on a full disk the mark is right already, and reading must go on.
            if recovered.clean or not is_disk_full(error):
                raise
            transactor.roll_back()
        self.usage = measure(connection.execute)
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
        connection.execute(statements.QUEUES_IN_HISTORY_END, (now_ms,))
        connection.execute(statements.ORIGINS_END, (now_ms,))
        connection.execute(statements.COMMIT)

    # -- batches ---------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        return self._batch.size + (self._in_flight.size if self._in_flight else 0)

    def flush(self) -> None:
        if self._batch.is_empty:
            self._batch.forget_promises()
        elif self._in_flight is None and self._retry is None:
            self._hand_over()

    def _hand_over(self) -> None:
        if self.state is StoreState.FAILED or self._writer is None:
            self._refuse(StoreFailed("the store has failed"))
            return
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if self._lost:
            self._batch.drop(self._lost)
        self._in_flight = self._take_batch()
        self._writer.put(self._in_flight)

    def _report_from_writer(self, report: Report) -> None:
        """On the writer thread. A loop that is gone has nobody left to tell."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_report, report)

    def _on_report(self, report: Report) -> None:
        if isinstance(report, Committed):
            self._in_flight = None
            self.committed = report.mark
            self.state = StoreState.RUNNING
            self._tell(self._on_committed, report)
        elif isinstance(report, Failed):
            self._on_batch_failed(report)
        elif isinstance(report, Swept):
            self._on_swept(report.usage)
        elif isinstance(report, Broken):
            self.state = StoreState.FAILED
            self._refuse(report.error)
        else:
            self._on_closed()

    def _tell(self, listener: Callable[[T], None], news: T) -> None:
        """Whatever the listener does, the next batch follows."""
        try:
            listener(news)
        finally:
            self._go_on()

    def _on_batch_failed(self, report: Failed) -> None:
        batch, self._in_flight = self._in_flight, None
        self.committed = report.mark
        if report.is_fatal or batch is None:
            self.state = StoreState.FAILED
        else:
            self.state = StoreState.DISK_FULL
            self._lost.add_batch(batch)
            self._batch.carry(batch, self._lost)
            if self._closing is None and self._loop is not None:
                self._retry = self._loop.call_later(RETRY_SECONDS, self._try_again)
        self._tell(self._on_failed, report)

    def _try_again(self) -> None:
        self._retry = None
        if self._batch.is_empty and self.state is StoreState.DISK_FULL:
            # Nothing of the failed batch was kept, and blocked publishers bring no other.
            self.state = StoreState.RUNNING
        self._go_on()

    def _go_on(self) -> None:
        """The writer is free: hand over what has gathered, or end."""
        if self._in_flight is not None or self._retry is not None:
            return
        if self._closing is not None and (self._batch.is_empty or self._has_given_up):
            self._end_writer()
        elif not self._batch.is_empty:
            self._hand_over()

    @property
    def _has_given_up(self) -> bool:
        return self.state is not StoreState.RUNNING

    def _refuse(self, error: StoreError) -> None:
        """Fail the batch being filled, even an empty one: whoever listens must hear of it."""
        batch = self._take_batch()
        if self._in_flight is None:
            self.committed = batch.mark
        self._on_failed(Failed(batch.mark, error))

    # -- reading and retention -------------------------------------------------------------------

    def load(self, message_ids: Sequence[int]) -> Awaitable[list[StoredMessage | Rotten]]:
        if self._writer is None or self._closing is not None:
            raise StoreError("the store is closed")
        return self._load(message_ids) if self._lost else self._reader.load(message_ids)

    async def _load(self, message_ids: Sequence[int]) -> list[StoredMessage | Rotten]:
        """What a full disk has lost is missing, but not by rot."""
        found = await self._reader.load(message_ids)
        return [
            Rotten(one.id, "not stored: the disk was full", was_lost=True)
            if isinstance(one, Rotten) and one.id in self._lost
            else one
            for one in found
        ]

    async def sweep(self, retention: Retention) -> Usage:
        """One at a time: a second call waits for the same sweep."""
        if self._sweeping is None:
            if self.state is StoreState.FAILED or self._writer is None or self._closing:
                return self.usage
            self._loop = asyncio.get_running_loop()
            self._sweeping = self._loop.create_future()
            self._writer.put(retention)
        return await asyncio.shield(self._sweeping)

    def _on_swept(self, usage: Usage | None) -> None:
        sweeping, self._sweeping = self._sweeping, None
        self.usage = usage or self.usage
        if sweeping is not None and not sweeping.done():
            sweeping.set_result(self.usage)

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
                self.state = StoreState.RUNNING  # one more try
            await self._reader.close()
            self._go_on()
        await asyncio.shield(self._closing)

    def _end_writer(self) -> None:
        is_clean = not self._has_given_up
        if not self._batch.is_empty:
            self.state = StoreState.FAILED  # there is no next batch to wait for
            self._refuse(StoreFailed("the store is closing and cannot write"))
        if self._writer is not None and not self._sentinel_sent:
            self._sentinel_sent = True
            self._writer.put(Closing(is_clean))

    def _on_closed(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.join()
        self._release()
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(None)

    def _release(self) -> None:
        if self._directory is not None:
            self._directory.release()
        self.state = StoreState.CLOSED


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
    is_new = connection.execute(statements.PAGE_COUNT).fetchone()[0] == 0
    creation = statements.AT_CREATION if is_new else ()
    testing = statements.SYNC_LESS.get(os.environ.get(WEAKER_SYNC_FOR_TESTS, ""), ())
    for statement in (*creation, *statements.AT_WRITER_START, *testing):
        connection.execute(statement).fetchall()


def _plainly(error: Exception) -> str:
    """In one short line."""
    return " ".join(str(error).split())[:200]
