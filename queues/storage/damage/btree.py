"""Walks b-trees of a damaged file: names the pages that are damaged, and finds what is below them.

A page is damaged if it does not have the form of a page of its tree, if its keys are outside the
range that its parent gives it (the content of another page), or if its children are not those that
the pointer map names. The children of a damaged page are found through the pointer map, so only
what was on the page itself is lost.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from leveret.queues.storage.damage.sqlite_file import (
    BTREE,
    ROOT,
    Malformed,
    Node,
    SqliteFile,
    Value,
)

Key: TypeAlias = tuple[tuple[int, Value], ...]

POINTER_MAP: Final = "the pointer map"
FREELIST: Final = "the list of free pages"


@dataclass(frozen=True, slots=True)
class Tree:
    """A table or an index. `table`: the table that an index belongs to, or the table itself."""

    name: str
    table: str
    root: int
    is_table: bool


@dataclass(frozen=True, slots=True)
class Range:
    """The keys of a page are greater than `low` and not greater than `high`; None: no limit."""

    low: Key | None = None
    high: Key | None = None

    def contains(self, key: Key) -> bool:
        return (self.low is None or key > self.low) and (self.high is None or key <= self.high)


@dataclass(frozen=True, slots=True)
class DamagedPage:
    """`tree`: the name of the table or index, `POINTER_MAP` or `FREELIST`."""

    number: int
    tree: str
    keys: Range = Range()
    is_leaf: bool = True
    """Rows of a table were on the page itself."""

    def __str__(self) -> str:
        return f"page {self.number} of {self.tree}"


@dataclass(frozen=True, slots=True)
class SoundPage:
    node: Node
    keys: Range


class TreeWalk:
    """`leaves`: look at every leaf; otherwise only at the pages above them, and the last leaf.

    Without a pointer map, leaves cannot be told from other pages, and all are looked at.
    """

    def __init__(self, file: SqliteFile, tree: Tree, *, leaves: bool = True) -> None:
        self._file = file
        self._tree = tree
        self._leaves = leaves or not file.has_pointer_map
        self._seen: set[int] = set()

    def pages(self) -> Iterator[SoundPage | DamagedPage]:
        yield from self._visit(self._tree.root, Range(), parent=0)

    def _visit(self, number: int, keys: Range, parent: int) -> Iterator[SoundPage | DamagedPage]:
        if number in self._seen:
            yield DamagedPage(parent, self._tree.name, keys, is_leaf=False)
            return
        self._seen.add(number)
        if self._file.has_pointer_map and not self._is_in_map(number, parent):
            yield DamagedPage(number, POINTER_MAP)
        node = self._file.maybe_node(number)
        if node is None or not self._fits(node, keys):
            yield from self._below_damage(number, keys)
            return
        yield SoundPage(node, keys)
        for child, child_keys in self._chosen_children(node, keys):
            yield from self._visit(child, child_keys, number)

    def _below_damage(self, number: int, keys: Range) -> Iterator[SoundPage | DamagedPage]:
        children = self._file.children_by_map.get(number, set())
        yield DamagedPage(number, self._tree.name, keys, is_leaf=not children)
        for child in sorted(children):
            yield from self._visit(child, keys, number)

    def _is_in_map(self, number: int, parent: int) -> bool:
        expected = (BTREE, parent) if parent else (ROOT, 0)
        return number == 1 or self._file.pointers.get(number) == expected

    def _chosen_children(self, node: Node, keys: Range) -> list[tuple[int, Range]]:
        ranges = self._child_ranges(node, keys)
        if self._leaves or any(child in self._file.children_by_map for child, _ in ranges):
            return ranges
        # All children are leaves; rows are only ever inserted into the last one.
        return ranges[-1:] if keys.high is None else []

    def _child_ranges(self, node: Node, keys: Range) -> list[tuple[int, Range]]:
        if node.is_leaf:
            return []
        separators = [_key(self._file.separator(node, at)) for at in range(len(node.cells))]
        lows, highs = [keys.low, *separators], [*separators, keys.high]
        ranges = (Range(low, high) for low, high in zip(lows, highs, strict=True))
        return list(zip(node.children, ranges, strict=True))

    # Is a page what its place in the tree requires? ----------------------------------------------

    def _fits(self, node: Node, keys: Range) -> bool:
        return self._has_fitting_keys(node, keys) and self._has_own_children(node, keys)

    def _has_fitting_keys(self, node: Node, keys: Range) -> bool:
        """Of a leaf, the first and last key: the content of another page fits with neither."""
        if node.is_table != self._tree.is_table:
            return False
        try:
            if node.is_leaf:
                ends = {0, len(node.cells) - 1} if node.cells else set()
                found = [_key(self._file.key(node, at)) for at in sorted(ends)]
            else:
                found = [_key(self._file.separator(node, at)) for at in range(len(node.cells))]
        except (Malformed, IndexError, struct.error, UnicodeDecodeError):
            return False
        is_ascending = all(before < after for before, after in pairwise(found))
        return is_ascending and all(map(keys.contains, found))

    def _has_own_children(self, node: Node, keys: Range) -> bool:
        """If page and pointer map disagree, one of them is damaged."""
        if not self._file.has_pointer_map:
            return True
        by_map = self._file.children_by_map.get(node.number, set())
        children = set(node.children)
        if by_map <= children:
            # A page of the map that is damaged names too few.
            return not any(map(self._belongs_elsewhere, children - by_map))
        nodes = [self._file.maybe_node(child) for child in by_map]
        is_map_right = all(
            child is not None and self._has_fitting_keys(child, keys) for child in nodes
        )
        return not is_map_right

    def _belongs_elsewhere(self, number: int) -> bool:
        """Whether the page that the pointer map names as the parent has it as a child."""
        kind, parent = self._file.pointers.get(number, (0, 0))
        node = self._file.maybe_node(parent) if kind == BTREE else None
        return node is not None and number in node.children


def _key(value: Value) -> Key:
    values = value if isinstance(value, tuple) else (value,)
    return tuple(map(_ordered, values))


def _ordered(value: Value) -> tuple[int, Value]:
    """Compares as SQLite does: NULL, then numbers, then text, then blobs."""
    if value is None:
        return 0, 0
    if isinstance(value, int | float):
        return 1, value
    return (2, value) if isinstance(value, str) else (3, value)


def rowid_range(keys: Range) -> tuple[int, int | None]:
    """The first and last rowid that a page of a table may have."""
    low = keys.low[0][1] + 1 if keys.low is not None else 1
    high = keys.high[0][1] if keys.high is not None else None
    return low, high
