"""Stores under test, and what they reported."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from leveret.model.history import EventKind, Keep
from leveret.model.store import (
    Committed,
    Failed,
    NewMessage,
    QueueDefinition,
    Recovered,
    Rotten,
    Store,
    StoredMessage,
)
from queues.storage.directory import DATABASE_NAME
from queues.storage.memory_store import MemoryStore
from queues.storage.sql_store import SqlStore

DEADLINE = 30
ROOM = 1 << 29
PROPERTIES = b"\x10\x00\x02"


def quick_disk() -> Path | None:
    """A directory in memory with room to spare, if the machine has one."""
    shared = Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).free > ROOM:
        return shared
    return None


def copy_as_after_a_crash(data: Path, copy: Path) -> None:
    """The files of a running store as kill -9 would leave them now.

    The write-ahead log first: a checkpoint in between then changes nothing.
    """
    copy.mkdir(parents=True)
    for wal in data.glob("*-wal"):
        shutil.copy2(wal, copy / wal.name)
    shutil.copytree(data, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*-wal", "*-shm"))


class FakeClock:
    """Milliseconds that tests move."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class Harness:
    """A store with its listeners; `outcomes` holds every report in order."""

    def __init__(self, directory: Path | None, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.outcomes: list[Committed | Failed] = []
        self._news = asyncio.Event()
        self._directory = directory
        self.store: Store = self._build(directory)
        self.recovered: Recovered = self.store.recover()

    def _build(self, directory: Path | None) -> Store:
        if directory is None:
            return MemoryStore(on_committed=self.hear, on_failed=self.hear, now_ms=self.clock)
        return SqlStore(directory, on_committed=self.hear, on_failed=self.hear, now_ms=self.clock)

    @property
    def sql(self) -> SqlStore:
        assert isinstance(self.store, SqlStore)
        return self.store

    def hear(self, outcome: Committed | Failed) -> None:
        self.outcomes.append(outcome)
        self._news.set()

    @property
    def committed(self) -> list[Committed]:
        return [outcome for outcome in self.outcomes if isinstance(outcome, Committed)]

    @property
    def failed(self) -> list[Failed]:
        return [outcome for outcome in self.outcomes if isinstance(outcome, Failed)]

    async def wait_for(self, mark: int) -> None:
        async with asyncio.timeout(DEADLINE):
            while self.store.committed < mark:
                self._news.clear()
                await self._news.wait()

    async def durable(self) -> int:
        """Flush, and wait until everything done so far is decided."""
        mark = self.store.mark
        self.store.flush()
        await self.wait_for(mark)
        return mark

    async def close(self) -> None:
        async with asyncio.timeout(DEADLINE):
            await self.store.close()

    # -- doing what a broker does ----------------------------------------------------------------

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
        self.store.append(
            NewMessage(message_id, self.clock(), 0, "", routing_key, PROPERTIES, body, keep)
        )
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
        """What was in the queue when the store was opened."""
        return sorted(i for part in self.recovered.live.get(queue_id, ()) for i in part.ids)

    async def bodies(self, message_ids: Sequence[int]) -> list[bytes | None]:
        found = await self.store.load(message_ids)
        return [item.body if isinstance(item, StoredMessage) else None for item in found]

    async def rotten(self, message_ids: Sequence[int]) -> list[int]:
        found = await self.store.load(message_ids)
        return [item.id for item in found if isinstance(item, Rotten)]

    def query(self, sql: str, *values: object) -> list[Any]:
        """Look into the database as a reader would."""
        assert self._directory is not None
        address = f"file:{self._directory / DATABASE_NAME}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            return connection.execute(sql, values).fetchall()
