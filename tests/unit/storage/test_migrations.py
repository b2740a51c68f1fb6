from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine

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
from queues.storage import schema
from queues.storage.migrations import MIGRATIONS, migrate, stored_version
from tests.contract.stores import Harness

OLD_DATA = Path(__file__).parents[2] / "data"


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return create_engine(
        f"sqlite:///{tmp_path / 'leveret.db'}", connect_args={"isolation_level": None}
    )


def version_of(engine: Engine) -> int:
    with engine.connect() as connection:
        return stored_version(connection)


def add_column(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE vhosts ADD COLUMN colour TEXT")


def fail(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE vhosts ADD COLUMN taste TEXT")
    raise RuntimeError("power cut")


def columns(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return [row[1] for row in connection.exec_driver_sql("PRAGMA table_info(vhosts)")]


def test_the_newest_step_is_the_schema_version():
    assert max(MIGRATIONS) == schema.SCHEMA_VERSION
    assert sorted(MIGRATIONS) == list(range(1, schema.SCHEMA_VERSION + 1))


def test_an_empty_database_gets_the_schema_and_its_stamp(engine: Engine):
    assert migrate(engine) == 0
    assert version_of(engine) == schema.SCHEMA_VERSION
    assert migrate(engine) == schema.SCHEMA_VERSION
    engine.dispose()


def test_steps_run_once_and_in_order(engine: Engine):
    migrate(engine)
    steps = {**MIGRATIONS, 2: add_column}
    assert migrate(engine, steps) == 1
    assert version_of(engine) == 2
    assert migrate(engine, steps) == 2
    assert "colour" in columns(engine)
    engine.dispose()


def test_a_step_that_fails_leaves_the_version_before_it(engine: Engine):
    with pytest.raises(RuntimeError):
        migrate(engine, {**MIGRATIONS, 2: add_column, 3: fail})
    assert version_of(engine) == 2
    assert "taste" not in columns(engine)
    engine.dispose()


def test_a_newer_version_is_refused(tmp_path: Path, engine: Engine):
    migrate(engine, {**MIGRATIONS, 2: add_column})
    engine.dispose()
    with pytest.raises(SchemaTooNew, match="schema 2, this one knows 1"):
        Harness(tmp_path)


def test_tables_of_somebody_else_are_refused(tmp_path: Path):
    connection = sqlite3.connect(tmp_path / "leveret.db")
    connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()
    with pytest.raises(StoreError, match="not ours"):
        Harness(tmp_path)


def test_a_lost_version_stamp_is_refused(tmp_path: Path, engine: Engine):
    migrate(engine)
    engine.dispose()
    connection = sqlite3.connect(tmp_path / "leveret.db")
    connection.execute("DELETE FROM meta")
    connection.commit()
    connection.close()
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
