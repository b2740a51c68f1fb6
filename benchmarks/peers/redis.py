"""Redis Streams on a plain socket.

A queue is a stream with one consumer group. An ack is XACK, which ends the delivery, and XDEL,
which removes the entry, as an AMQP ack does both. Each of them names up to a hundred entries, or
one. A log is the same stream without a group, read with XREAD from its first entry.

A publish is XADD, and its reply is the confirm: with `appendfsync always` Redis replies after the
sync. Up to 1,000 messages are asked for at once, as with an AMQP prefetch of 1,000.
"""

import re
import socket
from dataclasses import dataclass

from benchmarks.connection import Address, RefusedError
from benchmarks.frames import Blob, FramingError
from benchmarks.peers.client import CYCLE, OrderCheck, Shape, Writer, body, connect, receive

_GROUP = b"bench"
_COUNT = 1000
_BLOCK_MS = 250
_ACK_EVERY = {Shape.ACK_EACH: 1, Shape.ACK_MANY: 100}
_CONFIRM_BYTES = b"$-\r\n0123456789"
_BATCH = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n\S+\r\n\*(\d+)\r\n")
_NO_MESSAGES = b"*-1\r\n"
_PONG = b"+PONG\r\n"


def command(*words: str | bytes | int) -> bytes:
    """A command as an array of strings."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n%s" % (len(parts), _strings(*parts))


def _strings(*parts: bytes) -> bytes:
    return b"".join([b"$%d\r\n%s\r\n" % (len(part), part) for part in parts])


class RedisConnection:
    """A connection for commands with a reply of one line or one string."""

    def __init__(self, address: Address) -> None:
        self.sock = connect(address)
        self._pending = b""

    def call(self, *words: str | bytes | int) -> bytes:
        """Send a command and return its reply; an error raises RefusedError."""
        self.sock.sendall(command(*words))
        line = self._line()
        if line.startswith(b"-"):
            raise RefusedError(line[1:].decode(errors="replace"))
        if not line.startswith(b"$"):
            return line[1:]
        size = int(line[1:])
        while len(self._pending) < size + 2:
            self._pending += receive(self.sock)
        value, self._pending = self._pending[:size], self._pending[size + 2 :]
        return value

    def close(self) -> None:
        self.sock.close()

    def _line(self) -> bytes:
        while b"\r\n" not in self._pending:
            self._pending += receive(self.sock)
        line, _, self._pending = self._pending.partition(b"\r\n")
        return line


class RedisConfirms:
    """Counts the replies of XADD: the id of the new entry, a string."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines = 0

    def feed(self, data: bytes) -> int:
        if data.translate(None, _CONFIRM_BYTES):
            raise FramingError(f"expected a confirm, got {data[:200].decode(errors='replace')}")
        self._lines += data.count(b"\n")
        return self._lines // 2


class RedisReader:
    """Reads messages in batches and acks them; sends the acks with the next request."""

    def __init__(self, sock: socket.socket, name: str, shape: Shape, size: int) -> None:
        self.sock = sock
        self._name = name
        self._shape = shape
        self._order = OrderCheck()
        self._after_id = len(b"\r\n*2\r\n$1\r\nb\r\n$%d\r\n" % size) + size + 2
        self._entry = re.compile(
            rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\nb\r\n\$%d\r\n(.{8}).{%d}\r\n"
            % (size, size - 8),
            re.DOTALL,
        )
        self._request = command(
            *("XREADGROUP", "GROUP", _GROUP, "reader", "COUNT", _COUNT, "BLOCK", _BLOCK_MS),
            *("STREAMS", name, ">"),
        )
        self._last = b"0"
        self._in_batch = 0
        self._unacked: list[bytes] = []
        self._removed = 0
        self._rest = b""

    @property
    def count(self) -> int:
        return self._order.count

    def begin(self) -> None:
        self.sock.sendall(self._next())

    def feed(self, data: bytes) -> None:
        self._rest += data
        if not self._in_batch and not self._begin_batch():
            return
        found = self._entry.findall(self._rest)
        if not found:
            return
        ids = [number for number, _ in found]
        self._order.add([stamp for _, stamp in found])
        self._last = ids[-1]
        self._in_batch -= len(found)
        if self._shape is not Shape.LOG:
            self._unacked += ids
        if self._in_batch < 0:
            raise FramingError("a batch has more messages than it says")
        if self._in_batch:
            self._rest = self._rest[
                self._rest.rfind(self._last) + len(self._last) + self._after_id :
            ]
        else:
            self._rest = b""
            self.sock.sendall(self._acks(_ACK_EVERY.get(self._shape, 1)) + self._next())

    def finish(self) -> None:
        """The last request waits on the server for _BLOCK_MS; then come the replies to the acks."""
        if self._in_batch:
            raise FramingError("the last batch is incomplete")
        self.sock.settimeout(60.0)
        self.sock.sendall(self._acks(max(len(self._unacked), 1)) + command("PING"))
        while not self._rest.endswith(_PONG):
            self._rest += receive(self.sock)
        self._rest = self._rest.replace(_NO_MESSAGES, b"")
        self._take_numbers()
        if self._rest != _PONG:
            raise FramingError("there are more messages than were published")
        if self._shape is not Shape.LOG and self._removed != 2 * self.count:
            raise FramingError(
                f"{self.count:,} messages acked, {self._removed:,} acks and removals"
            )
        self.sock.close()

    def _next(self) -> bytes:
        if self._shape is not Shape.LOG:
            return self._request
        return command("XREAD", "COUNT", _COUNT, "STREAMS", self._name, self._last)

    def _begin_batch(self) -> bool:
        """Whether the messages of a batch follow; replies to acks come before it."""
        self._take_numbers()
        if self._rest.startswith(b"-"):
            raise FramingError(f"the server refused: {self._rest.decode(errors='replace')}")
        if self._rest.startswith(_NO_MESSAGES):
            self._rest = self._rest[len(_NO_MESSAGES) :]
            self.sock.sendall(self._next())
            return False
        head = _BATCH.match(self._rest)
        if not head:
            return False
        self._in_batch = int(head[1])
        self._rest = self._rest[head.end() :]
        return True

    def _take_numbers(self) -> None:
        """Take the replies to XACK and XDEL: how many entries each has changed."""
        while self._rest.startswith(b":") and b"\r\n" in self._rest:
            number, _, self._rest = self._rest.partition(b"\r\n")
            self._removed += int(number[1:])

    def _acks(self, every: int) -> bytes:
        """Ack in groups of `every`, and keep the rest."""
        full = len(self._unacked) - len(self._unacked) % every
        ids = [b"$%d\r\n%s\r\n" % (len(number), number) for number in self._unacked[:full]]
        self._unacked = self._unacked[full:]
        if not ids:
            return b""
        name = self._name.encode()
        xack = b"*%d\r\n" % (every + 3) + _strings(b"XACK", name, _GROUP)
        xdel = b"*%d\r\n" % (every + 2) + _strings(b"XDEL", name)
        groups = [b"".join(ids[at : at + every]) for at in range(0, full, every)]
        return b"".join([part for group in groups for part in (xack, group, xdel, group)])


@dataclass(frozen=True, slots=True)
class Redis:
    """The client; see `benchmarks.peers.client.Client`."""

    def declare(self, address: Address, name: str, shape: Shape) -> None:
        connection = RedisConnection(address)
        connection.call("DEL", name)
        if shape is not Shape.LOG:
            connection.call("XGROUP", "CREATE", name, _GROUP, "0", "MKSTREAM")
        connection.close()

    def delete(self, address: Address, name: str) -> None:
        connection = RedisConnection(address)
        connection.call("DEL", name)
        connection.close()

    def left(self, address: Address, name: str) -> int:
        connection = RedisConnection(address)
        count = int(connection.call("XLEN", name))
        connection.close()
        return count

    def blob(self, name: str, body_size: int) -> Blob:
        messages = [command("XADD", name, "*", "b", body(n, body_size)) for n in range(CYCLE)]
        return Blob(b"".join(messages), CYCLE)

    def writer(self, address: Address, name: str) -> Writer:
        return Writer(connect(address), RedisConfirms())

    def reader(self, address: Address, name: str, shape: Shape, body_size: int) -> RedisReader:
        return RedisReader(connect(address), name, shape, body_size)

    def idle_connection(self, address: Address) -> socket.socket:
        connection = RedisConnection(address)
        connection.call("PING")
        return connection.sock

    def version(self, address: Address) -> str:
        connection = RedisConnection(address)
        info = connection.call("INFO", "server").decode()
        connection.close()
        fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        return fields["redis_version"]
