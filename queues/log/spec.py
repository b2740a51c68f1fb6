"""Arguments of logs and of their consumers as typed values, and the names of partitions.

Arguments are parsed once, when a log is declared or a consumer starts. A value that cannot be
parsed raises `SpecError` or, where RabbitMQ has a text for it, `PreconditionFailed` in RabbitMQ's
words. Pure functions, safe in any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Protocol

from leveret.model.errors import PreconditionFailed
from leveret.model.quantities import maybe_age_ms
from leveret.queues.log.files import RetentionLimits, SpecError
from leveret.queues.log.files.compaction import DEFAULT_DELETE_RETENTION_MS
from leveret.queues.log.files.partition import DEFAULT_SEGMENT_BYTES, MAX_SEGMENT_BYTES
from leveret.queues.spec import QueueSpec, check_properties

MAX_PARTITIONS = 1_000
MAX_SYNC_INTERVAL_MS = 60_000
PARTITIONS_ARGUMENT = "x-partitions"

# Logs --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogSpec:
    """`partitions` is 0 for a log that is not partitioned.

    With `sync_interval_ms` 0 a record is synced before it is confirmed; otherwise the log is synced
    at most that much later.
    """

    partitions: int = 0
    retention: RetentionLimits = field(default_factory=RetentionLimits)
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    compacted: bool = False
    delete_retention_ms: int = DEFAULT_DELETE_RETENTION_MS
    sync_interval_ms: int = 0


def parse_log_spec(spec: QueueSpec, full_name: str) -> LogSpec:
    """`full_name` is how error texts name the queue."""
    check_properties(spec, full_name)
    arguments = _Arguments(spec.arguments, spec.type_names, full_name)
    segment = arguments.integer("x-stream-max-segment-size-bytes") or DEFAULT_SEGMENT_BYTES
    if segment > MAX_SEGMENT_BYTES:
        raise PreconditionFailed("Exceeded max value for x-stream-max-segment-size-bytes")
    delete_retention = arguments.age("x-delete-retention")
    interval = arguments.integer("x-sync-interval") or 0
    if interval > MAX_SYNC_INTERVAL_MS:
        raise PreconditionFailed("Exceeded max value for x-sync-interval")
    return LogSpec(
        partitions=arguments.partitions(),
        retention=RetentionLimits(
            arguments.age("x-max-age"), arguments.integer("x-max-length-bytes")
        ),
        segment_bytes=segment,
        compacted=arguments.is_compacted(),
        delete_retention_ms=(
            DEFAULT_DELETE_RETENTION_MS if delete_retention is None else delete_retention
        ),
        sync_interval_ms=interval,
    )


def with_policy(declared: LogSpec, policy: Mapping[str, Any]) -> LogSpec:
    """The spec in effect under a validated policy.

    Of two limits the smaller applies; a declared segment size overrides the policy's.
    """
    if not policy:
        return declared
    max_age = policy.get("max-age")
    limits = declared.retention
    segment = min(policy.get("stream-max-segment-size-bytes", 0), MAX_SEGMENT_BYTES)
    is_default = declared.segment_bytes == DEFAULT_SEGMENT_BYTES
    return replace(
        declared,
        retention=RetentionLimits(
            _smaller(limits.max_age_ms, None if max_age is None else parse_max_age(max_age)),
            _smaller(limits.max_bytes, policy.get("max-length-bytes")),
        ),
        segment_bytes=segment if is_default and segment else declared.segment_bytes,
    )


def _smaller(first: int | None, second: int | None) -> int | None:
    return min((limit for limit in (first, second) if limit is not None), default=None)


class _Arguments:
    """Checked access to declaration arguments."""

    def __init__(self, values: Mapping[str, Any], types: Mapping[str, str], full_name: str) -> None:
        self._values = values
        self._types = types
        self._full_name = full_name

    def integer(self, name: str) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            kind = self._types.get(name, type(value).__name__)
            raise self._invalid(name, f'"expected integer, got {kind}"')
        if value < 0:
            raise self._invalid(name, f"{{value_negative,{value}}}")
        return value

    def age(self, name: str) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            kind = self._types.get(name, type(value).__name__)
            raise self._invalid(name, f"{{unacceptable_type,{kind}}}")
        try:
            return parse_max_age(value)
        except SpecError:
            raise self._invalid(name, f"invalid_{name[2:].replace('-', '_')}") from None

    def partitions(self) -> int:
        count = self.integer(PARTITIONS_ARGUMENT)
        if count is None:
            return 0
        if not 1 <= count <= MAX_PARTITIONS:
            reason = f"must be between 1 and {MAX_PARTITIONS}, not {count}"
            raise self._invalid(PARTITIONS_ARGUMENT, reason)
        return count

    def is_compacted(self) -> bool:
        policy = self._values.get("x-cleanup-policy", "delete")
        if policy not in ("delete", "compact"):
            raise self._invalid("x-cleanup-policy", f"must be delete or compact, not {policy!r}")
        return bool(policy == "compact")

    def _invalid(self, name: str, reason: str) -> PreconditionFailed:
        return PreconditionFailed(f"invalid arg '{name}' for {self._full_name}: {reason}")


def parse_max_age(value: object) -> int:
    """Milliseconds of an `x-max-age` argument."""
    if not isinstance(value, str):
        raise SpecError(f"x-max-age must be a string such as '7D', not {value!r}")
    age_ms = maybe_age_ms(value)
    if age_ms is None:
        raise SpecError(
            f"x-max-age '{value}' is not a positive number followed by one of Y, M, D, h, m, s"
        )
    return age_ms


# Partitions --------------------------------------------------------------------------------------


def partition_names(name: str, partitions: int) -> list[str]:
    """The queue names of a log's partitions."""
    return [f"{name}-{number}" for number in range(partitions)]


def partition_spec(spec: QueueSpec, name: str) -> QueueSpec:
    """How the partition `name` of the log `spec` is declared."""
    arguments = {key: value for key, value in spec.arguments.items() if key != PARTITIONS_ARGUMENT}
    return QueueSpec(name, True, arguments=arguments)


# Start offsets -----------------------------------------------------------------------------------


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


def parse_offset_spec(value: object) -> OffsetSpec:
    """An `x-stream-offset` argument; None means the default, `next`."""
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
        age_ms = maybe_age_ms(value)
        if age_ms is not None:
            return OffsetSpec(OffsetKind.INTERVAL, age_ms)
    raise SpecError(
        f"x-stream-offset must be first, last, next, an offset, a timestamp or an interval "
        f"such as '1h', not {value!r}"
    )


def resolve_offset(spec: OffsetSpec, log: HasOffsets, now_ms: int) -> int:
    """The offset at which a consumer starts, always within the log's offsets."""
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
