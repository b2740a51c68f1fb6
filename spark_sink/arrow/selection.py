"""What to read: a table, an id range, columns and conditions, as values and as text parameters.

Ranges are half open everywhere: `from_id` is included, `to_id` is not. Times are milliseconds
since 1970; `until_ms` is not included. An empty tuple of names means all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from leveret.model.history import INTERNAL_KINDS, EventKind
from leveret.spark_sink.arrow.schemas import arrow_schema, schema_of
from leveret.spark_sink.errors import SourceError

NO_MATCH = "\0"
"""A name that nothing can have, for a selection that matches no row."""
SINGLE_RANGE = "next"
"""The key of a table's only range; the ranges of logs have the partition's queue id as key."""
END_OF_IDS = 2**62
EVENT_NAMES = tuple(sorted({kind.label for kind in EventKind if kind not in INTERNAL_KINDS}))
"""Values of the column `event`."""
_MAX_NUMBER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions on rows. For `logs`, `queues` are the names of logs."""

    since_ms: int | None = None
    until_ms: int | None = None
    queues: tuple[str, ...] = ()
    vhosts: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self == Selection()

    def within(self, vhosts: frozenset[str]) -> Selection:
        """The same selection for a user who may see only these vhosts; with none, no row."""
        visible = vhosts.intersection(self.vhosts) if self.vhosts else vhosts
        return replace(self, vhosts=tuple(sorted(visible)) or (NO_MATCH,))


@dataclass(frozen=True, slots=True)
class Request:
    """One read: rows of `table` with ids (for a log: offsets) in [from_id, to_id).

    `trims` is the number of the last deletion by retention when the read was planned; the reader
    then looks for rows that were deleted since (`ReadStats.lost`). None: it does not.
    """

    table: str
    from_id: int
    to_id: int
    columns: tuple[str, ...]
    selection: Selection = Selection()
    queue_id: int | None = None
    trims: int | None = None

    @classmethod
    def of_range(
        cls,
        table: str,
        key: str,
        span: tuple[int, int],
        columns: tuple[str, ...],
        selection: Selection,
    ) -> Request:
        """A read of one of the table's ranges (see `Ranges.of`)."""
        queue_id = None if key == SINGLE_RANGE else int(key)
        return cls(table, *span, columns, selection, queue_id)

    def to_params(self) -> dict[str, str]:
        params = {
            "table": self.table,
            "from_id": str(self.from_id),
            "to_id": str(self.to_id),
            "columns": ",".join(self.columns),
        }
        if self.queue_id is not None:
            params["queue_id"] = str(self.queue_id)
        if self.trims is not None:
            params["trims"] = str(self.trims)
        return params | selection_to_params(self.selection)


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a table that one task reads; `rows` is an upper bound."""

    from_id: int
    to_id: int
    rows: int
    queue_id: int | None = None


def split_offsets(queue_id: int, span: tuple[int, int], rows: int) -> Iterator[Split]:
    """Parts of `rows` offsets of one partition of a log; compaction may have left fewer records."""
    low, stop = span
    for start in range(low, stop, rows):
        end = min(start + rows, stop)
        yield Split(start, end, end - start, queue_id)


def selection_to_params(selection: Selection) -> dict[str, str]:
    params = {}
    if selection.since_ms is not None:
        params["since"] = str(selection.since_ms)
    if selection.until_ms is not None:
        params["until"] = str(selection.until_ms)
    for name, values in (
        ("queue", selection.queues),
        ("vhost", selection.vhosts),
        ("kind", selection.kinds),
    ):
        if values:
            params[name] = "".join(value + "\x1f" for value in values)
    return params


def parse_selection(params: Mapping[str, str]) -> Selection:
    """Conditions from text: options of a DataFrame reader, or a query string.

    Several names are separated by commas, or by U+001F where a name contains a comma.
    """
    return Selection(
        since_ms=_maybe_time(params.get("since")),
        until_ms=_maybe_time(params.get("until")),
        queues=_parse_names(params.get("queue")),
        vhosts=_parse_names(params.get("vhost")),
        kinds=_parse_names(params.get("kind")),
    )


def parse_request(params: Mapping[str, str]) -> Request:
    table = params.get("table", "")
    columns = _parse_names(params.get("columns")) or schema_of(table).column_names
    arrow_schema(table, columns)
    queue_id, trims = params.get("queue_id"), params.get("trims")
    return Request(
        table=table,
        from_id=parse_number(params, "from_id", 0),
        to_id=parse_number(params, "to_id", END_OF_IDS),
        columns=columns,
        selection=parse_selection(params),
        queue_id=None if queue_id is None else parse_number(params, "queue_id", 0),
        trims=None if trims is None else parse_number(params, "trims", 0),
    )


def parse_number(params: Mapping[str, str], name: str, default: int) -> int:
    text = params.get(name)
    if text is None or text == "":
        return default
    if not text.isdecimal():
        raise SourceError(f"{name} must be a whole number, not {text!r}.")
    return _bounded_number(text)


def _bounded_number(digits: str) -> int:
    """The number, if it fits into a SQLite integer."""
    if len(digits) > len(str(_MAX_NUMBER)) or (number := int(digits)) > _MAX_NUMBER:
        raise SourceError(f"Numbers must be at most {_MAX_NUMBER}.")
    return number


def parse_time_ms(text: str) -> int:
    """Milliseconds from text: a whole number of them, or an ISO date or time (UTC if unzoned)."""
    if text.isdecimal():
        return _bounded_number(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SourceError(
            f"{text!r} is not a time: write it as 2026-11-16 or 2026-11-16T04:00:00+00:00."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _maybe_time(text: str | None) -> int | None:
    return parse_time_ms(text) if text else None


def _parse_names(text: str | None) -> tuple[str, ...]:
    if not text:
        return ()
    if "\x1f" in text:
        return tuple(name for name in text.split("\x1f") if name)
    return tuple(name.strip() for name in text.split(",") if name.strip())
