"""Small logs for tests."""

from collections.abc import Sequence
from pathlib import Path

from leveret.queues.log.files import Partition, PartitionSettings, RawRecord
from leveret.queues.log.files.batch import Columns, encode_batch

FAST = PartitionSettings(durable=False)


def entry(number: int, key: bytes = b"key", size: int = 20) -> RawRecord:
    """A record whose body contains its number."""
    return b"exchange", key, b"\x00\x00", b"%09d" % number + b"." * max(0, size - 9)


def entries(start: int, count: int, size: int = 20) -> list[RawRecord]:
    return [entry(number, b"key-%d" % (number % 7), size) for number in range(start, start + count)]


def encoded(
    log_id: int,
    base_offset: int,
    records: Sequence[RawRecord],
    time_ms: int,
    producers: dict[bytes, int] | None = None,
) -> bytes:
    return encode_batch(log_id, base_offset, Columns.of(records), time_ms, producers)


def small(directory: Path, max_segment_bytes: int = 10_000) -> Partition:
    settings = PartitionSettings(max_segment_bytes=max_segment_bytes, durable=False)
    return Partition(directory, settings)


def fill(partition: Partition, batches: int, count: int = 10, size: int = 20) -> None:
    """Write synced batches at times 1000, 1001, …; each body contains its offset."""
    for _ in range(batches):
        start = partition.next_offset
        partition.write(entries(start, count, size), 1000 + start // count)
        partition.sync()


def offsets(partition: Partition, start: int = 0) -> list[int]:
    """All readable offsets, read in small steps; fails if a body belongs to another offset."""
    readable: list[int] = []
    while records := partition.read(start, max_records=64):
        for record in records:
            assert int(record.body[:9]) == record.offset, f"wrong payload at {record.offset}"
        readable += [record.offset for record in records]
        start = readable[-1] + 1
    return readable


def kill(partition: Partition) -> None:
    """Close the files like a killed process: nothing more is written or synced."""
    partition._failed = "killed"
    partition.close()
