"""The write-ahead log is checkpointed before it gets large, for any kind of messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.model.history import EventKind, Keep
from leveret.model.store import NewMessage
from leveret.queues.storage import writer
from leveret.queues.storage.directory import DATABASE_NAME
from tests.contract.stores import Harness

MIB = 1024 * 1024


@pytest.mark.parametrize("part", ["properties", "body"])
async def test_write_ahead_log_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
):
    monkeypatch.setattr(writer, "IDLE_SECONDS", 3600.0)
    harness = Harness(tmp_path)
    harness.declare()
    await harness.durable()
    long, largest = bytes(MIB), 0
    for _ in range(30):
        number = next(harness.store.ids)
        content = (long, b"") if part == "properties" else (b"", long)
        harness.store.append(NewMessage(number, 1, 0, "", "q1", *content, Keep.FULL))
        harness.store.record(EventKind.ENQUEUED, 1, number, size=len(content[1]))
        assert harness.store.backlog == MIB
        await harness.durable()
        log = tmp_path / f"{DATABASE_NAME}-wal"
        largest = max(largest, log.stat().st_size)
    assert largest < 16 * MIB
    await harness.close()
