"""Reads pages of an SQLite file without SQLite, which gives up at the first damaged page.

Follows the documented file format (https://www.sqlite.org/fileformat2.html): b-tree pages, records,
overflow chains, the freelist and the pointer map. The pointer map exists because the database was
created with auto_vacuum: it names the parent of every page, so the children of a destroyed page
can still be found. Read only; the write-ahead log must have been checkpointed.

A page that does not follow the format is `None`, never an exception.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias

MAGIC: Final = b"SQLite format 3\x00"
INDEX_INTERIOR, TABLE_INTERIOR, INDEX_LEAF, TABLE_LEAF = 2, 5, 10, 13
ROOT, FREE, OVERFLOW_FIRST, OVERFLOW_NEXT, BTREE = range(1, 6)
"""The kinds of pages in the pointer map."""

_KINDS: Final = frozenset({INDEX_INTERIOR, TABLE_INTERIOR, INDEX_LEAF, TABLE_LEAF})
_LOCK_BYTE: Final = 1 << 30
_POINTER: Final = struct.Struct(">BI")
_NODE: Final = struct.Struct(">BHHHB")
_HEADER_SIZE: Final = 100
_NUMBERS: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_MAX_VARINT: Final = 9

Value: TypeAlias = Any
"""None, int, float, str or bytes, as in a row of the `sqlite3` module."""


class Malformed(Exception):
    """These bytes do not follow the file format."""


@dataclass(frozen=True, slots=True)
class Node:
    """A page of a b-tree. `children` is empty in a leaf; the last one is the rightmost."""

    number: int
    kind: int
    data: bytes
    cells: tuple[int, ...]
    children: tuple[int, ...]

    @property
    def is_leaf(self) -> bool:
        return not self.children

    @property
    def is_table(self) -> bool:
        return self.kind in (TABLE_INTERIOR, TABLE_LEAF)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table with its rowid, or an entry of an index with the rowid at its end."""

    rowid: int
    values: tuple[Value, ...]


class SqliteFile:
    """An open file. A context manager."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        header = os.pread(self._file, _HEADER_SIZE, 0)
        size = int.from_bytes(header[16:18], "big")
        self.page_size = 65536 if size == 1 else size
        if header[:16] != MAGIC or self.page_size < 512 or self.page_size & (self.page_size - 1):
            os.close(self._file)
            raise Malformed("the first page is not that of an SQLite database")
        self.usable = self.page_size - header[20]
        self.page_count = os.fstat(self._file).st_size // self.page_size
        self._freelist_head = int.from_bytes(header[32:36], "big")
        self.has_pointer_map = int.from_bytes(header[52:56], "big") != 0
        self._map_interval = self.usable // 5 + 1

    def __enter__(self) -> SqliteFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)

    # Pages -------------------------------------------------------------------------------------

    def page(self, number: int) -> bytes:
        if not 1 <= number <= self.page_count:
            raise Malformed(f"there is no page {number}")
        return os.pread(self._file, self.page_size, (number - 1) * self.page_size)

    def maybe_node(self, number: int) -> Node | None:
        """The page as a page of a b-tree, if it has the form of one."""
        if not 1 <= number <= self.page_count:
            return None
        data = self.page(number)
        start = _HEADER_SIZE if number == 1 else 0
        kind, free_block, count, content, fragments = _NODE.unpack_from(data, start)
        if kind not in _KINDS:
            return None
        content = content or 65536
        interior = kind in (INDEX_INTERIOR, TABLE_INTERIOR)
        cells_at = start + (12 if interior else 8)
        cells_end = cells_at + 2 * count
        if not cells_end <= content <= self.usable:
            return None
        cells = struct.unpack_from(f">{count}H", data, cells_at)
        if cells and (min(cells) < content or max(cells) > self.usable - 4):
            return None
        free = self._maybe_free_bytes(data, free_block, content)
        if free is None or fragments + free > self.usable - content:
            return None
        children: tuple[int, ...] = ()
        if interior:
            places = (*cells, start + 8)
            children = tuple(int.from_bytes(data[at : at + 4], "big") for at in places)
            if not count or any(not 2 <= child <= self.page_count for child in children):
                return None
        return Node(number, kind, data, cells, children)

    def _maybe_free_bytes(self, data: bytes, free_block: int, content: int) -> int | None:
        """How much the free blocks among the cells hold; None if their chain is malformed.

        SQLite follows the chain only before it writes to a page, and fails then.
        """
        total, lowest = 0, content
        while free_block:
            if not lowest <= free_block <= self.usable - 4:
                return None
            next_block, size = struct.unpack_from(">HH", data, free_block)
            lowest, total = free_block + size, total + size
            if size < 4 or lowest > self.usable:
                return None
            free_block = next_block
        return total

    # The pointer map and the freelist ------------------------------------------------------------

    def is_map_page(self, number: int) -> bool:
        return self.has_pointer_map and number >= 2 and self._map_page_of(number) == number

    def _map_page_of(self, number: int) -> int:
        page = (number - 2) // self._map_interval * self._map_interval + 2
        return page + 1 if page == self._lock_page else page

    @property
    def _lock_page(self) -> int:
        """SQLite never uses the page at 1 GiB."""
        return _LOCK_BYTE // self.page_size + 1

    @cached_property
    def pointers(self) -> dict[int, tuple[int, int]]:
        """The kind and the parent of every page, as the pointer map has them."""
        found: dict[int, tuple[int, int]] = {}
        if not self.has_pointer_map:
            return found
        for start in range(2, self.page_count + 1, self._map_interval):
            map_page = self._map_page_of(start)
            if map_page > self.page_count:
                break
            data = self.page(map_page)
            first = map_page + 1
            count = min(self.usable // 5, self.page_count - map_page)
            entries = _POINTER.iter_unpack(data[: 5 * count])
            found.update(zip(range(first, first + count), entries, strict=True))
        found.pop(self._lock_page, None)
        return found

    @cached_property
    def children_by_map(self) -> dict[int, set[int]]:
        """For every page of a b-tree, the pages that the pointer map names as its children."""
        found: dict[int, set[int]] = {}
        for number, (kind, parent) in self.pointers.items():
            if kind == BTREE:
                found.setdefault(parent, set()).add(number)
        return found

    @cached_property
    def _next_by_map(self) -> dict[int, int]:
        """For every page of an overflow chain, the next one that the pointer map names."""
        return {
            parent: number
            for number, (kind, parent) in self.pointers.items()
            if kind == OVERFLOW_NEXT
        }

    def malformed_map_pages(self) -> list[int]:
        """Pages of the pointer map with entries that cannot be right."""
        found: dict[int, None] = {}
        for number, (kind, parent) in self.pointers.items():
            has_parent = kind in (OVERFLOW_FIRST, OVERFLOW_NEXT, BTREE)
            is_valid = 1 <= parent <= self.page_count if has_parent else not parent
            if kind not in range(ROOT, BTREE + 1) or not is_valid:
                found[self._map_page_of(number)] = None
        return list(found)

    def maybe_damaged_freelist_page(self) -> int | None:
        """The first page of the freelist that is not one."""
        number, seen = self._freelist_head, set[int]()
        while number:
            if number in seen or not 2 <= number <= self.page_count:
                return max(1, min(number, self.page_count))
            if self.has_pointer_map and self.pointers.get(number) != (FREE, 0):
                return number
            seen.add(number)
            data = self.page(number)
            next_page, count = struct.unpack_from(">II", data)
            if count > self.usable // 4 - 2:
                return number
            leaves = struct.unpack_from(f">{count}I", data, 8)
            if any(not 2 <= leaf <= self.page_count for leaf in leaves):
                return number
            number = next_page
        return None

    # Cells and records ---------------------------------------------------------------------------

    def separator(self, node: Node, index: int) -> Value:
        """The key between two children of an interior page: a rowid, or the values of an entry."""
        at = node.cells[index] + 4
        if node.kind == TABLE_INTERIOR:
            return _signed(_varint(node.data, at)[0])
        return self._record(node, at).values

    def key(self, node: Node, index: int) -> Value:
        """The key of a cell in a leaf."""
        if node.kind == TABLE_LEAF:
            _, at = _varint(node.data, node.cells[index])
            return _signed(_varint(node.data, at)[0])
        return self._record(node, node.cells[index]).values

    def rows(self, node: Node, *, fill: bool = False) -> Iterator[Row | None]:
        """The rows of a leaf, or the entries of any page of an index; None if malformed.

        `fill`: what is on an overflow page that is not there is zeroes.
        """
        skip = 4 if node.kind == INDEX_INTERIOR else 0
        for cell in node.cells:
            try:
                yield self._record(node, cell + skip, fill)
            except (Malformed, IndexError, struct.error, UnicodeDecodeError):
                yield None

    def _record(self, node: Node, at: int, fill: bool = False) -> Row:
        size, at = _varint(node.data, at)
        rowid = 0
        if node.kind == TABLE_LEAF:
            unsigned, at = _varint(node.data, at)
            rowid = _signed(unsigned)
        values = decode_record(self._payload(node, at, size, fill))
        if node.kind != TABLE_LEAF:
            if not values or not isinstance(values[-1], int):
                raise Malformed("an index entry without a rowid")
            rowid = values[-1]
        return Row(rowid, values)

    def _payload(self, node: Node, at: int, size: int, fill: bool) -> bytes:
        local = self._local_size(node, size)
        if at + local > self.usable:
            raise Malformed("a cell ends outside its page")
        payload = node.data[at : at + local]
        if local == size:
            return payload
        if size > self.page_count * self.page_size:
            raise Malformed("a record is larger than the file")
        parts, left = [payload], size - local
        number = int.from_bytes(node.data[at + local : at + local + 4], "big")
        while left > 0:
            if fill and not 2 <= number <= self.page_count:
                parts.append(bytes(left))
                break
            data = self.page(number)
            part = data[4 : min(self.usable, left + 4)]
            parts.append(part)
            left -= len(part)
            following = int.from_bytes(data[:4], "big")
            if fill and self.pointers.get(following) != (OVERFLOW_NEXT, number):
                following = self._next_by_map.get(number, following)
            number = following
        return b"".join(parts)

    def _local_size(self, node: Node, size: int) -> int:
        """How much of a record is on the page itself; the formula of the file format."""
        usable = self.usable
        most = usable - 35 if node.kind == TABLE_LEAF else (usable - 12) * 64 // 255 - 23
        if size <= most:
            return size
        least = (usable - 12) * 32 // 255 - 23
        local = least + (size - least) % (usable - 4)
        return local if local <= most else least


def decode_record(payload: bytes) -> tuple[Value, ...]:
    header_size, at = _varint(payload, 0)
    if header_size > len(payload):
        raise Malformed("a record is shorter than its header")
    values: list[Value] = []
    content = header_size
    while at < header_size:
        kind, at = _varint(payload, at)
        value, content = _value(payload, content, kind)
        values.append(value)
    if content != len(payload):
        raise Malformed("a record does not have its size")
    return tuple(values)


def _value(payload: bytes, at: int, kind: int) -> tuple[Value, int]:
    if kind in _NUMBERS:
        end = at + _NUMBERS[kind]
        return int.from_bytes(_cut(payload, at, end), "big", signed=True), end
    if kind >= 12:
        end = at + (kind - 12) // 2
        data = _cut(payload, at, end)
        return (data.decode() if kind % 2 else data), end
    if kind == 7:
        return struct.unpack(">d", _cut(payload, at, at + 8))[0], at + 8
    if kind in (0, 8, 9):
        return (None if kind == 0 else kind - 8), at
    raise Malformed(f"unknown type {kind}")


def _cut(payload: bytes, at: int, end: int) -> bytes:
    if end > len(payload):
        raise Malformed("a value ends outside its record")
    return payload[at:end]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of up to nine bytes, and the position after it."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value = 0
    for position in range(at, at + _MAX_VARINT - 1):
        byte = data[position]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, position + 1
    return value << 8 | data[at + _MAX_VARINT - 1], at + _MAX_VARINT


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
