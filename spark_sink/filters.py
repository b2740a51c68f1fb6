"""Which of Spark's filters the readers can do themselves, and what they become.

A filter that is taken is done exactly, so Spark need not look again; any other goes back to
Spark. Names and times only: equality and IN on names, comparisons on `time`.
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

from spark_sink.events import EVENT_NAMES
from spark_sink.selection import NOTHING, Selection

NAME_COLUMNS = {
    "messages": {"vhost": "vhosts", "queue": "queues"},
    "events": {"vhost": "vhosts", "queue": "queues", "event": "kinds"},
    "logs": {"vhost": "vhosts", "log": "queues"},
    "queues": {"vhost": "vhosts", "queue": "queues"},
}
_TIMED = {"messages", "events", "logs"}
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


class Pushed:
    """A selection that grows by the filters it can take."""

    def __init__(self, table: str, selection: Selection) -> None:
        self.selection = selection
        self._table = table

    def take(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Yield back the filters that Spark must still do."""
        for one in filters:
            if not self._takes(one):
                yield one

    def _takes(self, one: Filter) -> bool:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        if len(attribute) != 1:
            return False
        if attribute[0] == "time" and self._table in _TIMED:
            return self._takes_time(one)
        field = NAME_COLUMNS[self._table].get(attribute[0])
        return field is not None and self._takes_names(field, one)

    def _takes_names(self, field: str, one: Filter) -> bool:
        if isinstance(one, EqualTo):
            names = {one.value}
        elif isinstance(one, In):
            names = set(one.value)
        else:
            return False
        if not all(isinstance(name, str) for name in names):
            return False
        before = getattr(self.selection, field)
        if self._table in ("logs", "messages") and field == "queues":
            # A name may be that of a log or of a partition, and a message may have been taken by
            # other queues before this one: narrow down, and let Spark decide.
            if not before:
                self._change(field, tuple(sorted(names)))
            return False
        chosen = names.intersection(before) if before else names
        if field == "kinds" and not chosen.issubset(EVENT_NAMES):
            return False
        # No name is left when two filters contradict: then no row is wanted.
        self._change(field, tuple(sorted(chosen)) or (NOTHING,))
        return True

    def _takes_time(self, one: Filter) -> bool:
        value = getattr(one, "value", None)
        if not isinstance(value, datetime) or value.tzinfo is None:
            return False
        exact = (value - _EPOCH) // timedelta(microseconds=1)
        rounded_up = -(-exact // 1000)
        after = exact // 1000 + 1
        if isinstance(one, GreaterThanOrEqual):
            self._since(rounded_up)
        elif isinstance(one, GreaterThan):
            self._since(after)
        elif isinstance(one, LessThan):
            self._until(rounded_up)
        elif isinstance(one, LessThanOrEqual):
            self._until(after)
        else:
            return False
        return True

    def _since(self, time_ms: int) -> None:
        self._change("since_ms", max(time_ms, self.selection.since_ms or 0))

    def _until(self, time_ms: int) -> None:
        before = self.selection.until_ms
        self._change("until_ms", max(time_ms if before is None else min(time_ms, before), 0))

    def _change(self, field: str, value: Any) -> None:
        changes: dict[str, Any] = {field: value}
        self.selection = replace(self.selection, **changes)
