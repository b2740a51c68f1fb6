"""Data that is gone before a reader has read it, and what the reader does then.

`find_gaps` compares a position with what still exists. Compaction of a log is no loss: it removes
records that later ones replace. With the option `failOnDataLoss` (the default) a gap is an error
that names it; without it, the reader logs a warning and continues with what is left.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from leveret.spark_sink.arrow.selection import SINGLE_RANGE
from leveret.spark_sink.arrow.source import Ranges, ReadStats
from leveret.spark_sink.errors import SourceError
from leveret.spark_sink.positions import Position

logger = logging.getLogger("leveret.spark")
_MAX_NAMED = 5


class DataLossError(SourceError):
    """Rows were deleted before they were read."""


class Cause(Enum):
    TRIMMED = auto()
    """Retention has deleted rows."""
    LOG_DELETED = auto()
    RESTORED = auto()
    """The position is beyond the end."""
    REPLACED = auto()
    """The data directory is that of another broker."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What a reader at `first_missing` does not find in `place`; `available` can be read."""

    cause: Cause
    place: str
    key: str
    first_missing: int
    available: int

    @property
    def rows(self) -> int:
        """An upper bound: some ids and offsets have no row."""
        return max(self.available - self.first_missing, 0) if self.cause is Cause.TRIMMED else 0

    def __str__(self) -> str:
        first, available = self.first_missing, self.available
        if self.cause is Cause.TRIMMED:
            return (
                f"retention has deleted {first} to {available - 1} of {self.place} "
                f"(at most {self.rows} rows), and the first one available is {available}"
            )
        if self.cause is Cause.LOG_DELETED:
            return f"{self.place} was deleted or cannot be read, and had been read up to {first}"
        if self.cause is Cause.RESTORED:
            return (
                f"{self.place} ends at {available}, but had been read up to {first}, so it was "
                "replaced by an older copy"
            )
        return f"{self.place} belongs to another broker than the one read up to {first}"


def find_gaps(table: str, position: Position, ranges: Ranges) -> list[Gap]:
    """What is gone of the rows from `position` on."""
    if position.broker and ranges.identity and position.broker != ranges.identity:
        furthest = max(position.next_ids.values(), default=0)
        return [Gap(Cause.REPLACED, f"table {table!r}", SINGLE_RANGE, furthest, 0)]
    if table == "logs":
        return list(_log_gaps(position, ranges))
    return list(_history_gaps(table, position, ranges))


def _history_gaps(table: str, position: Position, ranges: Ranges) -> Iterator[Gap]:
    place, next_id = place_of(table, SINGLE_RANGE, ranges), position.next_ids[SINGLE_RANGE]
    _, end = ranges.of(table)[SINGLE_RANGE]
    deleted = ranges.trims_of(table).last_deleted_since(position.trims)
    if next_id > end:
        yield Gap(Cause.RESTORED, place, SINGLE_RANGE, next_id, end)
    elif deleted is not None and deleted >= next_id:
        yield Gap(Cause.TRIMMED, place, SINGLE_RANGE, next_id, deleted + 1)


def _log_gaps(position: Position, ranges: Ranges) -> Iterator[Gap]:
    for key, next_offset in sorted(position.next_ids.items()):
        partition = ranges.partitions.get(int(key))
        if partition is None:
            place = place_of("logs", key, ranges)
            yield Gap(Cause.LOG_DELETED, place, key, next_offset, 0)
        elif next_offset > partition.next:
            yield Gap(Cause.RESTORED, partition.full_name, key, next_offset, partition.next)
        elif next_offset < partition.start:
            yield Gap(Cause.TRIMMED, partition.full_name, key, next_offset, partition.start)
    for queue_id, partition in sorted(ranges.partitions.items()):
        if str(queue_id) not in position.next_ids and partition.start > 0:
            yield Gap(Cause.TRIMMED, partition.full_name, str(queue_id), 0, partition.start)


def lost_gaps(place: str, stats: ReadStats) -> list[Gap]:
    """What was deleted while it was read."""
    return [Gap(Cause.TRIMMED, place, SINGLE_RANGE, first, end) for first, end in stats.lost]


def place_of(table: str, key: str, ranges: Ranges) -> str:
    """How errors name a table, or a partition of a log."""
    if key == SINGLE_RANGE:
        return f"table {table!r}"
    partition = ranges.partitions.get(int(key))
    if partition is not None:
        return partition.full_name
    return f"the log with queue id {key} (see table 'queues')"


def continue_after(gaps: Iterable[Gap], table: str, position: Position, ranges: Ranges) -> Position:
    """The position from which a reader continues that accepts these gaps."""
    next_ids = dict(position.next_ids)
    for gap in gaps:
        if gap.cause is Cause.REPLACED:
            next_ids = {key: low for key, (low, _) in ranges.of(table).items()}
        elif gap.cause is Cause.LOG_DELETED:
            del next_ids[gap.key]
        elif gap.cause is Cause.RESTORED or table == "logs":
            next_ids[gap.key] = gap.available
        # Else rows of messages that are still in a queue may be left within the gap.
    return Position.at(next_ids, table, ranges)


def report(gaps: Sequence[Gap], *, fail: bool) -> None:
    """Raise DataLossError, or log one warning for each gap."""
    if gaps and fail:
        raise DataLossError(_explain([str(gap) for gap in gaps]))
    for gap in gaps:
        logger.warning("data was lost before it was read: %s", gap)


def _explain(gaps: list[str]) -> str:
    more = f"; and {len(gaps) - _MAX_NAMED} more" if len(gaps) > _MAX_NAMED else ""
    return (
        f"Data was lost before it was read: {'; '.join(gaps[:_MAX_NAMED])}{more}. To continue with "
        "what is left, set the option failOnDataLoss to false (`leveret export "
        "--no-fail-on-data-loss`)."
    )
