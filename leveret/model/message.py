"""A message: an address and its content, kept as frames: the publisher's own header, and the body
in one frame, however many it came in.

A delivery on the same channel number copies the frames as they came in; any other re-frames them
once and keeps that form, so a fanout builds each form once. Nothing here is ever changed in
meaning after the message was routed: queues share one object.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leveret.model.history import Keep
from leveret.model.properties import Scan, scan, scan_own
from leveret.model.tables import Table, decode_checked

if TYPE_CHECKING:
    from leveret.model.store import StoredMessage

FRAME_HEADER, FRAME_BODY, FRAME_END = 2, 3, 0xCE
FRAME_OVERHEAD = 8
BASIC_CLASS = 60
_CONTENT_HEADER = struct.Struct(">BHIHHQ")
_FRAME = struct.Struct(">BHI")
HEADER_FIXED = 12  # class id, weight, body size
_END = b"\xce"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a message was published to; `wire` is its form inside a delivery, up to frame end."""

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
    """A message's headers, with its other properties at hand for whoever routes by them."""

    properties: bytes = b""


class Message:
    """Shared by every queue it was routed to. `id` is its global number, set when it is routed."""

    __slots__ = (
        "address", "body_size", "channel", "frames", "header_size", "id", "keep", "origin",
        "scan", "stored", "time_ms",
    )  # fmt: skip

    def __init__(
        self, address: Address, channel: int, frames: bytes, header_size: int, body_size: int
    ) -> None:
        self.address = address
        self.channel = channel
        self.frames = frames
        self.header_size = header_size
        self.body_size = body_size
        self.scan: Scan = scan(frames[19 : 7 + header_size])
        self.id = 0
        self.time_ms = 0
        self.origin = 0
        self.keep = Keep.NOTHING  # how much history wants of it
        self.stored = False

    @staticmethod
    def build(address: Address, properties: bytes, body: bytes) -> Message:
        """A message from its parts, framed for channel 1 as one body frame."""
        return Message.of_parts(address, properties, body, scan_own(properties))

    @staticmethod
    def restored(stored: StoredMessage) -> Message:
        """A message as the store gives it back."""
        made = Message.build(
            Address.of(stored.exchange, stored.routing_key), stored.properties, stored.body
        )
        made.id, made.time_ms = stored.id, stored.time_ms
        made.origin, made.stored = stored.origin, True
        return made

    @staticmethod
    def of_parts(address: Address, properties: bytes, body: bytes, known: Scan) -> Message:
        """The same, where the properties need no scan because the caller knows it."""
        made = Message.__new__(Message)
        made.address = address
        made.channel = 1
        made.frames = content_frames(1, properties, body, max(len(body), 1) + FRAME_OVERHEAD)
        made.header_size = HEADER_FIXED + len(properties)
        made.body_size = len(body)
        made.scan = known
        made.id = made.time_ms = made.origin = 0
        made.keep = Keep.NOTHING
        made.stored = False
        return made

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

    def headers(self) -> Headers:
        properties, span = self.properties, self.scan.spans.get("headers")
        found = Headers(decode_checked(properties[span[0] : span[1]]) if span else ())
        found.properties = properties
        return found

    def content(self, channel: int, frame_max: int) -> bytes:
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
        return Message.build(self.address, properties, self.body)


def content_frames(channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """A content header frame and as many body frames as `frame_max` asks for."""
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
