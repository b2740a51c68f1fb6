"""Stores under test, and their reports."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from leveret.model.definitions import QueueDefinition
from leveret.model.history import EventKind, Keep
from leveret.model.message import Address, Body, Message
from leveret.model.run import Run
from leveret.model.store import (
    BatchCommitted,
    BatchFailed,
    RecoveredState,
    Store,
    StoredMessage,
    UnreadableMessage,
)
from leveret.queues.storage.directory import DATABASE_NAME
from leveret.queues.storage.memory_store import MemoryStore
from leveret.queues.storage.packs import Pack, PackRow
from leveret.queues.storage.read_only import open_read_only
from leveret.queues.storage.sql_store import SqlStore

DEADLINE = 30
ROOM = 1 << 29
PROPERTIES = b"\x10\x00\x02"


def memory_disk() -> Path | None:
    """A directory in memory, if the machine has a large enough one."""
    shared = Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).free > ROOM:
        return shared
    return None


def copy_as_after_crash(data: Path, copy: Path) -> None:
    """The files of a running store as kill -9 would leave them now.

    The write-ahead log first: a checkpoint in between then changes nothing.
    """
    copy.mkdir(parents=True)
    for wal in data.glob("*-wal"):
        shutil.copy2(wal, copy / wal.name)
    shutil.copytree(data, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*-wal", "*-shm"))


def run_of_one(
    message_id: int,
    time_ms: int,
    origin: int,
    exchange: str,
    routing_key: str,
    properties: bytes,
    body: Body,
    keep: Keep = Keep.FULL,
) -> Run:
    """A message as a queue gives it to the store."""
    message = Message.build(Address.of(exchange, routing_key), properties, body)
    message.id, message.time_ms, message.origin, message.keep = message_id, time_ms, origin, keep
    return Run.of([message])


class FakeClock:
    """Milliseconds that tests advance."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class Harness:
    """A store with its listeners; `outcomes` holds every report in order.

    Tests may replace the listeners `on_committed` and `on_failed`.
    """

    def __init__(self, directory: Path | None, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.outcomes: list[BatchCommitted | BatchFailed] = []
        self._news = asyncio.Event()
        self._directory = directory
        self.on_committed: Callable[[BatchCommitted], None] = self.on_outcome
        self.on_failed: Callable[[BatchFailed], None] = self.on_outcome
        self.store: Store = self._build(directory)
        self.recovered: RecoveredState = self.store.recover()

    def _build(self, directory: Path | None) -> Store:
        if directory is None:
            return MemoryStore(
                on_committed=lambda report: self.on_committed(report),
                on_failed=lambda report: self.on_failed(report),
                now_ms=self.clock,
            )
        return SqlStore(
            directory,
            on_committed=lambda report: self.on_committed(report),
            on_failed=lambda report: self.on_failed(report),
            now_ms=self.clock,
        )

    @property
    def sql(self) -> SqlStore:
        assert isinstance(self.store, SqlStore)
        return self.store

    def on_outcome(self, outcome: BatchCommitted | BatchFailed) -> None:
        self.outcomes.append(outcome)
        self._news.set()

    @property
    def committed(self) -> list[BatchCommitted]:
        return [outcome for outcome in self.outcomes if isinstance(outcome, BatchCommitted)]

    @property
    def failed(self) -> list[BatchFailed]:
        return [outcome for outcome in self.outcomes if isinstance(outcome, BatchFailed)]

    async def wait_for(self, batch_number: int) -> None:
        async with asyncio.timeout(DEADLINE):
            while self.store.committed < batch_number:
                self._news.clear()
                await self._news.wait()

    async def durable(self) -> int:
        """Flush, and wait until all work so far is decided."""
        batch_number = self.store.batch_number
        self.store.flush()
        await self.wait_for(batch_number)
        return batch_number

    async def close(self) -> None:
        async with asyncio.timeout(DEADLINE):
            await self.store.close()

    # -- the work of a broker --------------------------------------------------------------------

    def declare(self, queue_id: int = 1, *, durable: bool = True) -> QueueDefinition:
        queue = QueueDefinition(queue_id, "/", f"q{queue_id}", durable=durable)
        self.store.save(queue)
        return queue

    def publish(
        self,
        body: bytes = b"hello",
        queue_ids: Iterable[int] = (1,),
        *,
        routing_key: str = "q1",
        keep: Keep = Keep.FULL,
        detail: str | None = None,
    ) -> int:
        message_id = next(self.store.ids)
        content = ("", routing_key, PROPERTIES, body, keep)
        self.store.append(run_of_one(message_id, self.clock(), 0, *content))
        for queue_id in queue_ids:
            self.store.record(
                EventKind.ENQUEUED, queue_id, message_id, detail=detail, size=len(body)
            )
        return message_id

    def publish_many(self, count: int, body: bytes = b"hello", keep: Keep = Keep.FULL) -> list[int]:
        return [self.publish(body, keep=keep) for _ in range(count)]

    def ack(self, message_ids: Sequence[int], queue_id: int = 1) -> None:
        self.store.record_many(EventKind.ACKED, queue_id, message_ids)

    def live(self, queue_id: int = 1) -> list[int]:
        """The ids of the messages in the queue when the store was opened."""
        return sorted(i for part in self.recovered.live.get(queue_id, ()) for i in part.ids)

    async def bodies(self, message_ids: Sequence[int]) -> list[bytes | None]:
        results = await self.store.load(message_ids)
        return [bytes(item.body) if isinstance(item, StoredMessage) else None for item in results]

    async def unreadable(self, message_ids: Sequence[int]) -> list[int]:
        results = await self.store.load(message_ids)
        return [item.id for item in results if isinstance(item, UnreadableMessage)]

    def stored_ids(self) -> list[int]:
        """The ids of all messages whose content is in the database."""
        packs = self.query("SELECT * FROM message_packs ORDER BY id")
        return [message_id for row in packs for message_id in Pack(PackRow(*row)).ids]

    def query(self, sql: str, *values: object) -> list[Any]:
        """Query the database as an outside reader would."""
        assert self._directory is not None
        with closing(open_read_only(self._directory / DATABASE_NAME)) as connection:
            return connection.execute(sql, values).fetchall()
