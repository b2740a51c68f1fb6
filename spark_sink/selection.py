"""What to read: a table, an id range, columns, and conditions. Plain values, both ways as text.

Ranges are half open everywhere: `from_id` is read, `to_id` is not. Times are milliseconds since
1970; `until_ms` is not included. An empty tuple of names means "all of them".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from spark_sink.errors import SourceError
from spark_sink.schemas import arrow_schema, columns_of

NOTHING = "\0"
"""A name that nothing has, for a selection that no row fits."""
_LARGEST_NUMBER = (1 << 63) - 1


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
        """The same, for someone who may see these vhosts alone; no vhost at all means no row."""
        chosen = vhosts.intersection(self.vhosts) if self.vhosts else vhosts
        return replace(self, vhosts=tuple(sorted(chosen)) or (NOTHING,))


@dataclass(frozen=True, slots=True)
class Request:
    """One read: rows of `table` with ids (for a log: offsets) in [from_id, to_id)."""

    table: str
    from_id: int
    to_id: int
    columns: tuple[str, ...]
    selection: Selection = Selection()
    queue_id: int | None = None

    def to_params(self) -> dict[str, str]:
        params = {
            "table": self.table,
            "from_id": str(self.from_id),
            "to_id": str(self.to_id),
            "columns": ",".join(self.columns),
        }
        if self.queue_id is not None:
            params["queue_id"] = str(self.queue_id)
        return params | selection_params(self.selection)


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a table that one task reads; `rows` is an upper bound."""

    from_id: int
    to_id: int
    rows: int
    queue_id: int | None = None


def selection_params(selection: Selection) -> dict[str, str]:
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


def selection_of(params: Mapping[str, str]) -> Selection:
    """Conditions from text: options of a DataFrame reader, or a query string.

    Several names are separated by commas, or by U+001F where a name has a comma in it.
    """
    return Selection(
        since_ms=_maybe_time(params.get("since")),
        until_ms=_maybe_time(params.get("until")),
        queues=_names(params.get("queue")),
        vhosts=_names(params.get("vhost")),
        kinds=_names(params.get("kind")),
    )


def request_of(params: Mapping[str, str]) -> Request:
    table = params.get("table", "")
    columns = _names(params.get("columns")) or tuple(c.name for c in columns_of(table))
    arrow_schema(table, columns)
    queue_id = params.get("queue_id")
    return Request(
        table=table,
        from_id=whole_number(params, "from_id", 0),
        to_id=whole_number(params, "to_id", 2**62),
        columns=columns,
        selection=selection_of(params),
        queue_id=None if queue_id is None else whole_number(params, "queue_id", 0),
    )


def whole_number(params: Mapping[str, str], name: str, default: int) -> int:
    text = params.get(name)
    if text is None or text == "":
        return default
    if not text.isdecimal():
        raise SourceError(f"{name} must be a whole number, not {text!r}.")
    return _stored_number(text)


def _stored_number(digits: str) -> int:
    """As far as a database has numbers."""
    if len(digits) > len(str(_LARGEST_NUMBER)) or (number := int(digits)) > _LARGEST_NUMBER:
        raise SourceError(f"A number is at most {_LARGEST_NUMBER}.")
    return number


def time_ms(text: str) -> int:
    """Milliseconds from text: a whole number of them, or an ISO date or time (UTC if unzoned)."""
    if text.isdecimal():
        return _stored_number(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SourceError(
            f"{text!r} is no time: write it as 2026-11-16 or 2026-11-16T04:00:00+00:00."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _maybe_time(text: str | None) -> int | None:
    return time_ms(text) if text else None


def _names(text: str | None) -> tuple[str, ...]:
    if not text:
        return ()
    if "\x1f" in text:
        return tuple(name for name in text.split("\x1f") if name)
    return tuple(name.strip() for name in text.split(",") if name.strip())
