"""Retention: deletes old sealed segments, by age and by size.

Invariant: the active segment stays, so the next offset is never lost, and the oldest segments are
deleted first (`Partition.drop_oldest`), so the rest has no gap. Runs on the writer thread.
"""

from dataclasses import dataclass

from leveret.queues.log.files.partition import Partition


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """None means no limit. `max_bytes` is for the whole log, including the active segment."""

    max_age_ms: int | None = None
    max_bytes: int | None = None

    @property
    def is_limited(self) -> bool:
        return self.max_age_ms is not None or self.max_bytes is not None


def apply_retention(partition: Partition, limits: RetentionLimits, now_ms: int) -> int:
    """Delete the segments beyond the limits; returns how many.

    Only sealed segments are deleted, so a log without new records would keep its last ones forever.
    Therefore an active segment whose newest record is too old is sealed first.
    """
    if limits.max_age_ms is not None:
        newest = partition.view.last_time(partition.segments()[-1].base_offset)
        if newest is not None and newest < now_ms - limits.max_age_ms:
            partition.roll()
            partition.sync()
    count = count_expired(partition, limits, now_ms)
    if count:
        partition.drop_oldest(count)
    return count


def count_expired(partition: Partition, limits: RetentionLimits, now_ms: int) -> int:
    """How many of the oldest sealed segments are beyond the limits."""
    total, count = partition.size, 0
    for segment in partition.segments():
        if not segment.sealed:
            break
        too_large = limits.max_bytes is not None and total > limits.max_bytes
        if not too_large and not _is_too_old(partition, limits, segment.base_offset, now_ms):
            break
        total -= segment.size
        count += 1
    return count


def _is_too_old(partition: Partition, limits: RetentionLimits, base: int, now_ms: int) -> bool:
    if limits.max_age_ms is None:
        return False
    newest = partition.view.last_time(base)
    return newest is None or newest < now_ms - limits.max_age_ms
