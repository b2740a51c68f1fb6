"""Retention is applied early when much was written and consumed, not only by the clock."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from leveret.broker.policies.policies import Policy
from leveret.broker.runtime import history_retention
from tests.features.harness import BrokerHarness

BODY = bytes(1_000)


@pytest.fixture
async def harness(tmp_path, monkeypatch):
    monkeypatch.setattr(history_retention, "EARLY_BYTES", 50_000)
    harness = await BrokerHarness.start(tmp_path)
    await harness.broker.resource_monitor.stop()  # the test applies retention itself
    harness.queue("q")
    yield harness
    await harness.stop()


def stored_messages(tmp_path) -> int:
    with closing(sqlite3.connect(tmp_path / "leveret.db")) as connection:
        return int(
            connection.execute("SELECT coalesce(sum(count), 0) FROM message_packs").fetchone()[0]
        )


async def fill(harness: BrokerHarness, count: int) -> None:
    for _ in range(count):
        harness.publish("", "q", BODY)
    await harness.settle()


async def test_consumed_messages_are_trimmed_early_without_history(harness, tmp_path):
    harness.broker.policies.put(Policy("/", "none", "^q$", {"history": "off"}))
    await fill(harness, 100)
    await harness.broker.resource_monitor.history_retention.apply_if_due()
    assert stored_messages(tmp_path) == 100  # all messages are still in the queue
    assert len(await harness.bodies("q")) == 100
    await harness.settle()
    await fill(harness, 3)
    await harness.broker.resource_monitor.history_retention.apply_if_due()
    assert stored_messages(tmp_path) == 3


async def test_history_within_its_limits_is_kept(harness, tmp_path):
    await fill(harness, 100)
    await harness.bodies("q")
    await harness.settle()
    await harness.broker.resource_monitor.history_retention.apply_if_due()
    assert stored_messages(tmp_path) == 100
