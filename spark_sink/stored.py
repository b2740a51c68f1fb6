"""Stored rows of one id range as columns: what the tables `messages` and `events` share.

One statement per range; only the columns needed leave the disk. Belongs to the reader's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.database import Database
from spark_sink.names import Origins, Republished, origins
from spark_sink.packed import Ints, Packed, bytes_sql, number_sql, numbers, texts
from spark_sink.selection import Selection

Where = tuple[str, list[Any]]
"""SQL that follows a WHERE, and its values."""


class StoredRows:
    """Subclasses say which columns of their table are numbers and which are bytes."""

    table: str
    number_columns: tuple[str, ...]
    bytes_columns: tuple[str, ...]
    origin_column: str

    def __init__(
        self, database: Database, needed: set[str], span: tuple[int, int], where: Where
    ) -> None:
        singles = [name for name in self.number_columns if name in needed]
        pairs = [name for name in self.bytes_columns if name in needed]
        selected = [number_sql(name) for name in singles] + [bytes_sql(name) for name in pairs]
        row = database.row(
            f"SELECT {', '.join(selected)} FROM (SELECT {', '.join(singles + pairs)}"  # noqa: S608
            f" FROM {self.table} WHERE id >= ? AND id < ? {where[0]} ORDER BY id)",
            [*span, *where[1]],
        )
        self._database = database
        self._numbers = {name: numbers(row[i]) for i, name in enumerate(singles)}
        self._packed = {
            name: Packed(row[len(singles) + 2 * i], row[len(singles) + 2 * i + 1])
            for i, name in enumerate(pairs)
        }
        self._origins: Origins | None = None
        self.bytes = sum(len(packed.data) for packed in self._packed.values())

    def number(self, name: str) -> Ints:
        return self._numbers[name]

    def packed(self, name: str) -> Packed:
        return self._packed[name]

    def origin(self, name: str) -> pa.Array:
        """A fact about who acted, per stored row; null where the broker itself did."""
        wanted = self._numbers[self.origin_column]
        if self._origins is None:
            self._origins = origins(self._database, wanted)
        return getattr(self._origins, name).take(self._origins.index_of(wanted))


def with_own_vhosts(
    vhosts: pa.Array, own: np.ndarray[Any, Any], ids: Ints, republished: Republished
) -> pa.Array:
    """The column with the vhosts of what the broker itself published (`own`) filled in."""
    if not own.any():
        return vhosts
    found = texts(republished.vhosts(ids[own]))
    return pc.replace_with_mask(vhosts, pa.array(own), found)


def time_conditions(selection: Selection) -> Where:
    parts: list[str] = []
    values: list[Any] = []
    if selection.since_ms is not None:
        parts.append("AND time_ms >= ?")
        values.append(selection.since_ms)
    if selection.until_ms is not None:
        parts.append("AND time_ms < ?")
        values.append(selection.until_ms)
    return " ".join(parts), values


def of_vhosts(column: str, selection: Selection) -> Where:
    """SQL that is true for who acted in the vhosts of a selection."""
    marks = ", ".join("?" * len(selection.vhosts))
    return (
        f"{column} IN (SELECT id FROM origins WHERE vhost IN ({marks}))",  # noqa: S608
        list(selection.vhosts),
    )


def is_wanted_vhost(vhosts: pa.Array, selection: Selection) -> np.ndarray[Any, Any]:
    wanted = pa.array(selection.vhosts, pa.string())
    found: np.ndarray[Any, Any] = pc.is_in(vhosts, value_set=wanted).to_numpy(zero_copy_only=False)
    return found


def numbers_sql(values: Iterable[int]) -> str:
    return ", ".join(str(int(value)) for value in values)
