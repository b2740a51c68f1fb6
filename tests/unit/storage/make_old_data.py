"""Writes a data directory for `test_migrations`; run once per released schema version.

python -m tests.unit.storage.make_old_data tests/data/store-v1
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import sys
import tempfile
from array import array
from pathlib import Path

from leveret.model.definitions import (
    BindingDefinition,
    ExchangeDefinition,
    GroupOffset,
    Origin,
    PolicyDefinition,
    QueueDefinition,
    UserDefinition,
    VhostDefinition,
)
from leveret.model.history import EventKind, OriginKind
from leveret.model.store import LiveMessages, Snapshot
from tests.contract.stores import Harness


async def fill(directory: Path) -> None:
    """Leave the data as a crash would: do not close the store."""
    harness = Harness(directory)
    now = harness.clock()
    for value in (
        VhostDefinition("/", '{"description": "first"}'),
        UserDefinition("guest", "hash", "argon2id", "administrator"),
        ExchangeDefinition("/", "orders", "topic", arguments='{"alternate-exchange": "lost"}'),
        QueueDefinition(1, "/", "orders.eu", created_ms=now),
        QueueDefinition(2, "/", "orders.log", "stream", created_ms=now),
        BindingDefinition("/", "orders", "orders.eu", "queue", "eu.#"),
        PolicyDefinition("/", "short", pattern="^orders", definition='{"max-length": 10}'),
        GroupOffset(2, "readers", 41, now),
        Origin(1, OriginKind.PUBLISHER, "/", "guest", "127.0.0.1:5000", 1, created_ms=now),
    ):
        harness.store.save(value)
    for body in (b"order 1", b"\x00order 2\xff", b"order 3"):
        harness.publish(body)
    await harness.durable()
    harness.ack([1])
    harness.store.save(Snapshot(1, (LiveMessages(array("Q", [2, 3]), array("I", [9, 7])),)))
    await harness.durable()
    harness.publish(b"order 4")
    harness.publish(b"")
    harness.store.record(EventKind.DELIVERED, 1, 3, actor=1)
    harness.ack([3])
    await harness.durable()


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(fill(Path(scratch)))
        # Move the write-ahead log into the database file, the only file that is kept.
        connection = sqlite3.connect(Path(scratch) / "leveret.db")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("VACUUM")
        connection.close()
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(scratch) / "leveret.db", target / "leveret.db")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
