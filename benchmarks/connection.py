"""A blocking AMQP connection for the handshake and declarations; hot loops use its socket.

Methods are encoded and decoded by pamqp. Once a hot loop uses the socket, this object only closes
it; bytes received before that are returned by `take_pending`.
"""

import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from pamqp import commands
from pamqp import frame as codec
from pamqp.base import Frame
from pamqp.header import ProtocolHeader

from benchmarks.frames import CHANNEL, FRAME_HEAD

_TIMEOUT = 60.0
_RECEIVE = 1 << 16
_FRAME_MAX = 131_072
RECEIVE_SECONDS = 0.25


class RefusedError(Exception):
    """The broker closed the channel or the connection."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int


class Connection:
    """One connection with one open channel."""

    def __init__(self, address: Address) -> None:
        self.sock = socket.create_connection((address.host, address.port), timeout=_TIMEOUT)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server: dict[str, Any] = {}
        self._pending = bytearray()
        try:
            self._handshake()
        except BaseException:
            self.sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.sock.close()

    def call(self, command: Frame, channel: int = CHANNEL) -> Any:
        """Send a method and return the broker's reply."""
        self.sock.sendall(codec.marshal(command, channel))
        return self._reply()

    def cast(self, command: Frame, channel: int = CHANNEL) -> None:
        """Send a method that has no reply."""
        self.sock.sendall(codec.marshal(command, channel))

    def take_pending(self) -> bytes:
        """Bytes received after the last reply; the hot loop starts with them."""
        pending, self._pending = bytes(self._pending), bytearray()
        return pending

    def raw_socket(self) -> socket.socket:
        """The socket in blocking mode; reads raise BlockingIOError after RECEIVE_SECONDS.

        The timeout is the kernel's, which costs nothing; Python's own needs a poll per read.
        """
        self.sock.settimeout(None)
        seconds, fraction = divmod(RECEIVE_SECONDS, 1)
        timeout = struct.pack("ll", int(seconds), int(fraction * 1_000_000))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        return self.sock

    def close(self) -> None:
        """Close with the close handshake: the broker has then received all that was sent."""
        self.sock.settimeout(_TIMEOUT)
        self.sock.sendall(codec.marshal(commands.Connection.Close(200, "done", 0, 0), 0))
        while not isinstance(self._next_frame(), commands.Connection.CloseOk):
            pass
        self.sock.close()

    def _handshake(self) -> None:
        self.sock.sendall(codec.marshal(ProtocolHeader(), 0))
        start = self._reply()
        self.server = dict(start.server_properties)
        tune = self.call(
            commands.Connection.StartOk(
                client_properties={"product": "leveret benchmark"},
                mechanism="PLAIN",
                response="\0guest\0guest",
            ),
            channel=0,
        )
        frame_max = min(tune.frame_max or _FRAME_MAX, _FRAME_MAX)
        self.cast(commands.Connection.TuneOk(tune.channel_max, frame_max, 0), channel=0)
        self.call(commands.Connection.Open(virtual_host="/"), channel=0)
        self.call(commands.Channel.Open())

    def _reply(self) -> Any:
        reply = self._next_frame()
        if isinstance(reply, commands.Channel.Close | commands.Connection.Close):
            raise RefusedError(f"{reply.reply_code} {reply.reply_text}")
        return reply

    def _next_frame(self) -> Any:
        while True:
            if len(self._pending) >= FRAME_HEAD.size:
                _, _, length = FRAME_HEAD.unpack_from(self._pending)
                size = FRAME_HEAD.size + length + 1
                if len(self._pending) >= size:
                    _, _, value = codec.unmarshal(bytes(self._pending[:size]))
                    del self._pending[:size]
                    return value
            received = self.sock.recv(_RECEIVE)
            if not received:
                raise RefusedError("the broker closed the connection")
            self._pending += received
