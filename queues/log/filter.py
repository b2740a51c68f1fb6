"""Consumer-side filter: deliver only records with certain `x-stream-filter-value` headers.

RabbitMQ filters whole chunks and leaves the rest to the client; here every record is checked, so a
consumer receives exactly the values it asked for. The arguments are parsed when the consumer
starts; results are cached by the record's properties. Event-loop thread only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leveret.model.message import headers_of
from leveret.queues.log.files import Record, SpecError

FILTER_ARGUMENT = "x-stream-filter"
UNFILTERED_ARGUMENT = "x-stream-match-unfiltered"
VALUE_HEADER = "x-stream-filter-value"
_HEADER_BYTES = bytes([len(VALUE_HEADER)]) + VALUE_HEADER.encode()
_CACHE_SIZE = 1024


class RecordFilter:
    """Accepts records with one of `values`; with `unfiltered` also those without the header."""

    def __init__(self, values: Sequence[str], unfiltered: bool = False) -> None:
        self.values = frozenset(values)
        self.unfiltered = unfiltered
        self._cache: dict[bytes, bool] = {}

    def __repr__(self) -> str:
        return f"<RecordFilter {sorted(self.values)}{' and others' if self.unfiltered else ''}>"

    def matching(self, records: Sequence[Record]) -> list[Record]:
        cache, matches = self._cache, self._matches
        matching = []
        for record in records:
            properties = record.properties
            cached = cache.get(properties)
            if matches(properties) if cached is None else cached:
                matching.append(record)
        return matching

    def _matches(self, properties: bytes) -> bool:
        value = headers_of(properties).get(VALUE_HEADER) if _HEADER_BYTES in properties else None
        result = value in self.values if isinstance(value, str) else self.unfiltered
        if len(self._cache) >= _CACHE_SIZE:
            self._cache.clear()
        self._cache[properties] = result
        return result


def maybe_filter(arguments: Mapping[str, Any]) -> RecordFilter | None:
    """The filter a consumer's arguments ask for, if any. `SpecError` names the argument."""
    asked = arguments.get(FILTER_ARGUMENT)
    unfiltered = arguments.get(UNFILTERED_ARGUMENT, False)
    if not isinstance(unfiltered, bool):
        raise SpecError(f"{UNFILTERED_ARGUMENT} must be true or false, not {unfiltered!r}")
    if asked is None:
        return None
    values = [asked] if isinstance(asked, str) else asked
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise SpecError(f"{FILTER_ARGUMENT} must be a string or a list of strings, not {asked!r}")
    return RecordFilter(values, unfiltered)
