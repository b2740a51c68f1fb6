"""The format of `message_packs`: the content of many messages in one row.

A pack holds messages of one batch in ascending order of their ids. No other pack has an id between
its first and its last one, so the pack of a message is the one with the highest `id` that is not
above the message's.

`data` is the messages' content frames, one after the other, as `Message.frames` has them: a header
frame and, if there is a body, one body frame. So a message is delivered as it was stored. `sizes`
and `crcs` have the length and the CRC-32C of each message's frames as little-endian unsigned 32-bit
integers. `ids` are the message ids as little-endian unsigned 64-bit integers; NULL if they are
consecutive. `runs` has what consecutive messages share: how many they are, time, origin, exchange
and routing key. `crc` is the checksum of all of these columns except `data`. All messages of a pack
have the same `keep`.

If history keeps only the metadata, the body frame is removed when no queue holds the message any
more; its header frame still tells the size of the body. `has_bodies` is 0 when no body is left.

A body of more than `PARTS_FROM` bytes is in `body_parts`. Its message is a pack of its own, whose
`data` is the header frame; `body_crc` is the checksum of the body. A pack with `parts` and without
`data` has its data in `body_parts`: it belongs to a large transaction.

Pure functions. The channel number in the frames is that of the publisher, and has no meaning here.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import Any, Final, NamedTuple

from leveret.model.checksum import checksum, extend
from leveret.model.history import Keep
from leveret.model.message import (
    LARGE_BODY,
    PART_BYTES,
    Address,
    LargeBody,
    Message,
    content_frames,
    part_count,
    scan_edited,
)
from leveret.model.run import Run
from leveret.model.store import UnreadableMessage
from leveret.queues.storage.packing import pack_ids, pack_sizes, unpack_ids, unpack_sizes

PACK_BYTES: Final = 64 * 1024
"""A pack is not extended beyond this. Larger ones are not written faster, and reading one message
reads its whole pack."""
NOT_KEPT: Final = "its body was not kept"
NO_SUCH_MESSAGE: Final = "no such message"
RUN: Final = struct.Struct("<IQQHH")
"""messages, time, origin, bytes of the exchange and of the routing key"""
_INDEX: Final = struct.Struct("<QQIQQBQBQII")
_FRAME: Final = struct.Struct(">xHIxxxxQ")
"""channel, length of the header, size of the body"""
_END_OF_FRAME: Final = 8
"""What a frame has beside its payload."""
_MASK: Final = 0xFFFFFFFF


class PackRow(NamedTuple):
    """A row of `message_packs`."""

    id: int
    last_id: int
    message_count: int
    first_ms: int
    last_ms: int
    keep: int
    body_bytes: int
    has_bodies: int
    first_part: int | None
    parts: int
    runs: bytes
    ids: bytes | None
    sizes: bytes
    crcs: bytes
    body_crc: int
    crc: int
    data: bytes | None


class DamagedPack(ValueError):
    """The index of a pack does not match its checksum."""


@dataclass(frozen=True, slots=True)
class PackedRun:
    """The messages `start` to `end` of a pack, which have this in common."""

    start: int
    end: int
    time_ms: int
    origin: int
    exchange: str
    routing_key: str


@dataclass(slots=True)
class StagedPack:
    """A pack whose data was stored in parts before its messages had ids.

    Nothing refers to the parts until the row of the pack is stored.
    """

    runs: Sequence[Run]
    sizes: bytes
    crcs: bytes
    parts: int
    first_part: int = 0

    @property
    def ids(self) -> Sequence[int]:
        return range(self.runs[0].ids[0], self.runs[-1].ids[-1] + 1)

    @property
    def bytes_to_store(self) -> int:
        return len(self.sizes) + len(self.crcs)

    @property
    def is_consecutive(self) -> bool:
        """Whether no other message has an id between those of the pack, and all have one `keep`."""
        first = self.runs[0]
        count = sum(map(len, self.runs))
        has_one_keep = all(run.keep == first.keep for run in self.runs)
        return has_one_keep and self.runs[-1].ids[-1] - first.ids[0] == count - 1


class _Part(NamedTuple):
    """Messages of a run that go into one pack."""

    time_ms: int
    origin: int
    exchange: str
    routing_key: str
    keep: int
    ids: Sequence[int]
    frames: Sequence[bytes]
    body_bytes: int

    @property
    def encoded_head(self) -> bytes:
        """What the messages share, as in the column `runs`."""
        name, key = self.exchange.encode(), self.routing_key.encode()
        count = len(self.ids)
        return RUN.pack(count, self.time_ms, self.origin, len(name), len(key)) + name + key


# -- writing -------------------------------------------------------------------------------------


def encode_packs(contents: Iterable[Run | StagedPack]) -> Iterator[PackRow]:
    """The packs of a batch. The ids of its runs ascend."""
    parts: list[_Part] = []
    room = PACK_BYTES
    for run in contents:
        large = run.large_body if isinstance(run, Run) else None
        if isinstance(run, StagedPack) or (large is not None and large.first_part):
            if parts:
                yield _encode(parts)
            yield _encode_stored(run, large)
            parts, room = [], PACK_BYTES
            continue
        frames = run.frames if large is None else [_whole_frames(run, large)]
        size = sum(map(len, frames))
        if parts and (size > room or run.keep != parts[0].keep):
            yield _encode(parts)
            parts, room = [], PACK_BYTES
        if size > room and len(frames) > 1:
            yield from map(_encode, _cut(run, frames))
            continue
        address, bodies = run.address, sum(run.body_sizes)
        parts.append(_Part(run.time_ms, run.origin, address.exchange, address.routing_key,
                           run.keep, run.ids, frames, bodies))  # fmt: skip
        room -= size
    if parts:
        yield _encode(parts)


def _cut(run: Run, frames: Sequence[bytes]) -> Iterator[list[_Part]]:
    """The parts of a run that is too large for one pack."""
    ends, start, before = list(accumulate(map(len, frames))), 0, 0
    while start < len(frames):
        end = max(bisect_right(ends, before + PACK_BYTES), start + 1)
        bodies = sum(run.body_sizes[start:end])
        yield [_Part(*_head(run), run.ids[start:end], frames[start:end], bodies)]
        start, before = end, ends[end - 1]


def _head(run: Run) -> tuple[int, int, str, str, int]:
    address = run.address
    return (run.time_ms, run.origin, address.exchange, address.routing_key, run.keep)


def _whole_frames(run: Run, body: LargeBody) -> bytes:
    """The frames of a message with a large body that is not stored in parts."""
    properties = run.frames[0][19 : 7 + run.header_sizes[0]]
    return content_frames(1, properties, bytes(body), len(body) + _END_OF_FRAME)


def _encode(parts: list[_Part]) -> PackRow:
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        frames, ids = first.frames, first.ids
        body_bytes, first_ms, last_ms = first.body_bytes, first.time_ms, first.time_ms
    else:
        frames = list(chain.from_iterable([part.frames for part in parts]))
        ids = list(chain.from_iterable([part.ids for part in parts]))
        body_bytes = sum([part.body_bytes for part in parts])
        times = [part.time_ms for part in parts]
        first_ms, last_ms = min(times), max(times)
    row = PackRow(
        id=first.ids[0],
        last_id=last.ids[-1],
        message_count=len(frames),
        first_ms=first_ms,
        last_ms=last_ms,
        keep=int(first.keep),
        body_bytes=body_bytes,
        has_bodies=int(body_bytes > 0),
        first_part=None,
        parts=0,
        runs=b"".join([part.encoded_head for part in parts]),
        ids=None if ids[-1] - ids[0] == len(ids) - 1 else pack_ids(ids),
        sizes=pack_sizes(map(len, frames)),
        crcs=pack_sizes(map(checksum, frames)),
        body_crc=0,
        crc=0,
        data=b"".join(frames),
    )
    return row._replace(crc=index_checksum(row))


def _encode_large(run: Run, body: LargeBody) -> PackRow:
    """A message whose body is stored in parts."""
    body_crc = 0
    for piece in body.pieces:
        body_crc = extend(body_crc, piece)
    part = _Part(*_head(run), run.ids, run.frames, len(body))
    row = _encode([part])._replace(
        first_part=body.first_part, parts=part_count(len(body)), body_crc=body_crc
    )
    return _with_checksum(row)


def _encode_stored(content: Run | StagedPack, body: LargeBody | None) -> PackRow:
    """The row of a message or a pack whose parts are stored already."""
    if isinstance(content, StagedPack):
        return _encode_staged(content)
    assert body is not None
    return _encode_large(content, body)


def stage_pack(runs: Sequence[Run]) -> tuple[StagedPack, list[bytes]]:
    """A pack of messages that have no ids yet, and its data in parts."""
    frames = list(chain.from_iterable([run.frames for run in runs]))
    data = b"".join(frames)
    parts = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
    sizes, crcs = pack_sizes(map(len, frames)), pack_sizes(map(checksum, frames))
    return StagedPack(runs, sizes, crcs, len(parts)), parts


def _encode_staged(pack: StagedPack) -> PackRow:
    runs = pack.runs
    times = [run.time_ms for run in runs]
    body_bytes = sum([sum(run.body_sizes) for run in runs])
    row = PackRow(
        id=pack.ids[0],
        last_id=pack.ids[-1],
        message_count=len(pack.ids),
        first_ms=min(times),
        last_ms=max(times),
        keep=int(runs[0].keep),
        body_bytes=body_bytes,
        has_bodies=int(body_bytes > 0),
        first_part=pack.first_part,
        parts=pack.parts,
        runs=b"".join([_Part(*_head(run), run.ids, (), 0).encoded_head for run in runs]),
        ids=None,
        sizes=pack.sizes,
        crcs=pack.crcs,
        body_crc=0,
        crc=0,
        data=None,
    )
    return _with_checksum(row)


def _with_checksum(row: PackRow) -> PackRow:
    return row._replace(crc=index_checksum(row))


def index_checksum(row: PackRow) -> int:
    """The checksum of everything but the data."""
    crc = checksum(_INDEX.pack(*row[:8], row.first_part or 0, row.parts, row.body_crc))
    return extend(extend(extend(extend(crc, row.runs), row.ids or b""), row.sizes), row.crcs)


# -- reading -------------------------------------------------------------------------------------


class Pack:
    """A row whose index was checked; raises DamagedPack if it is damaged.

    `data` None: it has to be read from `body_parts`, or was not read.
    """

    __slots__ = ("_ends", "crcs", "data", "ids", "row", "runs", "sizes")

    def __init__(self, row: PackRow, data: bytes | None = None) -> None:
        try:
            if index_checksum(row) != row.crc:
                raise DamagedPack("its index does not match its checksum")
            self.runs = list(_decode_runs(row.runs))
        except (TypeError, AttributeError, struct.error, UnicodeDecodeError) as error:
            raise DamagedPack(f"its index cannot be read: {error}") from error
        self.row = row
        self.ids: Sequence[int] = (
            range(row.id, row.last_id + 1) if row.ids is None else unpack_ids(row.ids)
        )
        self.sizes = unpack_sizes(row.sizes)
        self.crcs = unpack_sizes(row.crcs)
        self.data = row.data if data is None else data
        self._ends = array("Q", accumulate(self.sizes))

    def __len__(self) -> int:
        return self.row.message_count

    def maybe_position(self, message_id: int) -> int | None:
        """The place of a message in this pack; None if it is not here."""
        row, ids = self.row, self.ids
        at = message_id - row.id if row.ids is None else bisect_left(ids, message_id)
        return at if 0 <= at < len(ids) and ids[at] == message_id else None

    def frames(self, start: int, end: int) -> list[bytes]:
        """The frames of these messages, unchecked; shorter where the data ends too early."""
        data, ends = self.data or b"", self._ends
        before = ends[start - 1] if start else 0
        starts = chain((before,), ends[start : end - 1])
        return [data[a:b] for a, b in zip(starts, ends[start:end], strict=True)]

    def are_sound(self, start: int, frames: Sequence[bytes]) -> bool:
        """Whether these frames, of the messages from `start` on, match their checksums."""
        return array("I", map(checksum, frames)) == self.crcs[start : start + len(frames)]

    def contents(
        self, start: int = 0, end: int | None = None
    ) -> Iterator[tuple[bytes, bytes | None, int]]:
        """Properties, body, and size of the body of each message; unchecked.

        The body is None if history did not keep it, or if it is in parts.
        """
        for frames in self.frames(start, len(self) if end is None else end):
            if len(frames) < _FRAME.size:  # the data is damaged
                yield b"\0\0", None, 0
                continue
            head = _FRAME.unpack_from(frames)
            _, header_size, body_size = head
            body = frames[15 + header_size : -1] if body_size else b""
            is_whole = _is_whole(frames, head)
            yield frames[19 : 7 + header_size], body if is_whole else None, body_size

    def select(self, message_ids: Sequence[int]) -> Iterator[Run | UnreadableMessage]:
        """The messages with these ids, which ascend, in runs; a body in parts is not included."""
        start = end = 0
        for message_id in message_ids:
            at = self.maybe_position(message_id)
            if at is None:
                yield from self._between(start, end)
                yield UnreadableMessage(message_id, NO_SUCH_MESSAGE)
                start = end
            elif at == end:
                end += 1
            else:
                yield from self._between(start, end)
                start, end = at, at + 1
        yield from self._between(start, end)

    def _between(self, start: int, end: int) -> Iterator[Run | UnreadableMessage]:
        if start == end:
            return
        first = bisect_right(self.runs, start, key=_start_of) - 1
        for run in islice(self.runs, first, None):
            if run.start >= end:
                return
            begin = max(start, run.start)
            frames = self.frames(begin, min(end, run.end))
            if self.are_sound(begin, frames):
                yield from self._restore(run, begin, frames)
            else:
                for at, one in enumerate(frames, begin):
                    if self.are_sound(at, [one]):
                        yield from self._restore(run, at, [one])
                    else:
                        yield UnreadableMessage(
                            self.ids[at], "its content does not match its checksum"
                        )

    def _restore(
        self, run: PackedRun, start: int, frames: list[bytes]
    ) -> Iterator[Run | UnreadableMessage]:
        heads = [_FRAME.unpack_from(one) for one in frames]
        if all(map(_is_whole, frames, heads)):
            channels = {channel for channel, _, _ in heads}
            if len(channels) == 1 and max([head[2] for head in heads]) <= LARGE_BODY:
                ids = self.ids[start : start + len(frames)]
                yield _restored_run(run, ids, frames, heads, self.row.keep)
                return
        for at, (one, head) in enumerate(zip(frames, heads, strict=True), start):
            if not _is_whole(one, head) and not self.row.parts:
                yield UnreadableMessage(self.ids[at], NOT_KEPT)
            elif head[2] <= LARGE_BODY:
                yield _restored_run(run, (self.ids[at],), [one], [head], self.row.keep)
            else:
                yield self.restored_large(run, at, one, one[15 + head[1] : -1])

    def restored_large(self, run: PackedRun, at: int, frames: bytes, body: Any) -> Run:
        """The run of a message with a large body, which is given as bytes or `LargeBody`."""
        header_size = _FRAME.unpack_from(frames)[1]
        address = Address.of(run.exchange, run.routing_key)
        message = Message.build(address, frames[19 : 7 + header_size], body)
        message.id, message.time_ms, message.origin = self.ids[at], run.time_ms, run.origin
        message.keep, message.stored = Keep(self.row.keep), True
        return Run.of([message])

    # Changing ----------------------------------------------------------------------------------

    def without(self, removed: Callable[[int], bool]) -> PackRow | None:
        """The row without the messages whose ids `removed` accepts; None if none is left."""
        return self._changed(removed, lambda message_id: False)

    def without_bodies(self, is_live: Callable[[int], bool]) -> PackRow | None:
        """The row without the bodies of the messages that no queue holds."""
        return self._changed(lambda message_id: False, lambda message_id: not is_live(message_id))

    def _changed(
        self, removed: Callable[[int], bool], loses_body: Callable[[int], bool]
    ) -> PackRow | None:
        """A message that does not match its checksum keeps its bytes, and does not match it then,
        either."""
        parts: list[_Part] = []
        crcs: list[int] = []
        has_bodies = False
        for run in self.runs:
            ids: list[int] = []
            frames: list[bytes] = []
            body_bytes = 0
            for at, one in enumerate(self.frames(run.start, run.end), run.start):
                message_id = self.ids[at]
                if removed(message_id):
                    continue
                is_sound = checksum(one) == self.crcs[at]
                end_of_header = 0
                if is_sound:
                    _, header_size, body_size = _FRAME.unpack_from(one)
                    end_of_header = header_size + _END_OF_FRAME
                    body_bytes += body_size
                    if loses_body(message_id):
                        one = one[:end_of_header]
                has_bodies = has_bodies or len(one) > end_of_header
                ids.append(message_id)
                frames.append(one)
                crcs.append(checksum(one) if is_sound else checksum(one) ^ _MASK)
            if ids:
                head = (run.time_ms, run.origin, run.exchange, run.routing_key, self.row.keep)
                parts.append(_Part(*head, ids, frames, body_bytes))
        if not parts:
            return None
        row = _encode(parts)._replace(has_bodies=int(has_bodies), crcs=pack_sizes(crcs))
        return _with_checksum(row)


def _start_of(run: PackedRun) -> int:
    return run.start


def _decode_runs(data: bytes) -> Iterator[PackedRun]:
    at = start = 0
    while at < len(data):
        count, time_ms, origin, name_size, key_size = RUN.unpack_from(data, at)
        at += RUN.size
        exchange = data[at : at + name_size].decode("utf-8", "replace")
        at += name_size
        routing_key = data[at : at + key_size].decode("utf-8", "replace")
        at += key_size
        yield PackedRun(start, start + count, time_ms, origin, exchange, routing_key)
        start += count


def _is_whole(frames: bytes, head: tuple[int, int, int]) -> bool:
    """Whether the body is there."""
    return not head[2] or len(frames) > head[1] + _END_OF_FRAME


def _restored_run(
    run: PackedRun,
    ids: Sequence[int],
    frames: list[bytes],
    heads: Sequence[tuple[int, int, int]],
    keep: int,
) -> Run:
    header_sizes = [header_size for _, header_size, _ in heads]
    restored = Run(
        Address.of(run.exchange, run.routing_key),
        heads[0][0],
        frames,
        header_sizes,
        [body_size for _, _, body_size in heads],
        scan_edited(frames[-1][19 : 7 + header_sizes[-1]]),
    )
    restored.ids, restored.time_ms, restored.origin = ids, run.time_ms, run.origin
    restored.keep, restored.is_stored = Keep(keep), True
    return restored
