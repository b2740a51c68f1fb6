from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from leveret.model.store import (
    BindingDefinition,
    ExchangeDefinition,
    GroupOffset,
    PolicyDefinition,
    QueueDefinition,
    SchemaTooNew,
    StoreError,
    UserDefinition,
    VhostDefinition,
)
from queues.storage import migrations, schema
from queues.storage.directory import DATABASE_NAME
from queues.storage.migrations import MIGRATIONS, SCHEMA_FILE, migrate, stored_version
from queues.storage.statements import SCHEMA_VERSION, TABLE_NAMES
from tests.contract.stores import Harness

OLD_DATA = Path(__file__).parents[2] / "data"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / DATABASE_NAME, isolation_level=None)
    yield connection
    connection.close()


def add_column(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE vhosts ADD COLUMN colour TEXT")


def fail(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE vhosts ADD COLUMN taste TEXT")
    raise RuntimeError("power cut")


def columns(database: sqlite3.Connection) -> list[str]:
    return [row[1] for row in database.execute("PRAGMA table_info(vhosts)")]


def test_there_is_a_step_to_every_version_from_the_second_on():
    assert sorted(MIGRATIONS) == list(range(2, SCHEMA_VERSION + 1))


def test_the_file_is_the_schema_compiled():
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema.compiled()


def test_an_empty_database_gets_the_schema_and_its_stamp(database: sqlite3.Connection):
    assert migrate(database) == 0
    assert stored_version(database) == SCHEMA_VERSION
    assert migrate(database) == SCHEMA_VERSION
    names = {name for (name,) in database.execute(TABLE_NAMES)}
    assert names == set(schema.metadata.tables)


def test_a_schema_half_made_leaves_nothing(database: sqlite3.Connection, monkeypatch, tmp_path):
    torn = tmp_path / "schema.sql"
    torn.write_text("CREATE TABLE meta (a);\nCREATE TABLE meta (a);\n")
    monkeypatch.setattr(migrations, "SCHEMA_FILE", torn)
    with pytest.raises(sqlite3.OperationalError):
        migrate(database)
    database.execute("ROLLBACK")
    assert stored_version(database) == 0


def test_steps_run_once_and_in_order(database: sqlite3.Connection):
    migrate(database)
    next_version = SCHEMA_VERSION + 1
    steps = {**MIGRATIONS, next_version: add_column}
    assert migrate(database, steps, next_version) == SCHEMA_VERSION
    assert stored_version(database) == next_version
    assert migrate(database, steps, next_version) == next_version
    assert "colour" in columns(database)


def test_a_step_that_fails_leaves_the_version_before_it(database: sqlite3.Connection):
    migrate(database)
    steps = {**MIGRATIONS, SCHEMA_VERSION + 1: add_column, SCHEMA_VERSION + 2: fail}
    with pytest.raises(RuntimeError):
        migrate(database, steps, SCHEMA_VERSION + 2)
    assert stored_version(database) == SCHEMA_VERSION + 1
    assert "taste" not in columns(database)


def test_a_newer_version_is_refused(tmp_path: Path, database: sqlite3.Connection):
    migrate(database, MIGRATIONS, SCHEMA_VERSION + 1)
    text = f"schema {SCHEMA_VERSION + 1}, this one knows {SCHEMA_VERSION}"
    with pytest.raises(SchemaTooNew, match=text):
        Harness(tmp_path)


def test_tables_of_somebody_else_are_refused(tmp_path: Path):
    connection = sqlite3.connect(tmp_path / "leveret.db")
    connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()
    with pytest.raises(StoreError, match="not ours"):
        Harness(tmp_path)


def test_a_lost_version_stamp_is_refused(tmp_path: Path, database: sqlite3.Connection):
    migrate(database)
    database.execute("DELETE FROM meta")
    with pytest.raises(StoreError, match="no schema version"):
        Harness(tmp_path)


@pytest.mark.parametrize("version", [1])
async def test_data_of_every_released_version_opens(tmp_path: Path, version: int):
    shutil.copytree(OLD_DATA / f"store-v{version}", tmp_path / "data")
    harness = Harness(tmp_path / "data")
    found = set(harness.recovered.definitions)
    assert {
        VhostDefinition("/", '{"description": "first"}'),
        UserDefinition("guest", "hash", "argon2id", "administrator"),
        ExchangeDefinition("/", "orders", "topic", arguments='{"alternate-exchange": "lost"}'),
        QueueDefinition(1, "/", "orders.eu", created_ms=1_700_000_000_000),
        QueueDefinition(2, "/", "orders.log", "stream", created_ms=1_700_000_000_000),
        BindingDefinition("/", "orders", "orders.eu", "queue", "eu.#"),
        PolicyDefinition("/", "short", pattern="^orders", definition='{"max-length": 10}'),
        GroupOffset(2, "readers", 41, 1_700_000_000_000),
    } <= found
    assert harness.live(1) == [2, 4, 5]
    assert await harness.bodies([2, 4, 5]) == [b"\x00order 2\xff", b"order 4", b""]
    assert harness.recovered.lease == 1000
    assert not harness.recovered.clean
    assert next(harness.store.ids) == 1001
    await harness.close()
