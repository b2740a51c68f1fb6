"""Consumer offsets (`x-stream-offset`) and ages (`x-max-age`) as typed values.

Parsed once, at consume or declare time; whatever cannot be understood raises `SpecError` with a
text for the client.  Pure: safe in any thread.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Protocol

from queues.log.errors import SpecError

_SECONDS = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3_600, "m": 60, "s": 1}
_AGE = re.compile(r"([0-9]{1,12})([YMDhms])", re.ASCII)


class OffsetKind(Enum):
    FIRST = "first"
    LAST = "last"
    NEXT = "next"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    INTERVAL = "interval"


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """`value` is an offset, a time in ms since 1970, or an age in ms, depending on the kind."""

    kind: OffsetKind
    value: int = 0


class HasOffsets(Protocol):
    @property
    def first_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    def offset_for_time(self, time_ms: int) -> int: ...


def parse_interval(text: str) -> int:
    """Milliseconds of `<n>` followed by one of Y M D h m s (case-sensitive)."""
    match = _AGE.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise SpecError(f"'{text}' is not a positive number followed by one of Y, M, D, h, m, s")
    return int(match[1]) * _SECONDS[match[2]] * 1000


def format_age(age_ms: int) -> str:
    """An age as it can be written, in the largest unit that says it exactly."""
    seconds = age_ms // 1000
    unit = next(name for name, size in _SECONDS.items() if seconds % size == 0)
    return f"{seconds // _SECONDS[unit]}{unit}"


def parse_max_age(value: object) -> int:
    """Milliseconds of an `x-max-age` argument."""
    if not isinstance(value, str):
        raise SpecError(f"x-max-age must be a string such as '7D', not {value!r}")
    try:
        return parse_interval(value)
    except SpecError as error:
        raise SpecError(f"x-max-age {error}") from None


def parse_offset_spec(value: object) -> OffsetSpec:
    """An `x-stream-offset` argument; None is the default, `next`."""
    if value is None:
        return OffsetSpec(OffsetKind.NEXT)
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return OffsetSpec(OffsetKind.TIMESTAMP, int(moment.timestamp() * 1000))
    if isinstance(value, int) and not isinstance(value, bool):
        return OffsetSpec(OffsetKind.OFFSET, max(value, 0))
    if isinstance(value, str):
        if value in ("first", "last", "next"):
            return OffsetSpec(OffsetKind(value))
        try:
            return OffsetSpec(OffsetKind.INTERVAL, parse_interval(value))
        except SpecError:
            pass
    raise SpecError(
        f"x-stream-offset must be first, last, next, an offset, a timestamp or an interval "
        f"such as '1h', not {value!r}"
    )


def resolve_offset(spec: OffsetSpec, log: HasOffsets, now_ms: int) -> int:
    """Where in this log a consumer starts; always between its first and its next offset."""
    first, after = log.first_offset, log.next_offset
    match spec.kind:
        case OffsetKind.FIRST:
            return first
        case OffsetKind.LAST:
            return max(first, after - 1)
        case OffsetKind.NEXT:
            return after
        case OffsetKind.OFFSET:
            return min(max(spec.value, first), after)
        case OffsetKind.TIMESTAMP:
            return log.offset_for_time(spec.value)
        case OffsetKind.INTERVAL:
            return log.offset_for_time(now_ms - spec.value)
