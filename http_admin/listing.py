"""Lists as RabbitMQ returns them: filtered, sorted, paged, reduced to columns.

Expensive columns are computed only for the rows that are returned: callers pass objects and a
function that builds the row of one; sorting by a name needs no rows at all. Lists are the few large
responses that skip pydantic (`FastJsonResponse`); other work runs between slices of rows, and an
object may be gone when its row is built.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Depends, Query

from leveret.broker.access.patterns import compile_pattern
from leveret.broker.runtime.slices import Steps, run_in_slices
from leveret.http_admin.errors import ApiError, bad_request
from leveret.http_admin.json_response import FastJsonResponse, PartsResponse, dump_json
from leveret.http_admin.middleware.concurrency import ResponseSlot

T = TypeVar("T")
R = TypeVar("R")
Row = Mapping[str, Any]
MAX_PAGE_SIZE = 500
ROWS_PER_STEP = 50
MAX_COLUMNS, MAX_COLUMN_DEPTH = 200, 8
FILTER_SECONDS, FILTER_SECONDS_PER_NAME, FILTER_SECONDS_PER_SLICE = 0.1, 0.00001, 0.005
"""Processor time. A name takes some microseconds; with a hostile pattern, milliseconds."""
MAX_SECONDS_OF_A_NAME = 0.02
"""More was not spent on the pattern: a garbage collection may take this thread's time instead."""


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What the query string asks of a list. The list is paged if `page` is given."""

    page: int | None = None
    page_size: int = 100
    name: str = ""
    use_regex: bool = False
    sort: str = ""
    sort_reverse: bool = False
    columns: tuple[str, ...] = ()


async def list_query(
    page: Annotated[int | None, Query(ge=1)] = None,
    page_size: Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE)] = 100,
    name: str = "",
    use_regex: bool = False,
    sort: str = "",
    sort_reverse: bool = False,
    columns: str = "",
    response_slot: None = ResponseSlot,
) -> ListQuery:
    if sort.count(".") >= MAX_COLUMN_DEPTH:
        raise bad_request(f"sort may name a column at most {MAX_COLUMN_DEPTH} levels deep")
    selected = _parse_columns(columns) if columns else ()
    return ListQuery(page, page_size, name, use_regex, sort, sort_reverse, selected)


def _parse_columns(text: str) -> tuple[str, ...]:
    """The columns to return; a column inside another one is returned with that."""
    columns = dict.fromkeys(column for column in text.split(",") if column)
    if len(columns) > MAX_COLUMNS or any(c.count(".") >= MAX_COLUMN_DEPTH for c in columns):
        raise bad_request(
            f"columns may name at most {MAX_COLUMNS} columns, {MAX_COLUMN_DEPTH} levels deep"
        )
    return tuple(column for column in columns if not any(p in columns for p in _parents(column)))


def _parents(column: str) -> Iterator[str]:
    """`a` and `a.b`, for `a.b.c`."""
    parts = column.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts)))


ListParams = Annotated[ListQuery, Depends(list_query)]


async def list_rows(
    objects: Iterable[T],
    query: ListQuery,
    row_of: Callable[[T], Row],
    name_of: Callable[[T], str],
    sortable: Mapping[str, Callable[[T], Any]] | None = None,
) -> FastJsonResponse:
    """The response of a list: an array, or a page with its counts.

    `sortable` reads columns from an object: sorting by one of them needs no rows.
    """
    every = list(objects)
    matching = await _filter(every, query, name_of) if query.name else every
    if query.sort:
        key = name_of if query.sort == "name" else (sortable or {}).get(query.sort)
        if key is None:
            return await _list_by_row(matching, query, row_of, len(every))
        matching = await _sort(matching, key, query.sort_reverse)
    if query.page is None:
        return await rows_response(matching, row_of, query.columns)
    return await _page_response(matching, query, query.page, row_of, len(every))


async def _list_by_row(
    matching: Sequence[T], query: ListQuery, row_of: Callable[[T], Row], total: int
) -> FastJsonResponse:
    """Sorted by a column that only the whole row has."""
    path = query.sort.split(".")
    rows = await run_in_slices(_map(row_of, matching))
    rows = await _sort(rows, lambda row: _value_at(row, path), query.sort_reverse)
    if query.page is None:
        return await rows_response(rows, lambda row: row, query.columns)
    return await _page_response(rows, query, query.page, lambda row: row, total)


async def _sort(items: Sequence[T], key: Callable[[T], Any], is_reverse: bool) -> list[T]:
    """Reading the keys takes longer than comparing them."""
    keys = await run_in_slices(_map(lambda item: _sort_key(key(item)), items))
    order = sorted(range(len(items)), key=keys.__getitem__, reverse=is_reverse)
    return [items[index] for index in order]


def _map(function: Callable[[T], R], items: Sequence[T]) -> Steps[list[R]]:
    results: list[R] = []
    for start in range(0, len(items), ROWS_PER_STEP):
        results += map(function, items[start : start + ROWS_PER_STEP])
        yield
    return results


async def rows_response(
    objects: Sequence[T],
    row_of: Callable[[T], Row],
    columns: tuple[str, ...] = (),
    step_size: int = 0,
) -> FastJsonResponse:
    """A JSON array of rows; of many, in parts that are encoded in slices."""
    paths, size = [column.split(".") for column in columns], step_size or ROWS_PER_STEP
    if len(objects) > size:
        return PartsResponse(await run_in_slices(_encode_parts(objects, row_of, paths, size)))
    rows = map(row_of, objects)
    shown = [_select(row, paths) for row in rows] if paths else list(rows)
    return FastJsonResponse(dump_json(shown))


def _encode_parts(
    objects: Sequence[T], row_of: Callable[[T], Row], paths: list[list[str]], size: int
) -> Steps[list[bytes]]:
    parts, separator = list[bytes](), b"["
    for start in range(0, len(objects), size):
        rows = map(row_of, objects[start : start + size])
        shown = [_select(row, paths) for row in rows] if paths else list(rows)
        parts.append(separator + dump_json(shown)[1:-1])
        separator = b","
        yield
    return [*parts, b"]"] if parts else [b"[]"]


async def _page_response(
    matching: list[T], query: ListQuery, number: int, row_of: Callable[[T], Row], total: int
) -> FastJsonResponse:
    paths, shown = [column.split(".") for column in query.columns], _page(matching, query, number)
    parts = await run_in_slices(_encode_parts(shown, row_of, paths, ROWS_PER_STEP))
    page = {
        "items": orjson.Fragment(b"".join(parts)),
        "page": number,
        "page_count": _page_count(len(matching), query),
        "page_size": query.page_size,
        "item_count": len(shown),
        "filtered_count": len(matching),
        "total_count": total,
    }
    return FastJsonResponse(orjson.dumps(page))


async def _filter(objects: list[T], query: ListQuery, name_of: Callable[[T], str]) -> list[T]:
    if not query.use_regex:
        part = query.name.lower()
        names = await run_in_slices(_map(lambda item: name_of(item).lower(), objects))
        return [item for item, name in zip(objects, names, strict=True) if part in name]
    return await _filter_by_pattern(objects, query.name, name_of)


async def _filter_by_pattern(objects: list[T], text: str, name_of: Callable[[T], str]) -> list[T]:
    """Other work runs in between, and a pattern that takes very long is refused."""
    pattern, matching = compile_pattern(text), []
    left = FILTER_SECONDS + FILTER_SECONDS_PER_NAME * len(objects)
    used, before = 0.0, time.thread_time()
    for item in objects:
        if pattern.search(name_of(item)) is not None:
            matching.append(item)
        now = time.thread_time()
        used += min(now - before, MAX_SECONDS_OF_A_NAME)
        before = now
        if used > left:
            raise bad_request("matching this pattern takes too long: use a simpler one")
        if used > FILTER_SECONDS_PER_SLICE:
            left -= used
            await asyncio.sleep(0)
            used, before = 0.0, time.thread_time()
    return matching


def _page_count(count: int, query: ListQuery) -> int:
    return max(1, -(-count // query.page_size))


def _page(rows: list[T], query: ListQuery, page: int) -> list[T]:
    if page > _page_count(len(rows), query):
        place = f"page: {page} page size: {query.page_size}, len: {len(rows)}"
        raise ApiError(400, f"page out of range, {place}", name="page_out_of_range")
    start = (page - 1) * query.page_size
    return rows[start : start + query.page_size]


def _value_at(row: Row, path: Sequence[str]) -> Any:
    value: Any = row
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _sort_key(value: Any) -> tuple[int, Any]:
    """Missing values first, numbers before text, so that any column can be sorted."""
    if value is None:
        return (0, 0)
    if isinstance(value, bool | int | float):
        return (1, value)
    return (2, str(value))


def _select(row: Row, paths: Iterable[Sequence[str]]) -> Row:
    """The row reduced to these columns."""
    selected: dict[str, Any] = {}
    for path in paths:
        value = _value_at(row, path)
        if value is None and len(path) == 1 and path[0] not in row:
            continue
        place = selected
        for parent in path[:-1]:
            place = place.setdefault(parent, {})
        place[path[-1]] = value
    return selected
