"""Lists as RabbitMQ gives them: filtered, sorted, paged, cut to columns.

Expensive columns are made only for the rows that are shown: callers hand over objects and a
function that turns one into its row; sorting by a name needs no rows at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import re2
from fastapi import Depends, Query

from http_admin.errors import bad_request

T = TypeVar("T")
Row = dict[str, Any]
LARGEST_PAGE = 500


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
) -> Wanted:
    chosen = tuple(column for column in columns.split(",") if column)
    return Wanted(page, page_size, name, use_regex, sort, sort_reverse, chosen)


List = Annotated[Wanted, Depends(wanted)]


def listed(
    objects: Iterable[T], ask: Wanted, row: Callable[[T], Row], name_of: Callable[[T], str]
) -> Any:
    """The answer to a list request: an array, or a page with its counts."""
    everything = list(objects)
    kept = _filter(everything, ask, name_of)
    if ask.sort and ask.sort != "name":
        rows = [row(one) for one in kept]
        rows.sort(key=lambda made: _sort_key(made, ask.sort), reverse=ask.sort_reverse)
        shown, pages = _page(rows, ask)
    else:
        if ask.sort:
            kept.sort(key=name_of, reverse=ask.sort_reverse)
        chosen, pages = _page(kept, ask)
        shown = [row(one) for one in chosen]
    cut = [_columns(made, ask.columns) for made in shown]
    if ask.page is None:
        return cut
    return {
        "items": cut,
        "page": ask.page,
        "page_count": pages,
        "page_size": ask.page_size,
        "item_count": len(cut),
        "filtered_count": len(kept),
        "total_count": len(everything),
    }


def _filter(objects: list[T], ask: Wanted, name_of: Callable[[T], str]) -> list[T]:
    if not ask.name:
        return objects
    if not ask.use_regex:
        wanted_name = ask.name.lower()
        return [one for one in objects if wanted_name in name_of(one).lower()]
    try:
        pattern = re2.compile(ask.name)
    except re2.error as error:
        raise bad_request(f"name is not a valid pattern: {error}") from error
    return [one for one in objects if pattern.search(name_of(one)) is not None]


def _page(rows: list[Any], ask: Wanted) -> tuple[list[Any], int]:
    if ask.page is None:
        return rows, 1
    pages = max(1, -(-len(rows) // ask.page_size))
    if ask.page > pages:
        raise bad_request(
            f"page out of range, page: {ask.page} page size: {ask.page_size}, len: {len(rows)}"
        )
    start = (ask.page - 1) * ask.page_size
    return rows[start : start + ask.page_size], pages


def _dig(row: Mapping[str, Any], path: str) -> Any:
    value: Any = row
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _sort_key(row: Row, path: str) -> tuple[int, Any]:
    """Missing values first, numbers before text, so that any column can be sorted."""
    value = _dig(row, path)
    if value is None:
        return (0, 0)
    if isinstance(value, bool | int | float):
        return (1, value)
    return (2, str(value))


def _columns(row: Row, columns: tuple[str, ...]) -> Row:
    if not columns:
        return row
    cut: Row = {}
    for column in columns:
        value = _dig(row, column)
        if value is None and "." not in column and column not in row:
            continue
        place = cut
        *parents, last = column.split(".")
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return cut
