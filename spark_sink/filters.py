"""Filter pushdown: which of Spark's filters the readers apply themselves, as a `Selection`.

A filter that is accepted is applied exactly, so Spark need not apply it again; every other filter
goes back to Spark. Accepted are equality and IN on names, and comparisons on `time`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from leveret.spark_sink.arrow.schemas import schema_of
from leveret.spark_sink.arrow.selection import EVENT_NAMES, NO_MATCH, Selection

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_INEXACT_QUEUE_FILTERS = ("logs", "messages")


class PushedFilters:
    """A selection, narrowed by the filters that it can express."""

    def __init__(self, table: str, selection: Selection) -> None:
        self.selection = selection
        self._schema = schema_of(table)

    def push(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Yield the filters that Spark must still apply."""
        for candidate in filters:
            if not self._push_one(candidate):
                yield candidate

    def _push_one(self, candidate: Filter) -> bool:
        """False if Spark must apply this filter."""
        attribute: tuple[str, ...] = getattr(candidate, "attribute", ())
        if len(attribute) != 1:
            return False
        if attribute[0] == "time" and self._schema.is_stream:
            return self._push_time(candidate)
        field = self._schema.name_filters.get(attribute[0])
        return field is not None and self._push_names(field, candidate)

    def _push_names(self, field: str, candidate: Filter) -> bool:
        if isinstance(candidate, EqualTo):
            names = {candidate.value}
        elif isinstance(candidate, In):
            names = set(candidate.value)
        else:
            return False
        if not all(isinstance(name, str) for name in names):
            return False
        before = getattr(self.selection, field)
        if self._schema.name in _INEXACT_QUEUE_FILTERS and field == "queues":
            # A name can be that of a log or of a partition, and this queue need not be the first
            # one a message was routed to: narrow the read, and let Spark decide.
            if not before:
                self._set(field, tuple(sorted(names)))
            return False
        remaining = names.intersection(before) if before else names
        if field == "kinds" and not remaining.issubset(EVENT_NAMES):
            return False
        # No name remains when two filters contradict each other: then no row matches.
        self._set(field, tuple(sorted(remaining)) or (NO_MATCH,))
        return True

    def _push_time(self, candidate: Filter) -> bool:
        value = getattr(candidate, "value", None)
        if not isinstance(value, datetime) or value.tzinfo is None:
            return False
        microseconds = (value - _EPOCH) // timedelta(microseconds=1)
        rounded_up = -(-microseconds // 1000)
        after = microseconds // 1000 + 1
        if isinstance(candidate, GreaterThanOrEqual):
            self._since(rounded_up)
        elif isinstance(candidate, GreaterThan):
            self._since(after)
        elif isinstance(candidate, LessThan):
            self._until(rounded_up)
        elif isinstance(candidate, LessThanOrEqual):
            self._until(after)
        else:
            return False
        return True

    def _since(self, time_ms: int) -> None:
        self._set("since_ms", max(time_ms, self.selection.since_ms or 0))

    def _until(self, time_ms: int) -> None:
        before = self.selection.until_ms
        self._set("until_ms", max(time_ms if before is None else min(time_ms, before), 0))

    def _set(self, field: str, value: Any) -> None:
        changes: dict[str, Any] = {field: value}
        self.selection = replace(self.selection, **changes)
