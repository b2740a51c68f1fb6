"""What the roles need from a protocol, the same for NATS and Redis.

A client is a picklable value without state: worker processes get it with their role. Writers and
readers are made inside the worker. Every message of a workload has a body of one size that begins
with its index in the publisher's blob, as with AMQP; unlike there, every message is checked, since
its position on the wire must be found anyway.
"""

import socket
import struct
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from benchmarks.connection import RECEIVE_SECONDS, Address, RefusedError
from benchmarks.frames import STAMP, Blob, FramingError
from benchmarks.roles import Confirms

CYCLE = 600
"""Messages in a publisher's blob."""

TIMEOUT = 60.0
_RECEIVE_BYTES = 1 << 16
_REPEATS = 16


class Shape(Enum):
    """What is declared: a queue whose acked messages are removed, or a log that keeps all."""

    ACK_EACH = auto()
    ACK_MANY = auto()
    LOG = auto()


class Reader(Protocol):
    """One connection that receives the messages of a queue or a log."""

    sock: socket.socket

    @property
    def count(self) -> int:
        """Messages received so far."""

    def begin(self) -> None:
        """Ask for the first messages."""

    def feed(self, data: bytes) -> None:
        """Count and check received bytes; ack and ask for more where it is due."""

    def finish(self) -> None:
        """Ack the rest and close; the server has then processed every ack."""


@dataclass(frozen=True, slots=True)
class Writer:
    """One connection that publishes."""

    sock: socket.socket
    confirms: Confirms


class Client(Protocol):
    def declare(self, address: Address, name: str, shape: Shape) -> None: ...

    def delete(self, address: Address, name: str) -> None:
        """Delete it; a missing one is no error."""

    def left(self, address: Address, name: str) -> int:
        """The number of messages that it keeps."""

    def blob(self, name: str, body_size: int) -> Blob:
        """CYCLE publishes of equal size."""

    def writer(self, address: Address, name: str) -> Writer: ...

    def reader(self, address: Address, name: str, shape: Shape, body_size: int) -> Reader: ...

    def idle_connection(self, address: Address) -> socket.socket:
        """A connection that the server has accepted and that does nothing."""

    def version(self, address: Address) -> str: ...


def connect(address: Address) -> socket.socket:
    sock = socket.create_connection((address.host, address.port), timeout=TIMEOUT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def raw(sock: socket.socket) -> socket.socket:
    """The socket in blocking mode; reads raise BlockingIOError after RECEIVE_SECONDS."""
    sock.settimeout(None)
    timeout = struct.pack("ll", 0, int(RECEIVE_SECONDS * 1_000_000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    return sock


def receive(sock: socket.socket) -> bytes:
    data = sock.recv(_RECEIVE_BYTES)
    if not data:
        raise RefusedError("the server closed the connection")
    return data


def body(index: int, size: int) -> bytes:
    return STAMP.pack(index).ljust(size, b"x")


class OrderCheck:
    """Checks that messages arrive as they were published, from the indexes in their bodies."""

    __slots__ = ("_expected", "count")

    def __init__(self) -> None:
        self.count = 0
        self._expected = [STAMP.pack(index) for index in range(CYCLE)] * _REPEATS

    def add(self, stamps: list[bytes]) -> None:
        first = self.count % CYCLE
        if stamps != self._expected[first : first + len(stamps)]:
            self._raise(stamps)
        self.count += len(stamps)

    def _raise(self, stamps: list[bytes]) -> None:
        for number, stamp in enumerate(stamps, start=self.count):
            (index,) = STAMP.unpack(stamp)
            if index != number % CYCLE:
                raise FramingError(
                    f"message {number + 1} carries message {index} of the publisher's blob, "
                    f"not {number % CYCLE}: lost, repeated or out of order"
                )
        raise FramingError(f"{len(stamps):,} messages in one read are more than can be checked")
