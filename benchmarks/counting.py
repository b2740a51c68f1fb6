"""Counts deliveries and confirms, as cheaply as possible without missing an error.

All deliveries of a workload have the size of the first one, so they are counted by bytes. Each
received chunk is checked at its first message boundary: a frame must end and begin there, it must
be a basic.deliver, its delivery tag must be the next number, and (where one publisher feeds one
queue) its body must carry the next index of the publisher's blob. A lost, repeated, reordered or
truncated message moves a boundary or a number, so it cannot pass both the checks and an exact
total. Confirms are few and are read frame by frame.
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
class DeliveryLayout:
    """The size of a delivery, and the positions of its tag and its body."""

    size: int
    tag_at: int
    body_at: int


def maybe_layout(data: bytes | bytearray | memoryview) -> DeliveryLayout | None:
    """The layout of the delivery that `data` starts with; None if it is incomplete."""
    header_at = _maybe_next_frame(data, 0, METHOD)
    if header_at is None:
        return None
    if _DELIVER_HEAD.unpack_from(data)[3:] != (BASIC, DELIVER):
        raise FramingError(f"expected basic.deliver, got {_described(bytes(data))}")
    body_at = _maybe_next_frame(data, header_at, HEADER)
    if body_at is None:
        return None
    (body_size,) = _TAG.unpack_from(data, header_at + _HEADER_SIZE_AT)
    end = _maybe_body_end(data, body_at, body_size)
    if end is None:
        return None
    tag_at = _DELIVER_HEAD.size + 1 + data[_DELIVER_HEAD.size]
    return DeliveryLayout(end, tag_at, body_at + FRAME_HEAD.size)


def _maybe_body_end(data: bytes | bytearray | memoryview, at: int, size: int) -> int | None:
    """The end of the body frames that hold `size` bytes together; a body of 0 bytes has none."""
    left = size
    while left > 0:
        end = _maybe_next_frame(data, at, BODY)
        if end is None:
            return None
        left -= end - at - FRAME_HEAD.size - 1
        at = end
    if left:
        raise FramingError(f"the body frames of a message have {-left} bytes too many")
    return at


def _maybe_next_frame(data: bytes | bytearray | memoryview, at: int, kind: int) -> int | None:
    if len(data) < at + FRAME_HEAD.size:
        return None
    actual, _, length = FRAME_HEAD.unpack_from(data, at)
    if actual != kind:
        raise FramingError(f"expected a frame of type {kind}, got {actual} at byte {at}")
    end = int(at + FRAME_HEAD.size + length + 1)
    if len(data) < end:
        return None
    if data[end - 1] != FRAME_END:
        raise FramingError(f"frame at byte {at} does not end in {FRAME_END:#x}")
    return end


def _described(data: bytes) -> str:
    """A frame for an error text: the reason of a close, else the method's name, else the bytes."""
    try:
        _, _, value = codec.unmarshal(data)
    except PAMQPException:
        return data[:32].hex()
    if isinstance(value, commands.Channel.Close | commands.Connection.Close):
        return f"{value.name} {value.reply_code} {value.reply_text}"
    return value.name


class DeliveryCounter:
    """Counts equal-sized deliveries of one channel; `cycle` is the publisher's blob length."""

    __slots__ = ("_bytes", "_cycle", "_first_bytes", "count", "layout")

    def __init__(self, *, cycle: int = 0) -> None:
        self.count = 0
        self.layout: DeliveryLayout | None = None
        self._bytes = 0
        self._cycle = cycle
        self._first_bytes = bytearray()

    def feed(self, data: memoryview) -> int:
        """Count received bytes; returns the number of complete deliveries so far."""
        layout = self.layout
        if layout is None:
            self._first_bytes += data
            layout = self.layout = maybe_layout(self._first_bytes)
            if layout is None:
                return 0
            data = memoryview(self._first_bytes)
            self._first_bytes = bytearray()
        before = self._bytes
        self._bytes = total = before + len(data)
        self._check(data, -before % layout.size, -(-before // layout.size), layout)
        self.count = total // layout.size
        return self.count

    @property
    def is_incomplete(self) -> bool:
        """Whether the received bytes end inside a delivery."""
        return bool(self._first_bytes) or (
            self.layout is not None and self._bytes % self.layout.size != 0
        )

    def _check(self, data: memoryview, at: int, number: int, layout: DeliveryLayout) -> None:
        if at and at <= len(data) and data[at - 1] != FRAME_END:
            raise FramingError(f"delivery {number} does not end where it should")
        if at + layout.tag_at + _TAG.size > len(data):
            return
        kind, _, _, class_id, method = _DELIVER_HEAD.unpack_from(data, at)
        if kind != METHOD or class_id != BASIC or method != DELIVER:
            raise FramingError(f"delivery {number + 1} does not start where it should")
        (tag,) = _TAG.unpack_from(data, at + layout.tag_at)
        if tag != number + 1:
            raise FramingError(f"delivery {number + 1} has tag {tag}")
        if self._cycle and at + layout.body_at + STAMP.size <= len(data):
            (index,) = STAMP.unpack_from(data, at + layout.body_at)
            if index != number % self._cycle:
                raise FramingError(
                    f"delivery {number + 1} carries message {index} of the publisher's blob, "
                    f"not {number % self._cycle}: lost, repeated or out of order"
                )


class ConfirmCounter:
    """Counts confirmed publishes of one channel: single or multiple, in any order."""

    __slots__ = ("_ahead", "_confirmed_to", "_rest")

    def __init__(self) -> None:
        self._confirmed_to = 0
        self._ahead: set[int] = set()
        self._rest = b""

    @property
    def confirmed(self) -> int:
        return self._confirmed_to + len(self._ahead)

    def feed(self, data: bytes) -> int:
        """Count received bytes; returns the number of confirmed publishes so far."""
        if self._rest:
            data = self._rest + data
        complete = len(data) - len(data) % ACK.size
        self._rest = data[complete:]
        for kind, _, length, class_id, method, tag, multiple, end in ACK.iter_unpack(
            data[:complete]
        ):
            head = (kind, length, class_id, method, end)
            if head != (METHOD, ACK_PAYLOAD, BASIC, ACK_METHOD, FRAME_END):
                raise FramingError(f"expected a confirm, got {_described(data)}")
            self._confirm(tag, multiple=bool(multiple))
        return self.confirmed

    def _confirm(self, tag: int, *, multiple: bool) -> None:
        if multiple:
            self._confirmed_to = max(self._confirmed_to, tag)
            if self._ahead:
                self._ahead = {other for other in self._ahead if other > self._confirmed_to}
        elif tag == self._confirmed_to + 1:
            self._confirmed_to = tag
        elif tag <= self._confirmed_to or tag in self._ahead:
            raise FramingError(f"publish {tag} was confirmed twice")
        else:
            self._ahead.add(tag)
        while self._confirmed_to + 1 in self._ahead:
            self._confirmed_to += 1
            self._ahead.remove(self._confirmed_to)
