"""The wire floor: bytes in, calls on a sink out. No sockets, no clock, no vhosts.

What may come when is the two tables below: a connection state allows certain methods on channel 0,
and every other method needs an open channel. A missing entry is a ProtocolError with its reply
code. Content (method, header, body frames) is assembled per channel; when all three lie in the
buffer together, which is the common case, they are taken as one slice without any state.

Only BrokerError leaves `receive`: what the peer broke, or what the sink refused so hard that the
connection must close. Everything before the offending frame has then been handed over; after the
close was sent only connection.close and close-ok are listened to, and nothing at all once framing
itself was lost.

Only so much is handed over at once: `has_more` says that the rest waits for the next `receive`, and
so does what was `set_aside` altogether.
"""

from __future__ import annotations

import struct
import sys
from enum import Enum, auto
from typing import Protocol

from amqp_server.codec import (
    ACK_ID,
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    PROTOCOL_HEADER,
    PUBLISH_ID,
    Method,
    Publish,
    commands,
    decode_method,
)
from amqp_server.known import Known
from leveret.model.errors import BrokerError, PreconditionFailed, ProtocolError, ReplyCode
from leveret.model.message import BASIC_CLASS, FRAME_OVERHEAD, Message

FRAME_LIMIT_BEFORE_TUNE = 8192
HARD_MESSAGE_LIMIT = 512 * 1024 * 1024
METHODS_AT_ONCE = 25
MESSAGES_AT_ONCE = 200
"""A millisecond of work; ten thousand fit into one read."""
_METHOD = MESSAGES_AT_ONCE // METHODS_AT_ONCE  # messages that take as long
_ACKS = 4  # that take as long as a message

_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">BHIHHQ")
_ACK = struct.Struct(">QBB")  # tag, flags, end octet
_ACK_FRAME = 21


class ConnectionState(Enum):
    AWAIT_HEADER = auto()
    AWAIT_START_OK = auto()
    LOGGING_IN = auto()
    AWAIT_TUNE_OK = auto()
    AWAIT_OPEN = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


_ANY_TIME = frozenset({commands.Connection.Close, commands.Connection.CloseOk})
_LEGAL_ON_CHANNEL_0: dict[ConnectionState, frozenset[type[Method]]] = {
    ConnectionState.AWAIT_START_OK: frozenset({commands.Connection.StartOk}) | _ANY_TIME,
    ConnectionState.AWAIT_TUNE_OK: frozenset({commands.Connection.TuneOk}) | _ANY_TIME,
    ConnectionState.AWAIT_OPEN: frozenset({commands.Connection.Open}) | _ANY_TIME,
    ConnectionState.OPEN: frozenset({commands.Connection.UpdateSecret}) | _ANY_TIME,
    ConnectionState.CLOSING: _ANY_TIME,
    ConnectionState.CLOSED: frozenset(),
}
_CONNECTION_CLASS = 10
_CLOSES = (b"\x00\x0a\x00\x32", b"\x00\x0a\x00\x33")  # connection.close and its answer


class ChannelState(Enum):
    OPEN = auto()
    CLOSING = auto()


class WireChannel:
    """The wire's view of one channel: may it speak, and which content is half here."""

    __slots__ = ("body", "header", "missing", "publish", "sizes", "state")

    def __init__(self) -> None:
        self.state = ChannelState.OPEN
        self.publish: Publish | None = None
        self.header = b""
        self.body = bytearray()
        self.sizes = (0, 0)
        self.missing = -1  # body octets still to come; -1 while the header is awaited


class WireSink(Protocol):
    """What the meaning floor offers the wire."""

    def on_header(self) -> None: ...

    def on_method(self, channel: int, method: Method, table: bytes) -> None: ...

    def on_publish(self, channel: int, publish: Publish, messages: list[Message]) -> None:
        """A run of messages with the same address and flags, one after the other; one that needs
        care comes alone."""

    def on_ack(self, channel: int, tags: list[int], multiple: bool) -> None:
        """A run of acknowledgements; of several tags each is acknowledged alone."""

    def on_refused_content(self, channel: int, error: BrokerError) -> None: ...


class _Enough(Exception):
    """As much as may be handed over at once has been."""


class BadProtocolHeader(ProtocolError):
    """The peer does not speak AMQP 0-9-1."""


class Wire:
    """One connection's frames."""

    def __init__(self, sink: WireSink, max_message_size: int) -> None:
        self.sink = sink
        self.max_message_size = max_message_size
        self.state = ConnectionState.AWAIT_HEADER
        self.frame_limit = FRAME_LIMIT_BEFORE_TUNE
        self.channels: dict[int, WireChannel] = {}
        self.last_method: tuple[int, int] = (0, 0)
        self.has_more = False
        self._left = MESSAGES_AT_ONCE
        self._unfinished = 0
        self._rest = b""
        self._after = 0  # where reading goes on when the frame at hand is refused
        self.deaf = False
        self.share(Known())

    def share(self, known: Known) -> None:
        """Remember publishes together with others."""
        self.known = known
        self._publishes = known.by_frame

    def __repr__(self) -> str:
        return f"<Wire {self.state.name} channels={len(self.channels)} rest={len(self._rest)}B>"

    @property
    def buffered(self) -> int:
        return len(self._rest)

    @property
    def set_aside_octets(self) -> int:
        """Octets that nobody has looked at yet."""
        return len(self._rest) if self.has_more else 0

    @property
    def kept(self) -> int:
        """Octets of what has not come whole: frames, and messages on every channel."""
        return self._unfinished + (0 if self.has_more else len(self._rest))

    def receive(self, data: bytes) -> None:
        """Take bytes from the peer and hand over what is complete."""
        self.has_more = False
        if self.deaf:
            self._rest = b""
            return
        if self._rest:
            data = self._rest + data
            self._rest = b""
        position = 0
        if self.state is ConnectionState.LOGGING_IN:
            self._rest = data
            return
        if self.state is ConnectionState.AWAIT_HEADER:
            position = self._protocol_header(data)
            if position == 0:
                self._rest = data
                return
        self._left = MESSAGES_AT_ONCE
        try:
            self._rest = data[self._frames(data, position) :]
        except BrokerError:
            self._rest = data[self._after :]
            raise
        except _Enough:
            self._rest = data[self._after :]
            self.has_more = True

    def enough(self) -> None:
        """What was handed over took its time: the rest is for the next `receive`."""
        self._left = 0

    def set_aside(self, data: bytes) -> None:
        """It has come, and is looked at with the next `receive`."""
        if not self.deaf:
            self._rest += data
            self.has_more = True

    def _protocol_header(self, data: bytes) -> int:
        if data[:8] != PROTOCOL_HEADER[: len(data)]:
            raise BadProtocolHeader("peer does not speak AMQP 0-9-1")
        if len(data) < 8:
            return 0
        self.state = ConnectionState.AWAIT_START_OK
        self.sink.on_header()
        return 8

    def _frames(self, data: bytes, position: int) -> int:
        """Handle every whole frame from `position` on; where the first partial one starts."""
        size_of, end = _FRAME.unpack_from, len(data)
        while end - position >= _FRAME.size:
            kind, channel, size = size_of(data, position)
            if size > self.frame_limit:
                self._lose_sync(f"frame of {size} octets is larger than {self.frame_limit}")
            last = position + 7 + size
            if last >= end:
                break
            if data[last] != 0xCE:
                self._lose_sync("frame does not end with its end octet")
            self._after = last + 1
            if kind == FRAME_METHOD:
                method_id = data[position + 7 : position + 11]
                if method_id == PUBLISH_ID and self.state is ConnectionState.OPEN:
                    position = self._publish(data, position, last, channel)
                    continue
                if method_id == ACK_ID and size == 13 and self.state is ConnectionState.OPEN:
                    position = self._ack(data, position, channel)
                    continue
                else:
                    self._spend(_METHOD, position)
                    self._method(channel, data[position + 7 : last])
            elif self.state is not ConnectionState.CLOSING:
                self._spend(1, position)
                self._other_frame(kind, channel, data, position, last)
            position = last + 1
            if self.state is not ConnectionState.OPEN:
                position, end = self._go_on(position, end)
        return position

    def _go_on(self, position: int, end: int) -> tuple[int, int]:
        """What of the rest is for now: nothing after the end, nothing while logging in."""
        if self.state is ConnectionState.CLOSED:
            return end, end
        return position, position if self.state is ConnectionState.LOGGING_IN else end

    def _spend(self, effort: int, position: int) -> None:
        """On the frame that starts there; all that are ignored are free."""
        if self._left <= 0 and self.state is ConnectionState.OPEN:
            self._after = position
            raise _Enough
        self._left -= effort

    def _lose_sync(self, reason: str) -> None:
        self.deaf = True
        self._after = sys.maxsize
        raise ProtocolError(reason)

    # Content -----------------------------------------------------------------------------------

    def _publish(self, data: bytes, position: int, last: int, channel: int) -> int:
        """basic.publish; of what follows in the same buffer, take its content at once, and that
        of every further message to the same address."""
        held = self.channels.get(channel)
        if held is None or held.publish is not None or held.state is ChannelState.CLOSING:
            return self._publish_out_of_turn(channel, held, last)
        frame = data[position + 3 : last]
        publish = self._publishes.get(frame)
        self._spend(0 if publish is not None else _METHOD, position)
        if publish is None:
            self.last_method = (60, 40)
            publish = self.known.learn(frame)
        messages, stop = self._run(data, position, last + 1, channel, publish)
        if messages:
            self._after = stop
            self._left -= len(messages) * (publish.effort or 1)
            self.sink.on_publish(channel, publish, messages)
            return stop
        held.publish = publish
        held.missing = -1
        return last + 1

    def _run(
        self, data: bytes, position: int, start: int, channel: int, publish: Publish
    ) -> tuple[list[Message], int]:
        """Messages whose method frame is the one from `position` to `start`, as long as each is
        here whole and in one body frame, and there is time for it; where the last of them ends."""
        method, end, limit = data[position:start], len(data), self.frame_limit
        messages: list[Message] = []
        address, most = publish.address, self._left // publish.effort if publish.effort else 0
        unpack, largest, after = _CONTENT.unpack_from, self.max_message_size, start
        while end - start >= 20:
            kind, same, size, class_id, weight, body_size = unpack(data, start)
            body_start = start + size + FRAME_OVERHEAD
            stop = body_start + body_size + FRAME_OVERHEAD if body_size else body_start
            if (
                kind != FRAME_HEADER
                or same != channel
                or class_id != BASIC_CLASS
                or weight != 0
                or stop > end
                or size > limit
                or body_size > largest
                or data[body_start - 1] != 0xCE
                or (body_size and not self._is_one_body(data, body_start, channel, body_size))
            ):
                break
            try:
                message = Message(address, channel, data[start:stop], size, body_size)
            except ProtocolError:
                if messages:
                    break  # those before it go first
                raise
            needs_care = message.scan.needs_care
            if needs_care and messages:
                break
            messages.append(message)
            after = stop
            if needs_care or len(messages) > most or not data.startswith(method, stop):
                break
            start = stop + len(method)
        return messages, after

    def _is_one_body(self, data: bytes, start: int, channel: int, size: int) -> bool:
        return (
            size <= self.frame_limit
            and _FRAME.unpack_from(data, start) == (FRAME_BODY, channel, size)
            and data[start + 7 + size] == 0xCE
        )

    def _publish_out_of_turn(self, channel: int, held: WireChannel | None, last: int) -> int:
        self.last_method = (60, 40)
        if held is None:
            self._refuse_closed_channel(channel)
        elif held.state is not ChannelState.CLOSING:
            self._refuse_in_content()
        return last + 1

    def _other_frame(self, kind: int, channel: int, data: bytes, position: int, last: int) -> None:
        if kind == FRAME_HEARTBEAT:
            self._heartbeat(channel, last - position - 7)
        elif kind in (FRAME_HEADER, FRAME_BODY):
            held = self.channels.get(channel)
            if held is None or held.state is ChannelState.OPEN:
                take = self._content_header if kind == FRAME_HEADER else self._content_body
                take(channel, held, data[position : last + 1])
        else:
            raise ProtocolError(f"unknown frame type {kind}")

    def _heartbeat(self, channel: int, size: int) -> None:
        if channel != 0:
            raise ProtocolError("heartbeat on a channel", ReplyCode.UNEXPECTED_FRAME)
        if size != 0:
            raise ProtocolError("heartbeat with a payload")

    def _content_header(self, channel: int, held: WireChannel | None, frame: bytes) -> None:
        """What no peer may say at all is refused before it is asked whose turn it is."""
        if len(frame) < 22:
            raise ProtocolError("content header is cut off")
        _, _, size, class_id, weight, body_size = _CONTENT.unpack_from(frame)
        if body_size > HARD_MESSAGE_LIMIT:
            raise ProtocolError(f"message of {body_size} octets announced")
        if held is None or held.publish is None or held.missing != -1:
            raise ProtocolError("content header out of turn", ReplyCode.UNEXPECTED_FRAME)
        if class_id != BASIC_CLASS or weight != 0:
            raise ProtocolError("content header of another class", ReplyCode.UNEXPECTED_FRAME)
        if body_size > self.max_message_size:
            held.publish = None
            self.sink.on_refused_content(
                channel,
                PreconditionFailed(
                    f"message size {body_size} is larger than max size {self.max_message_size}"
                ),
            )
            return
        held.header, held.body = frame, bytearray()
        held.sizes, held.missing = (size, body_size), body_size
        self._unfinished += len(frame)
        self._finish_content(channel, held)

    def _content_body(self, channel: int, held: WireChannel | None, frame: bytes) -> None:
        if held is None or held.publish is None or held.missing == -1:
            raise ProtocolError("content body out of turn", ReplyCode.UNEXPECTED_FRAME)
        size = len(frame) - FRAME_OVERHEAD
        if size > held.missing:
            raise ProtocolError("content body is longer than announced")
        held.body += memoryview(frame)[7:-1]
        held.missing -= size
        self._unfinished += size
        self._finish_content(channel, held)

    def _finish_content(self, channel: int, held: WireChannel) -> None:
        """In one body frame, however many it came in: they may be of an octet each."""
        if held.missing:
            return
        publish, frames = held.publish, held.header
        if held.body:
            head = _FRAME.pack(FRAME_BODY, channel, len(held.body))
            frames = b"".join((frames, head, held.body, b"\xce"))
        self._forget_content(held)
        if publish is not None:
            message = Message(publish.address, channel, frames, *held.sizes)
            self.sink.on_publish(channel, publish, [message])

    def _forget_content(self, held: WireChannel) -> None:
        self._unfinished -= len(held.header) + len(held.body)
        held.publish, held.header, held.body, held.missing = None, b"", bytearray(), -1

    def close_channel(self, held: WireChannel) -> None:
        """We have closed it: until the peer answers nothing on it counts."""
        held.state = ChannelState.CLOSING
        self._forget_content(held)

    def forget_contents(self) -> None:
        """No message that has come in part will be heard to its end."""
        for held in self.channels.values():
            self._forget_content(held)

    # Methods -----------------------------------------------------------------------------------

    def _ack(self, data: bytes, position: int, channel: int) -> int:
        """basic.ack, and further ones of single tags that follow it; where the last one ends."""
        held = self.channels.get(channel)
        after = position + _ACK_FRAME
        if held is None or held.publish is not None:
            self._method(channel, data[position + 7 : position + 20])
        elif held.state is ChannelState.OPEN:
            self._spend(1, position)
            tag, bits, _ = _ACK.unpack_from(data, position + 11)
            tags = [tag]
            if not bits & 1:
                after = self._more_acks(data, position, after, tags)
            self._left -= len(tags) // _ACKS
            self._after = after
            self.last_method = (60, 80)
            self.sink.on_ack(channel, tags, bool(bits & 1))
        return after

    def _more_acks(self, data: bytes, position: int, after: int, tags: list[int]) -> int:
        head, end, unpack = data[position : position + 11], len(data), _ACK.unpack_from
        while end - after >= _ACK_FRAME and data.startswith(head, after):
            tag, bits, end_octet = unpack(data, after + 11)
            if bits & 1 or end_octet != 0xCE or len(tags) > self._left * _ACKS:
                break
            tags.append(tag)
            after += _ACK_FRAME
        return after

    def _method(self, channel: int, payload: bytes) -> None:
        if self.state is ConnectionState.CLOSING and (channel or payload[:4] not in _CLOSES):
            return
        if len(payload) < 4:
            raise ProtocolError("method frame is too short to name a method")
        self.last_method = struct.unpack_from(">HH", payload)
        if channel == 0:
            self._connection_method(payload)
        else:
            self._channel_method(channel, payload)

    def _connection_method(self, payload: bytes) -> None:
        method, table = decode_method(payload)
        if type(method) not in _LEGAL_ON_CHANNEL_0[self.state]:
            raise ProtocolError(
                f"{method.name} is not expected on channel 0 now", ReplyCode.CHANNEL_ERROR
            )
        self.sink.on_method(0, method, table)

    def _channel_method(self, channel: int, payload: bytes) -> None:
        if self.state is not ConnectionState.OPEN:
            raise ProtocolError("connection is not open", ReplyCode.CHANNEL_ERROR)
        held = self.channels.get(channel)
        opens = self.last_method == (20, 10)
        if held is None and not opens:
            if self.last_method == (20, 41):  # answers our close, which the peer's had crossed
                return
            self._refuse_closed_channel(channel)
        if self.last_method[0] == _CONNECTION_CLASS:
            raise ProtocolError("connection method on a channel", ReplyCode.COMMAND_INVALID)
        if held is not None:
            if held.state is ChannelState.CLOSING:
                self._closing_channel_method(channel, payload)
                return
            if opens:
                raise ProtocolError("second 'channel.open' seen", ReplyCode.CHANNEL_ERROR)
            if held.publish is not None:
                self._refuse_in_content()
        method, table = decode_method(payload)
        self.sink.on_method(channel, method, table)

    def _closing_channel_method(self, channel: int, payload: bytes) -> None:
        if self.last_method == (20, 40) or self.last_method == (20, 41):
            method, table = decode_method(payload)
            self.sink.on_method(channel, method, table)

    def _refuse_closed_channel(self, channel: int) -> None:
        raise ProtocolError("expected 'channel.open'", ReplyCode.CHANNEL_ERROR)

    def _refuse_in_content(self) -> None:
        raise ProtocolError("method inside content", ReplyCode.UNEXPECTED_FRAME)
