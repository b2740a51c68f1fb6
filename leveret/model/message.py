"""A message: an address and its content, stored as frames: the publisher's own header frame, and
the body in one frame, regardless of how many it arrived in.

A delivery on the same channel number copies the frames as they arrived; any other delivery builds
new frames once and stores them, so a fanout builds each form once. The meaning of a message never
changes after it was routed: queues share one object.

Everywhere in Leveret, `properties` means the bytes of the content header from the property flags
on, as on the wire. A delivery carries the publisher's own bytes; `scan` finds what the broker must
know without decoding the rest.

A body of more than `LARGE_BODY` bytes is kept in pieces (`LargeBody`): joining or copying it as a
whole would stop the event loop for a tenth of a second.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from leveret.model.errors import ProtocolError
from leveret.model.history import Keep
from leveret.model.mypyc import mypyc_attr
from leveret.model.tables import (
    Table,
    check_table,
    decode_checked,
    decode_table,
    edit_table,
    encode_table,
)

if TYPE_CHECKING:
    from leveret.model.store import StoredMessage

FRAME_HEADER, FRAME_BODY, FRAME_END = 2, 3, 0xCE
FRAME_OVERHEAD = 8
BASIC_CLASS = 60
_CONTENT_HEADER = struct.Struct(">BHIHHQ")
_FRAME = struct.Struct(">BHI")
HEADER_FIXED = 12  # class id, weight, body size
_END = b"\xce"

LARGE_BODY = 1024 * 1024
"""A larger body is kept in pieces, and delivered in portions of this size."""

PARTS_FROM = 4 * LARGE_BODY
"""A larger body is stored in parts, over several commits: a single one would take long. As much as
one of these commits has (`large_bodies.PARTS_PER_BATCH`)."""
PART_BYTES = 1024 * 1024
"""The size of each part, except the last. Written to disk: do not change."""

PROPERTY_NAMES = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority",
    "correlation_id", "reply_to", "expiration", "message_id", "timestamp", "type",
    "user_id", "app_id", "cluster_id",
)  # fmt: skip
_WIDTHS = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
_FLAG = {name: 1 << (15 - index) for index, name in enumerate(PROPERTY_NAMES)}
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
CACHED_PROPERTIES = 128
"""Results of scanning properties of at most this many bytes are cached."""
DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"
# Headers that affect routing, as their keys are encoded in a table.
_ROUTING_KEYS = (b"\x02CC", b"\x03BCC", b"\x0bx-partition")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a message was published to; `wire` is its encoding in a delivery with frame end."""

    exchange: str
    routing_key: str
    wire: bytes = field(compare=False)

    @staticmethod
    def of(exchange: str, routing_key: str) -> Address:
        name, key = exchange.encode(), routing_key.encode()
        return Address(
            exchange, routing_key, bytes([len(name)]) + name + bytes([len(key)]) + key + _END
        )


class Headers(Table):
    """A message's headers, with its encoded properties for exchanges that route by those."""

    properties: bytes = b""


class LargeBody:
    """A body of more than `LARGE_BODY` bytes, in pieces of any size.

    `first_part` is the id of its first part in the store; 0 while it is not stored in parts.
    """

    __slots__ = ("first_part", "pieces", "size")

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self.size = sum(map(len, pieces))
        self.first_part = 0

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        """The whole body in one piece: not on the event loop."""
        return b"".join(self.pieces)

    @property
    def end_part(self) -> int:
        """The id after the last part."""
        return self.first_part + part_count(self.size)

    def parts(self) -> Iterator[bytes]:
        """The body in parts of exactly `PART_BYTES`, except the last."""
        rest = b""
        for piece in self.pieces:
            whole = rest + piece if rest else piece
            end = len(whole) - len(whole) % PART_BYTES
            for at in range(0, end, PART_BYTES):
                yield whole[at : at + PART_BYTES]
            rest = whole[end:]
        if rest:
            yield rest

    def start(self, size: int) -> bytes:
        """The first `size` bytes."""
        start = b""
        for piece in self.pieces:
            start += piece[: size - len(start)]
            if len(start) == size:
                break
        return start


Body = bytes | LargeBody


def part_count(size: int) -> int:
    """How many parts a large body of this size has."""
    return -(-size // PART_BYTES)


@mypyc_attr(allow_interpreted_subclasses=True)
class Message:
    """Shared by every queue it was routed to. `id` is global, and set when it is routed."""

    __slots__ = (
        "address", "body_size", "channel", "frames", "header_size", "id", "keep", "origin",
        "scan", "stored", "time_ms",
    )  # fmt: skip

    def __init__(
        self,
        address: Address,
        channel: int,
        frames: bytes,
        header_size: int,
        body_size: int,
        known: Scan | None = None,
    ) -> None:
        """`known` is the scan of the properties, if the caller has it."""
        self.address = address
        self.channel = channel
        self.frames = frames
        self.header_size = header_size
        self.body_size = body_size
        self.scan: Scan = known or scan(frames[19 : 7 + header_size])
        self.id = 0
        self.time_ms = 0
        self.origin = 0
        self.keep = Keep.NOTHING  # what history keeps of it
        self.stored = False

    @staticmethod
    def build(address: Address, properties: bytes, body: Body) -> Message:
        """A message from its parts, framed for channel 1 with one body frame."""
        return Message.of_parts(address, properties, body, scan_edited(properties))

    @staticmethod
    def restored(stored: StoredMessage) -> Message:
        """A message read back from the store."""
        made = Message.build(
            Address.of(stored.exchange, stored.routing_key), stored.properties, stored.body
        )
        made.id, made.time_ms = stored.id, stored.time_ms
        made.origin, made.stored = stored.origin, stored.is_in_store
        return made

    @staticmethod
    def of_parts(address: Address, properties: bytes, body: Body, known: Scan) -> Message:
        """`build` for a caller that has scanned the properties already."""
        header_size = HEADER_FIXED + len(properties)
        if isinstance(body, bytes) and len(body) <= LARGE_BODY:
            frames = content_frames(1, properties, body, max(len(body), 1) + FRAME_OVERHEAD)
            return Message(address, 1, frames, header_size, len(body), known)
        header_frame = _header_frame(0, properties, len(body))
        large_body = LargeBody([body]) if isinstance(body, bytes) else body
        return LargeMessage(address, header_frame, header_size, large_body, known)

    def __repr__(self) -> str:
        address = self.address
        return f"<Message {self.id} {address.exchange!r}/{address.routing_key!r} {self.body_size}B>"

    @property
    def exchange(self) -> str:
        return self.address.exchange

    @property
    def routing_key(self) -> str:
        return self.address.routing_key

    @property
    def properties(self) -> bytes:
        return self.frames[19 : 7 + self.header_size]

    @property
    def body(self) -> bytes:
        return self.frames[15 + self.header_size : -1] if self.body_size else b""

    @property
    def large_body(self) -> LargeBody | None:
        """The body, if it is kept in pieces."""
        return None

    @property
    def content_size(self) -> int:
        """Bytes of the header and the body."""
        return len(self.frames) + (len(self.large_body) if self.large_body is not None else 0)

    def body_in_pieces(self) -> Body:
        """The body for another message; not joined or copied if it is large."""
        return self.body if self.large_body is None else LargeBody(self.large_body.pieces)

    def headers(self) -> Headers:
        properties, span = self.properties, self.scan.spans.get("headers")
        headers = Headers(decode_checked(properties[span[0] : span[1]]) if span else ())
        headers.properties = properties
        return headers

    def content(self, channel: int, frame_max: int) -> bytes | LargeContent:
        """Header and body frames for a channel, no frame longer than `frame_max`."""
        if channel == self.channel and len(self.frames) <= frame_max:
            return self.frames
        return self._reframed(channel, frame_max)

    def _reframed(self, channel: int, frame_max: int) -> bytes:
        frames = content_frames(channel, self.properties, self.body, frame_max)
        if len(frames) <= frame_max:
            self.frames, self.channel = frames, channel
        return frames

    def with_properties(self, properties: bytes) -> Message:
        return Message.build(self.address, properties, self.body_in_pieces())


class LargeMessage(Message):
    """A message with a large body. `frames` is its header frame only, and `channel` is 0, which no
    delivery has, so that every delivery calls `content`."""

    __slots__ = ("_large_body",)

    def __init__(
        self,
        address: Address,
        header_frame: bytes,
        header_size: int,
        body: LargeBody,
        known: Scan | None = None,
    ) -> None:
        super().__init__(address, 0, header_frame, header_size, len(body), known)
        self._large_body = body

    @property
    def large_body(self) -> LargeBody | None:
        return self._large_body

    @property
    def body(self) -> bytes:
        return bytes(self._large_body)

    def content(self, channel: int, frame_max: int) -> bytes | LargeContent:
        return LargeContent(channel, self.properties, self._large_body.pieces, frame_max)


class LargeContent:
    """The frames of a large message, made portion by portion while they are written."""

    __slots__ = ("_channel", "_header", "_pieces", "_size", "_step")

    def __init__(
        self, channel: int, properties: bytes, pieces: Sequence[bytes], frame_max: int
    ) -> None:
        self._channel = channel
        self._size = sum(map(len, pieces))
        self._header = _header_frame(channel, properties, self._size)
        self._pieces = pieces
        self._step = min(frame_max, LARGE_BODY) - FRAME_OVERHEAD

    def __len__(self) -> int:
        """Bytes of the body."""
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        """Portions of about `LARGE_BODY` bytes that consist of whole frames."""
        parts: list[bytes | memoryview] = [self._header]
        for piece in self._pieces:
            view = memoryview(piece)
            for start in range(0, len(piece), LARGE_BODY):
                self._add_frames(parts, view[start : start + LARGE_BODY])
                yield b"".join(parts)
                parts = []

    def _add_frames(self, parts: list[bytes | memoryview], body: memoryview) -> None:
        for start in range(0, len(body), self._step):
            part = body[start : start + self._step]
            parts += (_FRAME.pack(FRAME_BODY, self._channel, len(part)), part, _END)


def content_frames(channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """A content header frame and as many body frames as `frame_max` requires."""
    size = len(body)
    head = _CONTENT_HEADER.pack(
        FRAME_HEADER, channel, HEADER_FIXED + len(properties), BASIC_CLASS, 0, size
    )
    parts = [head, properties, _END]
    step = frame_max - FRAME_OVERHEAD
    for start in range(0, size, step):
        piece = body[start : start + step]
        parts += (_FRAME.pack(FRAME_BODY, channel, len(piece)), piece, _END)
    return b"".join(parts)


def _header_frame(channel: int, properties: bytes, body_size: int) -> bytes:
    length = HEADER_FIXED + len(properties)
    head = _CONTENT_HEADER.pack(FRAME_HEADER, channel, length, BASIC_CLASS, 0, body_size)
    return head + properties + _END


# Properties -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scan:
    """The position of each property, and the few values that decide what happens to a message."""

    spans: dict[str, tuple[int, int]]
    persistent: bool
    priority: int | None
    expiration: str | None
    user_id: str | None
    reply_to: str | None
    has_headers: bool
    needs_validation: bool
    """Whether a property must be validated or rewritten before the message is routed."""


def scan(properties: bytes) -> Scan:
    """Locate the properties; raises ProtocolError if they are malformed."""
    if len(properties) <= CACHED_PROPERTIES:
        return _scan_cached(properties)
    return _scan(properties)


def scan_edited(properties: bytes) -> Scan:
    """`scan` for properties the broker has edited: its additions never exceed a limit."""
    try:
        return scan(properties)
    except ProtocolError:
        return _scan(properties, edited=True)


def _scan(properties: bytes, edited: bool = False) -> Scan:
    if len(properties) < 2:
        raise ProtocolError("content header has no property flags")
    flags = _U16.unpack_from(properties)[0]
    if flags & 0b11:
        raise ProtocolError("content header has unknown property flags")
    spans: dict[str, tuple[int, int]] = {}
    position, limit = 2, len(properties)
    for name in PROPERTY_NAMES:
        if flags & _FLAG[name]:
            start = position
            position = _end_of(name, properties, position, limit, edited)
            spans[name] = (start, position)
    if position != limit:
        raise ProtocolError("content header is longer than its properties")
    expiration = _text(properties, spans, "expiration")
    user_id = _text(properties, spans, "user_id")
    reply_to = _text(properties, spans, "reply_to")
    return Scan(
        spans=spans,
        persistent="delivery_mode" in spans and properties[spans["delivery_mode"][0]] == 2,
        priority=properties[spans["priority"][0]] if "priority" in spans else None,
        expiration=expiration,
        user_id=user_id,
        reply_to=reply_to,
        has_headers="headers" in spans,
        needs_validation=expiration is not None
        or user_id is not None
        or reply_to == DIRECT_REPLY_TO
        or ("headers" in spans and any(key in properties for key in _ROUTING_KEYS)),
    )


_scan_cached = lru_cache(maxsize=4096)(_scan)


def _end_of(name: str, data: bytes, position: int, limit: int, edited: bool) -> int:
    if name == "headers":
        return check_table(data, position, limit, edited)
    width = _WIDTHS.get(name)
    if width is None:
        width = 1 + data[position] if position < limit else 1
    if position + width > limit:
        raise ProtocolError(f"property {name} is cut off")
    return position + width


def _text(data: bytes, spans: dict[str, tuple[int, int]], name: str) -> str | None:
    span = spans.get(name)
    if span is None:
        return None
    try:
        return data[span[0] + 1 : span[1]].decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"property {name} is not UTF-8") from error


def headers_of(properties: bytes) -> Table:
    span = scan_edited(properties).spans.get("headers")
    return decode_table(properties[span[0] : span[1]], edited=True) if span else {}


def decode_properties(properties: bytes) -> dict[str, Any]:
    """Every property by name, decoded; timestamps as seconds."""
    values: dict[str, Any] = {}
    spans = scan_edited(properties).spans
    for name, (start, end) in spans.items():
        if name == "headers":
            values[name] = decode_table(properties[start:end], edited=True)
        elif name == "timestamp":
            values[name] = _U64.unpack_from(properties, start)[0]
        elif name in _WIDTHS:
            values[name] = properties[start]
        else:
            values[name] = properties[start + 1 : end].decode("utf-8", "replace")
    return values


def encode_properties(values: dict[str, Any]) -> bytes:
    """The wire form of named properties; raises ValueError for unknown names."""
    unknown = values.keys() - _FLAG.keys()
    if unknown:
        raise ValueError(f"unknown property {sorted(unknown)[0]!r}")
    flags, parts = 0, []
    for name in PROPERTY_NAMES:
        value = values.get(name)
        if value is None:
            continue
        flags |= _FLAG[name]
        parts.append(_encode_one(name, value))
    return _U16.pack(flags) + b"".join(parts)


def _encode_one(name: str, value: Any) -> bytes:
    if name == "headers":
        return encode_table(value)
    if name == "timestamp":
        return _U64.pack(int(value))
    if name in _WIDTHS:
        return bytes([int(value)])
    text = str(value).encode()
    if len(text) > 255:
        raise ValueError(f"property {name!r} is longer than 255 bytes")
    return bytes([len(text)]) + text


def replace_property(properties: bytes, name: str, value: Any | None) -> bytes:
    """Set one property, or remove it (None); all other bytes stay as they are."""
    spans = dict(scan_edited(properties).spans)
    flags = _U16.unpack_from(properties)[0]
    pieces = {key: properties[start:end] for key, (start, end) in spans.items()}
    if value is None:
        flags &= ~_FLAG[name]
        pieces.pop(name, None)
    else:
        flags |= _FLAG[name]
        pieces[name] = _encode_one(name, value)
    return _U16.pack(flags) + b"".join(pieces[key] for key in PROPERTY_NAMES if key in pieces)


def header_table(properties: bytes, known: Scan) -> bytes:
    """The encoded headers."""
    span = known.spans.get("headers")
    return properties[span[0] : span[1]] if span else _U32.pack(0)


def with_fields(properties: bytes, known: Scan, fields: bytes) -> tuple[bytes, Scan]:
    """Replace the header fields by these encoded ones, and remove the expiration.

    The caller guarantees that the fields are well-formed and that those that affect routing are
    unchanged. So the scan of the result can be derived from the one given.
    """
    table = _U32.pack(len(fields)) + fields
    return _with_table(properties, known, table, may_route_differently=False)


def change_headers(
    properties: bytes, known: Scan, remove: frozenset[str], add: dict[str, Any]
) -> tuple[bytes, Scan]:
    """Remove and add header fields, and remove the expiration; returns the new scan, too."""
    table = edit_table(header_table(properties, known), remove, add)
    return _with_table(properties, known, table, may_route_differently=True)


def _with_table(
    properties: bytes, known: Scan, table: bytes, *, may_route_differently: bool
) -> tuple[bytes, Scan]:
    """`may_route_differently`: the table may have other headers that affect routing."""
    flags = (_U16.unpack_from(properties)[0] | _FLAG["headers"]) & ~_FLAG["expiration"]
    pieces, spans, position = [_U16.pack(flags)], {}, 2
    for name in PROPERTY_NAMES:
        span = known.spans.get(name)
        if name == "headers":
            piece = table
        elif span is None or name == "expiration":
            continue
        else:
            piece = properties[span[0] : span[1]]
        pieces.append(piece)
        spans[name] = (position, position + len(piece))
        position += len(piece)
    edited = b"".join(pieces)
    needs_validation = known.needs_validation
    if known.expiration is not None or may_route_differently:
        needs_validation = (
            known.user_id is not None
            or known.reply_to == DIRECT_REPLY_TO
            or any(key in edited for key in _ROUTING_KEYS)
        )
    return edited, Scan(
        spans=spans,
        persistent=known.persistent,
        priority=known.priority,
        expiration=None,
        user_id=known.user_id,
        reply_to=known.reply_to,
        has_headers=True,
        needs_validation=needs_validation,
    )


def edit_headers(properties: bytes, remove: frozenset[str], add: dict[str, Any]) -> bytes:
    """Remove and add header fields; all other fields keep their bytes."""
    flags = _U16.unpack_from(properties)[0]
    span = scan_edited(properties).spans.get("headers")
    if span is not None:
        table = edit_table(properties[span[0] : span[1]], remove, add)
        return properties[: span[0]] + table + properties[span[1] :]
    if not add:
        return properties
    start = 2
    for name in ("content_type", "content_encoding"):
        if flags & _FLAG[name]:
            start += 1 + properties[start]
    with_headers = _U16.pack(flags | _FLAG["headers"])
    return with_headers + properties[2:start] + encode_table(add) + properties[start:]
