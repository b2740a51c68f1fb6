"""A peer that costs nothing: it swallows publishes and pours out deliveries made beforehand.

The generator run against it shows the rate at which the generator itself would be the bottleneck.
It answers the handshake with pamqp, counts publishes by the size of the first, confirms them if
asked to, and sends a consumer a fixed number of deliveries, whatever it acks. One thread per
connection; everything ends with `close`.
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

_RECEIVE = 1 << 18
_GREETING = 8
_CLOSE_HEAD = b"\x00\x0a\x00\x32\x00\xc8"
_CLOSE_WITHIN = 64
_BATCH = 600

_ANSWERS: dict[str, Any] = {
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
    """Frames of `count` deliveries from tag `first` on, bodies numbered as a publisher would."""
    head = struct.pack(">HH", BASIC, DELIVER) + shortstr("bench")
    tail = b"\0" + shortstr("") + shortstr("q")
    properties = delivery_mode(persistent=False)
    header = frame(HEADER, struct.pack(">HHQ", BASIC, 0, body_size) + properties)
    contents = [
        header + frame(BODY, STAMP.pack(place).ljust(body_size, b"x")) for place in range(cycle)
    ]
    return b"".join(
        frame(METHOD, head + STAMP.pack(tag) + tail) + contents[(tag - 1) % cycle]
        for tag in range(first, first + count)
    )


class NullBroker:
    """Listens on a free loopback port from construction to `close`."""

    def __init__(self, poured: bytes = b"", *, spoil: bool = False) -> None:
        self.published = 0
        self._poured = poured[:-1] + b"?" if spoil else poured
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

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
        self._accepting.join()
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
            while len(pending) < _GREETING:
                pending += _some(sock)
            del pending[:_GREETING]
            sock.sendall(codec.marshal(commands.Connection.Start(), 0))
            confirms = False
            for channel, method in _methods(sock, pending):
                if method.name == "Basic.Publish":
                    self._swallow(sock, bytes(pending), confirms=confirms)
                    return
                confirms = confirms or method.name == "Confirm.Select"
                if method.name in _ANSWERS:
                    sock.sendall(codec.marshal(_ANSWERS[method.name], channel))
                if method.name == "Basic.Consume":
                    self._pour(sock)
                    return

    def _swallow(self, sock: socket.socket, data: bytes, *, confirms: bool) -> None:
        """Count what is published from here on; `data` begins with the first whole publish."""
        size, total, counted, tail = 0, 0, 0, b""
        while True:
            size = size or _publish_size(tail + data)
            total += len(data)
            ended = _CLOSE_HEAD in (tail + data)[-_CLOSE_WITHIN:]
            if size and total // size > counted:
                self.published += total // size - counted
                counted = total // size
                if confirms:
                    sock.sendall(ack(counted, multiple=True))
            if ended:
                sock.sendall(codec.marshal(_ANSWERS["Connection.Close"], 0))
                return
            tail = (tail + data)[-_CLOSE_WITHIN:] if size else tail + data
            data = _some(sock)

    def _pour(self, sock: socket.socket) -> None:
        reader = threading.Thread(target=_discard_until_close, args=(sock,), daemon=True)
        reader.start()
        with contextlib.suppress(OSError):
            sock.sendall(self._poured)
        reader.join()
        with contextlib.suppress(OSError):
            sock.sendall(codec.marshal(_ANSWERS["Connection.Close"], 0))


def _discard_until_close(sock: socket.socket) -> None:
    tail = b""
    with contextlib.suppress(OSError, EOFError):
        while _CLOSE_HEAD not in tail:
            tail = (tail + _some(sock))[-_CLOSE_WITHIN:]


def _methods(sock: socket.socket, pending: bytearray) -> Iterator[tuple[int, Any]]:
    """Methods as they come; at a publish `pending` still begins with it."""
    while True:
        while (whole := _maybe_frame_size(pending)) is None:
            pending += _some(sock)
        _, channel, method = codec.unmarshal(bytes(pending[:whole]))
        if method.name != "Basic.Publish":
            del pending[:whole]
        yield channel, method


def _maybe_frame_size(data: bytes | bytearray, at: int = 0) -> int | None:
    if len(data) < at + FRAME_HEAD.size:
        return None
    size = int(FRAME_HEAD.size + FRAME_HEAD.unpack_from(data, at)[2] + 1)
    return size if len(data) >= at + size else None


def _publish_size(data: bytes) -> int:
    """The size of the publish that `data` begins with, 0 if it is not all there."""
    at = 0
    for kind in (METHOD, HEADER, BODY):
        size = _maybe_frame_size(data, at)
        if size is None or data[at] != kind:
            return 0
        at += size
    return at


def _some(sock: socket.socket) -> bytes:
    data = sock.recv(_RECEIVE)
    if not data:
        raise EOFError
    return data
