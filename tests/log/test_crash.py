"""kill -9 of members and of the broker: no confirmed record is lost or skipped, commits never go
back or run ahead, and transactions write each output once (R-25, here with 6 kills)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.torture.client import PROPERTIES, Client
from tests.torture.consumer_groups import kill_members_and_broker
from tests.torture.log_damage import cut_tails, flip_sealed
from tests.torture.process import BrokerProcess

pytestmark = pytest.mark.timeout(300)
SEED = 25
PARTITIONS = 8


async def test_killed_members_and_brokers_lose_nothing(tmp_path):
    outcome = await kill_members_and_broker(tmp_path, kills=6, seed=SEED)
    assert outcome.safe, str(outcome)


async def test_r09_truncated_and_damaged_tails(tmp_path):
    """On files; tests/unit/log/test_scan.py tries every cut of a tail in memory."""
    outcome = await cut_tails(tmp_path, flips=100, seed=SEED)
    assert outcome.safe, str(outcome)


async def test_r10_damaged_sealed_segments(tmp_path):
    outcome = await flip_sealed(tmp_path, flips=60, seed=SEED)
    assert outcome.safe, str(outcome)


async def test_crash_during_creation_leaves_a_complete_log_or_none(tmp_path):
    """Killed after some confirms, while other files are being created; all are declared again."""
    broker = BrokerProcess(tmp_path / "run")
    logs = tmp_path / "run" / "logs"
    for kill, answers in enumerate((1, 3, 7), 1):
        await broker.start()
        client = await Client.connect(broker.address)
        names = [f"log-{kill}-{number}" for number in range(12)]
        for name in names:
            client.send(_partitioned(name))
        for _ in names[:answers]:
            await client._expect(commands.Queue.DeclareOk)
        await broker.kill()
        client.close()
        await broker.start()
        await _use(broker, names, answers)
        await broker.stop()
        assert await asyncio.to_thread(_known, logs) == kill * len(names) * PARTITIONS


def _partitioned(name: str, passive: bool = False) -> commands.Queue.Declare:
    arguments: Any = {"x-queue-type": "stream", "x-partitions": PARTITIONS}
    return commands.Queue.Declare(queue=name, durable=True, arguments=arguments, passive=passive)


async def _use(broker: BrokerProcess, names: list[str], answered: int) -> None:
    """All confirmed logs exist; each partition of every log accepts a record."""
    client = await Client.connect(broker.address)
    await client.call(commands.Tx.Select(), commands.Tx.SelectOk)
    for at, name in enumerate(names):
        await client.call(_partitioned(name, passive=at < answered), commands.Queue.DeclareOk)
        partitions = [f"{name}-{number}" for number in range(PARTITIONS)]
        for partition in partitions:
            client.publish("", partition, b"x", PROPERTIES["persistent"])
        await client.call(commands.Tx.Commit(), commands.Tx.CommitOk)
        assert [await client.count(partition) for partition in partitions] == [1] * PARTITIONS
    client.close()


def _known(logs: Path) -> int:
    return sum(path.name.isdecimal() for path in logs.iterdir())
