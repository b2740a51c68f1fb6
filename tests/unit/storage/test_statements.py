from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from leveret.model.history import EventKind
from queues.storage import schema, statements
from queues.storage.keys import KEY_COLUMNS


@given(st.integers(0, 20_000))
def test_sizes_add_up_and_are_few(rows: int):
    sizes = list(statements.statement_sizes(rows))
    assert sum(sizes) == rows
    assert all(1 <= size <= statements.LARGEST_INSERT for size in sizes)
    assert len(sizes) <= rows // statements.LARGEST_INSERT + 4


def test_few_different_sizes_are_ever_prepared():
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


def test_every_statement_fits_the_schema(empty: sqlite3.Connection):
    texts = [
        text
        for name, text in vars(statements).items()
        if name.isupper()
        and isinstance(text, str)
        and text.startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "\nSELECT"))
    ]
    texts += [statements.insert_messages(1), statements.insert_events(2)]
    for kind in statements.DEFINITION_TABLES:
        texts += [statements.upsert(kind, 1), statements.upsert(kind, 3)]
        texts += [statements.delete(kind, 1), statements.delete(kind, 3)]
    assert len(texts) > 60
    for text in texts:
        empty.execute("EXPLAIN " + text, (0,) * text.count("?"))
    empty.close()


def test_definitions_name_columns_of_their_table():
    for kind, name in statements.DEFINITION_TABLES.items():
        table = schema.metadata.tables[name]
        assert set(statements.columns_of(kind)) <= set(table.columns.keys())
        assert KEY_COLUMNS[kind] == tuple(column.name for column in table.primary_key)


def test_messages_and_events_are_written_whole():
    assert list(statements.MESSAGE_COLUMNS) == schema.messages.columns.keys()
    assert list(statements.EVENT_COLUMNS) == schema.events.columns.keys()


def test_the_journal_reads_exactly_the_kinds_that_are_state():
    kinds = {int(part) for part in statements.JOURNAL.split("IN (")[1].split(")")[0].split(",")}
    assert kinds == {3, 30, *(kind for kind in EventKind if 10 <= kind <= 19)}


def test_the_schema_compiles_for_postgresql():
    dialect = postgresql.dialect()
    for table in schema.metadata.sorted_tables:
        assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=dialect))
        for index in table.indexes:
            assert "CREATE INDEX" in str(CreateIndex(index).compile(dialect=dialect))


SQLITE_ONLY = re.compile(
    r"\b(PRAGMA|json_each|group_concat|sqlite_master|INSERT OR|ON CONFLICT|BEGIN IMMEDIATE)\b"
)


def test_what_only_sqlite_understands_is_in_one_module():
    """The same schema is to run on PostgreSQL: whoever brings it changes one file."""
    home = Path(statements.__file__)
    found = {
        f"{path.name}: {match[0]}"
        for path in home.parent.glob("*.py")
        if path != home
        for match in SQLITE_ONLY.finditer(path.read_text(encoding="utf-8"))
    }
    assert found == set()
    assert SQLITE_ONLY.search(home.read_text(encoding="utf-8"))
