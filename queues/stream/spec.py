"""What a log may be declared to be; refusals in RabbitMQ's words. Parsed once, at declaration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from leveret.model.errors import PreconditionFailed
from queues.log import Retention, SpecError, parse_max_age
from queues.log.compaction import DEFAULT_DELETE_RETENTION_MS
from queues.log.partition import DEFAULT_SEGMENT_BYTES, MAX_SEGMENT_BYTES
from queues.spec import QueueSpec, check_properties

MAX_PARTITIONS = 1_000
LONGEST_SYNC_INTERVAL_MS = 60_000


@dataclass(frozen=True, slots=True)
class LogSpec:
    """`partitions` 0: a log of its own, not a partitioned one.

    `sync_interval_ms` 0: on disk before it is confirmed; else synced at the latest after that.
    """

    partitions: int = 0
    retention: Retention = field(default_factory=Retention)
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    compacted: bool = False
    delete_retention_ms: int = DEFAULT_DELETE_RETENTION_MS
    sync_interval_ms: int = 0


def parse_log_spec(spec: QueueSpec, where: str) -> LogSpec:
    check_properties(spec, where)
    read = _Arguments(spec.arguments, spec.type_names, where)
    segment = read.whole("x-stream-max-segment-size-bytes") or DEFAULT_SEGMENT_BYTES
    if segment > MAX_SEGMENT_BYTES:
        raise PreconditionFailed("Exceeded max value for x-stream-max-segment-size-bytes")
    delete_retention = read.age("x-delete-retention")
    interval = read.whole("x-sync-interval") or 0
    if interval > LONGEST_SYNC_INTERVAL_MS:
        raise PreconditionFailed("Exceeded max value for x-sync-interval")
    return LogSpec(
        partitions=read.partitions(),
        retention=Retention(read.age("x-max-age"), read.whole("x-max-length-bytes")),
        segment_bytes=segment,
        compacted=read.is_compacted(),
        delete_retention_ms=(
            DEFAULT_DELETE_RETENTION_MS if delete_retention is None else delete_retention
        ),
        sync_interval_ms=interval,
    )


def governed(declared: LogSpec, policy: Mapping[str, Any]) -> LogSpec:
    """What holds under a (checked) policy: the smaller limit, and the declared segment size."""
    age = policy.get("max-age")
    own = declared.retention
    segment = min(policy.get("stream-max-segment-size-bytes", 0), MAX_SEGMENT_BYTES)
    is_free = declared.segment_bytes == DEFAULT_SEGMENT_BYTES
    return replace(
        declared,
        retention=Retention(
            _smaller(own.max_age_ms, None if age is None else parse_max_age(age)),
            _smaller(own.max_bytes, policy.get("max-length-bytes")),
        ),
        segment_bytes=segment if is_free and segment else declared.segment_bytes,
    )


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((value for value in (one, other) if value is not None), default=None)


class _Arguments:
    def __init__(self, values: Mapping[str, Any], types: Mapping[str, str], where: str) -> None:
        self._values = values
        self._types = types
        self._where = where

    def whole(self, name: str) -> int | None:
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
        count = self.whole("x-partitions")
        if count is None:
            return 0
        if not 1 <= count <= MAX_PARTITIONS:
            raise self._invalid("x-partitions", f"must be between 1 and {MAX_PARTITIONS}")
        return count

    def is_compacted(self) -> bool:
        policy = self._values.get("x-cleanup-policy", "delete")
        if policy not in ("delete", "compact"):
            raise self._invalid("x-cleanup-policy", "must be delete or compact")
        return bool(policy == "compact")

    def _invalid(self, name: str, why: str) -> PreconditionFailed:
        return PreconditionFailed(f"invalid arg '{name}' for {self._where}: {why}")
