"""Compaction (`x-cleanup-policy: compact`): keep the newest record of every key.

The key is the routing key. Records with an empty routing key have no key and are always kept, and
so are those that the default exchange routed by the log's name, which says nothing about them. A
keyed record with an empty body is a tombstone: it deletes its key, and is itself deleted once it is
older than the delete-retention time. Offsets and times never change; deleted records leave holes.

Only segments before the last synced one are rewritten, oldest first, so that the checkpoint never
points into one of them and a tombstone outlives the records it deletes.
The new segment is written to a temporary file, synced and renamed over the old one, and then the
directory is synced: a crash leaves the old or the new segment, and a `*.tmp` file that recovery
removes. Segments with a damaged batch are not rewritten. May run in one thread of its own, beside
the writer and the readers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from leveret.queues.log.files.batch import Batch, Record, reencode_batch
from leveret.queues.log.files.errors import Damage
from leveret.queues.log.files.partition import Partition
from leveret.queues.log.files.scan import SegmentId
from leveret.queues.log.files.segment import SegmentFile, SegmentInfo, log_path

DEFAULT_DELETE_RETENTION_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Compacted:
    """Result of one compaction."""

    segments: int
    records_removed: int
    bytes_freed: int


@dataclass(frozen=True, slots=True)
class _Rule:
    """Which records stay: `newest` is the last offset of each key, `horizon` is for tombstones."""

    newest: Mapping[bytes, int]
    names: Container[bytes]
    horizon: int

    def keeps(self, record: Record) -> bool:
        key = _key(record, self.names)
        if not key:
            return True
        is_newest = self.newest.get(key) == record.offset
        return is_newest and (bool(record.body) or record.time_ms >= self.horizon)


def compact(
    partition: Partition,
    now_ms: int,
    delete_retention_ms: int = DEFAULT_DELETE_RETENTION_MS,
    may_continue: Callable[[], bool] = lambda: True,
    names: Container[bytes] = (),
) -> Compacted:
    """Rewrite the sealed segments that contain superseded records, while `may_continue()`.

    `names` are the queue names by which the default exchange reaches the log.
    """
    newest = _newest_offsets(partition, names, may_continue)
    rule = _Rule(newest, names, now_ms - delete_retention_ms)
    segments = removed = freed = 0
    synced = partition.synced_segment
    for info in partition.segments():
        if not may_continue():
            break
        if info.base_offset < synced and (result := _rewrite(partition, info, rule)):
            segments += 1
            removed += result[0]
            freed += result[1]
    return Compacted(segments, removed, freed)


def _newest_offsets(
    partition: Partition, names: Container[bytes], may_continue: Callable[[], bool]
) -> dict[bytes, int]:
    newest: dict[bytes, int] = {}
    for batch in partition.view.batches(partition.first_offset):
        if not may_continue():
            break
        newest.update((_key(record, names), record.offset) for record in batch.records())
    return newest


def _key(record: Record, names: Container[bytes]) -> bytes:
    """The key of a record; empty if it has none."""
    key = record.routing_key
    return b"" if not record.exchange and key in names else key


def _rewrite(partition: Partition, info: SegmentInfo, rule: _Rule) -> tuple[int, int] | None:
    """Records removed and bytes freed; None if the segment does not change."""
    path = log_path(partition.directory, info.base_offset)
    temporary = path.with_suffix(".log.tmp")
    try:
        removed, size = _copy(partition, info, temporary, rule)
        replacement = temporary if removed and size else None
        swapped = bool(removed) and partition.swap_segment(info.base_offset, replacement, size)
    except OSError:
        temporary.unlink(missing_ok=True)  # the disk may be full
        raise
    temporary.unlink(missing_ok=True)
    return (removed, info.size - size) if swapped else None


def _copy(partition: Partition, info: SegmentInfo, temporary: Path, rule: _Rule) -> tuple[int, int]:
    """Write the kept records of a segment to a temporary file: records removed, and its size."""
    removed = 0
    with open(temporary, "wb") as file:
        for batch in _walk(partition, info):
            if isinstance(batch, Damage):
                removed = 0
                break
            kept = [record for record in batch.records() if rule.keeps(record)]
            removed += batch.header.record_count - len(kept)
            if kept or not batch.header.record_count:
                file.write(_encoded(partition.log_id, batch, kept))
        size = file.tell()
        file.flush()
        if removed and partition.settings.durable:
            os.fsync(file.fileno())
    return removed, size


def _walk(partition: Partition, info: SegmentInfo) -> Iterator[Batch | Damage]:
    try:
        segment = SegmentFile(partition.directory, SegmentId(partition.log_id, info.base_offset))
    except FileNotFoundError:
        return
    try:
        yield from segment.walk_at(0, info.base_offset, info.size)
    finally:
        segment.close()


def _encoded(log_id: int, batch: Batch, kept: list[Record]) -> bytes:
    if len(kept) == batch.header.record_count:
        return batch.data
    return reencode_batch(log_id, batch, kept)
