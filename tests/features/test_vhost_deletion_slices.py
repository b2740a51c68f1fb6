"""Deleting a virtual host with many queues runs in slices, and is finished after a crash."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from leveret.bindings import Destination, DestinationKind
from leveret.broker import Broker
from leveret.broker.definitions.file import parse_definitions
from leveret.broker.runtime import slices
from leveret.broker.runtime.slices import run_at_once
from leveret.broker.vhost_deletion import DELETING
from leveret.exchange import ExchangeSpec
from leveret.model.definitions import PermissionDefinition
from leveret.model.errors import PreconditionFailed
from leveret.queues.spec import QueueSpec
from leveret.queues.storage.directory import DATABASE_NAME
from tests.features.test_import_slices import crash, started, until

QUEUES = 100


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(slices, "PAUSE_SECONDS", 0)


def fill(broker: Broker) -> None:
    vhost = broker.add_vhost("v")
    vhost.declare_exchange(ExchangeSpec("e", "topic", durable=True))
    for number in range(QUEUES):
        vhost.declare_queue(QueueSpec(f"q{number}", durable=True))
        vhost.bind("e", Destination(DestinationKind.QUEUE, f"q{number}"), "k", {})
    broker.users.set_permission(PermissionDefinition("guest", "v", ".*", ".*", ".*"))


async def test_others_run_while_a_vhost_is_deleted() -> None:
    async with started() as harness:
        broker, counts = harness.broker, set[int]()
        fill(broker)
        vhost = broker.vhosts["v"]
        deleting = asyncio.create_task(broker.vhost_deletions.run("v"))
        await until(lambda: "v" not in broker.vhosts)
        while not deleting.done():
            counts.add(len(vhost.queues))
            await asyncio.sleep(0)
        await deleting
        assert len(counts) > QUEUES / 2
        assert ("guest", "v") not in broker.users.permissions


async def test_name_is_free_when_the_deletion_has_ended() -> None:
    async with started() as harness:
        broker = harness.broker
        fill(broker)
        deleting = asyncio.create_task(broker.vhost_deletions.run("v"))
        await until(lambda: "v" not in broker.vhosts)
        with pytest.raises(PreconditionFailed, match="vhost 'v' is being deleted"):
            broker.add_vhost("v")
        definitions = run_at_once(parse_definitions({"vhosts": [{"name": "v"}]}))
        await broker.imports.run(definitions)
        assert deleting.done() and not broker.vhosts["v"].queues


async def test_deletion_continues_when_its_request_is_cancelled() -> None:
    async with started() as harness:
        broker = harness.broker
        fill(broker)
        deleting = asyncio.create_task(broker.vhost_deletions.run("v"))
        await until(lambda: "v" not in broker.vhosts)
        deleting.cancel()
        await broker.vhost_deletions.finished("v")
        broker.add_vhost("v")


def is_marked(database: Path) -> bool:
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT options FROM vhosts WHERE name = 'v'").fetchall()
    return all(DELETING in options for (options,) in rows)


async def test_deletion_is_finished_after_a_crash(tmp_path: Path) -> None:
    running, crashed = tmp_path / "running", tmp_path / "crashed"
    async with started(running) as harness:
        broker = harness.broker
        fill(broker)
        await broker.commit_waiters.committed(sync=True)
        vhost = broker.vhosts["v"]
        deleting = asyncio.create_task(broker.vhost_deletions.run("v"))
        await until(lambda: is_marked(running / DATABASE_NAME))
        assert 0 < len(vhost.queues) < QUEUES
        crash(running, crashed)
        await deleting
    for _ in range(2):
        async with started(crashed) as harness:
            assert list(harness.broker.vhosts) == ["/"]
            assert ("guest", "v") not in harness.broker.users.permissions
            harness.broker.add_vhost("w")
            assert not harness.broker.vhosts["w"].queues
            harness.broker.delete_vhost("w")


async def test_deletion_is_finished_after_a_stop(tmp_path: Path) -> None:
    async with started(tmp_path) as harness:
        broker = harness.broker
        fill(broker)
        vhost = broker.vhosts["v"]
        deleting = asyncio.create_task(broker.vhost_deletions.run("v"))
        await until(lambda: len(vhost.queues) == QUEUES // 2)
    await asyncio.gather(deleting, return_exceptions=True)
    assert (tmp_path / DATABASE_NAME).exists()
    async with started(tmp_path) as harness:
        assert list(harness.broker.vhosts) == ["/"]
        harness.broker.add_vhost("v")
        assert not harness.broker.vhosts["v"].queues
