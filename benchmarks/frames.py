"""AMQP frames for the hot loops, built once and cut into parts.

All messages of a workload have the same size on the wire. So consecutive messages are a slice of a
prebuilt blob, counting messages is counting bytes, and consecutive acks are a slice of a prebuilt
block. Nothing here uses a socket.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FRAME_END = 0xCE
METHOD, HEADER, BODY = 1, 2, 3
BASIC, PUBLISH, DELIVER, ACK_METHOD = 60, 40, 60, 80
CHANNEL = 1
MAX_BODY = 131_072 - 8
"""Bytes of a body that fit into a frame of the default maximum size."""

FRAME_HEAD = struct.Struct(">BHI")
ACK = struct.Struct(">BHIHHQBB")
ACK_PAYLOAD = 13
STAMP = struct.Struct(">Q")

_DELIVERY_MODE = struct.Struct(">HB")
_DELIVERY_MODE_FLAG = 0x1000


class FramingError(Exception):
    """The broker sent bytes that are not the expected frames."""


def frame(kind: int, payload: bytes) -> bytes:
    return FRAME_HEAD.pack(kind, CHANNEL, len(payload)) + payload + bytes((FRAME_END,))


def shortstr(text: str) -> bytes:
    raw = text.encode()
    return bytes((len(raw),)) + raw


def delivery_mode(*, persistent: bool) -> bytes:
    """The properties of a content header with only a delivery mode."""
    return _DELIVERY_MODE.pack(_DELIVERY_MODE_FLAG, 2 if persistent else 1)


def publish(exchange: str, routing_key: str, properties: bytes, body: bytes) -> bytes:
    method = (
        struct.pack(">HHH", BASIC, PUBLISH, 0) + shortstr(exchange) + shortstr(routing_key) + b"\0"
    )
    header = struct.pack(">HHQ", BASIC, 0, len(body)) + properties
    bodies = [body[at : at + MAX_BODY] for at in range(0, len(body), MAX_BODY)]
    return b"".join(
        (frame(METHOD, method), frame(HEADER, header), *(frame(BODY, part) for part in bodies))
    )


def ack(tag: int, *, multiple: bool) -> bytes:
    return ACK.pack(METHOD, CHANNEL, ACK_PAYLOAD, BASIC, ACK_METHOD, tag, multiple, FRAME_END)


@dataclass(frozen=True, slots=True)
class Blob:
    """Consecutive publishes of equal size; each body begins with its index in the blob.

    Bodies of less than eight bytes have no index.
    """

    data: bytes
    count: int

    @property
    def size(self) -> int:
        return len(self.data) // self.count

    def parts(self, messages: int) -> tuple[memoryview, ...]:
        """The blob cut into parts of `messages` each (which must divide the count)."""
        if self.count % messages:
            raise ValueError(f"{messages} does not divide {self.count}")
        view, step = memoryview(self.data), self.size * messages
        return tuple(view[at : at + step] for at in range(0, len(self.data), step))


def publish_blob(
    exchange: str, routing_keys: Sequence[str], *, properties: bytes, body_size: int, count: int
) -> Blob:
    messages = [
        publish(
            exchange,
            routing_keys[index % len(routing_keys)],
            properties,
            STAMP.pack(index).ljust(body_size, b"x")[:body_size],
        )
        for index in range(count)
    ]
    if len({len(message) for message in messages}) != 1:
        raise ValueError(
            "all messages of a blob must have one size: use routing keys of equal length"
        )
    return Blob(b"".join(messages), count)


class AckBlock:
    """Single acks for 65,536 consecutive tags; a cache of the block in use.

    Only the six upper bytes of a tag differ between blocks, and they are equal within one: moving
    to another block rewrites at most six columns instead of building 65,536 frames.
    """

    _TAGS = 1 << 16
    _TAG_AT = 11

    def __init__(self) -> None:
        self._block = 0
        self._data = bytearray(ack(0, multiple=False) * self._TAGS)
        low = bytes(range(256))
        self._data[self._TAG_AT + 7 :: ACK.size] = low * 256
        self._data[self._TAG_AT + 6 :: ACK.size] = bytes(byte for byte in low for _ in low)

    def parts(self, first: int, last: int) -> Iterator[memoryview]:
        """The acks of tags first to last; use each part before taking the next."""
        while first <= last:
            block, index = divmod(first, self._TAGS)
            self._move_to(block)
            stop = min(last - first + index + 1, self._TAGS)
            yield memoryview(self._data)[index * ACK.size : stop * ACK.size]
            first += stop - index

    def _move_to(self, block: int) -> None:
        for column in range(6):
            shift = 8 * (5 - column)
            byte = block >> shift & 0xFF
            if byte != self._block >> shift & 0xFF:
                self._data[self._TAG_AT + column :: ACK.size] = bytes((byte,)) * self._TAGS
        self._block = block
