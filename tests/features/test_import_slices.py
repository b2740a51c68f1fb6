"""A long import runs in slices, between which others work; a crash does not leave half of it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leveret.broker import Broker
from leveret.broker.definitions import pending_import
from leveret.broker.definitions.export import export_all
from leveret.broker.definitions.file import parse_definitions
from leveret.broker.policies.parameters import GLOBAL, IMPORT
from leveret.broker.runtime import slices
from leveret.broker.runtime.slices import run_at_once
from leveret.exchange import ExchangeSpec
from leveret.model.definitions import ParameterDefinition
from leveret.model.errors import PreconditionFailed
from leveret.queues.spec import QueueSpec
from leveret.queues.storage.directory import DATABASE_NAME
from tests.features.harness import BrokerHarness

QUEUES, BINDINGS = 300, 3


def document(**more: Any) -> dict[str, Any]:
    queues = [{"vhost": "v", "name": f"q{number}", "durable": True} for number in range(QUEUES)]
    return {
        "vhosts": [{"name": "v"}],
        "exchanges": [{"vhost": "v", "name": "e", "type": "topic", "durable": True}],
        "queues": queues,
        "bindings": [
            {"vhost": "v", "source": "e", "destination": queue["name"], "routing_key": f"k{key}"}
            for queue in queues
            for key in range(BINDINGS)
        ],
        **more,
    }


@asynccontextmanager
async def started(directory: Path | None = None) -> AsyncIterator[BrokerHarness]:
    harness = await BrokerHarness.start(directory)
    try:
        yield harness
    finally:
        await harness.stop()


def begin(broker: Broker, body: dict[str, Any]) -> asyncio.Task[None]:
    definitions = run_at_once(parse_definitions(body))
    return asyncio.create_task(broker.imports.run(definitions))


def queue_count(broker: Broker) -> int:
    return len(broker.vhosts["v"].queues) if "v" in broker.vhosts else 0


def binding_count(broker: Broker) -> int:
    return len(list(broker.vhosts["v"].bindings()))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - every turn of the loop is looked at
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(slices, "PAUSE_SECONDS", 0)


async def test_others_run_while_a_long_import_runs() -> None:
    async with started() as harness:
        broker, counts = harness.broker, set[int]()
        importing = begin(broker, document())
        while not importing.done():
            counts.add(queue_count(broker))
            await asyncio.sleep(0)
        await importing
        assert len(counts) > QUEUES / 2
        assert (queue_count(broker), binding_count(broker)) == (QUEUES, QUEUES * BINDINGS)


async def test_imports_run_one_after_the_other() -> None:
    async with started() as harness:
        broker = harness.broker
        first = begin(broker, document())
        second = begin(broker, document(queues=[], bindings=[], vhosts=[{"name": "w"}] * 300))
        await until(lambda: "w" in broker.vhosts)
        assert first.done() and queue_count(broker) == QUEUES
        await asyncio.gather(first, second)


async def test_import_continues_when_its_request_is_cancelled() -> None:
    async with started() as harness:
        importing = begin(harness.broker, document())
        await until(lambda: queue_count(harness.broker) > 0)
        importing.cancel()
        await asyncio.gather(importing, return_exceptions=True)
        await until(lambda: binding_count(harness.broker) == QUEUES * BINDINGS)


async def test_what_is_deleted_meanwhile_is_not_created_again() -> None:
    async with started() as harness:
        broker = harness.broker
        importing = begin(broker, document())
        await until(lambda: queue_count(broker) == QUEUES)
        await until(lambda: binding_count(broker) == 30)
        broker.vhosts["v"].delete_queue("q0")
        broker.vhosts["v"].delete_exchange("e")
        await importing
        assert (queue_count(broker), binding_count(broker)) == (QUEUES - 1, 0)


async def test_vhost_that_is_deleted_meanwhile_stays_deleted() -> None:
    permission = {"user": "guest", "vhost": "v", "configure": "", "write": "", "read": ""}
    async with started() as harness:
        broker = harness.broker
        importing = begin(broker, document(permissions=[permission]))
        await until(lambda: queue_count(broker) == 30)
        broker.delete_vhost("v")
        await importing
        assert "v" not in broker.vhosts
        assert ("guest", "v") not in broker.users.permissions


async def test_clash_with_what_is_created_meanwhile_is_reported() -> None:
    log = {"x-queue-type": "stream", "x-partitions": 2}
    body = document()
    body["queues"].append({"vhost": "v", "name": "log", "durable": True, "arguments": log})
    async with started() as harness:
        broker = harness.broker
        importing = begin(broker, body)
        await until(lambda: queue_count(broker) == 30)
        broker.vhosts["v"].declare_exchange(ExchangeSpec("log", "fanout"))
        broker.vhosts["v"].declare_queue(QueueSpec("q200", durable=False))
        with pytest.raises(PreconditionFailed, match=r"1 of 1203 .* exchange 'log' in vhost 'v'"):
            await importing
        assert binding_count(broker) == QUEUES * BINDINGS
        assert not broker.vhosts["v"].queues["q200"].spec.durable


async def test_refused_import_changes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    bad = {"vhost": "v", "source": "none", "destination": "q0", "routing_key": ""}
    body = document()
    body["bindings"].append(bad)
    async with started(tmp_path) as harness:
        with pytest.raises(PreconditionFailed, match="no exchange 'none'"):
            await begin(harness.broker, body)
        assert "v" not in harness.broker.vhosts
    assert stored_import(tmp_path / DATABASE_NAME) == {}


def stored_import(database: Path) -> dict[str, str]:
    with closing(sqlite3.connect(database)) as connection:
        query = "SELECT name, value FROM parameters WHERE component = ?"
        return dict(connection.execute(query, (IMPORT,)).fetchall())


def crash(running: Path, crashed: Path) -> None:
    """Copy what is committed: the state that a crash at this moment would leave."""
    crashed.mkdir()
    with (
        closing(sqlite3.connect(running / DATABASE_NAME)) as source,
        closing(sqlite3.connect(crashed / DATABASE_NAME)) as target,
    ):
        source.backup(target)


@pytest.mark.parametrize("committed", [1, 100, QUEUES + 50])
async def test_import_is_finished_after_a_crash(tmp_path: Path, committed: int) -> None:
    running, crashed = tmp_path / "running", tmp_path / "crashed"
    async with started(running) as harness:
        importing = begin(harness.broker, document(users=[{"name": "u", "password": "secret"}]))
        database = running / DATABASE_NAME
        await until(lambda: int(stored_import(database).get("applied", 0)) >= committed)
        crash(running, crashed)
        applied = int(stored_import(crashed / DATABASE_NAME)["applied"])
        await importing
    assert committed <= applied < QUEUES * (BINDINGS + 1)
    async with started(crashed) as harness:
        broker = harness.broker
        assert (queue_count(broker), binding_count(broker)) == (QUEUES, QUEUES * BINDINGS)
        assert "u" in broker.users.by_name
    assert stored_import(crashed / DATABASE_NAME) == {}


async def test_import_is_finished_after_a_stop(tmp_path: Path) -> None:
    async with started(tmp_path) as harness:
        importing = begin(harness.broker, document())
        await until(lambda: queue_count(harness.broker) == 30)
    assert (await asyncio.gather(importing, return_exceptions=True))[0] is not None
    async with started(tmp_path) as harness:
        assert binding_count(harness.broker) == QUEUES * BINDINGS


async def test_what_was_deleted_before_a_crash_stays_deleted(tmp_path: Path) -> None:
    async with started(tmp_path) as harness:
        importing = begin(harness.broker, document())
        await until(lambda: queue_count(harness.broker) == 30)
        harness.broker.vhosts["v"].delete_queue("q0")
    await asyncio.gather(importing, return_exceptions=True)
    async with started(tmp_path) as harness:
        assert "q0" not in harness.broker.vhosts["v"].queues
        assert queue_count(harness.broker) == QUEUES - 1


async def test_damaged_import_does_not_prevent_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path) as harness:
        value = '"AAAA"'
        harness.broker.store.save(ParameterDefinition(GLOBAL, IMPORT, "content", value))
        harness.broker.scheduler.schedule()
    async with started(tmp_path) as harness:
        assert list(harness.broker.vhosts) == ["/"]
    assert "the rest of an import is damaged" in caplog.text
    assert stored_import(tmp_path / DATABASE_NAME) == {}


def test_stored_import_is_what_was_parsed_and_has_no_passwords() -> None:
    log = {"x-queue-type": "stream", "x-partitions": 2, "x-max-age": "1D"}
    pattern = {"configure": ".*", "write": "^a", "read": ""}
    policy = {"vhost": "v", "pattern": "^q", "definition": {"max-length": 5}, "priority": 3}
    body = document(
        users=[{"name": "a", "password": "secret", "tags": "management", "limits": {}}],
        permissions=[{"user": "a", "vhost": "v", **pattern}],
        topic_permissions=[{"user": "a", "vhost": "v", "exchange": "e", "write": "", "read": "k"}],
        parameters=[
            {"vhost": "v", "component": "operator_policy", "name": "o", "value": policy},
            {"vhost": "v", "component": "other", "name": "p", "value": {"x": [1, 2.5, None]}},
        ],
        global_parameters=[{"name": "cluster_name", "value": "c"}],
        policies=[{**policy, "name": "p", "apply-to": "queues"}],
        leveret={"users": [{"name": "b", "password": "secret"}]},
    )
    body["queues"].append({"vhost": "v", "name": "log", "durable": True, "arguments": log})
    body["vhosts"].append({"name": "w", "description": "d", "tags": ["t"], "tracing": True})
    definitions = run_at_once(parse_definitions(body))
    stored = pending_import._decode(run_at_once(pending_import._encode(definitions)))
    assert "secret" not in str(stored)
    again = run_at_once(parse_definitions(stored))
    assert replace(again, warnings=[]) == replace(definitions, warnings=[])


async def test_bindings_that_are_left_out_do_not_shift_the_rest(tmp_path: Path) -> None:
    dangling = {"vhost": "v", "source": "e", "destination": "exclusive", "routing_key": ""}
    body = document(rabbitmq_version="3.13.0")
    body["bindings"] = [dangling] * 50 + body["bindings"]
    async with started(tmp_path) as harness:
        importing = begin(harness.broker, body)
        await until(lambda: queue_count(harness.broker) == QUEUES)
        await until(lambda: binding_count(harness.broker) == 30)
    await asyncio.gather(importing, return_exceptions=True)
    async with started(tmp_path) as harness:
        assert binding_count(harness.broker) == QUEUES * BINDINGS


async def test_export_is_a_snapshot_although_others_run_meanwhile() -> None:
    async with started() as harness:
        broker, counts = harness.broker, set[int]()
        await begin(broker, document())
        exporting = asyncio.create_task(slices.run_in_slices(export_all(broker)))
        await asyncio.sleep(0)
        broker.vhosts["v"].delete_queue("q7")
        broker.vhosts["v"].declare_queue(QueueSpec("late", durable=True))
        while not exporting.done():
            counts.add(len(counts))
            await asyncio.sleep(0)
        exported = await exporting
        assert len(counts) > QUEUES
        assert {row["name"] for row in exported["queues"]} == {f"q{n}" for n in range(QUEUES)}
        assert len(exported["bindings"]) == QUEUES * BINDINGS
