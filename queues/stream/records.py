"""Stored records as deliveries: the offset goes into the headers, everything else is copied.

The bytes around the offset are the same for equal properties and body sizes, so they are built
once and kept; a delivery then joins five pieces.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from leveret.model.message import (
    BASIC_CLASS,
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_OVERHEAD,
    Address,
    Message,
    content_frames,
)
from leveret.model.properties import edit_headers
from queues.entry import Entry
from queues.log import Record

if TYPE_CHECKING:
    from queues.stream.cursor import Cursor

OFFSET_HEADER = "x-stream-offset"
PARTITION_HEADER = "x-partition"
_OFFSET_FIELD = b"\x0fx-stream-offsetl"
_PARTITION_FIELD = b"\x0bx-partitionI"
_HAS_HEADERS = 0x2000
_KEPT = 1024
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_I32 = struct.Struct(">i")
_offset = struct.Struct(">q").pack
_CONTENT_HEADER = struct.Struct(">BHIHHQ")
_FRAME = struct.Struct(">BHI")
_END = b"\xce"


class Stamp:
    """Makes deliveries of one partition's records; `partition` is None for a log of its own."""

    def __init__(self, partition: int | None) -> None:
        self.partition = partition
        added = b"" if partition is None else _PARTITION_FIELD + _I32.pack(partition)
        self._added = added + _OFFSET_FIELD
        self._around: dict[tuple[int, bytes, int], tuple[bytes, bytes]] = {}
        self._addresses: dict[tuple[bytes, bytes], Address] = {}

    def address(self, record: Record) -> Address:
        try:
            return self._addresses[record[2:4]]
        except KeyError:
            return self._learn_address(record.exchange, record.routing_key)

    def _learn_address(self, exchange: bytes, routing_key: bytes) -> Address:
        if len(self._addresses) >= _KEPT:
            self._addresses.clear()
        made = Address.of(exchange.decode(), routing_key.decode())
        self._addresses[exchange, routing_key] = made
        return made

    def frames(self, record: Record, channel: int, frame_max: int) -> bytes:
        """Header and body frames of a record, its offset among the headers."""
        properties, body = record.properties, record.body
        size = len(body)
        if size + FRAME_OVERHEAD > frame_max:
            return content_frames(channel, self.properties(record), body, frame_max)
        key = (channel, properties, size)
        around = self._around.get(key)
        if around is None:
            if len(self._around) >= _KEPT:
                self._around.clear()
            around = self._around[key] = self._learn(key)
        return b"".join((around[0], _offset(record.offset), around[1], body, _END))

    def properties(self, record: Record) -> bytes:
        before, after = self._split(record.properties)
        return before + _offset(record.offset) + after

    def _learn(self, key: tuple[int, bytes, int]) -> tuple[bytes, bytes]:
        channel, properties, size = key
        before, after = self._split(properties)
        length = 12 + len(before) + 8 + len(after)
        head = _CONTENT_HEADER.pack(FRAME_HEADER, channel, length, BASIC_CLASS, 0, size)
        tail = after + _END + _FRAME.pack(FRAME_BODY, channel, size) if size else after
        return head + before, tail

    def _split(self, properties: bytes) -> tuple[bytes, bytes]:
        """What stands before and after the eight bytes of the offset."""
        names = frozenset({OFFSET_HEADER, PARTITION_HEADER})
        if any(name.encode() in properties for name in names):
            properties = edit_headers(properties, names, {})
        flags = _U16.unpack_from(properties)[0]
        at = 2
        for flag in (0x8000, 0x4000):  # content type and encoding stand before the headers
            if flags & flag:
                at += 1 + properties[at]
        fields, end = b"", at
        if flags & _HAS_HEADERS:
            end = at + 4 + _U32.unpack_from(properties, at)[0]
            fields = properties[at + 4 : end]
        fields += self._added
        table = _U32.pack(len(fields) + 8) + fields
        return _U16.pack(flags | _HAS_HEADERS) + properties[2:at] + table, properties[end:]


class LogMessage(Message):
    """A record on its way to one consumer; frames are made when its channel is known."""

    __slots__ = ("record", "stamp")

    channel = 0
    frames = b""

    def __init__(self, record: Record, stamp: Stamp) -> None:
        self.record = record
        self.stamp = stamp
        self.address = stamp.address(record)

    def __getattr__(self, name: str) -> Any:
        """What a delivery does not need is worked out when somebody asks for it."""
        if name not in Message.__slots__:
            raise AttributeError(name)
        made = Message.build(self.address, self.properties, self.record.body)
        made.id, made.time_ms = self.record.offset, self.record.time_ms
        return getattr(made, name)

    @property
    def properties(self) -> bytes:
        return self.stamp.properties(self.record)

    @property
    def body(self) -> bytes:
        return self.record.body

    def content(self, channel: int, frame_max: int) -> bytes:
        return self.stamp.frames(self.record, channel, frame_max)


class LogEntry(Entry):
    """A delivery from a cursor; `id` is the offset."""

    __slots__ = ("cursor",)

    message: LogMessage

    def __init__(self, record: Record, cursor: Cursor, redelivered: bool) -> None:
        self.message = LogMessage(record, cursor.log.stamp)
        self.id = record.offset
        self.redelivered = redelivered
        self.returns = 0
        self.expires_ms = 0
        self.cursor = cursor
