"""The write-ahead log is checkpointed before it gets large, for any kind of messages."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from leveret.model.history import EventKind
from leveret.model.message import encode_properties
from leveret.queues.storage import writer
from leveret.queues.storage.directory import DATABASE_NAME
from tests.contract.stores import Harness, copy_as_after_crash, run_of_one

MIB = 1024 * 1024


@pytest.mark.parametrize("part", ["properties", "body"])
async def test_write_ahead_log_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
):
    monkeypatch.setattr(writer, "IDLE_SECONDS", 3600.0)
    harness = Harness(tmp_path)
    harness.declare()
    await harness.durable()
    largest, long_headers = 0, encode_properties({"headers": {"long": "x" * MIB}})
    for _ in range(30):
        number = next(harness.store.ids)
        content = (long_headers, b"") if part == "properties" else (b"\0\0", bytes(MIB))
        harness.store.append(run_of_one(number, 1, 0, "", "q1", *content))
        harness.store.record(EventKind.ENQUEUED, 1, number, size=len(content[1]))
        assert MIB < harness.store.backlog < MIB + 100
        await harness.durable()
        log = tmp_path / f"{DATABASE_NAME}-wal"
        largest = max(largest, log.stat().st_size)
    assert largest < 8 * MIB
    await harness.close()


async def test_another_program_that_opens_the_database_does_not_remove_the_log(tmp_path: Path):
    harness = Harness(tmp_path / "data")
    harness.declare()
    harness.publish()
    await harness.durable()
    database = tmp_path / "data" / DATABASE_NAME
    program = f"""
import sqlite3
connection = sqlite3.connect({str(database)!r})
connection.execute("SELECT count(*) FROM meta").fetchall()
connection.close()
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await process.wait() == 0
    harness.publish()
    await harness.durable()
    copy_as_after_crash(tmp_path / "data", tmp_path / "copy")
    await harness.close()
    copy = Harness(tmp_path / "copy")
    assert copy.live() == [1, 2]
    await copy.close()
