"""Compaction (`x-cleanup-policy: compact`): keep the newest record of every key.

The key is the routing key; records with an empty one have no key and are always kept.  A record
with an empty body is a tombstone: it removes its key, and is itself removed once it is older than
the delete-retention time.  Offsets and times never change, removed records leave holes.

Only segments before the last synced one are rewritten, oldest first, so that the committed mark
never points into one and a tombstone outlives what it deletes.
Each is written aside, synced, renamed over the old file, and the directory is synced: a crash
leaves the old segment or the new one, and a leftover `*.tmp` that the next opening removes.
Segments with a damaged batch are left alone.  May run in any one thread beside writer and readers.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from queues.log.batch import Batch, Record, reencode_batch
from queues.log.errors import Damage
from queues.log.partition import Partition
from queues.log.scan import Place
from queues.log.segment import SegmentFile, SegmentInfo, log_path

DEFAULT_DELETE_RETENTION_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one compaction did."""

    segments: int
    records_removed: int
    bytes_freed: int


def compact(
    partition: Partition,
    now_ms: int,
    delete_retention_ms: int = DEFAULT_DELETE_RETENTION_MS,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Compacted:
    """Rewrite the sealed segments that hold superseded records, as long as it `is_wanted`."""
    newest = _newest_offsets(partition, is_wanted)
    horizon = now_ms - delete_retention_ms
    segments = removed = freed = 0
    reached = partition.synced_segment
    for info in partition.segments():
        if not is_wanted():
            break
        if info.base_offset < reached and (result := _rewrite(partition, info, newest, horizon)):
            segments += 1
            removed += result[0]
            freed += result[1]
    return Compacted(segments, removed, freed)


def _newest_offsets(partition: Partition, is_wanted: Callable[[], bool]) -> dict[bytes, int]:
    newest: dict[bytes, int] = {}
    for batch in partition.view.batches(partition.first_offset):
        if not is_wanted():
            break
        keys = [record.routing_key for record in batch.records()]
        base = batch.header.base_offset
        newest.update(zip(keys, (base + delta for delta in batch.offset_deltas), strict=True))
    return newest


def _rewrite(
    partition: Partition, info: SegmentInfo, newest: dict[bytes, int], horizon: int
) -> tuple[int, int] | None:
    """Records removed and bytes freed; None if the segment stays as it is."""
    path = log_path(partition.directory, info.base_offset)
    aside = path.with_suffix(".log.tmp")
    try:
        removed, size = _copy(partition, info, aside, (newest, horizon))
        replacement = aside if removed and size else None
        swapped = bool(removed) and partition.swap_segment(info.base_offset, replacement, size)
    except OSError:
        aside.unlink(missing_ok=True)  # a full disk needs every octet
        raise
    aside.unlink(missing_ok=True)
    return (removed, info.size - size) if swapped else None


def _copy(
    partition: Partition, info: SegmentInfo, aside: Path, rule: tuple[dict[bytes, int], int]
) -> tuple[int, int]:
    """What is kept of a segment, written aside: records removed, and its size."""
    removed = 0
    with open(aside, "wb") as file:
        for found in _walk(partition, info):
            if isinstance(found, Damage):
                removed = 0
                break
            kept = _kept(found, *rule)
            removed += found.header.record_count - len(kept)
            if kept or not found.header.record_count:
                file.write(_encoded(partition.log_id, found, kept))
        size = file.tell()
        file.flush()
        if removed and partition.settings.durable:
            os.fsync(file.fileno())
    return removed, size


def _walk(partition: Partition, info: SegmentInfo) -> Iterator[Batch | Damage]:
    try:
        segment = SegmentFile(partition.directory, Place(partition.log_id, info.base_offset))
    except FileNotFoundError:
        return
    try:
        yield from segment.walk_at(0, info.base_offset, info.size)
    finally:
        segment.close()


def _kept(batch: Batch, newest: dict[bytes, int], horizon: int) -> list[Record]:
    return [
        record
        for record in batch.records()
        if not record.routing_key
        or (
            newest.get(record.routing_key) == record.offset
            and (record.body or record.time_ms >= horizon)
        )
    ]


def _encoded(log_id: int, batch: Batch, kept: list[Record]) -> bytes:
    if len(kept) == batch.header.record_count:
        return batch.data
    return reencode_batch(log_id, batch, kept)
