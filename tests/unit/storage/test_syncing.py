"""Commits are synced if a client waits for them; commits of acks alone are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.model.store import RequireSync
from leveret.queues.storage import sql_store, writer
from tests.contract.stores import Harness


class TracedHarness(Harness):
    """`levels` are the sync levels of the commits so far: 2 syncs, 1 does not."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.levels: list[int] = []
        self._level = 2
        self._connection = self.sql._writer._connection  # type: ignore[union-attr]
        self._connection.set_trace_callback(self._note)

    def _note(self, statement: str) -> None:
        if statement.startswith("PRAGMA synchronous="):
            self._level = {"NORMAL": 1}.get(statement[19:]) or int(statement[19:])
        elif statement == "COMMIT" or statement.startswith("INSERT INTO meta"):
            self.levels.append(self._level)


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SYNC_SECONDS", 3600.0)


async def started(directory: Path) -> TracedHarness:
    harness = TracedHarness(directory)
    harness.declare()
    harness.publish_many(3)
    await harness.durable()
    assert harness.levels == [2]
    return harness


@pytest.mark.usefixtures("long")
async def test_acks_alone_are_not_synced(tmp_path: Path):
    harness = await started(tmp_path)
    harness.ack([1])
    await harness.durable()
    assert harness.levels == [2, 1]
    harness.publish()
    await harness.durable()
    assert harness.levels == [2, 1, 2]
    await harness.close()
    again = Harness(tmp_path)
    assert again.live() == [2, 3, 4]
    await again.close()


@pytest.mark.usefixtures("long")
async def test_acks_with_require_sync_are_synced(tmp_path: Path):
    harness = await started(tmp_path)
    harness.ack([1])
    harness.store.save(RequireSync())
    await harness.durable()
    assert harness.levels == [2, 2]
    await harness.close()


@pytest.mark.usefixtures("long")
async def test_require_sync_syncs_earlier_commits(tmp_path: Path):
    harness = await started(tmp_path)
    harness.ack([1])
    await harness.durable()
    harness.store.save(RequireSync())
    await harness.durable()
    assert harness.levels == [2, 1, 2]
    harness.store.save(RequireSync())  # nothing is left to sync
    await harness.durable()
    assert harness.levels == [2, 1, 2]
    await harness.close()


async def test_acks_are_synced_after_a_while_without_require_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(writer, "SYNC_SECONDS", -1.0)
    harness = await started(tmp_path)
    harness.ack([1])
    await harness.durable()
    assert harness.levels == [2, 2]
    await harness.close()


@pytest.mark.usefixtures("long")
async def test_failed_unsynced_commit_restores_the_sync_level(tmp_path: Path):
    harness = await started(tmp_path)
    transactor = harness.sql._writer._transactor  # type: ignore[union-attr]
    harness.ack([1])
    batch = harness.sql._take_batch()
    transactor._insert_events = None  # type: ignore[method-assign]
    with pytest.raises(TypeError):
        transactor.run_unsynced(batch, 0)
    assert harness._level == 2
    assert not transactor._connection.in_transaction
    await harness.close()


@pytest.mark.usefixtures("long")
async def test_publish_joins_the_acks_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sql_store, "HOLD_SECONDS", 3600.0)
    harness = await started(tmp_path)
    harness.ack([1])
    harness.store.flush()
    harness.publish()
    await harness.durable()
    assert harness.levels == [2, 2]
    await harness.close()
    again = Harness(tmp_path)
    assert again.live() == [2, 3, 4]
    await again.close()


@pytest.mark.usefixtures("long")
async def test_acks_are_committed_at_once_if_somebody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sql_store, "HOLD_SECONDS", 3600.0)
    harness = await started(tmp_path)
    harness.ack([1])
    harness.store.await_batch()
    await harness.durable()
    assert harness.levels == [2, 1]
    await harness.close()


@pytest.mark.usefixtures("long")
async def test_held_acks_are_committed_when_the_store_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sql_store, "HOLD_SECONDS", 3600.0)
    harness = await started(tmp_path)
    harness.ack([1])
    harness.store.flush()
    await harness.close()
    again = Harness(tmp_path)
    assert again.live() == [2, 3]
    await again.close()
