"""The AMQP wire protocol without input/output: bytes in, calls on a sink out.

The module knows no sockets, no clock and no virtual hosts. It holds the state of the connection and
of its channels, and three tables decide everything: `_TRANSITIONS` says which event leads to which
connection state, `_LEGAL_ON_CHANNEL_0` says which connection methods a state allows, and all other
methods need an open channel. What a table does not allow is a ProtocolError with its reply code.

Content (method, header and body frames) is assembled per channel. When all three are in the buffer
together, which is the common case, they are taken as one slice without any state.

Only BrokerError leaves `receive`: the peer broke the protocol, or the sink raised an error that
closes the connection. All frames before the offending one have been handed over by then. After our
close was sent, and while the peer's close waits for its channels, only connection.close and
connection.close-ok are handled, and nothing at all once frame boundaries are lost.

One `receive` handles a limited number of frames. `has_more` says that buffered bytes wait for the
next call, because the limit was reached or because they were passed to `buffer`. Event-loop thread
only; a crash loses what was not handed over.
"""

from __future__ import annotations

import struct
import sys
from enum import Enum, auto
from typing import Protocol

from leveret.amqp_server.codec import (
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
from leveret.amqp_server.publish_cache import PublishCache
from leveret.model.errors import BrokerError, PreconditionFailed, ProtocolError, ReplyCode
from leveret.model.message import (
    BASIC_CLASS,
    CACHED_PROPERTIES,
    FRAME_OVERHEAD,
    LARGE_BODY,
    LargeBody,
    LargeMessage,
    Message,
    scan,
)
from leveret.model.run import Run

FRAME_LIMIT_BEFORE_TUNE = 4096
"""As in RabbitMQ: the smallest frame_max that a client may negotiate."""
HARD_MESSAGE_LIMIT = 512 * 1024 * 1024
METHODS_AT_ONCE = 25
MESSAGES_AT_ONCE = 200
"""About a millisecond of work; one read may contain ten thousand messages."""
_METHOD_COST = MESSAGES_AT_ONCE // METHODS_AT_ONCE  # in messages that take as long
_ACKS_PER_MESSAGE = 4  # acks that take as long as one message

_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">BHIHHQ")
_ACK = struct.Struct(">QBB")  # delivery tag, flags, frame end
_ACK_FRAME = 21


class ConnectionState(Enum):
    AWAIT_HEADER = auto()
    AWAIT_START_OK = auto()
    AUTHENTICATING = auto()
    AWAIT_TUNE_OK = auto()
    AWAIT_OPEN = auto()
    OPEN = auto()
    CLOSE_RECEIVED = auto()
    CLOSING = auto()
    CLOSED = auto()


class ConnectionEvent(Enum):
    """What moves a connection from one state to the next."""

    PROTOCOL_HEADER = auto()
    START_OK = auto()
    AUTHENTICATED = auto()
    TUNE_OK = auto()
    OPEN = auto()
    CLOSE_RECEIVED = auto()
    CLOSE_SENT = auto()
    CLOSED = auto()


_ENDS = {
    ConnectionEvent.CLOSE_SENT: ConnectionState.CLOSING,
    ConnectionEvent.CLOSED: ConnectionState.CLOSED,
}
_TRANSITIONS: dict[ConnectionState, dict[ConnectionEvent, ConnectionState]] = {
    ConnectionState.AWAIT_HEADER: {
        ConnectionEvent.PROTOCOL_HEADER: ConnectionState.AWAIT_START_OK,
        ConnectionEvent.CLOSED: ConnectionState.CLOSED,
    },
    ConnectionState.AWAIT_START_OK: {
        ConnectionEvent.START_OK: ConnectionState.AUTHENTICATING,
        **_ENDS,
    },
    ConnectionState.AUTHENTICATING: {
        ConnectionEvent.AUTHENTICATED: ConnectionState.AWAIT_TUNE_OK,
        **_ENDS,
    },
    ConnectionState.AWAIT_TUNE_OK: {
        ConnectionEvent.TUNE_OK: ConnectionState.AWAIT_OPEN,
        **_ENDS,
    },
    ConnectionState.AWAIT_OPEN: {ConnectionEvent.OPEN: ConnectionState.OPEN, **_ENDS},
    ConnectionState.OPEN: {
        ConnectionEvent.CLOSE_RECEIVED: ConnectionState.CLOSE_RECEIVED,
        **_ENDS,
    },
    ConnectionState.CLOSE_RECEIVED: {
        ConnectionEvent.CLOSE_RECEIVED: ConnectionState.CLOSE_RECEIVED,
        **_ENDS,
    },
    ConnectionState.CLOSING: {ConnectionEvent.CLOSED: ConnectionState.CLOSED},
    ConnectionState.CLOSED: {ConnectionEvent.CLOSED: ConnectionState.CLOSED},
}

_ANY_TIME = frozenset({commands.Connection.Close, commands.Connection.CloseOk})
_LEGAL_ON_CHANNEL_0: dict[ConnectionState, frozenset[type[Method]]] = {
    ConnectionState.AWAIT_START_OK: frozenset({commands.Connection.StartOk}) | _ANY_TIME,
    ConnectionState.AWAIT_TUNE_OK: frozenset({commands.Connection.TuneOk}) | _ANY_TIME,
    ConnectionState.AWAIT_OPEN: frozenset({commands.Connection.Open}) | _ANY_TIME,
    ConnectionState.OPEN: frozenset({commands.Connection.UpdateSecret}) | _ANY_TIME,
    ConnectionState.CLOSE_RECEIVED: _ANY_TIME,
    ConnectionState.CLOSING: _ANY_TIME,
    ConnectionState.CLOSED: frozenset(),
}
_ONLY_CLOSES = frozenset({ConnectionState.CLOSE_RECEIVED, ConnectionState.CLOSING})
"""States in which connection.close and connection.close-ok are handled, and nothing else."""
_CONNECTION_CLASS = 10
_PUBLISH, _BASIC_ACK = (60, 40), (60, 80)
_CLOSES = (b"\x00\x0a\x00\x32", b"\x00\x0a\x00\x33")  # connection.close, close-ok


class ChannelState(Enum):
    OPEN = auto()
    CLOSING = auto()


class ChannelSink(Protocol):
    """A channel as the wire sees it: it takes the frequent methods directly."""

    def on_publish(self, publish: Publish, run: Run) -> None:
        """Consecutive messages with the same address and flags; a message whose properties need
        checking comes alone."""

    def on_ack(self, tags: list[int], multiple: bool) -> None:
        """Consecutive acknowledgements; if there are several tags, none of them is multiple."""


class WireSink(Protocol):
    """A connection as the wire sees it."""

    def on_header(self) -> None:
        """The client sent the protocol header."""

    def on_method(self, channel: int, method: Method, table: bytes) -> None:
        """Every method except basic.publish and single basic.ack frames."""

    def on_refused_content(self, channel: int, error: BrokerError) -> None:
        """A content header announced a message that is too large."""


class WireChannel:
    """The wire's state of one channel: open or closing, and the content received so far."""

    __deletable__ = ("sink",)
    __slots__ = ("body", "header", "missing", "pieces", "publish", "sink", "sizes", "state")

    def __init__(self, sink: ChannelSink) -> None:
        self.sink = sink
        self.state = ChannelState.OPEN
        self.publish: Publish | None = None
        self.header = b""
        self.body = bytearray()
        self.pieces: list[bytes] = []
        """The beginning of a large body; `body` is what follows."""
        self.sizes = (0, 0)
        self.missing = -1  # body bytes still to come; -1 while the header is awaited


class _LimitReached(Exception):
    """One `receive` has handled as many frames as it may."""


class BadProtocolHeader(ProtocolError):
    """The peer does not send the AMQP 0-9-1 protocol header."""


class Wire:
    """The frames and protocol states of one connection."""

    __deletable__ = ("sink",)

    def __init__(self, sink: WireSink, max_message_size: int) -> None:
        self.sink = sink
        self.max_message_size = max_message_size
        self.state = ConnectionState.AWAIT_HEADER
        self.frame_limit = FRAME_LIMIT_BEFORE_TUNE
        self.channels: dict[int, WireChannel] = {}
        self.last_method: tuple[int, int] = (0, 0)
        """Class and method id that an error is attributed to."""
        self.ignores_input = False
        self.has_more = False
        self.publish_cache = PublishCache()
        self._publishes = self.publish_cache.by_frame
        self._budget = MESSAGES_AT_ONCE
        self._content_bytes = 0
        self._rest = b""
        self._next_frame = 0  # where to continue if the current frame is refused

    def __repr__(self) -> str:
        return f"<Wire {self.state.name} channels={len(self.channels)} rest={len(self._rest)}B>"

    # State -------------------------------------------------------------------------------------

    def advance(self, event: ConnectionEvent) -> None:
        """Change the connection state as `_TRANSITIONS` says; no other code assigns it."""
        next_state = _TRANSITIONS[self.state].get(event)
        if next_state is None:
            raise RuntimeError(f"{event.name} is not possible in state {self.state.name}")
        self.state = next_state

    def tune(self, frame_max: int) -> None:
        """connection.tune-ok was accepted."""
        self.advance(ConnectionEvent.TUNE_OK)
        self.frame_limit = frame_max

    def open(self, publish_cache: PublishCache) -> None:
        """connection.open was accepted; `publish_cache` is shared by the user's connections."""
        self.advance(ConnectionEvent.OPEN)
        self.publish_cache = publish_cache
        self._publishes = publish_cache.by_frame

    def open_channel(self, number: int, sink: ChannelSink) -> None:
        self.channels[number] = WireChannel(sink)

    def begin_channel_close(self, number: int) -> None:
        """We sent channel.close: ignore the channel's frames until the peer answers. It may never
        answer, so nothing else is kept of the channel."""
        channel = self.channels[number]
        channel.state = ChannelState.CLOSING
        del channel.sink
        self._drop_content(channel)

    def remove_channel(self, number: int) -> None:
        """The channel is closed on both sides, and its number is free."""
        channel = self.channels.pop(number, None)
        if channel is not None:
            self._drop_content(channel)

    def attribute_errors_to(self, method: tuple[int, int]) -> None:
        """A deferred method runs now: an error that it raises must name it."""
        self.last_method = method

    def ignore_input(self) -> None:
        """Drop the buffered bytes and everything that is received from now on."""
        self.ignores_input = True
        self.has_more = False
        self._rest = b""

    def detach(self) -> None:
        """The socket is gone. Break the reference cycles, so that no garbage collection is needed
        to free the connection."""
        self.ignore_input()
        self.channels.clear()
        del self.sink

    # Input -------------------------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        """Bytes received that do not belong to a handled frame."""
        return len(self._rest)

    @property
    def deferred_bytes(self) -> int:
        """Buffered bytes that were not parsed yet, because the limit was reached."""
        return len(self._rest) if self.has_more else 0

    @property
    def partial_bytes(self) -> int:
        """Bytes of incomplete frames, and of incomplete messages on all channels."""
        return self._content_bytes + (0 if self.has_more else len(self._rest))

    def receive(self, data: bytes) -> None:
        """Take bytes from the peer and hand over the complete frames."""
        self.has_more = False
        if self.ignores_input:
            self._rest = b""
            return
        if self._rest:
            data = self._rest + data
            self._rest = b""
        position = 0
        if self.state is ConnectionState.AUTHENTICATING:
            self._rest = data
            return
        if self.state is ConnectionState.AWAIT_HEADER:
            position = self._protocol_header(data)
            if position == 0:
                self._rest = data
                return
        self._budget = MESSAGES_AT_ONCE
        try:
            self._rest = data[self._frames(data, position) :]
        except BrokerError:
            self._rest = data[self._next_frame :]
            raise
        except _LimitReached:
            self._rest = data[self._next_frame :]
            self.has_more = True

    def stop_after_this_frame(self) -> None:
        """The current frame took long: leave the rest to the next `receive`."""
        self._budget = 0

    def buffer(self, data: bytes) -> None:
        """Keep these bytes for the next `receive`."""
        if not self.ignores_input:
            self._rest += data
            self.has_more = True

    def _protocol_header(self, data: bytes) -> int:
        if data[:8] != PROTOCOL_HEADER[: len(data)]:
            raise BadProtocolHeader("peer does not speak AMQP 0-9-1")
        if len(data) < 8:
            return 0
        self.advance(ConnectionEvent.PROTOCOL_HEADER)
        self.sink.on_header()
        return 8

    def _frames(self, data: bytes, position: int) -> int:
        """Handle all complete frames from `position` on; returns where the first partial one is."""
        size_of, end = _FRAME.unpack_from, len(data)
        while end - position >= _FRAME.size:
            kind, channel, size = size_of(data, position)
            if size > self.frame_limit:
                self._lose_sync(f"frame of {size} bytes is larger than {self.frame_limit}")
            last = position + 7 + size
            if last >= end:
                break
            if data[last] != 0xCE:
                self._lose_sync("frame does not end with the frame-end byte 0xCE")
            self._next_frame = last + 1
            if kind == FRAME_METHOD:
                method_id = data[position + 7 : position + 11]
                if method_id == PUBLISH_ID and self.state is ConnectionState.OPEN:
                    position = self._publish(data, position, last, channel)
                    continue
                if method_id == ACK_ID and size == 13 and self.state is ConnectionState.OPEN:
                    position = self._ack(data, position, channel)
                    continue
                else:
                    self._spend(_METHOD_COST, position)
                    self._method(channel, data[position + 7 : last])
            elif self.state not in _ONLY_CLOSES:
                self._spend(1, position)
                self._other_frame(kind, channel, data, position, last)
            position = last + 1
            if self.state is not ConnectionState.OPEN:
                position, end = self._remaining(position, end)
        return position

    def _remaining(self, position: int, end: int) -> tuple[int, int]:
        """The range still to parse: empty after the close, and while a login is checked."""
        if self.state is ConnectionState.CLOSED:
            return end, end
        return position, position if self.state is ConnectionState.AUTHENTICATING else end

    def _spend(self, effort: int, position: int) -> None:
        """Charge the frame at `position`; frames that are ignored are free."""
        if self._budget <= 0 and self.state is ConnectionState.OPEN:
            self._next_frame = position
            raise _LimitReached
        self._budget -= effort

    def _lose_sync(self, reason: str) -> None:
        self.ignores_input = True
        self._next_frame = sys.maxsize
        raise ProtocolError(reason)

    # Content -----------------------------------------------------------------------------------

    def _publish(self, data: bytes, position: int, last: int, channel: int) -> int:
        """basic.publish; takes its content too if it is in the buffer, and all directly following
        messages with the same address."""
        wire_channel = self.channels.get(channel)
        if (
            wire_channel is None
            or wire_channel.publish is not None
            or wire_channel.state is ChannelState.CLOSING
        ):
            return self._unexpected_publish(channel, wire_channel, last)
        frame = data[position + 3 : last]
        publish = self._publishes.get(frame)
        if self._budget <= 0:
            self._next_frame = position
            raise _LimitReached
        if publish is None:
            self._budget -= _METHOD_COST
            self.last_method = _PUBLISH
            publish = self.publish_cache.add(frame)
        run, stop = self._run(data, position, last + 1, channel, publish)
        if run is not None:
            self._next_frame = stop
            self._budget -= len(run) * (publish.effort or 1)
            self.last_method = _PUBLISH
            wire_channel.sink.on_publish(publish, run)
            return stop
        wire_channel.publish = publish
        wire_channel.missing = -1
        return last + 1

    def _run(
        self, data: bytes, position: int, start: int, channel: int, publish: Publish
    ) -> tuple[Run | None, int]:
        """Take complete messages with the method frame `data[position:start]` within the budget.

        Returns them, and where the last of them ends.
        """
        frames: list[bytes] = []
        header_sizes: list[int] = []
        body_sizes: list[int] = []
        method, end_of_run, scanned = data[position:start], start, publish.scan
        room = 1 + (self._budget // publish.effort if publish.effort else 0)
        while (content := self._content_at(data, start, channel)) is not None:
            size, body_size, stop = content
            properties = data[start + 19 : start + 7 + size]
            if properties != publish.properties and not _scan_next(publish, properties, frames):
                break
            if frames and publish.scan.persistent != scanned.persistent:
                break
            scanned = publish.scan
            if scanned.needs_validation:
                room = 1
            alike = _alike(data, start, stop, size, method, room)
            frames += alike
            header_sizes += [size] * len(alike)
            body_sizes += [body_size] * len(alike)
            start += len(alike) * (stop - start + len(method))
            end_of_run = start - len(method)
            room -= len(alike)
            if room <= 0 or not data.startswith(method, end_of_run):
                break
        if not frames:
            return None, end_of_run
        run = Run(publish.address, channel, frames, header_sizes, body_sizes, scanned)
        return run, end_of_run

    def _content_at(self, data: bytes, start: int, channel: int) -> tuple[int, int, int] | None:
        """A content header and its body in one frame: the size of the header's payload, the size of
        the body, and where it ends; None if anything else is there, or not all of it."""
        end = len(data)
        if end - start < 20:
            return None
        kind, same, size, class_id, weight, body_size = _CONTENT.unpack_from(data, start)
        body_start = start + size + FRAME_OVERHEAD
        stop = body_start + body_size + FRAME_OVERHEAD if body_size else body_start
        limit = self.frame_limit
        if (
            (kind, same, class_id, weight) != (FRAME_HEADER, channel, BASIC_CLASS, 0)
            or stop > end
            or size > limit
            or body_size > self.max_message_size
            or data[body_start - 1] != 0xCE
        ):
            return None
        if body_size and (
            body_size > limit
            or _FRAME.unpack_from(data, body_start) != (FRAME_BODY, channel, body_size)
            or data[stop - 1] != 0xCE
        ):
            return None
        return size, body_size, stop

    def _unexpected_publish(self, channel: int, wire_channel: WireChannel | None, last: int) -> int:
        self.last_method = _PUBLISH
        if wire_channel is None:
            self._refuse_closed_channel(channel)
        elif wire_channel.state is not ChannelState.CLOSING:
            self._refuse_in_content()
        return last + 1

    def _other_frame(self, kind: int, channel: int, data: bytes, position: int, last: int) -> None:
        if kind == FRAME_HEARTBEAT:
            self._heartbeat(channel, last - position - 7)
        elif kind in (FRAME_HEADER, FRAME_BODY):
            wire_channel = self.channels.get(channel)
            if wire_channel is None or wire_channel.state is ChannelState.OPEN:
                take = self._content_header if kind == FRAME_HEADER else self._content_body
                take(channel, wire_channel, data[position : last + 1])
        else:
            raise ProtocolError(f"unknown frame type {kind}")

    def _heartbeat(self, channel: int, size: int) -> None:
        if channel != 0:
            raise ProtocolError("heartbeat on a channel", ReplyCode.UNEXPECTED_FRAME)
        if size != 0:
            raise ProtocolError("heartbeat with a payload")

    def _content_header(self, channel: int, wire_channel: WireChannel | None, frame: bytes) -> None:
        """A header that is too short for a body size is refused in every state of the channel."""
        if len(frame) < _CONTENT.size + 1:
            raise ProtocolError("content header is truncated")
        _, _, size, class_id, weight, body_size = _CONTENT.unpack_from(frame)
        if wire_channel is None or wire_channel.publish is None or wire_channel.missing != -1:
            raise ProtocolError("unexpected content header", ReplyCode.UNEXPECTED_FRAME)
        if class_id != BASIC_CLASS or weight != 0:
            raise ProtocolError("content header of another class", ReplyCode.UNEXPECTED_FRAME)
        if len(frame) < 22:
            raise ProtocolError("content header has no property flags")
        if body_size > HARD_MESSAGE_LIMIT:
            raise ProtocolError(
                f"content header announces {body_size} bytes, more than {HARD_MESSAGE_LIMIT}"
            )
        if body_size > self.max_message_size:
            wire_channel.publish = None
            self.last_method = _PUBLISH
            self.sink.on_refused_content(
                channel,
                PreconditionFailed(
                    f"message size {body_size} is larger than max size {self.max_message_size}"
                ),
            )
            return
        wire_channel.header, wire_channel.body = frame, bytearray()
        wire_channel.sizes, wire_channel.missing = (size, body_size), body_size
        self._content_bytes += len(frame)
        self._finish_content(channel, wire_channel)

    def _content_body(self, channel: int, wire_channel: WireChannel | None, frame: bytes) -> None:
        if wire_channel is None or wire_channel.publish is None or wire_channel.missing == -1:
            raise ProtocolError("unexpected content body", ReplyCode.UNEXPECTED_FRAME)
        size = len(frame) - FRAME_OVERHEAD
        if size > wire_channel.missing:
            raise ProtocolError("content body is longer than announced")
        wire_channel.body += memoryview(frame)[7:-1]
        wire_channel.missing -= size
        self._content_bytes += size
        if wire_channel.sizes[1] > LARGE_BODY:
            _cut_pieces(wire_channel)
        self._finish_content(channel, wire_channel)

    def _finish_content(self, channel: int, wire_channel: WireChannel) -> None:
        """Hand over a complete message, its body joined to one frame: a peer may send frames of a
        single byte."""
        if wire_channel.missing or wire_channel.publish is None:
            return
        publish, header, size = wire_channel.publish, wire_channel.header, wire_channel.sizes[0]
        body, pieces = wire_channel.body, wire_channel.pieces
        self._drop_content(wire_channel)
        self.last_method = _PUBLISH
        message = _complete_message(publish, channel, header, body, pieces, size)
        wire_channel.sink.on_publish(publish, Run.of([message]))

    def _drop_content(self, wire_channel: WireChannel) -> None:
        pieces = sum(map(len, wire_channel.pieces))
        self._content_bytes -= len(wire_channel.header) + pieces + len(wire_channel.body)
        wire_channel.publish, wire_channel.missing = None, -1
        wire_channel.header, wire_channel.body, wire_channel.pieces = b"", bytearray(), []

    def drop_contents(self) -> None:
        """The connection ends: incomplete messages will not be completed."""
        for wire_channel in self.channels.values():
            self._drop_content(wire_channel)

    # Methods -----------------------------------------------------------------------------------

    def _ack(self, data: bytes, position: int, channel: int) -> int:
        """basic.ack and directly following acks of single tags; return where the last one ends."""
        wire_channel = self.channels.get(channel)
        after = position + _ACK_FRAME
        if wire_channel is None or wire_channel.publish is not None:
            self._method(channel, data[position + 7 : position + 20])
        elif wire_channel.state is ChannelState.OPEN:
            if self._budget <= 0 and self.state is ConnectionState.OPEN:  # as in _spend
                self._next_frame = position
                raise _LimitReached
            self._budget -= 1
            tag, bits, _ = _ACK.unpack_from(data, position + 11)
            tags, multiple = [tag], bool(bits & 1)
            head, end = data[position : position + 11], len(data) - _ACK_FRAME
            room = 0 if multiple else self._budget * _ACKS_PER_MESSAGE
            while after <= end and len(tags) <= room and data.startswith(head, after):
                tag, bits, frame_end = _ACK.unpack_from(data, after + 11)
                if bits & 1 or frame_end != 0xCE:
                    break
                tags.append(tag)
                after += _ACK_FRAME
            self._budget -= len(tags) // _ACKS_PER_MESSAGE
            self._next_frame = after
            self.last_method = _BASIC_ACK
            wire_channel.sink.on_ack(tags, multiple)
        return after

    def _method(self, channel: int, payload: bytes) -> None:
        if self.state in _ONLY_CLOSES and (channel or payload[:4] not in _CLOSES):
            return
        if len(payload) < 4:
            raise ProtocolError("method frame is shorter than a method id")
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
        wire_channel = self.channels.get(channel)
        opens = self.last_method == (20, 10)
        if wire_channel is None and not opens:
            if self.last_method == (20, 41):  # answers our close, which crossed the peer's
                return
            self._refuse_closed_channel(channel)
        if self.last_method[0] == _CONNECTION_CLASS:
            raise ProtocolError("connection method on a channel", ReplyCode.COMMAND_INVALID)
        if wire_channel is not None:
            if wire_channel.state is ChannelState.CLOSING:
                self._closing_channel_method(channel, payload)
                return
            if opens:
                raise ProtocolError("second 'channel.open' seen", ReplyCode.CHANNEL_ERROR)
            if wire_channel.publish is not None:
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


def _scan_next(publish: Publish, properties: bytes, before: list[bytes]) -> bool:
    """Scan the properties of a message; False if the messages before it end the run."""
    try:
        found = scan(properties)
    except ProtocolError:
        if before:
            return False
        raise
    if before and found.needs_validation:
        return False
    publish.scan = found
    publish.properties = properties if len(properties) <= CACHED_PROPERTIES else b""
    return True


def _alike(
    data: bytes, start: int, stop: int, header_size: int, method: bytes, max_count: int
) -> list[bytes]:
    """The content frames `data[start:stop]`, and those of directly following messages that differ
    in nothing but the bytes of the body: one comparison checks all their frames."""
    frames, end = [data[start:stop]], len(data)
    if stop == end:
        return frames
    body_start = start + header_size + FRAME_OVERHEAD
    repeated = method + data[start : body_start if stop == body_start else body_start + 7]
    distance = stop - start + len(method)
    while len(frames) < max_count and data.startswith(repeated, stop):
        start += distance
        stop += distance
        if stop > end or data[stop - 1] != 0xCE:
            break
        frames.append(data[start:stop])
    return frames


def _cut_pieces(wire_channel: WireChannel) -> None:
    """Move complete pieces of a large body out of the buffer, which is copied when it grows."""
    body = wire_channel.body
    while len(body) >= LARGE_BODY:
        with memoryview(body) as view:
            wire_channel.pieces.append(bytes(view[:LARGE_BODY]))
        del body[:LARGE_BODY]


def _complete_message(
    publish: Publish, channel: int, header: bytes, body: bytearray, pieces: list[bytes], size: int
) -> Message:
    if pieces:
        large_body = LargeBody([*pieces, bytes(body)] if body else pieces)
        return LargeMessage(publish.address, header, size, large_body)
    frames = header
    if body:
        head = _FRAME.pack(FRAME_BODY, channel, len(body))
        frames = b"".join((header, head, body, b"\xce"))
    return Message(publish.address, channel, frames, size, len(body))
