"""Walking over the batches of a segment, skipping damaged ones.

Invariant: only batches with two valid checksums, the right log id and ascending offsets are
yielded. A damaged payload loses its own batch; a damaged header loses the bytes up to the next
valid header. Read only: safe in any thread, a crash leaves nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from leveret.model.checksum import checksum
from leveret.queues.log.files.batch import HEADER_SIZE, MAGIC, Batch, Header, parse_header
from leveret.queues.log.files.errors import Damage

CHUNK = 128 * 1024
_HOP_CHUNK = 4096
_SEARCH_CHUNK = 1 << 20
_ALIGNMENT = 8


class Source(Protocol):
    """Random access to the bytes of a segment; returns fewer bytes at its end."""

    def read(self, position: int, size: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class SegmentId:
    """The log and the base offset of a segment; it ends at `ceiling`, that of the next segment.

    A batch beyond the ceiling is invalid: the file is a copy of another segment.
    """

    log_id: int
    segment: int
    ceiling: int = 1 << 64

    def accepts(self, header: Header, floor: int) -> bool:
        """Whether the batch belongs between offset `floor` and the end of the segment."""
        return floor <= header.base_offset and header.next_offset <= self.ceiling


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `start` to `bound` of a segment; a batch below offset `floor` is invalid there."""

    start: int
    bound: int
    floor: int


class _Window:
    """The last chunk read from a source, so that small batches need no read of their own."""

    def __init__(self, source: Source, bound: int, chunk: int) -> None:
        self._source = source
        self._bound = bound
        self._chunk = chunk
        self._at = 0
        self._data = b""

    def get(self, position: int, size: int) -> tuple[bytes, int]:
        """Bytes, and the index of `position` in them; fewer than `size` only at the end."""
        at = position - self._at
        if at < 0 or at + size > len(self._data):
            length = min(max(size, self._chunk), self._bound - position)
            self._at, self._data, at = position, self._source.read(position, length), 0
        return self._data, at


def walk(
    source: Source, segment_id: SegmentId, span: Span, chunk: int = CHUNK
) -> Iterator[Batch | Damage]:
    """Every valid batch of the span in order, and the damage between them."""
    window = _Window(source, span.bound, chunk)
    for item in _hop(window, source, segment_id, span):
        if isinstance(item, Damage):
            yield item
            continue
        position, header = item
        data, at = window.get(position, header.length)
        payload = data[at + HEADER_SIZE : at + header.length]
        if checksum(payload) == header.payload_crc and at + header.length <= len(data):
            yield Batch(header, data[at : at + header.length], segment_id.segment, position)
        else:
            yield Damage(
                segment_id.segment,
                position,
                header.length,
                header.base_offset,
                header.next_offset,
                "payload checksum",
            )


def hop(source: Source, segment_id: SegmentId, span: Span) -> Iterator[tuple[int, Header] | Damage]:
    """Position and header of every batch of the span; payloads are neither read nor checked."""
    return _hop(_Window(source, span.bound, _HOP_CHUNK), source, segment_id, span)


def _hop(
    window: _Window, source: Source, segment_id: SegmentId, span: Span
) -> Iterator[tuple[int, Header] | Damage]:
    position, floor = span.start, span.floor
    while position < span.bound:
        data, at = window.get(position, HEADER_SIZE)
        header = parse_header(data, at, segment_id.log_id)
        if header is None or not segment_id.accepts(header, floor):
            follower = _next_valid(
                source, segment_id, Span(position + _ALIGNMENT, span.bound, floor)
            )
            end, offset = follower or (span.bound, None)
            reason = "no valid header"
            yield Damage(segment_id.segment, position, end - position, floor, offset, reason)
            position = end
        elif position + header.length > span.bound:
            cut = span.bound - position
            yield Damage(segment_id.segment, position, cut, header.base_offset, None, "cut short")
            return
        else:
            yield position, header
            position += header.length
            floor = header.next_offset


def _next_valid(source: Source, segment_id: SegmentId, span: Span) -> tuple[int, int] | None:
    """Position and base offset of the next valid header."""
    start = span.start
    while start < span.bound:
        data = source.read(start, min(_SEARCH_CHUNK, span.bound - start))
        at = data.find(MAGIC)
        while at >= 0:
            position = start + at
            header = None if position % _ALIGNMENT else parse_header(data, at, segment_id.log_id)
            if header and segment_id.accepts(header, span.floor):
                return position, header.base_offset
            at = data.find(MAGIC, at + 1)
        if len(data) <= HEADER_SIZE:
            return None
        start += len(data) - HEADER_SIZE
    return None


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a segment as recovery determined it: keep the bytes below `end`, cut the rest.

    `end` can be beyond the end of the file, if synced bytes are missing.
    """

    end: int
    cut: int
    next_offset: int
    last_time_ms: int
    damage: tuple[Damage, ...]


def recover_tail(
    source: Source,
    segment_id: SegmentId,
    span: Span,
    flushed: int = 0,
    on_batch: Callable[[Batch], object] = lambda _: None,
) -> Tail:
    """Find the end of a segment that may have a torn tail.

    Bytes below `flushed` have been synced: damage there is bit rot, which is kept and reported.
    Beyond, damage that is followed by a valid batch is kept and reported, too; damage that no valid
    batch follows is the torn tail, and is cut. `on_batch` is called with each valid batch.
    """
    damage: list[Damage] = []
    end, next_offset, last_time = span.start, span.floor, 0
    torn: Damage | None = None
    for batch in walk(source, segment_id, span):
        if torn:
            damage.append(torn)
            torn = None
        if isinstance(batch, Damage):
            torn = batch
            continue
        on_batch(batch)
        end = batch.position + batch.header.length
        next_offset, last_time = batch.header.next_offset, batch.header.last_time_ms
    if torn and torn.position < flushed:
        end = flushed
        length = end - torn.position
        damage.append(
            Damage(segment_id.segment, torn.position, length, torn.first_offset, None, torn.reason)
        )
    cut = max(span.bound - end, 0)
    return Tail(end, cut, next_offset, last_time, tuple(damage))
