"""Which records a consumer wants: those whose header `x-stream-filter-value` it names.

RabbitMQ filters whole chunks and leaves the rest to the client; here every record is looked at, so
what comes is what was asked for. Parsed when a consumer comes; the answer for equal properties is
remembered. Event-loop thread only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leveret.model.properties import headers_of
from queues.log import Record, SpecError

FILTER_ARGUMENT = "x-stream-filter"
UNFILTERED_ARGUMENT = "x-stream-match-unfiltered"
VALUE_HEADER = "x-stream-filter-value"
_SIGN = bytes([len(VALUE_HEADER)]) + VALUE_HEADER.encode()
_KEPT = 1024


class RecordFilter:
    """`values` wanted; `unfiltered`: records without the header, too."""

    def __init__(self, values: Sequence[str], unfiltered: bool = False) -> None:
        self.values = frozenset(values)
        self.unfiltered = unfiltered
        self._known: dict[bytes, bool] = {}

    def __repr__(self) -> str:
        return f"<RecordFilter {sorted(self.values)}{' and others' if self.unfiltered else ''}>"

    def wanted(self, records: Sequence[Record]) -> list[Record]:
        known, judge = self._known, self._judge
        found = []
        for record in records:
            properties = record.properties
            answer = known.get(properties)
            if judge(properties) if answer is None else answer:
                found.append(record)
        return found

    def _judge(self, properties: bytes) -> bool:
        value = headers_of(properties).get(VALUE_HEADER) if _SIGN in properties else None
        answer = value in self.values if isinstance(value, str) else self.unfiltered
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[properties] = answer
        return answer


def maybe_filter(arguments: Mapping[str, Any]) -> RecordFilter | None:
    """What a consumer's arguments ask for; None: everything. `SpecError` names the argument."""
    asked = arguments.get(FILTER_ARGUMENT)
    unfiltered = arguments.get(UNFILTERED_ARGUMENT, False)
    if not isinstance(unfiltered, bool):
        raise SpecError(f"{UNFILTERED_ARGUMENT} must be true or false, not {unfiltered!r}")
    if asked is None:
        return None
    values = [asked] if isinstance(asked, str) else asked
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        raise SpecError(f"{FILTER_ARGUMENT} must be a string or a list of strings, not {asked!r}")
    return RecordFilter(values, unfiltered)
