"""A stub broker: it discards publishes and sends prebuilt deliveries.

Run against it, the load generator shows the rate at which it would itself be the bottleneck. The
stub answers the handshake with pamqp, counts publishes by the size of the first one, confirms them
if the channel is in confirm mode, and sends a consumer a fixed number of deliveries, whatever it
acks. One thread per connection; `close` ends all of them.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from pamqp import commands
from pamqp import frame as codec

from benchmarks.connection import Address
from benchmarks.frames import (
    BASIC,
    BODY,
    DELIVER,
    FRAME_HEAD,
    HEADER,
    METHOD,
    STAMP,
    ack,
    delivery_mode,
    frame,
    shortstr,
)

_RECEIVE_BYTES = 1 << 18
_PROTOCOL_HEADER_BYTES = 8
_CLOSE_HEAD = b"\x00\x0a\x00\x32\x00\xc8"
_CLOSE_TAIL_BYTES = 64
_BATCH = 600

_REPLIES: dict[str, Any] = {
    "Connection.StartOk": commands.Connection.Tune(2047, 131_072, 0),
    "Connection.Open": commands.Connection.OpenOk(),
    "Connection.Close": commands.Connection.CloseOk(),
    "Channel.Open": commands.Channel.OpenOk(),
    "Confirm.Select": commands.Confirm.SelectOk(),
    "Basic.Qos": commands.Basic.QosOk(),
    "Basic.Consume": commands.Basic.ConsumeOk("bench"),
    "Queue.Declare": commands.Queue.DeclareOk("bench", 0, 0),
    "Queue.Delete": commands.Queue.DeleteOk(0),
}


def deliveries(first: int, count: int, *, body_size: int, cycle: int = _BATCH) -> bytes:
    """Frames of `count` deliveries, starting at tag `first`; bodies numbered as in a blob."""
    head = struct.pack(">HH", BASIC, DELIVER) + shortstr("bench")
    tail = b"\0" + shortstr("") + shortstr("q")
    properties = delivery_mode(persistent=False)
    header = frame(HEADER, struct.pack(">HHQ", BASIC, 0, body_size) + properties)
    contents = [
        header + frame(BODY, STAMP.pack(index).ljust(body_size, b"x")) for index in range(cycle)
    ]
    return b"".join(
        frame(METHOD, head + STAMP.pack(tag) + tail) + contents[(tag - 1) % cycle]
        for tag in range(first, first + count)
    )


class StubBroker:
    """Listens on a free loopback port from construction to `close`."""

    def __init__(self, prebuilt: bytes = b"", *, spoil: bool = False) -> None:
        self.published = 0
        self._deliveries = prebuilt[:-1] + b"?" if spoil else prebuilt
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def address(self) -> Address:
        host, port = self._listener.getsockname()
        return Address(host, port)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._sockets.append(sock)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, EOFError):
            pending = bytearray()
            while len(pending) < _PROTOCOL_HEADER_BYTES:
                pending += _receive(sock)
            del pending[:_PROTOCOL_HEADER_BYTES]
            sock.sendall(codec.marshal(commands.Connection.Start(), 0))
            confirms = False
            for channel, method in _methods(sock, pending):
                if method.name == "Basic.Publish":
                    self._count_publishes(sock, bytes(pending), confirms=confirms)
                    return
                confirms = confirms or method.name == "Confirm.Select"
                if method.name in _REPLIES:
                    sock.sendall(codec.marshal(_REPLIES[method.name], channel))
                if method.name == "Basic.Consume":
                    self._send_deliveries(sock)
                    return

    def _count_publishes(self, sock: socket.socket, data: bytes, *, confirms: bool) -> None:
        """Count publishes until the connection closes; `data` begins with the first one."""
        size, total, counted, tail = 0, 0, 0, b""
        while True:
            size = size or _publish_size(tail + data)
            total += len(data)
            is_closing = _CLOSE_HEAD in (tail + data)[-_CLOSE_TAIL_BYTES:]
            if size and total // size > counted:
                self.published += total // size - counted
                counted = total // size
                if confirms:
                    sock.sendall(ack(counted, multiple=True))
            if is_closing:
                sock.sendall(codec.marshal(_REPLIES["Connection.Close"], 0))
                return
            tail = (tail + data)[-_CLOSE_TAIL_BYTES:] if size else tail + data
            data = _receive(sock)

    def _send_deliveries(self, sock: socket.socket) -> None:
        reader = threading.Thread(target=_discard_until_close, args=(sock,), daemon=True)
        reader.start()
        with contextlib.suppress(OSError):
            sock.sendall(self._deliveries)
        reader.join()
        with contextlib.suppress(OSError):
            sock.sendall(codec.marshal(_REPLIES["Connection.Close"], 0))


def _discard_until_close(sock: socket.socket) -> None:
    tail = b""
    with contextlib.suppress(OSError, EOFError):
        while _CLOSE_HEAD not in tail:
            tail = (tail + _receive(sock))[-_CLOSE_TAIL_BYTES:]


def _methods(sock: socket.socket, pending: bytearray) -> Iterator[tuple[int, Any]]:
    """Methods in order; a basic.publish is left at the start of `pending`."""
    while True:
        while (size := _maybe_frame_size(pending)) is None:
            pending += _receive(sock)
        _, channel, method = codec.unmarshal(bytes(pending[:size]))
        if method.name != "Basic.Publish":
            del pending[:size]
        yield channel, method


def _maybe_frame_size(data: bytes | bytearray, at: int = 0) -> int | None:
    if len(data) < at + FRAME_HEAD.size:
        return None
    size = int(FRAME_HEAD.size + FRAME_HEAD.unpack_from(data, at)[2] + 1)
    return size if len(data) >= at + size else None


def _publish_size(data: bytes) -> int:
    """The size of the publish that `data` begins with; 0 if it is incomplete."""
    at = 0
    for kind in (METHOD, HEADER, BODY):
        size = _maybe_frame_size(data, at)
        if size is None or data[at] != kind:
            return 0
        at += size
    return at


def _receive(sock: socket.socket) -> bytes:
    data = sock.recv(_RECEIVE_BYTES)
    if not data:
        raise EOFError
    return data
