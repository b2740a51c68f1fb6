"""Stored records as deliveries: the offset is added to the headers, everything else is copied.

For equal properties and body sizes the bytes before and after the offset are the same, so they are
built once and cached; a delivery then joins five pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

from leveret.model.history import Keep
from leveret.model.message import (
    BASIC_CLASS,
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_OVERHEAD,
    HEADER_FIXED,
    LARGE_BODY,
    Address,
    Headers,
    LargeContent,
    Message,
    content_frames,
    edit_headers,
    scan_edited,
)
from leveret.queues.entry import Entry, Framed
from leveret.queues.log.files import Record

if TYPE_CHECKING:
    from leveret.queues.log.cursor import Cursor

OFFSET_HEADER = "x-stream-offset"
PARTITION_HEADER = "x-partition"
REBALANCE_HEADER = "x-rebalance"
"""In notifications about a rebalance, never in records."""
_OFFSET_FIELD = b"\x0fx-stream-offsetl"
_PARTITION_FIELD = b"\x0bx-partitionI"
_HAS_HEADERS = 0x2000
_CACHE_SIZE = 1024
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_I32 = struct.Struct(">i")
_pack_offset = struct.Struct(">q").pack
_CONTENT_HEADER = struct.Struct(">BHIHHQ")
_FRAME = struct.Struct(">BHI")
_END = b"\xce"


class DeliveryFramer:
    """Builds the content frames of one partition's records.

    `partition` is None for a log that is not partitioned; its deliveries have no `x-partition`.
    """

    def __init__(self, partition: int | None) -> None:
        self.partition = partition
        field = b"" if partition is None else _PARTITION_FIELD + _I32.pack(partition)
        self._added_fields = field + _OFFSET_FIELD
        self._templates: dict[tuple[int, bytes, int], tuple[bytes, bytes]] = {}
        """(channel, properties, body size) -> bytes before and after the offset."""
        self._addresses: dict[tuple[bytes, bytes], Address] = {}

    def address(self, record: Record) -> Address:
        try:
            return self._addresses[record[2:4]]
        except KeyError:
            return self._cache_address(record.exchange, record.routing_key)

    def _cache_address(self, exchange: bytes, routing_key: bytes) -> Address:
        if len(self._addresses) >= _CACHE_SIZE:
            self._addresses.clear()
        address = Address.of(exchange.decode(), routing_key.decode())
        self._addresses[exchange, routing_key] = address
        return address

    def frames(self, record: Record, channel: int, frame_max: int) -> bytes | LargeContent:
        """Header and body frames of a record, with its offset among the headers."""
        properties, body = record.properties, record.body
        size = len(body)
        if size + FRAME_OVERHEAD > frame_max:
            if size > LARGE_BODY:
                return LargeContent(channel, self.properties(record), (body,), frame_max)
            return content_frames(channel, self.properties(record), body, frame_max)
        before, after = self._template(channel, properties, size)
        return b"".join((before, _pack_offset(record.offset), after, body, _END))

    def _template(self, channel: int, properties: bytes, size: int) -> tuple[bytes, bytes]:
        key = (channel, properties, size)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= _CACHE_SIZE:
                self._templates.clear()
            template = self._templates[key] = self._make_template(key)
        return template

    def framed(self, records: Sequence[Record], channel: int, frame_max: int) -> Framed:
        """`address` and `frames` of many records, without a loop in Python where they are alike."""
        offsets, _, exchanges, keys, properties, bodies = zip(*records, strict=True)
        sizes = [*map(len, bodies)]
        if _are_equal(exchanges) and _are_equal(keys):
            addresses = [self.address(records[0])] * len(records)
        else:
            addresses = [*map(self.address, records)]
        if sizes[0] + FRAME_OVERHEAD > frame_max or not (
            _are_equal(sizes) and _are_equal(properties)
        ):
            return addresses, [self.frames(record, channel, frame_max) for record in records]
        before, after = self._template(channel, properties[0], sizes[0])
        packed = map(_pack_offset, offsets)
        parts = zip(repeat(before), packed, repeat(after), bodies, repeat(_END), strict=False)
        return addresses, [*map(b"".join, parts)]

    def properties(self, record: Record) -> bytes:
        before, after = self._split(record.properties)
        return before + _pack_offset(record.offset) + after

    def _make_template(self, key: tuple[int, bytes, int]) -> tuple[bytes, bytes]:
        channel, properties, size = key
        before, after = self._split(properties)
        length = 12 + len(before) + 8 + len(after)
        head = _CONTENT_HEADER.pack(FRAME_HEADER, channel, length, BASIC_CLASS, 0, size)
        tail = after + _END + _FRAME.pack(FRAME_BODY, channel, size) if size else after
        return head + before, tail

    def _split(self, properties: bytes) -> tuple[bytes, bytes]:
        """The properties before and after the eight bytes of the offset."""
        names = frozenset({OFFSET_HEADER, PARTITION_HEADER, REBALANCE_HEADER})
        if any(name.encode() in properties for name in names):
            properties = edit_headers(properties, names, {})
        flags = _U16.unpack_from(properties)[0]
        at = 2
        for flag in (0x8000, 0x4000):  # content type and encoding precede the headers
            if flags & flag:
                at += 1 + properties[at]
        fields, end = b"", at
        if flags & _HAS_HEADERS:
            end = at + 4 + _U32.unpack_from(properties, at)[0]
            fields = properties[at + 4 : end]
        fields += self._added_fields
        table = _U32.pack(len(fields) + 8) + fields
        return _U16.pack(flags | _HAS_HEADERS) + properties[2:at] + table, properties[end:]


class LogMessage(Message):
    """A record being delivered to one consumer; its frames are built when the channel is known."""

    __slots__ = ("framer", "record")

    def __init__(self, record: Record, framer: DeliveryFramer) -> None:
        self.record = record
        self.framer = framer
        self.address = framer.address(record)
        self.channel = 0
        self.frames = b""
        properties = framer.properties(record)
        self.header_size = HEADER_FIXED + len(properties)
        self.body_size = len(record.body)
        self.scan = scan_edited(properties)
        self.id = record.offset
        self.time_ms = record.time_ms
        self.origin = 0
        self.keep = Keep.NOTHING
        self.stored = False

    def headers(self) -> Headers:
        return Message.build(self.address, self.properties, self.record.body).headers()

    @property
    def properties(self) -> bytes:
        return self.framer.properties(self.record)

    @property
    def body(self) -> bytes:
        return self.record.body

    def content(self, channel: int, frame_max: int) -> bytes | LargeContent:
        return self.framer.frames(self.record, channel, frame_max)


class LogEntry(Entry):
    """A delivery from a cursor; `id` is the offset. The message is made when it is looked at."""

    __slots__ = ("cursor", "record")

    def __init__(self, record: Record, cursor: Cursor, redelivered: bool) -> None:
        self.record = record
        self.id = record[0]
        self.redelivered = redelivered
        self.delivery_count = 0
        self.expires_ms = 0
        self.cursor = cursor

    def __getattr__(self, name: str) -> Any:
        if name != "message":
            raise AttributeError(name)
        message = self.message = LogMessage(self.record, self.cursor.log.framer)
        return message

    @property
    def is_record(self) -> bool:
        return True

    @property
    def is_fenced(self) -> bool:
        """Whether the group would ignore an ack: the partition was revoked after the delivery.

        Never without a group, or in a group whose acks do not commit offsets.
        """
        assignment = self.cursor.assignment
        return assignment is not None and assignment.is_fenced

    def framed(self, entries: Sequence[Entry], channel: int, frame_max: int) -> Framed:
        records = [entry.record for entry in cast("Sequence[LogEntry]", entries)]
        return self.cursor.log.framer.framed(records, channel, frame_max)  # all from one cursor


def _are_equal(values: Sequence[object]) -> bool:
    return values.count(values[0]) == len(values)
