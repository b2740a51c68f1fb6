"""A small fast AMQP client for load tests: raw frames on one asyncio protocol."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Self

from pamqp import commands, frame

_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HHQH")
PROPERTIES = {"persistent": b"\x10\x00\x02", "transient": b"\x10\x00\x01"}

_ABOUT: Any = {"capabilities": {"connection.blocked": True, "consumer_cancel_notify": True}}

OnConfirm = Callable[[int, bool, bool], None]
OnDelivery = Callable[[int, bool, bytes], None]


class ConnectionGone(Exception):
    """The connection is closed, or the broker has died."""


class Client(asyncio.Protocol):
    """One connection with one channel. Deliveries and confirms go to callbacks immediately."""

    def __init__(self, on_confirm: OnConfirm | None, on_delivery: OnDelivery | None) -> None:
        self._on_confirm = on_confirm
        self._on_delivery = on_delivery
        self._rest = b""
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._delivery: tuple[int, bool] | None = None
        self._body: list[bytes] = []
        self._missing = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self.gone = asyncio.Event()
        self.blocked = asyncio.Event()
        self.unblocked = asyncio.Event()
        self.closed_with: tuple[int, str] | None = None
        self.returned = 0
        self.received = 0
        self.transport: asyncio.Transport | None = None

    @classmethod
    async def connect(
        cls,
        address: tuple[str, int],
        on_confirm: OnConfirm | None = None,
        on_delivery: OnDelivery | None = None,
        heartbeat: int = 0,
        sock: socket.socket | None = None,
    ) -> Self:
        """Uses `sock`, which is already connected to the address, if given."""
        loop = asyncio.get_running_loop()
        client = cls(on_confirm, on_delivery)
        if sock is None:
            await loop.create_connection(lambda: client, *address)
        else:
            await loop.create_connection(lambda: client, sock=sock)
        client.write(b"AMQP\x00\x00\x09\x01")
        await client._expect(commands.Connection.Start)
        client.send(commands.Connection.StartOk(_ABOUT, "PLAIN", "\0guest\0guest", "en_US"), 0)
        tune = await client._expect(commands.Connection.Tune)
        client.send(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, heartbeat), 0)
        await client.call(commands.Connection.Open("/"), commands.Connection.OpenOk, 0)
        await client.call(commands.Channel.Open(), commands.Channel.OpenOk)
        return client

    # From asyncio ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self._writable.set()
        self._answers.put_nowait(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        data = self._rest + data
        position, end = 0, len(data)
        while end - position >= 8:
            kind, _, size = _FRAME.unpack_from(data, position)
            stop = position + 8 + size
            if stop > end:
                break
            self._frame(kind, data[position:stop])
            position = stop
        self._rest = data[position:]

    # Frames ------------------------------------------------------------------------------------

    def _frame(self, kind: int, data: bytes) -> None:
        if kind == 1:
            self._method(data)
        elif kind == 2:
            self._missing = _CONTENT.unpack_from(data, 7)[2]
            self._body = []
            self._finish()
        elif kind == 3:
            self._body.append(data[7:-1])
            self._missing -= len(data) - 8
            self._finish()

    def _method(self, data: bytes) -> None:
        method_id = data[7:11]
        if method_id == b"\x00\x3c\x00\x3c":  # deliver
            at = 12 + data[11]
            self._delivery = (int.from_bytes(data[at : at + 8], "big"), data[at + 8] == 1)
        elif method_id in (b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x78"):  # ack, nack
            tag, bits = struct.unpack_from(">QB", data, 11)
            if self._on_confirm is not None:
                self._on_confirm(tag, bool(bits & 1), method_id[3] == 0x50)
        else:
            self._answer(frame.unmarshal(data)[2])

    def _answer(self, method: Any) -> None:
        if isinstance(method, commands.Connection.Blocked):
            self.blocked.set()
        elif isinstance(method, commands.Connection.Unblocked):
            self.unblocked.set()
        elif isinstance(method, commands.Basic.Return):
            self.returned += 1
        elif isinstance(method, commands.Connection.Close | commands.Channel.Close):
            self.closed_with = (int(method.reply_code or 0), method.reply_text)
            if isinstance(method, commands.Connection.Close) and self.transport is not None:
                self.transport.write(frame.marshal(commands.Connection.CloseOk(), 0))
            self._answers.put_nowait(None)
        else:
            self._answers.put_nowait(method)

    def _finish(self) -> None:
        if self._missing == 0 and self._delivery is not None:
            (tag, redelivered), self._delivery = self._delivery, None
            if self._on_delivery is not None:
                self._on_delivery(tag, redelivered, b"".join(self._body))

    # To the broker -----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self.gone.is_set() or self.transport is None or self.transport.is_closing():
            raise ConnectionGone
        self.transport.write(data)

    @property
    def is_idle(self) -> bool:
        """Whether the operating system has accepted all bytes that were written."""
        return self.transport is not None and self.transport.get_write_buffer_size() == 0

    async def drain(self) -> None:
        await self._writable.wait()

    def send(self, method: Any, channel: int = 1) -> None:
        self.write(frame.marshal(method, channel))

    async def call(self, method: Any, answer: type, channel: int = 1) -> Any:
        self.send(method, channel)
        return await self._expect(answer)

    async def _expect(self, kind: type) -> Any:
        method = await asyncio.wait_for(self._answers.get(), 30)
        if method is None:
            raise ConnectionGone
        assert isinstance(method, kind), f"expected {kind}, got {dict(method)}"
        return method

    async def declare(self, queue: str, **arguments: Any) -> Any:
        declare = commands.Queue.Declare(queue=queue, durable=True, **arguments)
        return await self.call(declare, commands.Queue.DeclareOk)

    async def count(self, queue: str) -> int:
        """The number of ready messages."""
        return int((await self.declare(queue, passive=True)).message_count)

    async def consume(
        self, queue: str, prefetch: int, no_ack: bool = False, arguments: Any = None
    ) -> None:
        qos = commands.Basic.Qos(prefetch_count=prefetch)
        await self.call(qos, commands.Basic.QosOk)
        consume = commands.Basic.Consume(queue=queue, no_ack=no_ack, arguments=arguments)
        await self.call(consume, commands.Basic.ConsumeOk)

    async def sync(self) -> None:
        """Make a synchronous call, whose answer means that the acks before it are on disk."""
        await self.call(commands.Basic.Qos(prefetch_count=0), commands.Basic.QosOk)

    def stop_reading(self) -> None:
        assert self.transport is not None
        self.transport.pause_reading()

    def publish(self, exchange: str, key: str, body: bytes, properties: bytes) -> None:
        self.publish_all(exchange, key, [body], properties)

    def publish_all(
        self, exchange: str, key: str, bodies: Sequence[bytes], properties: bytes
    ) -> None:
        """Publish in one write: with many processes on few cores system calls dominate."""
        name, routing = exchange.encode(), key.encode()
        arguments = b"\x00\x3c\x00\x28\x00\x00" + bytes([len(name)]) + name
        arguments += bytes([len(routing)]) + routing + b"\x00"
        method = _FRAME.pack(1, 1, len(arguments)) + arguments + b"\xce"
        parts: list[bytes] = []
        for body in bodies:
            content = struct.pack(">HHQ", 60, 0, len(body)) + properties
            parts += (
                method,
                _FRAME.pack(2, 1, len(content)), content, b"\xce",
                _FRAME.pack(3, 1, len(body)), body, b"\xce",
            )  # fmt: skip
        self.write(b"".join(parts))

    def ack(self, tag: int, multiple: bool) -> None:
        self.write(struct.pack(">BHIHHQBB", 1, 1, 13, 60, 80, tag, multiple, 0xCE))

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()
