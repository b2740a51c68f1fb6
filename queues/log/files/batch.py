"""The record batch: the records of one append, on disk as one checksummed unit.

Layout, little-endian, always a multiple of 8 bytes long:

    header     64 bytes, see `_HEADER`; its own CRC-32C covers the bytes after that CRC
    columns    offset deltas u32[n], time deltas u32[n], then four columns of end positions
               i32[n+1], starting at 0: exchanges, routing keys, properties, bodies
    areas      exchanges, routing keys, properties, bodies, each joined without separators
    padding    zeros
    producers  id length u16, last sequence i64, id; once per producer of the batch

A column of end positions and its area form an Arrow binary array without conversion, and the
properties and the body of a record are one slice each. Offsets are deltas because compaction
leaves holes: `span` is the number of offsets the batch covers, `count` the number of records left.

There are two checksums so that a header can be trusted without reading the payload: skipping a
batch costs 64 bytes, and a damaged payload does not hide where the next batch starts.
`log_id` is a random number of the log. Publishers do not know it, so bytes inside a message body
cannot be mistaken for a batch when the search for the next header starts after a damaged one.

Pure functions and values: no files, safe in any thread.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import accumulate, pairwise, repeat
from operator import add
from typing import NamedTuple

from leveret.model.checksum import checksum

MAGIC = b"LVB1"
HEADER_SIZE = 64
MAX_BATCH_RECORDS = 16_384
MAX_BATCH_BYTES = 1 << 20
MAX_BATCH_LENGTH = (1 << 31) - 1
_ALIGNMENT = 8
_SHORT = 1 << 12

# magic, crc of the header from `payload crc` on, payload crc, length, log id, base offset,
# count, span, first time ms, last time ms, bytes of producers, flags (0)
_HEADER = struct.Struct("<4sIIIQQIIqqII")
_AFTER_CRC = struct.Struct("<IIQQIIqqII")
_PRODUCER = struct.Struct("<Hq")

RawRecord = tuple[bytes, bytes, bytes, bytes]
"""A record to append: exchange, routing key, properties in wire form, body."""
_DELTAS = array("I", range(MAX_BATCH_RECORDS)).tobytes()


class Columns(NamedTuple):
    """Records to append, by column. Where many have an equal value, it is best one object."""

    exchanges: Sequence[bytes]
    keys: Sequence[bytes]
    properties: Sequence[bytes]
    bodies: Sequence[bytes]

    @staticmethod
    def of(records: Sequence[RawRecord]) -> "Columns":
        return Columns(*zip(*records, strict=True)) if records else Columns((), (), (), ())

    def part(self, start: int, stop: int) -> "Columns":
        return Columns(*(column[start:stop] for column in self))

    @property
    def size(self) -> int:
        """Bytes that count towards the size of batches and segments."""
        return sum(map(len, self.properties)) + sum(map(len, self.bodies))


class Record(NamedTuple):
    """One stored message; names and properties are bytes in wire form."""

    offset: int
    time_ms: int
    exchange: bytes
    routing_key: bytes
    properties: bytes
    body: bytes


_new_record: Callable[[tuple[int | bytes, ...]], Record] = partial(tuple.__new__, Record)


class ProducerSequence(NamedTuple):
    """Record number `record_index` of a write has this producer id and sequence number."""

    record_index: int
    producer_id: bytes
    sequence: int


class Header(NamedTuple):
    """A batch header with a valid checksum."""

    payload_crc: int
    length: int
    base_offset: int
    record_count: int
    span: int
    first_time_ms: int
    last_time_ms: int
    producers_length: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.span


def parse_header(data: bytes, at: int, log_id: int) -> Header | None:
    """The header at `at`, or None if there is no valid header of this log."""
    if len(data) - at < HEADER_SIZE or not data.startswith(MAGIC, at):
        return None
    (_, crc, payload_crc, length, ident, base, count, span, first, last, producers, _) = (
        _HEADER.unpack_from(data, at)
    )
    if ident != log_id or checksum(data[at + 8 : at + HEADER_SIZE]) != crc:
        return None
    if length < HEADER_SIZE or length % _ALIGNMENT:
        return None
    return Header(payload_crc, length, base, count, span, first, last, producers)


def log_id_of(data: bytes) -> int | None:
    """The log id of the batch at the start of `data`, if its header is valid."""
    if len(data) < HEADER_SIZE:
        return None
    ident: int = _HEADER.unpack_from(data)[4]
    return ident if parse_header(data, 0, ident) else None


class Batch:
    """A complete batch with valid checksums. `data` starts with its header."""

    __slots__ = ("_ends", "_starts", "data", "header", "position", "segment")

    def __init__(self, header: Header, data: bytes, segment: int = 0, position: int = 0) -> None:
        self.header = header
        self.data = data
        self.segment = segment
        self.position = position
        n = header.record_count
        at = HEADER_SIZE + 8 * n
        areas = at + 16 * (n + 1)
        # All four columns of ends in one view; column c is [c * (n + 1) : (c + 1) * (n + 1)].
        self._ends = memoryview(data)[at:areas].cast("i")
        sizes = (self._ends[n], self._ends[2 * n + 1], self._ends[3 * n + 2])
        self._starts = tuple(accumulate(sizes, initial=areas))

    def __repr__(self) -> str:
        h = self.header
        return f"<Batch {h.base_offset}..{h.next_offset - 1} {h.record_count} records {h.length} B>"

    @property
    def offset_deltas(self) -> memoryview:
        return memoryview(self.data)[HEADER_SIZE : HEADER_SIZE + 4 * self.header.record_count].cast(
            "I"
        )

    @property
    def time_deltas(self) -> memoryview:
        at = HEADER_SIZE + 4 * self.header.record_count
        return memoryview(self.data)[at : at + 4 * self.header.record_count].cast("I")

    def ends(self, column: int) -> memoryview:
        """End positions i32[n+1] of column 0..3: exchange, routing key, properties, body."""
        width = self.header.record_count + 1
        return self._ends[column * width : (column + 1) * width]

    def area(self, column: int) -> memoryview:
        """The values of a column, joined; together with `ends` an Arrow binary array."""
        start = self._starts[column]
        return memoryview(self.data)[start : start + self.ends(column)[-1]]

    def index_of(self, offset: int) -> int:
        """Index of the first record at or after `offset`."""
        delta = offset - self.header.base_offset
        return bisect_left(self.offset_deltas, delta) if delta > 0 else 0

    def index_of_time(self, time_ms: int) -> int:
        """Index of the first record at or after `time_ms`."""
        delta = time_ms - self.header.first_time_ms
        return bisect_left(self.time_deltas, delta) if delta > 0 else 0

    def stop_for(self, start: int, max_records: int, max_bytes: int) -> int:
        """End index of the records from `start` on that fit both limits; bytes are body bytes."""
        if self.header.record_count == 1:
            return 1 if start == 0 and max_records > 0 and self._ends[-1] <= max_bytes else start
        bodies = self.ends(3)
        fits = bisect_right(bodies, bodies[start] + max_bytes, lo=start) - 1
        return min(fits, start + max_records, self.header.record_count)

    def body_bytes(self, start: int, stop: int) -> int:
        at = 3 * (self.header.record_count + 1)
        size: int = self._ends[at + stop] - self._ends[at + start]
        return size

    def records(self, start: int = 0, stop: int | None = None) -> list[Record]:
        stop = self.header.record_count if stop is None else stop
        if stop - start == 1:
            return [self._record(start)]
        columns = (self._values(column, start, stop) for column in range(4))
        fields = zip(self._offsets(start, stop), self._times(start, stop), *columns, strict=False)
        return list(map(_new_record, fields))

    def _record(self, at: int) -> Record:
        """Fast path for one record: logs that are written slowly have batches of one record."""
        h, data, ends, width = self.header, self.data, self._ends, self.header.record_count + 1
        exchange, key, properties, body = (
            data[area + ends[i] : area + ends[i + 1]]
            for area, i in zip(self._starts, range(at, 4 * width, width), strict=True)
        )
        offset, time_ms = h.base_offset, h.first_time_ms
        if h.span > 1:
            offset, time_ms = offset + self.offset_deltas[at], time_ms + self.time_deltas[at]
        return Record(offset, time_ms, exchange, key, properties, body)

    def _offsets(self, start: int, stop: int) -> Iterable[int]:
        h = self.header
        if h.span == h.record_count:
            return range(h.base_offset + start, h.base_offset + stop)
        return [h.base_offset + delta for delta in self.offset_deltas[start:stop]]

    def _times(self, start: int, stop: int) -> Iterable[int]:
        h = self.header
        if h.first_time_ms == h.last_time_ms:
            return repeat(h.first_time_ms, stop - start)
        return [h.first_time_ms + delta for delta in self.time_deltas[start:stop]]

    def _values(self, column: int, start: int, stop: int) -> list[bytes]:
        """The values of a column; one shared object if all of them are equal."""
        data, area, n = self.data, self._starts[column], stop - start
        at = column * (self.header.record_count + 1)
        ends = self._ends[at + start : at + stop + 1].tolist()
        low, high = area + ends[0], area + ends[-1]
        if column < 3 and n > 1:
            first = data[low : area + ends[1]]
            if len(first) * n == high - low and first * n == data[low:high]:
                return [first] * n
        return [data[area + a : area + b] for a, b in pairwise(ends)]

    def producers(self) -> dict[bytes, int]:
        """The last sequence number of each producer in this batch."""
        return decode_producers(self.data[self.header.length - self.header.producers_length :])


def decode_producers(table: bytes) -> dict[bytes, int]:
    producers: dict[bytes, int] = {}
    at = 0
    while at < len(table):
        size, sequence = _PRODUCER.unpack_from(table, at)
        at += _PRODUCER.size
        producers[table[at : at + size]] = sequence
        at += size
    return producers


def encode_batch(
    log_id: int,
    base_offset: int,
    records: Columns,
    time_ms: int,
    producers: dict[bytes, int] | None = None,
) -> bytes:
    """A batch of new records with the same time, at consecutive offsets."""
    n = len(records.bodies)
    return _pack(
        log_id,
        (base_offset, n, time_ms, time_ms),
        (_DELTAS[: 4 * n], bytes(4 * n)),
        records,
        producers or {},
    )


def reencode_batch(log_id: int, batch: Batch, records: Sequence[Record]) -> bytes:
    """The batch with only these of its records; offsets, times and span do not change."""
    h = batch.header
    base, first = h.base_offset, h.first_time_ms
    return _pack(
        log_id,
        (base, h.span, first, h.last_time_ms),
        (
            array("I", [r.offset - base for r in records]).tobytes(),
            array("I", [r.time_ms - first for r in records]).tobytes(),
        ),
        [
            [r.exchange for r in records],
            [r.routing_key for r in records],
            [r.properties for r in records],
            [r.body for r in records],
        ],
        batch.producers(),
    )


def _pack(
    log_id: int,
    place: tuple[int, int, int, int],
    deltas: tuple[bytes, bytes],
    columns: Sequence[Sequence[bytes]],
    producers: dict[bytes, int],
) -> bytes:
    base, span, first_ms, last_ms = place
    count = len(columns[0])
    table = b"".join(
        _PRODUCER.pack(len(ident), sequence) + ident for ident, sequence in producers.items()
    )
    parts = [*deltas]
    parts += map(_ends, columns)
    parts += [b"".join(column) for column in columns]
    parts.append(bytes(-(sum(map(len, parts)) + len(table)) % _ALIGNMENT))
    parts.append(table)
    payload = b"".join(parts)
    length = HEADER_SIZE + len(payload)
    rest = _AFTER_CRC.pack(
        checksum(payload), length, log_id, base, count, span, first_ms, last_ms, len(table), 0
    )
    return b"".join((MAGIC, checksum(rest).to_bytes(4, "little"), rest, payload))


def _ends(column: Sequence[bytes]) -> bytes:
    """The end positions of the values, starting with 0."""
    count, sizes = len(column), {*map(len, column)}
    if len(sizes) == 1 and count <= MAX_BATCH_RECORDS:
        (size,) = sizes
        if size <= _SHORT:
            return _multiples(size)[: 4 * (count + 1)]
    return array("i", accumulate(map(len, column), initial=0)).tobytes()


@lru_cache(maxsize=32)
def _multiples(size: int) -> bytes:
    """The end positions of values of this size."""
    if not size:
        return bytes(4 * (MAX_BATCH_RECORDS + 1))
    return array("i", range(0, size * (MAX_BATCH_RECORDS + 1), size)).tobytes()


def split(records: Columns, total: int) -> list[tuple[int, int]]:
    """Ranges of `records`, which have `total` bytes together, that each fit in one batch."""
    count = len(records.bodies)
    if total <= MAX_BATCH_BYTES and count <= MAX_BATCH_RECORDS:
        return [(0, count)] if count else []
    ranges: list[tuple[int, int]] = []
    start = size = 0
    sizes = map(add, map(len, records.properties), map(len, records.bodies))
    for i, record_size in enumerate(sizes):
        grown = size + record_size
        if i > start and (grown > MAX_BATCH_BYTES or i - start >= MAX_BATCH_RECORDS):
            ranges.append((start, i))
            start, grown = i, record_size
        size = grown
    ranges.append((start, count))
    return ranges
