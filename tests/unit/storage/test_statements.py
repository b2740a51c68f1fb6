from __future__ import annotations

import ast
import re
import sqlite3
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from leveret.model.definitions import DEFINITION_TABLES, QueueDefinition
from leveret.model.history import EventKind
from leveret.queues.storage import compiled_statements as compiled
from leveret.queues.storage import core_statements, schema, statements
from leveret.queues.storage.packs import PackRow

STORAGE = Path(statements.__file__).parent


@given(st.integers(0, 20_000))
def test_statement_sizes_add_up_and_are_few(rows: int):
    sizes = list(statements.statement_sizes(rows))
    assert sum(sizes) == rows
    assert all(1 <= size <= statements.MAX_ROWS for size in sizes)
    assert len(sizes) <= rows // statements.MAX_ROWS + 4


def test_few_different_statement_sizes_are_used():
    used = {size for rows in range(10_000) for size in statements.statement_sizes(rows)}
    assert len(used) < 50


@pytest.fixture
def empty() -> sqlite3.Connection:
    engine = create_engine("sqlite://")
    schema.metadata.create_all(engine)
    connection = engine.raw_connection()
    driver = connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    connection.detach()
    return driver


def all_texts() -> list[str]:
    texts: list[str] = []
    for name, value in vars(compiled).items():
        if name.isupper() and isinstance(value, str):
            texts.append(value)
        elif name.endswith("_DEFINITIONS"):
            texts += value.values()
    texts += [statements.insert_packs(2), statements.insert_events(2)]
    texts.append(statements.insert_missing_queues(3))
    for kind in DEFINITION_TABLES:
        texts += [statements.upsert(kind, 3), statements.delete(kind, 3)]
    return texts


def test_every_statement_fits_the_schema(empty: sqlite3.Connection):
    texts = all_texts()
    assert len(texts) > 60
    for text in texts:
        empty.execute("EXPLAIN " + text, (0,) * text.count("?"))
    empty.close()


def test_compiled_statements_are_up_to_date():
    expected = core_statements.compiled_module()
    assert core_statements.COMPILED_FILE.read_text(encoding="utf-8") == expected, (
        "run python -m leveret.queues.storage.core_statements"
    )


def test_start_does_not_import_sqlalchemy():
    program = (
        "import sys; import leveret.launch, leveret.http_admin.app,"
        " leveret.queues.storage.sql_store, leveret.queues.storage.history;"
        " sys.exit('sqlalchemy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_statement_for_one_row_is_repeated_for_many():
    row = "(" + ",".join("?" * len(compiled.COLUMNS["events"])) + ")"
    assert statements.insert_events(1).split("VALUES")[1].strip() == row
    assert statements.insert_events(3).split("VALUES")[1].strip() == ",".join([row] * 3)
    upsert = statements.upsert(QueueDefinition, 2)
    assert upsert.count("?") == 2 * len(fields(QueueDefinition))
    assert "ON CONFLICT (id) DO UPDATE" in upsert


def test_definitions_name_columns_of_their_table():
    for kind, name in DEFINITION_TABLES.items():
        table = schema.metadata.tables[name]
        assert {field.name for field in fields(kind)} <= set(table.columns.keys())  # type: ignore[arg-type]
        assert statements.KEY_COLUMNS[kind] == tuple(column.name for column in table.primary_key)


def test_upserts_leave_columns_outside_the_definition_alone():
    assert "snapshot_event" not in compiled.UPSERT_DEFINITIONS["queues"]
    assert "deleted_ms" not in compiled.UPSERT_DEFINITIONS["queues"]


def test_inserts_write_every_column_of_packs_and_events():
    assert compiled.COLUMNS["message_packs"][:2] == PackRow._fields[:2]
    assert compiled.COLUMNS["message_packs"][3:] == PackRow._fields[3:]  # `count` is a method there
    assert list(compiled.COLUMNS["message_packs"]) == schema.message_packs.columns.keys()
    assert list(compiled.COLUMNS["events"]) == schema.events.columns.keys()
    for sql, expected in (
        (compiled.INSERT_PACKS, compiled.COLUMNS["message_packs"]),
        (compiled.INSERT_EVENTS, compiled.COLUMNS["events"]),
    ):
        columns = sql.split("(")[1].split(")")[0]
        assert tuple(columns.replace("\n", " ").split(", ")) == expected


def test_journal_reads_exactly_the_kinds_that_are_state():
    kinds = {int(part) for part in compiled.JOURNAL.split("IN (")[1].split(")")[0].split(",")}
    assert kinds == {3, 30, *(kind for kind in EventKind if 10 <= kind <= 19)}


def test_schema_compiles_for_postgresql():
    dialect = postgresql.dialect()
    for table in schema.metadata.sorted_tables:
        assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=dialect))
        for index in table.indexes:
            assert "CREATE INDEX" in str(CreateIndex(index).compile(dialect=dialect))


@pytest.mark.parametrize("kind", DEFINITION_TABLES, ids=DEFINITION_TABLES.get)
def test_definitions_to_delete_are_searched_for(empty: sqlite3.Connection, kind: type[object]):
    """A scan would make every unbind as slow as the number of bindings."""
    sql = statements.delete(kind, 3)
    plan = empty.execute(f"EXPLAIN QUERY PLAN {sql}", [""] * sql.count("?")).fetchall()
    table = DEFINITION_TABLES[kind]
    assert [text for *_, text in plan if text.startswith(f"SEARCH {table} ")]
    assert not [text for *_, text in plan if text.startswith(f"SCAN {table}")]


SQLITE_ONLY = re.compile(
    r"\b(PRAGMA|json_each|group_concat|sqlite_master|INSERT OR|ON CONFLICT|BEGIN IMMEDIATE)\b"
)
SQL = re.compile(r"\b(SELECT|INSERT INTO|DELETE FROM|UPDATE \w+ SET)\b")
SQL_MODULES = {"core_statements.py", "compiled_statements.py", "statements.py"}


def test_sql_that_only_sqlite_understands_is_in_the_statement_modules():
    """The same schema is to run on PostgreSQL: a port changes only these modules."""
    matches = {
        f"{path.name}: {match[0]}"
        for path in STORAGE.glob("*.py")
        if path.name not in SQL_MODULES
        for match in SQLITE_ONLY.finditer(path.read_text(encoding="utf-8"))
    }
    assert matches == set()
    assert SQLITE_ONLY.search((STORAGE / "statements.py").read_text(encoding="utf-8"))


def test_statements_are_written_in_core_and_not_as_text():
    matches = {
        f"{path.name}: {match[0]}"
        for path in STORAGE.glob("*.py")
        if path.name != "compiled_statements.py"
        for text in texts_in(path)
        for match in SQL.finditer(text)
    }
    assert matches == set()


def texts_in(path: Path) -> list[str]:
    """The string constants of a module, without docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings
    ]
