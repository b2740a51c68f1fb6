"""A small synchronous AMQP client on a plain socket: strict when it reads, free in what it sends.

Reading is per channel: `expect` takes the next frame *of that channel* and checks its method;
frames of other channels stay in their own inbox. So the order of frames within a channel is always
checked, and no frame is skipped by accident. Every wait has a deadline; if it passes, or if the
connection ends, an AssertionError says what was expected.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from pamqp import body as pamqp_body
from pamqp import commands, header

from tests.support import wire
from tests.support.wire import RawFrame

QUIET = 0.12  # seconds without a frame that count as silence

CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


class NoFrameError(AssertionError):
    """The deadline passed without a frame."""


class ConnectionEndedError(AssertionError):
    """The peer closed or reset the socket."""


@dataclass(frozen=True, slots=True)
class Content:
    """A method that carries content, with its header and body."""

    method: Any
    properties: Any
    body: bytes
    header_payload: bytes
    body_sizes: tuple[int, ...]

    @property
    def tag(self) -> int:
        tag: int = self.method.delivery_tag
        return tag

    @property
    def redelivered(self) -> bool:
        flag: bool = self.method.redelivered
        return flag

    @property
    def headers(self) -> dict[str, Any]:
        return self.properties.headers or {}


class RawClient:
    """One connection. `handshake()` does the handshake; every step is also available alone."""

    def __init__(self, host: str, port: int, *, timeout: float = 120.0) -> None:
        self.timeout = timeout
        self.opened = False
        self.frame_max = 131072
        self._received = bytearray()
        self._inbox: dict[int, deque[RawFrame]] = defaultdict(deque)
        self._socket = socket.create_connection((host, port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- sending -----------------------------------------------------------------------------

    def send_bytes(self, data: bytes) -> None:
        """Write; if the peer has closed the connection, the next read raises, not this."""
        self._socket.settimeout(self.timeout)  # `expect_silence` sets a short timeout
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def send(self, channel: int, *things: Any) -> None:
        self.send_bytes(b"".join(wire.encode(channel, thing) for thing in things))

    # -- reading -----------------------------------------------------------------------------

    def read_bytes(self, count: int, timeout: float | None = None) -> bytes:
        self._fill(count, self._deadline(timeout))
        data = bytes(self._received[:count])
        del self._received[:count]
        return data

    def next_frame(self, timeout: float | None = None) -> RawFrame:
        """The next frame on the wire, whatever its channel."""
        deadline = self._deadline(timeout)
        self._fill(7, deadline)
        kind, channel, size = struct.unpack(">BHI", self._received[:7])
        self._fill(size + 8, deadline)
        payload = bytes(self._received[7 : 7 + size])
        assert self._received[7 + size] == 0xCE, "frame-end byte missing"
        del self._received[: size + 8]
        return RawFrame(kind, channel, payload)

    def next_on(self, channel: int, timeout: float | None = None) -> RawFrame:
        """The next frame of one channel; frames of other channels stay in their inboxes.

        Heartbeats may arrive at any time and are skipped; `next_frame` returns them.
        """
        deadline = self._deadline(timeout)
        while not self._inbox[channel]:
            frame = self.next_frame(deadline - time.monotonic())
            if frame.kind != wire.HEARTBEAT:
                self._inbox[frame.channel].append(frame)
        return self._inbox[channel].popleft()

    def expect(self, kind: Any, channel: int = 0, timeout: float | None = None) -> Any:
        """The next frame of the channel, which must be this method."""
        try:
            method = self.next_on(channel, timeout).decode()
        except (NoFrameError, ConnectionEndedError) as error:
            raise type(error)(f"expected {kind.name}: {error}") from None
        assert isinstance(method, kind), f"expected {kind.name}, got {describe(method)}"
        if isinstance(method, commands.Connection.CloseOk):
            self.opened = False
        return method

    def expect_close(self, code: int, text: str = "", *, timeout: float | None = None) -> Any:
        """Expect connection.close with this code and text, answer it, and expect the end."""
        close = self.expect(commands.Connection.Close, 0, timeout)
        _check_close(close, code, text)
        self.send(0, commands.Connection.CloseOk())
        self.expect_end()
        return close

    def expect_end(self, timeout: float | None = None) -> None:
        """Expect the end of the connection, without another connection method."""
        deadline = self._deadline(timeout)
        try:
            while True:
                frame = self.next_frame(deadline - time.monotonic())
                assert frame.channel != 0 or frame.kind == wire.HEARTBEAT, (
                    f"expected the end, got {describe(frame.decode())}"
                )
        except ConnectionEndedError:
            self.opened = False

    def expect_silence(self, channel: int | None = None, window: float = QUIET) -> None:
        """Expect no frame on this channel, or at all, for a moment; heartbeats do not count."""
        deadline = time.monotonic() + window
        while True:
            try:
                if channel is None:
                    waiting = [frame for inbox in self._inbox.values() for frame in inbox]
                    frame = waiting[0] if waiting else self.next_frame(deadline - time.monotonic())
                else:
                    frame = self.next_on(channel, deadline - time.monotonic())
            except NoFrameError:
                return
            if frame.kind != wire.HEARTBEAT:
                raise AssertionError(f"expected silence, got {describe(frame.decode())}")

    def content(self, kind: Any, channel: int, timeout: float | None = None) -> Content:
        """A content-carrying method, its header and as many body frames as it declares."""
        method = self.expect(kind, channel, timeout)
        head_frame = self.next_on(channel, timeout)
        head = head_frame.decode()
        assert isinstance(head, header.ContentHeader), f"expected header, got {describe(head)}"
        parts: list[bytes] = []
        while sum(map(len, parts)) < head.body_size:
            part = self.next_on(channel, timeout).decode()
            assert isinstance(part, pamqp_body.ContentBody), f"expected body, got {describe(part)}"
            parts.append(part.value)
        sizes = tuple(map(len, parts))
        return Content(method, head.properties, b"".join(parts), head_frame.payload, sizes)

    # -- the handshake, step by step ---------------------------------------------------------

    def start(self) -> Any:
        """Send the protocol header and read connection.start."""
        self.send_bytes(wire.PROTOCOL_HEADER)
        return self.expect(commands.Connection.Start)

    def login(
        self,
        user: str = "guest",
        password: str = "guest",
        *,
        mechanism: str = "PLAIN",
        response: str | None = None,
        capabilities: dict[str, Any] | None = None,
    ) -> None:
        announced: Any = CAPABILITIES if capabilities is None else capabilities
        self.send(
            0,
            commands.Connection.StartOk(
                {"product": "leveret tests", "capabilities": announced},
                mechanism,
                wire.plain(user, password) if response is None else response,
                "en_US",
            ),
        )

    def tune(self, channel_max: int = 2047, frame_max: int = 131072, heartbeat: int = 0) -> None:
        self.frame_max = frame_max
        self.send(0, commands.Connection.TuneOk(channel_max, frame_max, heartbeat))

    def open(self, vhost: str) -> None:
        self.send(0, commands.Connection.Open(vhost))
        self.expect(commands.Connection.OpenOk)
        self.opened = True

    def handshake(
        self,
        vhost: str = "/",
        user: str = "guest",
        password: str = "guest",
        *,
        capabilities: dict[str, Any] | None = None,
        channel_max: int = 2047,
        frame_max: int = 131072,
        heartbeat: int = 0,
    ) -> Self:
        self.start()
        self.login(user, password, capabilities=capabilities)
        self.expect(commands.Connection.Tune)
        self.tune(channel_max, frame_max, heartbeat)
        self.open(vhost)
        return self

    def channel(self, number: int = 1) -> RawChannel:
        """An opened channel."""
        channel = RawChannel(self, number)
        channel.open()
        return channel

    # -- ends --------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection if it is open, then close the socket."""
        try:
            if self.opened:
                self.send(0, commands.Connection.Close(200, "", 0, 0))
                while not isinstance(self.next_on(0, 2.0).decode(), commands.Connection.CloseOk):
                    pass
        except (AssertionError, TimeoutError):
            pass
        finally:
            self.drop()

    def drop(self) -> None:
        """Close the socket without closing the connection."""
        self.opened = False
        self._socket.close()

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self.timeout if timeout is None else timeout)

    def _fill(self, count: int, deadline: float) -> None:
        while len(self._received) < count:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                data = self._socket.recv(262144)
            except TimeoutError:
                raise NoFrameError("no frame arrived before the deadline") from None
            except OSError as error:
                raise ConnectionEndedError(f"connection lost: {error}") from None
            if not data:
                raise ConnectionEndedError("connection ended")
            self._received += data


class RawChannel:
    """One channel of a RawClient."""

    def __init__(self, client: RawClient, number: int) -> None:
        self.client = client
        self.number = number

    def open(self) -> None:
        self.call(commands.Channel.Open())

    def send(self, *things: Any) -> None:
        self.client.send(self.number, *things)

    def call(self, method: Any) -> Any:
        """Send a method and read its answer."""
        self.send(method)
        class_name, answer = method.valid_responses[0].split(".")
        return self.expect(getattr(getattr(commands, class_name), answer))

    def expect(self, kind: Any, timeout: float | None = None) -> Any:
        return self.client.expect(kind, self.number, timeout)

    def expect_silence(self, window: float = QUIET) -> None:
        self.client.expect_silence(self.number, window)

    def expect_close(self, code: int, text: str = "") -> Any:
        """Expect channel.close with this code and text, and answer it, which frees the number."""
        close = self.expect(commands.Channel.Close)
        _check_close(close, code, text)
        self.send(commands.Channel.CloseOk())
        return close

    def refused(self, method: Any, code: int, text: str = "") -> Any:
        """Send a method that must close the channel with an error that names the method."""
        self.send(method)
        close = self.expect_close(code, text)
        if not isinstance(method, bytes):
            assert (close.class_id, close.method_id) == (method.index >> 16, method.index & 0xFFFF)
        return close

    # -- common methods ---------------------------------------------------------------------

    def declare(self, queue: str = "", **options: Any) -> Any:
        return self.call(commands.Queue.Declare(queue=queue, **options))

    def exchange(self, exchange: str, kind: str = "direct", **options: Any) -> None:
        self.call(commands.Exchange.Declare(exchange=exchange, exchange_type=kind, **options))

    def bind(self, queue: str, exchange: str, key: str = "", arguments: Any = None) -> None:
        self.call(
            commands.Queue.Bind(
                queue=queue, exchange=exchange, routing_key=key, arguments=arguments
            )
        )

    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes = b"x",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        **properties: Any,
    ) -> None:
        """Publish, splitting the body by the connection's frame size."""
        limit = self.client.frame_max - 8
        chunks = [body[at : at + limit] for at in range(0, len(body), limit)]
        self.send(
            commands.Basic.Publish(
                exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate
            ),
            header.ContentHeader(0, len(body), commands.Basic.Properties(**properties)),
            *(pamqp_body.ContentBody(chunk) for chunk in chunks),
        )

    def fill(self, queue: str, bodies: Iterable[bytes | str]) -> None:
        """Publish messages to a queue and wait until the broker has them."""
        count = self.ready(queue)
        for body in bodies:
            self.publish("", queue, body.encode() if isinstance(body, str) else body)
            count += 1
        self.wait_ready(queue, count)

    def fill_through(self, exchange: str, key: str, queue: str, count: int) -> None:
        """Publish one message to an exchange and wait until the queue has `count`."""
        self.publish(exchange, key)
        self.wait_ready(queue, count)

    def consume(self, queue: str, tag: str = "", **options: Any) -> str:
        answer = self.call(commands.Basic.Consume(queue=queue, consumer_tag=tag, **options))
        given: str = answer.consumer_tag
        return given

    def cancel(self, tag: str) -> None:
        self.call(commands.Basic.Cancel(consumer_tag=tag))

    def qos(self, prefetch: int, *, shared: bool = False) -> None:
        self.call(commands.Basic.Qos(prefetch_count=prefetch, global_=shared))

    def deliver(self, timeout: float | None = None) -> Content:
        return self.client.content(commands.Basic.Deliver, self.number, timeout)

    def deliveries(self, count: int) -> list[Content]:
        return [self.deliver() for _ in range(count)]

    def returned(self) -> Content:
        return self.client.content(commands.Basic.Return, self.number)

    def get(self, queue: str, *, no_ack: bool = True) -> Content | None:
        """basic.get; None if no message is ready."""
        self.send(commands.Basic.Get(queue=queue, no_ack=no_ack))
        frame = self.client.next_on(self.number)
        if isinstance(frame.decode(), commands.Basic.GetEmpty):
            return None
        self.client._inbox[self.number].appendleft(frame)
        return self.client.content(commands.Basic.GetOk, self.number)

    def get_one(self, queue: str, *, no_ack: bool = True) -> Content:
        """basic.get of a message that must be ready."""
        content = self.get(queue, no_ack=no_ack)
        assert content is not None, f"nothing ready in {queue}"
        return content

    def drain(self, queue: str) -> list[bytes]:
        """Consume all ready messages of a queue; return their bodies."""
        bodies = []
        while (content := self.get(queue)) is not None:
            bodies.append(content.body)
        return bodies

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.send(commands.Basic.Ack(delivery_tag=tag, multiple=multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self.send(commands.Basic.Nack(delivery_tag=tag, multiple=multiple, requeue=requeue))

    def confirm_select(self) -> None:
        self.call(commands.Confirm.Select())

    def confirmed(self, up_to: int) -> None:
        """Acks, single or multiple in any order, until publishes 1 to `up_to` are confirmed."""
        open_numbers = set(range(1, up_to + 1))
        while open_numbers:
            ack = self.expect(commands.Basic.Ack)
            if ack.multiple:
                open_numbers = {number for number in open_numbers if number > ack.delivery_tag}
            else:
                open_numbers.discard(ack.delivery_tag)

    def ready(self, queue: str) -> int:
        """Ready messages, by a passive declare. RabbitMQ may answer before it has handled earlier
        publishes; use `wait_ready` to wait for a number."""
        count: int = self.declare(queue, passive=True).message_count
        return count

    def wait_ready(self, queue: str, count: int) -> None:
        """Wait until the queue has exactly this many ready messages."""
        self._wait_declared(queue, "message_count", count)

    def wait_consumers(self, queue: str, count: int) -> None:
        """Wait until the queue has exactly this many consumers."""
        self._wait_declared(queue, "consumer_count", count)

    def _wait_declared(self, queue: str, field: str, expected: int) -> None:
        deadline = time.monotonic() + self.client.timeout
        while (seen := getattr(self.declare(queue, passive=True), field)) != expected:
            assert time.monotonic() < deadline, f"{queue}: expected {field} {expected}, got {seen}"
            time.sleep(0.005)


def describe(thing: Any) -> str:
    """A frame as text, with the values of its fields."""
    if thing is None:
        return "an empty body frame"
    fields = getattr(thing, "__slots__", ())
    values = ", ".join(f"{field}={getattr(thing, field, None)!r}" for field in fields)
    return f"{thing.name}({values})"


def _check_close(close: Any, code: int, text: str) -> None:
    assert close.reply_code == code, f"expected {code}, got {close.reply_code} {close.reply_text}"
    assert text in close.reply_text, f"expected {text!r} in {close.reply_text!r}"
