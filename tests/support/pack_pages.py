"""Which messages have content on which pages of a database, as the file format places it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from leveret.queues.storage.damage.btree import SoundPage, Tree, TreeWalk
from leveret.queues.storage.damage.sqlite_file import Node, SqliteFile
from leveret.queues.storage.packs import Pack, PackRow


@dataclass(slots=True)
class PageContent:
    """`touched`: the messages with bytes on the page, or all of a pack whose index has bytes on it.

    `behind`: those that come after these in the same pack. To read them, SQLite needs this page.
    """

    touched: set[int] = field(default_factory=set)
    behind: set[int] = field(default_factory=set)


def content_by_page(database: Path, packs: Tree) -> dict[int, PageContent]:
    found: dict[int, PageContent] = {}
    with SqliteFile(database) as file:
        for page in TreeWalk(file, packs).pages():
            assert isinstance(page, SoundPage), page
            if page.node.is_leaf:
                for cell, row in zip(page.node.cells, file.rows(page.node), strict=True):
                    assert row is not None
                    pack = Pack(PackRow._make((row.rowid, *row.values[1:])))
                    _add_pack(found, pack, list(_pages_of_cell(file, page.node, cell)))
    return found


def _add_pack(found: dict[int, PageContent], pack: Pack, pages: list[tuple[int, int, int]]) -> None:
    index_end = pages[-1][2] - len(pack.data or b"")
    ends = [index_end + end for end in accumulate(pack.sizes)]
    starts = [index_end, *ends]
    for number, start, end in pages:
        content = found.setdefault(number, PageContent())
        if start < index_end:
            content.touched.update(pack.ids)
            continue
        for message_id, first, last in zip(pack.ids, starts, ends, strict=False):
            if first < end and last > start:
                content.touched.add(message_id)
            elif first >= end:
                content.behind.add(message_id)


def _pages_of_cell(file: SqliteFile, node: Node, cell: int) -> Iterator[tuple[int, int, int]]:
    """The pages of a record, and which of its bytes they have."""
    size, at = _varint(node.data, cell)
    _, at = _varint(node.data, at)
    local = _local_size(file.usable, size)
    yield node.number, 0, local
    number = int.from_bytes(node.data[at + local : at + local + 4], "big")
    while local < size:
        end = min(size, local + file.usable - 4)
        yield number, local, end
        number, local = int.from_bytes(file.page(number)[:4], "big"), end


def _local_size(usable: int, size: int) -> int:
    """Of a row of a table: see the file format, "B-tree Pages"."""
    if size <= usable - 35:
        return size
    least = (usable - 12) * 32 // 255 - 23
    local = least + (size - least) % (usable - 4)
    return local if local <= usable - 35 else least


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    while True:
        value = value << 7 | data[at] & 0x7F
        at += 1
        if data[at - 1] < 0x80:
            return value, at
