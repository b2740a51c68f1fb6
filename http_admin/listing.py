"""Lists as RabbitMQ gives them: filtered, sorted, paged, cut to columns.

Expensive columns are made only for the rows that are shown: callers hand over objects and a
function that turns one into its row; sorting by a name needs no rows at all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Depends, Query

from http_admin.answers import Written, dump_json
from http_admin.errors import ApiError, bad_request
from http_admin.turns import InTurn
from leveret.broker.access.patterns import asked

T = TypeVar("T")
Row = dict[str, Any]
LARGEST_PAGE = 500
SLICE = 200
MOST_COLUMNS, DEEPEST_COLUMN = 200, 8
FILTER_SECONDS, FILTER_SECONDS_EACH, FILTER_SECONDS_AT_ONCE = 0.1, 0.00001, 0.005
"""Of processor time. A name takes a few microseconds; with a pattern made for it, milliseconds."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the query string asks of a list. Presence of `page` decides about paging."""

    page: int | None = None
    page_size: int = 100
    name: str = ""
    use_regex: bool = False
    sort: str = ""
    sort_reverse: bool = False
    columns: tuple[str, ...] = ()


async def wanted(
    page: Annotated[int | None, Query(ge=1)] = None,
    page_size: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = 100,
    name: str = "",
    use_regex: bool = False,
    sort: str = "",
    sort_reverse: bool = False,
    columns: str = "",
    in_turn: None = InTurn,
) -> Wanted:
    if sort.count(".") >= DEEPEST_COLUMN:
        raise bad_request(f"a column to sort by is at most {DEEPEST_COLUMN} names deep")
    return Wanted(page, page_size, name, use_regex, sort, sort_reverse, _chosen(columns))


def _chosen(columns: str) -> tuple[str, ...]:
    """Columns to show; what lies inside another chosen one is shown with it."""
    chosen = dict.fromkeys(column for column in columns.split(",") if column)
    if len(chosen) > MOST_COLUMNS or any(c.count(".") >= DEEPEST_COLUMN for c in chosen):
        raise bad_request(f"columns are at most {MOST_COLUMNS}, and {DEEPEST_COLUMN} names deep")
    return tuple(column for column in chosen if not any(p in chosen for p in _around(column)))


def _around(column: str) -> Iterator[str]:
    """`a` and `a.b`, for `a.b.c`."""
    parts = column.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts)))


List = Annotated[Wanted, Depends(wanted)]


async def listed(
    objects: Iterable[T],
    ask: Wanted,
    row: Callable[[T], Row],
    name_of: Callable[[T], str],
    quick: Mapping[str, Callable[[T], Any]] | None = None,
) -> Any:
    """The answer to a list request: an array, or a page with its counts.

    `quick` reads columns straight from an object: sorting by one of them needs no rows. Other work
    is let in while the rows are made and written.
    """
    choice = await _choose(objects, ask, name_of, quick or {})
    if not choice.by_row:
        return _answer(choice, ask, await written(choice.page(ask), row, ask.columns))
    rows: list[Row] = []
    for some in _slices(choice.kept, SLICE):
        rows += map(row, some)
        await asyncio.sleep(0)
    rows.sort(key=lambda made: _order(_dig(made, ask.sort.split("."))), reverse=ask.sort_reverse)
    return _answer(choice, ask, await written(_page(rows, ask), lambda made: made, ask.columns))


async def written(
    objects: Sequence[T],
    row: Callable[[T], Row],
    columns: tuple[str, ...] = (),
    at_once: int = 0,
) -> Written:
    """An array of rows as JSON, some of them at a time: thousands take longer than a turn may."""
    paths = [column.split(".") for column in columns]
    pieces = []
    for some in _slices(objects, at_once or SLICE):
        rows = map(row, some)
        pieces.append(dump_json([_columns(made, paths) if paths else made for made in rows])[1:-1])
        if len(some) < len(objects):
            await asyncio.sleep(0)
    return Written(b"".join((b"[", b",".join(pieces), b"]")))


def _slices(objects: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (objects[start : start + size] for start in range(0, len(objects), size))


@dataclass(slots=True)
class _Choice(Generic[T]):
    """What passed the filter, in order unless only whole rows can tell the order."""

    kept: list[T]
    total: int
    by_row: bool

    def page(self, ask: Wanted) -> list[T]:
        return _page(self.kept, ask)


async def _choose(
    objects: Iterable[T],
    ask: Wanted,
    name_of: Callable[[T], str],
    quick: Mapping[str, Callable[[T], Any]],
) -> _Choice[T]:
    everything = list(objects)
    kept = await _filter(everything, ask, name_of)
    keys: Mapping[str, Callable[[T], Any]] = {"name": name_of, **quick}
    by_row = bool(ask.sort) and ask.sort not in keys
    if ask.sort and not by_row:
        key = keys[ask.sort]
        kept = sorted(kept, key=lambda one: _order(key(one)), reverse=ask.sort_reverse)
    return _Choice(kept, len(everything), by_row)


def _answer(choice: _Choice[Any], ask: Wanted, rows: Written) -> Any:
    if ask.page is None:
        return rows
    return {
        "items": rows,
        "page": ask.page,
        "page_count": _pages(len(choice.kept), ask),
        "page_size": ask.page_size,
        "item_count": len(choice.page(ask)),
        "filtered_count": len(choice.kept),
        "total_count": choice.total,
    }


async def _filter(objects: list[T], ask: Wanted, name_of: Callable[[T], str]) -> list[T]:
    if not ask.name:
        return objects
    if not ask.use_regex:
        wanted_name = ask.name.lower()
        return [one for one in objects if wanted_name in name_of(one).lower()]
    return await _matching(objects, ask.name, name_of)


async def _matching(objects: list[T], text: str, name_of: Callable[[T], str]) -> list[T]:
    """Others are served in between, and a pattern that takes very long is refused."""
    found, kept = asked(text), []
    left = FILTER_SECONDS + FILTER_SECONDS_EACH * len(objects)
    began = time.thread_time()
    for one in objects:
        if found.search(name_of(one)) is not None:
            kept.append(one)
        used = time.thread_time() - began
        if used > left:
            raise bad_request("this pattern takes too long to look for; a simpler one will do")
        if used > FILTER_SECONDS_AT_ONCE:
            left -= used
            await asyncio.sleep(0)
            began = time.thread_time()
    return kept


def _pages(count: int, ask: Wanted) -> int:
    return max(1, -(-count // ask.page_size))


def _page(rows: list[T], ask: Wanted) -> list[T]:
    if ask.page is None:
        return rows
    if ask.page > _pages(len(rows), ask):
        place = f"page: {ask.page} page size: {ask.page_size}, len: {len(rows)}"
        raise ApiError(400, f"page out of range, {place}", name="page_out_of_range")
    start = (ask.page - 1) * ask.page_size
    return rows[start : start + ask.page_size]


def _dig(row: Row, path: Sequence[str]) -> Any:
    value: Any = row
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _order(value: Any) -> tuple[int, Any]:
    """Missing values first, numbers before text, so that any column can be sorted."""
    if value is None:
        return (0, 0)
    if isinstance(value, bool | int | float):
        return (1, value)
    return (2, str(value))


def _columns(row: Row, paths: Iterable[Sequence[str]]) -> Row:
    cut: Row = {}
    for path in paths:
        value = _dig(row, path)
        if value is None and len(path) == 1 and path[0] not in row:
            continue
        place = cut
        for parent in path[:-1]:
            place = place.setdefault(parent, {})
        place[path[-1]] = value
    return cut
