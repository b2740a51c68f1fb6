"""Builders for AMQP bytes, which can also produce what a correct client never sends.

pamqp encodes well-formed methods. The raw builders exist because pamqp (rightly) refuses to encode
reserved names, wrong lengths or unknown field types, which the tests need.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from pamqp import frame as pamqp_frame
from pamqp import header, heartbeat

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = b"\xce"


class RawFrame(NamedTuple):
    """One frame as received, with its payload not decoded."""

    kind: int
    channel: int
    payload: bytes

    def decode(self) -> Any:
        """The pamqp object of this frame; an empty body frame has none and gives None."""
        if self.kind == HEARTBEAT:
            return heartbeat.Heartbeat()
        if not self.payload:
            return None
        return pamqp_frame.unmarshal(frame(self.kind, self.channel, self.payload))[2]


def frame(
    kind: int,
    channel: int,
    payload: bytes = b"",
    *,
    size: int | None = None,
    end: bytes = FRAME_END,
) -> bytes:
    """A frame whose size field and end byte may be wrong."""
    length = len(payload) if size is None else size
    return struct.pack(">BHI", kind, channel, length) + payload + end


def encode(channel: int, thing: Any) -> bytes:
    """The encoding of a pamqp object; bytes are returned unchanged."""
    if isinstance(thing, bytes):
        return thing
    return pamqp_frame.marshal(thing, channel)


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    """A method frame with encoded arguments."""
    return frame(METHOD, channel, struct.pack(">HH", class_id, method_id) + arguments)


def shortstr(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">B", len(raw)) + raw


def longstr(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">I", len(raw)) + raw


def typed(kind: str, data: bytes = b"") -> bytes:
    """A field value: its type byte and its bytes."""
    return kind.encode("latin-1") + data


def table(*fields: tuple[str | bytes, bytes], size: int | None = None) -> bytes:
    """A field table in the given order, with repeated keys and optionally a wrong length."""
    raw = b"".join(shortstr(key) + value for key, value in fields)
    return struct.pack(">I", len(raw) if size is None else size) + raw


def queue_declare(
    channel: int, name: str | bytes, *, flags: int = 0, arguments: bytes = b"\0\0\0\0"
) -> bytes:
    """queue.declare with any name, any flag bits and an encoded argument table."""
    return method(channel, 50, 10, b"\0\0" + shortstr(name) + struct.pack(">B", flags) + arguments)


def exchange_declare(
    channel: int, name: str | bytes, kind: str = "direct", *, flags: int = 0
) -> bytes:
    """exchange.declare with any name."""
    arguments = b"\0\0" + shortstr(name) + shortstr(kind) + struct.pack(">B", flags)
    return method(channel, 40, 10, arguments + b"\0\0\0\0")


def publish(channel: int, exchange: str, routing_key: str, *, flags: int = 0) -> bytes:
    """basic.publish alone, without its content."""
    arguments = b"\0\0" + shortstr(exchange) + shortstr(routing_key) + struct.pack(">B", flags)
    return method(channel, 60, 40, arguments)


def content_header(
    channel: int, size: int, properties: bytes = b"\0\0", *, class_id: int = 60, weight: int = 0
) -> bytes:
    """A content header; `properties` is the flags word(s) and the property list as bytes."""
    return frame(HEADER, channel, struct.pack(">HHQ", class_id, weight, size) + properties)


def properties_bytes(properties: Any) -> bytes:
    """The wire form of pamqp properties: what follows the body size in a content header."""
    return header.ContentHeader(0, 0, properties).marshal()[12:]


def body(channel: int, payload: bytes) -> bytes:
    return frame(BODY, channel, payload)


def plain(user: str, password: str) -> str:
    """The response of mechanism PLAIN."""
    return f"\0{user}\0{password}"
