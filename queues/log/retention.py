"""Which old segments a log may drop: by age and by bytes, whole sealed segments only.

Invariant: the active segment stays, so the next offset is never lost, and segments go from the
oldest on, so what is left has no gap.  Runs in the writer thread.
"""

from dataclasses import dataclass

from queues.log.partition import Partition


@dataclass(frozen=True, slots=True)
class Retention:
    """None means no limit.  `max_bytes` counts the whole log, active segment included."""

    max_age_ms: int | None = None
    max_bytes: int | None = None

    @property
    def is_limited(self) -> bool:
        return self.max_age_ms is not None or self.max_bytes is not None


def apply_retention(partition: Partition, retention: Retention, now_ms: int) -> int:
    """Drop what is too old or too much; returns how many segments went.

    A quiet log would keep its last records for ever, because only sealed segments go: so an
    active segment whose newest record is too old is sealed first.
    """
    if retention.max_age_ms is not None:
        newest = partition.view.last_time(partition.segments()[-1].base_offset)
        if newest is not None and newest < now_ms - retention.max_age_ms:
            partition.roll()
            partition.sync()
    count = expendable(partition, retention, now_ms)
    if count:
        partition.drop_oldest(count)
    return count


def expendable(partition: Partition, retention: Retention, now_ms: int) -> int:
    """How many of the oldest sealed segments are beyond the limits."""
    total, count = partition.size, 0
    for segment in partition.segments():
        if not segment.sealed:
            break
        too_much = retention.max_bytes is not None and total > retention.max_bytes
        if not too_much and not _is_too_old(partition, retention, segment.base_offset, now_ms):
            break
        total -= segment.size
        count += 1
    return count


def _is_too_old(partition: Partition, retention: Retention, base: int, now_ms: int) -> bool:
    if retention.max_age_ms is None:
        return False
    newest = partition.view.last_time(base)
    return newest is None or newest < now_ms - retention.max_age_ms
