"""The tables of a data directory: one module and one `Table` object for each."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa

from leveret.spark_sink.arrow.schemas import TableSchema, schema_of
from leveret.spark_sink.arrow.selection import Request, Split
from leveret.spark_sink.arrow.source import ReadStats
from leveret.spark_sink.arrow.sql import Database


class Table(Protocol):
    """How one table is read. Implementations have no state."""

    schema: TableSchema

    def splits(self, database: Database, request: Request, rows: int) -> Iterator[Split]:
        """Parts of the requested range with at most `rows` rows each, in order.

        Splitting a range again gives the same parts unless retention has trimmed it.
        """

    def read(
        self, database: Database, request: Request, stats: ReadStats
    ) -> Iterator[pa.RecordBatch]:
        """Batches of the requested columns."""

    def count(self, database: Database, request: Request) -> dict[str, Any]:
        """`rows`, and `groups` where the table has them, without building the rows."""


def table_named(name: str) -> Table:
    """Imports the table's module on first use: `logs` needs libraries that the others do not."""
    module = import_module(f"leveret.spark_sink.arrow.tables.{schema_of(name).name}")
    table: Table = module.TABLE
    return table
