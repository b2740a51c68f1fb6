"""Reads the rows of one table of a damaged file, and accepts only those that belong there.

A row must have the types of its table; JSON columns must hold JSON; messages, events and the index
of a pack must match their checksums; and the primary key's index must know the row, unless that
index is damaged too. So the content of a page of another table, or of an older one, is never taken
for rows of this one.
What the index knows and the table no longer has is lost, and named by its key.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from leveret.queues.storage.damage.btree import DamagedPage, Tree, TreeWalk, rowid_range
from leveret.queues.storage.damage.sqlite_file import Row, SqliteFile, Value
from leveret.queues.storage.old_messages import is_sound
from leveret.queues.storage.packing import event_checksum
from leveret.queues.storage.packs import Pack, PackRow

_TYPES: Final[Mapping[str, type[object]]] = {
    "TEXT": str,
    "BIGINT": int,
    "INTEGER": int,
    "BOOLEAN": int,
    "BLOB": bytes,
}
_JSON_OBJECTS: Final = frozenset({"arguments", "options", "definition"})
RowValues = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: type[object]
    is_nullable: bool
    default: Value
    key_position: int
    """From 1 on for a column of the primary key, otherwise 0."""
    is_rowid: bool

    def accepts(self, value: Value) -> bool:
        if value is None:
            return self.is_nullable
        if not isinstance(value, self.type):
            return False
        return self.name not in _JSON_OBJECTS or _is_json_object(str(value))


@dataclass(slots=True)
class TableDamage:
    """What could not be read of a table.

    `ids`: first and last rowid of each damaged page that held rows (None: up to the newest);
    `keys`: primary keys, known from the index, of rows that are lost; `bad_ids`: rowids of rows
    that were found and refused.
    """

    pages: list[DamagedPage] = field(default_factory=list)
    ids: list[tuple[int, int | None]] = field(default_factory=list)
    keys: list[RowValues] = field(default_factory=list)
    bad_ids: set[int] = field(default_factory=set)
    knows_all_keys: bool = False
    """The index is sound: every row that is lost is one of `keys`."""

    @property
    def has_lost_rows(self) -> bool:
        return bool(self.ids or self.keys or self.bad_ids)

    def may_include(self, rowid: int) -> bool:
        ranges = (low <= rowid and (high is None or rowid <= high) for low, high in self.ids)
        return any(ranges) or rowid in self.bad_ids


def read_columns(connection: sqlite3.Connection, table: str) -> list[Column]:
    rows = connection.execute(f"PRAGMA table_info({table})").fetchall()
    keys = [row for row in rows if row[5]]
    columns = []
    for _, name, declared, not_null, default, key in rows:
        value = connection.execute(f"SELECT {default}").fetchone()[0] if default else None
        kind = _TYPES.get(declared.upper(), object)
        if kind is int and value is not None:
            value = int(value)
        is_rowid = bool(key) and len(keys) == 1 and declared.upper() == "INTEGER"
        columns.append(Column(name, kind, not not_null, value, key, is_rowid))
    return columns


class TableReader:
    """`twins`: pages whose content is also that of another page; one of both is damaged."""

    def __init__(
        self,
        file: SqliteFile,
        table: Tree,
        columns: list[Column],
        key_index: Tree | None,
        twins: frozenset[int],
    ) -> None:
        self._file = file
        self._table = table
        self._columns = columns
        self._key_index = key_index
        keys = (at for at, column in enumerate(columns) if column.key_position)
        self._key_columns = sorted(keys, key=lambda at: columns[at].key_position)
        self._twins = twins
        self._check = _CHECKS.get(table.name, _any)
        # Each message of a pack has its own checksum: the others can be used.
        self._fill = table.name == "message_packs"
        self.names = [column.name for column in columns]
        self.damage = TableDamage()

    def foreign_pages(self, *, leaves: bool = True) -> Iterator[DamagedPage]:
        """Leaves with the content of another table: their first row is none of this one.

        Without `leaves`, only the last one is looked at.
        """
        for page in TreeWalk(self._file, self._table, leaves=leaves).pages():
            if not isinstance(page, DamagedPage) and page.node.is_leaf and page.node.cells:
                first = next(self._file.rows(page.node, fill=self._fill))
                values = self._maybe_all_values(first) if first is not None else None
                if values is None or not self._has_types(values):
                    yield DamagedPage(page.node.number, self._table.name, page.keys)

    def rows(self) -> Iterator[RowValues]:
        """Every row that can be read; `damage` is complete after the last one."""
        known = self._known_keys() if self._key_index is not None else None
        self.damage.knows_all_keys = known is not None
        found: set[RowValues] = set()
        for row, is_doubtful in self._readable_rows():
            key = self._index_key(row)
            is_refused = key not in known if known is not None else is_doubtful
            if is_refused and self._key_index is not None:
                self.damage.bad_ids.add(row.rowid)
            else:
                found.add(key)
                yield row.values
        if known is not None:
            yield from self._rows_of_index(known - found)

    def _rows_of_index(self, lost: Iterable[RowValues]) -> Iterator[RowValues]:
        """Rows that only the index has: complete if every column is part of the key."""
        for entry in sorted(lost, key=repr):
            values = entry[:-1]
            is_complete = self._key_columns == list(range(len(self._columns)))
            if is_complete and self._is_valid(values):
                yield values
            else:
                self.damage.keys.append(values)

    def _readable_rows(self) -> Iterator[tuple[Row, bool]]:
        for page in TreeWalk(self._file, self._table).pages():
            if isinstance(page, DamagedPage):
                self._add_damaged(page)
            elif page.node.is_leaf:
                is_twin = page.node.number in self._twins
                for row in self._file.rows(page.node, fill=self._fill):
                    complete = self._complete(row) if row is not None else None
                    if complete is not None:
                        yield complete, is_twin
                    elif row is not None:
                        self.damage.bad_ids.add(row.rowid)
                    elif (ids := rowid_range(page.keys)) not in self.damage.ids:
                        self.damage.ids.append(ids)

    def _add_damaged(self, page: DamagedPage) -> None:
        self.damage.pages.append(page)
        if page.tree == self._table.name and page.is_leaf:
            self.damage.ids.append(rowid_range(page.keys))

    def _complete(self, row: Row) -> Row | None:
        """With the rowid and later columns filled in; None if it is not a row of this table."""
        values = self._maybe_all_values(row)
        return Row(row.rowid, values) if values is not None and self._is_valid(values) else None

    def _maybe_all_values(self, row: Row) -> RowValues | None:
        missing = self._columns[len(row.values) :]
        if len(row.values) > len(self._columns):
            return None
        values = [*row.values, *(column.default for column in missing)]
        for at, column in enumerate(self._columns):
            if column.is_rowid:
                if values[at] is not None:
                    return None
                values[at] = row.rowid
        return tuple(values)

    def _has_types(self, values: RowValues) -> bool:
        return all(map(Column.accepts, self._columns, values))

    def _is_valid(self, values: RowValues) -> bool:
        if not self._has_types(values):
            return False
        try:
            return self._check(dict(zip(self.names, values, strict=True)))
        except (struct.error, OverflowError, ValueError):
            return False

    # The index of the primary key ----------------------------------------------------------------

    def _index_key(self, row: Row) -> RowValues:
        return (*(row.values[at] for at in self._key_columns), row.rowid)

    def _known_keys(self) -> set[RowValues] | None:
        """The entries of the index; None if it is damaged and therefore knows too little."""
        assert self._key_index is not None
        known: set[RowValues] = set()
        for page in TreeWalk(self._file, self._key_index).pages():
            if isinstance(page, DamagedPage):
                if page.tree == self._key_index.name:
                    self.damage.pages.append(page)
                    return None
                continue
            entries = list(self._file.rows(page.node))
            is_twin = page.node.number in self._twins
            if is_twin or not all(map(self._is_entry, entries)):
                self.damage.pages.append(DamagedPage(page.node.number, self._key_index.name))
                return None
            known.update(entry.values for entry in entries if entry is not None)
        return known

    def _is_entry(self, entry: Row | None) -> bool:
        """Whether it may be one of this index: another one may have as many columns."""
        if entry is None or len(entry.values) != len(self._key_columns) + 1:
            return False
        columns = [self._columns[at] for at in self._key_columns]
        return all(map(Column.accepts, columns, entry.values[:-1]))


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _any(_row: Mapping[str, Any]) -> bool:
    return True


def _is_json_value(row: Mapping[str, Any]) -> bool:
    try:
        json.loads(row["value"])
    except ValueError:
        return False
    return True


def _is_sound_event(row: Mapping[str, Any]) -> bool:
    names = ("time_ms", "kind", "queue_id", "actor", "detail", "count", "ids", "sizes")
    return bool(event_checksum(*(row[name] for name in names)) == row["crc"])


def _is_sound_pack(row: Mapping[str, Any]) -> bool:
    """Raises DamagedPack, which is a ValueError."""
    return len(Pack(PackRow._make(row.values()))) > 0


_CHECKS: Final[Mapping[str, Callable[[Mapping[str, Any]], bool]]] = {
    "messages": is_sound,
    "message_packs": _is_sound_pack,
    "events": _is_sound_event,
    "parameters": _is_json_value,
}
