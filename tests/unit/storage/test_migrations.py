from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Column, Connection, Text, column, create_engine, inspect, table
from sqlalchemy import update as update_rows
from sqlalchemy.engine.interfaces import ReflectedIndex

from leveret.model.definitions import (
    BindingDefinition,
    ExchangeDefinition,
    GroupOffset,
    PolicyDefinition,
    QueueDefinition,
    UserDefinition,
    VhostDefinition,
)
from leveret.model.store import SchemaTooNew, StoreError
from leveret.queues.storage import migrations, schema
from leveret.queues.storage.compiled_statements import TABLE_NAMES
from leveret.queues.storage.directory import DATABASE_NAME, SCHEMA_FILE
from leveret.queues.storage.migration_steps import MIGRATIONS, Migration, add_column
from leveret.queues.storage.migrations import migrate, stored_version
from leveret.queues.storage.statements import SCHEMA_VERSION
from tests.contract.stores import Harness

OLD_DATA = Path(__file__).parents[2] / "data"
RELEASED_VERSIONS = [1]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / DATABASE_NAME, isolation_level=None)
    yield connection
    connection.close()


def add_colour(connection: Connection) -> None:
    """A step as a release would have it: a new column, filled from an old one."""
    add_column(connection, "vhosts", Column("colour", Text, nullable=False, server_default="red"))
    vhosts = table("vhosts", column("name"), column("colour"))
    connection.execute(
        update_rows(vhosts).where(vhosts.c.name == "/").values(colour="blue" + vhosts.c.name)
    )


def add_weight(connection: Connection) -> None:
    add_column(connection, "vhosts", Column("weight", BigInteger))


def fail(connection: Connection) -> None:
    add_column(connection, "vhosts", Column("taste", Text))
    raise RuntimeError("power failure")


def columns(database: sqlite3.Connection) -> list[str]:
    return [row[1] for row in database.execute("PRAGMA table_info(vhosts)")]


def next_steps(*steps: Migration) -> tuple[dict[int, Migration], int]:
    """The released migrations and these, and the version they lead to."""
    added = dict(enumerate(steps, SCHEMA_VERSION + 1))
    return {**MIGRATIONS, **added}, SCHEMA_VERSION + len(steps)


def test_every_version_from_the_second_on_has_a_migration():
    assert sorted(MIGRATIONS) == list(range(2, SCHEMA_VERSION + 1))


def test_schema_file_is_up_to_date():
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema.compiled(), (
        "run python -m leveret.queues.storage.core_statements"
    )


def test_empty_database_gets_the_schema_and_its_version(database: sqlite3.Connection):
    assert migrate(database) == 0
    assert stored_version(database) == SCHEMA_VERSION
    assert migrate(database) == SCHEMA_VERSION
    names = {name for (name,) in database.execute(TABLE_NAMES)}
    assert names == set(schema.metadata.tables)


def test_failed_creation_leaves_nothing(database: sqlite3.Connection, monkeypatch, tmp_path):
    torn = tmp_path / "schema.sql"
    torn.write_text("CREATE TABLE meta (a);\nCREATE TABLE meta (a);\n")
    monkeypatch.setattr(migrations, "SCHEMA_FILE", torn)
    with pytest.raises(sqlite3.OperationalError):
        migrate(database)
    database.execute("ROLLBACK")
    assert stored_version(database) == 0


def test_steps_run_once_and_in_order(database: sqlite3.Connection):
    migrate(database)
    steps, newest = next_steps(add_colour, add_weight)
    assert migrate(database, steps, newest) == SCHEMA_VERSION
    assert stored_version(database) == newest
    assert migrate(database, steps, newest) == newest
    assert columns(database)[-2:] == ["colour", "weight"]


def test_failed_step_leaves_the_version_before_it(database: sqlite3.Connection):
    migrate(database)
    steps, newest = next_steps(add_colour, fail)
    with pytest.raises(RuntimeError):
        migrate(database, steps, newest)
    assert stored_version(database) == SCHEMA_VERSION + 1
    assert "colour" in columns(database)
    assert "taste" not in columns(database)


def test_interrupted_migration_continues_at_the_next_start(database: sqlite3.Connection):
    migrate(database)
    steps, newest = next_steps(add_colour, fail)
    with pytest.raises(RuntimeError):
        migrate(database, steps, newest)
    steps, newest = next_steps(add_colour, add_weight)
    assert migrate(database, steps, newest) == SCHEMA_VERSION + 1
    assert columns(database)[-2:] == ["colour", "weight"]


@pytest.mark.parametrize("version", RELEASED_VERSIONS)
def test_migrating_old_data_keeps_and_changes_its_rows(tmp_path: Path, version: int):
    shutil.copytree(OLD_DATA / f"store-v{version}", tmp_path / "data")
    database = sqlite3.connect(tmp_path / "data" / DATABASE_NAME, isolation_level=None)
    counts = "SELECT (SELECT count(*) FROM {}), (SELECT count(*) FROM events)"
    before = database.execute(counts.format("messages")).fetchone()
    steps, newest = next_steps(add_colour, add_weight)
    assert migrate(database, steps, newest) == version
    row = database.execute("SELECT options, colour, weight FROM vhosts WHERE name='/'").fetchone()
    assert row == ('{"description": "first"}', "blue/", None)
    packs = counts.format("message_packs").replace("count(*)", 'sum("count")', 1)
    assert database.execute(packs).fetchone() == before
    database.close()


def _described(index: ReflectedIndex) -> tuple[object, ...]:
    condition = index.get("dialect_options", {}).get("sqlite_where")
    return index["name"], index["column_names"], index["unique"], str(condition)


@pytest.mark.parametrize("version", RELEASED_VERSIONS)
def test_migrated_data_has_the_schema_of_a_new_database(tmp_path: Path, version: int):
    shutil.copytree(OLD_DATA / f"store-v{version}", tmp_path / "old")
    shape = {}
    for name in ("old", "new"):
        path = tmp_path / name / DATABASE_NAME
        path.parent.mkdir(exist_ok=True)
        connection = sqlite3.connect(path, isolation_level=None)
        migrate(connection)
        connection.close()
        engine = create_engine(f"sqlite:///{path}")
        inspector = inspect(engine)
        shape[name] = {
            table_name: (
                [str(column) for column in inspector.get_columns(table_name)],
                inspector.get_pk_constraint(table_name),
                [_described(index) for index in inspector.get_indexes(table_name)],
            )
            for table_name in inspector.get_table_names()
        }
        engine.dispose()
    assert shape["old"] == shape["new"]


def test_newer_version_is_refused(tmp_path: Path, database: sqlite3.Connection):
    migrate(database, MIGRATIONS, SCHEMA_VERSION + 1)
    text = f"its schema is {SCHEMA_VERSION + 1}, this version supports {SCHEMA_VERSION}"
    with pytest.raises(SchemaTooNew, match=text):
        Harness(tmp_path)


def test_tables_of_another_program_are_refused(tmp_path: Path):
    connection = sqlite3.connect(tmp_path / "leveret.db")
    connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()
    with pytest.raises(StoreError, match="tables of another program"):
        Harness(tmp_path)


def test_missing_version_is_refused(tmp_path: Path, database: sqlite3.Connection):
    migrate(database)
    database.execute("DELETE FROM meta")
    with pytest.raises(StoreError, match="no schema version"):
        Harness(tmp_path)


@pytest.mark.parametrize("version", RELEASED_VERSIONS)
async def test_data_of_every_released_version_opens(tmp_path: Path, version: int):
    shutil.copytree(OLD_DATA / f"store-v{version}", tmp_path / "data")
    harness = Harness(tmp_path / "data")
    definitions = set(harness.recovered.definitions)
    assert {
        VhostDefinition("/", '{"description": "first"}'),
        UserDefinition("guest", "hash", "argon2id", "administrator"),
        ExchangeDefinition("/", "orders", "topic", arguments='{"alternate-exchange": "lost"}'),
        QueueDefinition(1, "/", "orders.eu", created_ms=1_700_000_000_000),
        QueueDefinition(2, "/", "orders.log", "stream", created_ms=1_700_000_000_000),
        BindingDefinition("/", "orders", "orders.eu", "queue", "eu.#"),
        PolicyDefinition("/", "short", pattern="^orders", definition='{"max-length": 10}'),
        GroupOffset(2, "readers", 41, 1_700_000_000_000),
    } <= definitions
    assert harness.live(1) == [2, 4, 5]
    assert await harness.bodies([2, 4, 5]) == [b"\x00order 2\xff", b"order 4", b""]
    assert not harness.recovered.clean
    assert next(harness.store.ids) == 6
    await harness.close()
