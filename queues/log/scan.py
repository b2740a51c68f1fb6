"""Walking over the batches of a segment, stepping over whatever is damaged.

Invariant: only batches whose two checksums hold, whose log id is ours and whose offsets do not go
backwards are ever yielded.  A damaged payload costs its own batch; a damaged header costs the
bytes up to the next valid header.  Pure reading: safe in any thread, a crash leaves nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from leveret.model.checksum import checksum
from queues.log.batch import HEADER_SIZE, MAGIC, Batch, Header, parse_header
from queues.log.errors import Damage

CHUNK = 128 * 1024
_HOP_CHUNK = 4096
_SEARCH_CHUNK = 1 << 20
_ALIGNMENT = 8


class Source(Protocol):
    """Random access to the bytes of a segment; short at its end."""

    def read(self, position: int, size: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class BytesSource:
    """A segment held in memory."""

    data: bytes

    def read(self, position: int, size: int) -> bytes:
        return self.data[position : position + size]


@dataclass(frozen=True, slots=True)
class Place:
    """Which segment of which log the bytes belong to."""

    log_id: int
    segment: int


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `start` to `bound` of a segment; no batch there starts below offset `floor`."""

    start: int
    bound: int
    floor: int


class _Window:
    """The part of a source read last, so that small batches cost no read of their own."""

    def __init__(self, source: Source, bound: int, chunk: int) -> None:
        self._source = source
        self._bound = bound
        self._chunk = chunk
        self._at = 0
        self._data = b""

    def get(self, position: int, size: int) -> tuple[bytes, int]:
        """Bytes and the place of `position` in them; fewer than `size` only at the end."""
        at = position - self._at
        if at < 0 or at + size > len(self._data):
            wanted = min(max(size, self._chunk), self._bound - position)
            self._at, self._data, at = position, self._source.read(position, wanted), 0
        return self._data, at


def walk(source: Source, place: Place, span: Span, chunk: int = CHUNK) -> Iterator[Batch | Damage]:
    """Every valid batch of the span in order, and the damage between them."""
    window = _Window(source, span.bound, chunk)
    for found in _hop(window, source, place, span):
        if isinstance(found, Damage):
            yield found
            continue
        position, header = found
        data, at = window.get(position, header.length)
        payload = data[at + HEADER_SIZE : at + header.length]
        if checksum(payload) == header.payload_crc and at + header.length <= len(data):
            yield Batch(header, data[at : at + header.length], place.segment, position)
        else:
            yield Damage(
                place.segment,
                position,
                header.length,
                header.base_offset,
                header.next_offset,
                "payload checksum",
            )


def hop(source: Source, place: Place, span: Span) -> Iterator[tuple[int, Header] | Damage]:
    """Position and header of every batch of the span, payloads neither read nor checked."""
    return _hop(_Window(source, span.bound, _HOP_CHUNK), source, place, span)


def _hop(
    window: _Window, source: Source, place: Place, span: Span
) -> Iterator[tuple[int, Header] | Damage]:
    position, floor = span.start, span.floor
    while position < span.bound:
        data, at = window.get(position, HEADER_SIZE)
        header = parse_header(data, at, place.log_id)
        if header is None or header.base_offset < floor:
            follower = _next_valid(source, place, Span(position + _ALIGNMENT, span.bound, floor))
            end, offset = follower or (span.bound, None)
            reason = "no valid header"
            yield Damage(place.segment, position, end - position, floor, offset, reason)
            position = end
        elif position + header.length > span.bound:
            cut = span.bound - position
            yield Damage(place.segment, position, cut, header.base_offset, None, "cut short")
            return
        else:
            yield position, header
            position += header.length
            floor = header.next_offset


def _next_valid(source: Source, place: Place, span: Span) -> tuple[int, int] | None:
    """Position and base offset of the next header that can be trusted."""
    start = span.start
    while start < span.bound:
        data = source.read(start, min(_SEARCH_CHUNK, span.bound - start))
        at = data.find(MAGIC)
        while at >= 0:
            position = start + at
            header = None if position % _ALIGNMENT else parse_header(data, at, place.log_id)
            if header and header.base_offset >= span.floor:
                return position, header.base_offset
            at = data.find(MAGIC, at + 1)
        if len(data) <= HEADER_SIZE:
            return None
        start += len(data) - HEADER_SIZE
    return None


@dataclass(frozen=True, slots=True)
class Tail:
    """What recovery found at the end of a segment: keep the bytes below `end`, cut the rest.

    `end` can lie beyond the bytes there are, if synced bytes are missing.
    """

    end: int
    cut: int
    next_offset: int
    last_time_ms: int
    damage: tuple[Damage, ...]


def recover_tail(
    source: Source,
    place: Place,
    span: Span,
    flushed: int = 0,
    take: Callable[[Batch], object] = lambda _: None,
) -> Tail:
    """Find the end of a segment that may have been torn.

    Bytes below `flushed` are known to have reached the disk: damage there is bit rot, kept and
    reported.  Beyond, damage with a valid batch behind it is kept and reported too; damage that
    nothing valid follows is the torn tail, and is cut.  Each valid batch is shown to `take`.
    """
    damage: list[Damage] = []
    end, next_offset, last_time = span.start, span.floor, 0
    torn: Damage | None = None
    for found in walk(source, place, span):
        if torn:
            damage.append(torn)
            torn = None
        if isinstance(found, Damage):
            torn = found
            continue
        take(found)
        end = found.position + found.header.length
        next_offset, last_time = found.header.next_offset, found.header.last_time_ms
    if torn and torn.position < flushed:
        end = flushed
        length = end - torn.position
        damage.append(
            Damage(place.segment, torn.position, length, torn.first_offset, None, torn.reason)
        )
    cut = max(span.bound - end, 0)
    return Tail(end, cut, next_offset, last_time, tuple(damage))
