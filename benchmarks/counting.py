"""Counting what arrives, as cheaply as it can be done honestly.

Deliveries of one workload all have the size of the first one, so they are counted by bytes. Each
chunk that arrives is checked at its first message boundary: the frame must end and begin there,
it must be a basic.deliver, its delivery tag must be the next number, and (where one publisher
feeds one queue) its body must carry the next place in the publisher's blob. A lost, repeated,
reordered or torn message moves a boundary or a number, so it cannot pass a check and an exact
total both. Confirms are few and are read frame by frame.
"""

import struct
from dataclasses import dataclass

from pamqp import commands
from pamqp import frame as codec
from pamqp.exceptions import PAMQPException

from benchmarks.frames import (
    ACK,
    ACK_METHOD,
    ACK_PAYLOAD,
    BASIC,
    BODY,
    DELIVER,
    FRAME_END,
    FRAME_HEAD,
    HEADER,
    METHOD,
    STAMP,
    FramingError,
)

_DELIVER_HEAD = struct.Struct(">BHIHH")
_TAG = struct.Struct(">Q")
_HEADER_SIZE_AT = FRAME_HEAD.size + 4


@dataclass(frozen=True, slots=True)
class Shape:
    """Where things stand in a delivery: its whole size, its tag, its body."""

    size: int
    tag_at: int
    body_at: int


def maybe_shape(data: bytes | bytearray | memoryview) -> Shape | None:
    """The shape of the delivery that `data` starts with, or None if it is not all there yet."""
    header_at = _maybe_next_frame(data, 0, METHOD)
    if header_at is None:
        return None
    if _DELIVER_HEAD.unpack_from(data)[3:] != (BASIC, DELIVER):
        raise FramingError(f"expected basic.deliver, got {_described(bytes(data))}")
    body_at = _maybe_next_frame(data, header_at, HEADER)
    if body_at is None:
        return None
    end = _maybe_next_frame(data, body_at, BODY)
    if end is None:
        return None
    (body_size,) = _TAG.unpack_from(data, header_at + _HEADER_SIZE_AT)
    if end - body_at != body_size + FRAME_HEAD.size + 1:
        raise FramingError("the benchmark's messages fit one body frame, this one does not")
    tag_at = _DELIVER_HEAD.size + 1 + data[_DELIVER_HEAD.size]
    return Shape(end, tag_at, body_at + FRAME_HEAD.size)


def _maybe_next_frame(data: bytes | bytearray | memoryview, at: int, kind: int) -> int | None:
    if len(data) < at + FRAME_HEAD.size:
        return None
    found, _, length = FRAME_HEAD.unpack_from(data, at)
    if found != kind:
        raise FramingError(f"expected a frame of type {kind}, got {found} at octet {at}")
    end = int(at + FRAME_HEAD.size + length + 1)
    if len(data) < end:
        return None
    if data[end - 1] != FRAME_END:
        raise FramingError(f"frame at octet {at} does not end in {FRAME_END:#x}")
    return end


def _described(data: bytes) -> str:
    """What the peer said: the reason if it closed, else the name of the frame, else the octets."""
    try:
        _, _, value = codec.unmarshal(data)
    except PAMQPException:
        return data[:32].hex()
    if isinstance(value, commands.Channel.Close | commands.Connection.Close):
        return f"{value.name} {value.reply_code} {value.reply_text}"
    return value.name


class DeliveryCounter:
    """Counts equal-sized deliveries of one channel; `cycle` is the publisher's blob length."""

    __slots__ = ("_bytes", "_cycle", "_early", "count", "shape")

    def __init__(self, *, cycle: int = 0) -> None:
        self.count = 0
        self.shape: Shape | None = None
        self._bytes = 0
        self._cycle = cycle
        self._early = bytearray()

    def feed(self, data: memoryview) -> int:
        """Take what was received; returns how many whole deliveries there are by now."""
        shape = self.shape
        if shape is None:
            self._early += data
            shape = self.shape = maybe_shape(self._early)
            if shape is None:
                return 0
            data = memoryview(self._early)
            self._early = bytearray()
        seen = self._bytes
        self._bytes = total = seen + len(data)
        self._check(data, -seen % shape.size, -(-seen // shape.size), shape)
        self.count = total // shape.size
        return self.count

    @property
    def torn(self) -> bool:
        """Whether the bytes so far end inside a delivery."""
        return bool(self._early) or (self.shape is not None and self._bytes % self.shape.size != 0)

    def _check(self, data: memoryview, at: int, number: int, shape: Shape) -> None:
        if at and at <= len(data) and data[at - 1] != FRAME_END:
            raise FramingError(f"delivery {number} does not end where it should")
        if at + shape.tag_at + _TAG.size > len(data):
            return
        kind, _, _, class_id, method = _DELIVER_HEAD.unpack_from(data, at)
        if kind != METHOD or class_id != BASIC or method != DELIVER:
            raise FramingError(f"delivery {number + 1} does not start where it should")
        (tag,) = _TAG.unpack_from(data, at + shape.tag_at)
        if tag != number + 1:
            raise FramingError(f"delivery {number + 1} has tag {tag}")
        if self._cycle and at + shape.body_at + STAMP.size <= len(data):
            (place,) = STAMP.unpack_from(data, at + shape.body_at)
            if place != number % self._cycle:
                raise FramingError(
                    f"delivery {number + 1} carries message {place} of the publisher's blob, "
                    f"not {number % self._cycle}: lost, repeated or out of order"
                )


class ConfirmLedger:
    """Counts confirmed publishes of one channel, single or multiple, in any order."""

    __slots__ = ("_ahead", "_rest", "_upto")

    def __init__(self) -> None:
        self._upto = 0
        self._ahead: set[int] = set()
        self._rest = b""

    @property
    def confirmed(self) -> int:
        return self._upto + len(self._ahead)

    def feed(self, data: bytes) -> int:
        """Take what was received; returns how many publishes are confirmed by now."""
        if self._rest:
            data = self._rest + data
        whole = len(data) - len(data) % ACK.size
        self._rest = data[whole:]
        for kind, _, length, class_id, method, tag, multiple, end in ACK.iter_unpack(data[:whole]):
            head = (kind, length, class_id, method, end)
            if head != (METHOD, ACK_PAYLOAD, BASIC, ACK_METHOD, FRAME_END):
                raise FramingError(f"expected a confirm, got {_described(data)}")
            self._confirm(tag, multiple=bool(multiple))
        return self.confirmed

    def _confirm(self, tag: int, *, multiple: bool) -> None:
        if multiple:
            self._upto = max(self._upto, tag)
            if self._ahead:
                self._ahead = {other for other in self._ahead if other > self._upto}
        elif tag == self._upto + 1:
            self._upto = tag
        elif tag <= self._upto or tag in self._ahead:
            raise FramingError(f"publish {tag} was confirmed twice")
        else:
            self._ahead.add(tag)
        while self._upto + 1 in self._ahead:
            self._upto += 1
            self._ahead.remove(self._upto)
