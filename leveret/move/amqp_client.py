"""A blocking AMQP 0-9-1 client with one channel, which keeps properties and bodies as bytes.

Client libraries decode headers and encode them again, which changes types (an `l` becomes an `I`)
or fails (pika has no floats). A moved message must not change, so its content header is copied.

One thread. Heartbeats are off: the operating system's keep-alive finds a dead peer, and every wait
for a reply has a time limit. Nothing survives a crash.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from pamqp import commands
from pamqp.base import Frame as Method

from leveret.model.message import content_frames

_HEAD = struct.Struct(">BHI")
_METHOD_FRAME = struct.Struct(">BHIHH")
_METHOD, _HEADER, _BODY = 1, 2, 3
_BODY_SIZE = struct.Struct(">Q")
_PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
_CHANNEL = 1
STREAM_OFFSET = "x-stream-offset"
_PRECONDITION_FAILED = 406
_RECEIVE_BYTES = 1 << 18
_FRAME_MAX = 131_072
_DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}
_CAPABILITIES = {
    "publisher_confirms": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "authentication_failure_close": True,
}


class AmqpError(Exception):
    """The broker has closed the channel or the connection, with this reply code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class ConnectionLost(Exception):
    """The broker cannot be reached, or the connection has broken."""


class NoReply(Exception):
    """The broker did not answer in time."""


@dataclass(frozen=True, slots=True)
class AmqpUrl:
    """An `amqp://` or `amqps://` URL, with RabbitMQ's defaults for what it leaves out."""

    host: str
    port: int
    user: str
    password: str
    vhost: str
    is_tls: bool

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raise ValueError, with a sentence, for anything that is not such a URL."""
        parts = urlsplit(text)
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise ValueError("use a URL such as amqp://user:password@localhost:5672/vhost")
        return cls(
            parts.hostname,
            parts.port or _DEFAULT_PORTS[parts.scheme],
            unquote(parts.username or "guest"),
            unquote(parts.password or "guest"),
            unquote(parts.path[1:]) or "/",
            parts.scheme == "amqps",
        )

    def __str__(self) -> str:
        """The URL without the password, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"amqp{'s' if self.is_tls else ''}://{host}:{self.port} vhost '{self.vhost}'"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivered message; `properties` are the bytes of its content header."""

    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Returned:
    """A published message that no queue took."""

    code: int
    text: str


# RabbitMQ allows any UTF-8 in names; pamqp's own check is stricter.


class _QueueDeclare(commands.Queue.Declare):
    def validate(self) -> None:
        return None


class _QueueBind(commands.Queue.Bind):
    def validate(self) -> None:
        return None


class _ExchangeDeclare(commands.Exchange.Declare):
    def validate(self) -> None:
        return None


class _ExchangeDelete(commands.Exchange.Delete):
    def validate(self) -> None:
        return None


class _Consume(commands.Basic.Consume):
    def validate(self) -> None:
        return None


class _ConnectionOpen(commands.Connection.Open):
    def validate(self) -> None:
        return None


class AmqpClient:
    """A connection with one open channel. Every method may raise the errors above."""

    def __init__(self, url: AmqpUrl, timeout: float, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        self.deliveries: deque[Delivery] = deque()
        self.returned: list[Returned] = []
        self.unconfirmed: set[int] = set()
        """Publishing tags without an ack so far."""
        self.nacked: set[int] = set()
        self.is_cancelled = False
        """Whether the broker has cancelled the consumer, because its queue is gone."""
        self.blocked_reason: str | None = None
        self.server_properties: dict[str, Any] = {}
        self._timeout = timeout
        self._published = 0
        self._input = bytearray()
        self._content: tuple[Any, bytes, int, list[bytes]] | None = None
        self._replies: deque[Method] = deque()
        self._frame_max = _FRAME_MAX
        self._socket = self._connect(tls)
        try:
            self._handshake()
        except BaseException:
            self._socket.close()
            raise

    @property
    def product(self) -> str:
        """The name of the broker, such as RabbitMQ."""
        return str(self.server_properties.get("product", ""))

    def drop(self) -> None:
        """Close the socket without a word, as a process that is killed does."""
        self._socket.close()

    def close(self) -> None:
        """Close the connection cleanly; one that has broken already is only dropped."""
        try:
            self._send_method(commands.Connection.Close(200, "OK", 0, 0), channel=0)
            self._wait_reply(commands.Connection.CloseOk)
        except (AmqpError, ConnectionLost, NoReply):
            pass
        finally:
            self._socket.close()

    # Methods ------------------------------------------------------------------------------------

    def message_count(self, queue: str) -> int:
        """The ready messages of a queue, which must exist. RabbitMQ says 0 for a stream."""
        reply = self._call(_QueueDeclare(queue=queue, passive=True), commands.Queue.DeclareOk)
        return int(reply.message_count)

    def declare_fanout(self, exchange: str, queue: str) -> None:
        """Declare an exchange that routes to this queue only, whatever the routing key."""
        declare = _ExchangeDeclare(exchange=exchange, exchange_type="fanout", auto_delete=True)
        self._call(declare, commands.Exchange.DeclareOk)
        self._call(_QueueBind(queue=queue, exchange=exchange), commands.Queue.BindOk)

    def delete_exchange(self, exchange: str) -> None:
        self._call(_ExchangeDelete(exchange=exchange), commands.Exchange.DeleteOk)

    def select_confirms(self) -> None:
        self._call(commands.Confirm.Select(), commands.Confirm.SelectOk)

    def set_prefetch(self, count: int) -> None:
        self._call(commands.Basic.Qos(prefetch_count=count), commands.Basic.QosOk)

    def consume(self, queue: str, tag: str, arguments: dict[str, Any]) -> None:
        """Consume with manual acks; `deliveries` fills while anything is awaited."""
        method = _Consume(queue=queue, consumer_tag=tag, arguments=arguments)
        self._call(method, commands.Basic.ConsumeOk)

    def is_stream(self, queue: str) -> bool:
        """Whether a queue is a stream. Closes the channel if not, so use a client for this only.

        AMQP does not tell the type of a queue, but a queue of another type refuses an offset.
        """
        self.set_prefetch(1)
        try:
            self.consume(queue, "leveret-move-probe", {STREAM_OFFSET: "next"})
        except AmqpError as error:
            if error.code == _PRECONDITION_FAILED and STREAM_OFFSET in str(error):
                return False
            raise
        return True

    def cancel(self, tag: str) -> None:
        """Stop consuming; what arrived before is in `deliveries`."""
        self._call(commands.Basic.Cancel(consumer_tag=tag), commands.Basic.CancelOk)

    def ack(self, tag: int, queue: str) -> int:
        """Ack all deliveries up to this one; return the ready messages when that has happened.

        An ack has no reply, but a broker handles the methods of a channel in order.
        """
        self._send_method(commands.Basic.Ack(tag, True))
        return self.message_count(queue)

    def publish(self, exchange: str, routing_key: str, properties: bytes, body: bytes) -> int:
        """Publish with `mandatory`; return the publishing tag that a confirm will name."""
        names = [name.encode("utf-8", "surrogateescape") for name in (exchange, routing_key)]
        arguments = b"\x00\x00" + b"".join(bytes([len(name)]) + name for name in names) + b"\x01"
        method = _METHOD_FRAME.pack(_METHOD, _CHANNEL, 4 + len(arguments), 60, 40)
        content = content_frames(_CHANNEL, properties, body, self._frame_max)
        self._send(method + arguments + b"\xce" + content)
        self._published += 1
        self.unconfirmed.add(self._published)
        return self._published

    def wait_for_confirms(self) -> None:
        """Return when every published message is confirmed or nacked.

        While the broker blocks publishers (an alarm), there is no time limit.
        """
        deadline = time.monotonic() + self._timeout
        while self.unconfirmed:
            if not self.read(1.0) and self.blocked_reason is None and time.monotonic() > deadline:
                raise NoReply(f"{len(self.unconfirmed)} messages were not confirmed")
            if self.blocked_reason is not None:
                deadline = time.monotonic() + self._timeout

    # Frames -------------------------------------------------------------------------------------

    def read(self, seconds: float) -> bool:
        """Wait for input and handle all of it; whether there was any."""
        self._socket.settimeout(max(seconds, 0.001))
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except (TimeoutError, ssl.SSLWantReadError):
            return False
        except OSError as error:
            raise ConnectionLost(f"the connection to {self.url} broke: {error}") from None
        if not data:
            raise ConnectionLost(f"{self.url} closed the connection")
        self._input += data
        self._handle_frames()
        return True

    def _handle_frames(self) -> None:
        start, data = 0, self._input
        try:
            while len(data) - start >= 7:
                kind, _, size = _HEAD.unpack_from(data, start)
                end = start + 7 + size + 1
                if len(data) < end:
                    break
                payload = bytes(data[start + 7 : end - 1])
                start = end
                self._handle_frame(kind, payload)
        finally:
            del data[:start]

    def _handle_frame(self, kind: int, payload: bytes) -> None:
        if kind == _METHOD:
            self._handle_method(_decode(payload))
        elif kind == _HEADER:
            self._begin_content(payload)
        elif kind == _BODY:
            self._add_body(payload)

    def _handle_method(self, method: Any) -> None:
        match method:
            case commands.Basic.Deliver() | commands.Basic.Return():
                self._content = (method, b"", 0, [])
            case commands.Basic.Ack(delivery_tag=tag, multiple=multiple):
                self._settle(tag, multiple)
            case commands.Basic.Nack(delivery_tag=tag, multiple=multiple):
                self.nacked |= self._settle(tag, multiple)
            case commands.Basic.Cancel():
                self.is_cancelled = True
            case commands.Connection.Blocked(reason=reason):
                self.blocked_reason = str(reason)
            case commands.Connection.Unblocked():
                self.blocked_reason = None
            case commands.Channel.Close():
                self._send_method(commands.Channel.CloseOk())
                raise AmqpError(int(method.reply_code or 0), method.reply_text)
            case commands.Connection.Close():
                self._send_method(commands.Connection.CloseOk(), channel=0)
                raise AmqpError(int(method.reply_code or 0), method.reply_text)
            case _:
                self._replies.append(method)

    def _settle(self, tag: int, multiple: bool) -> set[int]:
        settled = {each for each in self.unconfirmed if each <= tag} if multiple else {tag}
        self.unconfirmed -= settled
        return settled

    def _begin_content(self, payload: bytes) -> None:
        assert self._content is not None, "a content header follows basic.deliver or basic.return"
        size = _BODY_SIZE.unpack_from(payload, 4)[0]
        self._content = (self._content[0], payload[12:], size, [])
        self._end_content(size)

    def _add_body(self, payload: bytes) -> None:
        assert self._content is not None
        method, properties, left, pieces = self._content
        pieces.append(payload)
        self._content = (method, properties, left - len(payload), pieces)
        self._end_content(left - len(payload))

    def _end_content(self, left: int) -> None:
        if left > 0 or self._content is None:
            return
        (method, properties, _, pieces), self._content = self._content, None
        if isinstance(method, commands.Basic.Return):
            self.returned.append(Returned(int(method.reply_code or 0), method.reply_text))
            return
        self.deliveries.append(
            Delivery(
                method.delivery_tag,
                method.redelivered,
                method.exchange,
                method.routing_key,
                properties,
                b"".join(pieces),
            )
        )

    def _call(self, method: Method, reply: type[Method]) -> Any:
        self._send_method(method)
        return self._wait_reply(reply)

    def _wait_reply(self, kind: type[Method]) -> Any:
        deadline = time.monotonic() + self._timeout
        while not self._replies:
            left = deadline - time.monotonic()
            if left <= 0:
                raise NoReply(f"{self.url} did not answer within {self._timeout:g} s")
            self.read(left)
        method = self._replies.popleft()
        if not isinstance(method, kind):
            raise ConnectionLost(f"{self.url} sent {method.name} instead of {kind.name}")
        return method

    def _send_method(self, method: Method, channel: int = _CHANNEL) -> None:
        payload = method.marshal()
        ids = (method.index >> 16, method.index & 0xFFFF)
        head = _METHOD_FRAME.pack(_METHOD, channel, 4 + len(payload), *ids)
        self._send(head + payload + b"\xce")

    def _send(self, data: bytes) -> None:
        """Send all of it. A broker that blocks publishers says so and stops reading."""
        left, deadline = memoryview(data), time.monotonic() + self._timeout
        while left:
            self._socket.settimeout(1.0)
            try:
                left = left[self._socket.send(left) :]
            except (TimeoutError, ssl.SSLWantWriteError):
                self.read(0.0)
                if self.blocked_reason is None and time.monotonic() > deadline:
                    raise NoReply(f"{self.url} reads nothing") from None
            except OSError as error:
                raise ConnectionLost(f"the connection to {self.url} broke: {error}") from None

    # Handshake ----------------------------------------------------------------------------------

    def _connect(self, tls: ssl.SSLContext | None) -> socket.socket:
        try:
            plain = socket.create_connection((self.url.host, self.url.port), self._timeout)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if not self.url.is_tls:
                return plain
            context = tls or ssl.create_default_context()
            return context.wrap_socket(plain, server_hostname=self.url.host)
        except OSError as error:
            raise ConnectionLost(f"no broker answers at {self.url}: {error}") from None

    def _handshake(self) -> None:
        self._send(_PROTOCOL_HEADER)
        start = self._wait_reply(commands.Connection.Start)
        self.server_properties = dict(start.server_properties)
        login = f"\0{self.url.user}\0{self.url.password}"
        properties: Any = {"product": "leveret move", "capabilities": _CAPABILITIES}
        start_ok = commands.Connection.StartOk(properties, "PLAIN", login, "en_US")
        self._send_method(start_ok, channel=0)
        tune = self._wait_reply(commands.Connection.Tune)
        self._frame_max = min(tune.frame_max or _FRAME_MAX, _FRAME_MAX)
        self._send_method(commands.Connection.TuneOk(1, self._frame_max, 0), channel=0)
        self._send_method(_ConnectionOpen(virtual_host=self.url.vhost), channel=0)
        self._wait_reply(commands.Connection.OpenOk)
        self._call(commands.Channel.Open(), commands.Channel.OpenOk)


def _decode(payload: bytes) -> Method:
    index = int.from_bytes(payload[:4], "big")
    kind = commands.INDEX_MAPPING.get(index)
    if kind is None:
        raise ConnectionLost(f"the broker sent an unknown method {index >> 16}.{index & 0xFFFF}")
    method: Method = kind()
    method.unmarshal(payload[4:])
    return method
