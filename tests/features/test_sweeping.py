"""Content goes when much has come and gone, not only when it is time to."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from leveret.broker import upkeep
from leveret.broker.policies import Policy
from tests.features.hub import Hub

BODY = bytes(1_000)


@pytest.fixture
async def hub(tmp_path, monkeypatch):
    monkeypatch.setattr(upkeep, "SWEEP_BYTES", 50_000)
    started = await Hub.start(tmp_path)
    await started.broker.upkeep.stop()  # the test says when to look
    started.queue("q")
    yield started
    await started.stop()


def stored(tmp_path) -> int:
    with closing(sqlite3.connect(tmp_path / "leveret.db")) as connection:
        return int(connection.execute("SELECT count(*) FROM messages").fetchone()[0])


async def fill(hub: Hub, count: int) -> None:
    for _ in range(count):
        hub.publish("", "q", BODY)
    await hub.settle()


async def test_without_history_what_was_consumed_goes_soon(hub, tmp_path):
    hub.broker.policies.put(Policy("/", "none", "^q$", {"history": "off"}))
    await fill(hub, 100)
    await hub.broker.upkeep._sweep()
    assert stored(tmp_path) == 100  # all of it is still held
    assert len(await hub.bodies("q")) == 100
    await hub.settle()
    await fill(hub, 3)
    await hub.broker.upkeep._sweep()
    assert stored(tmp_path) == 3


async def test_history_within_its_limits_stays(hub, tmp_path):
    await fill(hub, 100)
    await hub.bodies("q")
    await hub.settle()
    await hub.broker.upkeep._sweep()
    assert stored(tmp_path) == 100
