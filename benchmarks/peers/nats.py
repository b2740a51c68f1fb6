"""NATS JetStream on a plain socket.

A queue is a stream with file storage and one durable pull consumer. With acks for each message it
has the retention "workqueue"; with acks for many at once, the retention "interest" and the ack
policy "all", since a work queue requires an ack for each message. Both remove what is acked. A log
is a stream with the retention "limits"; every replay makes its own consumer, without acks.

A publish names a reply subject, so the server answers it when the message is stored: that is the
confirm. Messages are asked for in requests of 500, two at a time, so 1,000 may be on their way, as
with an AMQP prefetch of 1,000.
"""

import json
import re
import socket
from dataclasses import dataclass
from typing import Any

from benchmarks.brokers import NATS_CAN_SYNC_SINCE
from benchmarks.connection import Address, RefusedError
from benchmarks.frames import Blob, FramingError
from benchmarks.peers.client import CYCLE, OrderCheck, Shape, Writer, body, connect, receive

INBOX = "_INBOX.bench"
_CONSUMER = "bench"
_PREFETCH = 1000
_REQUEST = 500
_ACK_EVERY = 100
PING, PONG = b"PING\r\n", b"PONG\r\n"
_CONFIRM = re.compile(rb'MSG \S+ 1 +\d+\r\n\{"stream":"[^"]*", ?"seq":(\d+)\}\r\n')
_RETENTION = {Shape.ACK_EACH: "workqueue", Shape.ACK_MANY: "interest", Shape.LOG: "limits"}
_ACK_POLICY = {Shape.ACK_EACH: "explicit", Shape.ACK_MANY: "all", Shape.LOG: "none"}
_OPTIONS = {
    "verbose": False,
    "pedantic": False,
    "headers": True,
    "no_responders": True,
    "lang": "python",
    "version": "1",
}


def pub(subject: str, payload: bytes, reply: str = "") -> bytes:
    subjects = f"{subject} {reply}".strip().encode()
    return b"PUB %s %d\r\n%s\r\n" % (subjects, len(payload), payload)


class NatsConnection:
    """A connection with one subscription (number 1) to an inbox of its own."""

    def __init__(self, address: Address) -> None:
        self.sock = connect(address)
        self.inbox = f"{INBOX}.{self.sock.getsockname()[1]}"
        self._pending = b""
        self.server: dict[str, Any] = json.loads(self._line().removeprefix(b"INFO "))
        options = json.dumps(_OPTIONS, separators=(",", ":")).encode()
        self.sock.sendall(b"CONNECT %s\r\nSUB %s 1\r\n" % (options, self.inbox.encode()))
        self.flush()

    def subscribe(self, subject: str) -> None:
        """Replace the inbox by a subscription to a subject."""
        self.sock.sendall(b"UNSUB 1\r\nSUB %s 1\r\n" % subject.encode())
        self.flush()

    def flush(self) -> None:
        """Wait until the server has processed what was sent."""
        self.sock.sendall(PING)
        while (line := self._line()) != PONG.rstrip():
            self._check(line)

    def request(self, subject: str, value: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call the JetStream API; an error of the API raises RefusedError."""
        payload = json.dumps(value).encode() if value is not None else b""
        self.sock.sendall(pub(subject, payload, self.inbox))
        while not (line := self._line()).startswith((b"MSG ", b"HMSG ")):
            self._check(line)
        reply = self._bytes(int(line.split()[-1]) + 2)
        if line.startswith(b"HMSG "):
            raise RefusedError(f"{subject}: {reply.decode(errors='replace').split(chr(13))[0]}")
        answer: dict[str, Any] = json.loads(reply)
        if "error" in answer:
            raise RefusedError(f"{subject}: {answer['error'].get('description')}")
        return answer

    def close(self) -> None:
        self.sock.close()

    def _check(self, line: bytes) -> None:
        if line.startswith(b"-ERR"):
            raise RefusedError(line.decode(errors="replace"))
        if line == PING.rstrip():
            self.sock.sendall(PONG)

    def _line(self) -> bytes:
        while b"\r\n" not in self._pending:
            self._pending += receive(self.sock)
        line, _, self._pending = self._pending.partition(b"\r\n")
        return line

    def _bytes(self, count: int) -> bytes:
        while len(self._pending) < count:
            self._pending += receive(self.sock)
        taken, self._pending = self._pending[:count], self._pending[count:]
        return taken


class NatsConfirms:
    """Counts the answers to publishes; their sequence numbers must be consecutive."""

    __slots__ = ("_count", "_rest", "_sequence", "_sock")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._count = 0
        self._sequence = 0
        self._rest = b""

    def feed(self, data: bytes) -> int:
        data = self._rest + data
        if b"error" in data or b"-ERR" in data or b"HMSG" in data:
            raise FramingError(f"expected a confirm, got {data[-200:].decode(errors='replace')}")
        if PING in data:
            self._sock.sendall(PONG)
            data = data.replace(PING, b"")
        end = data.rfind(b"}\r\n") + 3 if b"}\r\n" in data else 0
        self._rest = data[end:]
        numbers = _CONFIRM.findall(data, 0, end)
        if numbers:
            self._check(int(numbers[0]), int(numbers[-1]), len(numbers))
        return self._count

    def _check(self, first: int, last: int, count: int) -> None:
        expected = self._sequence + 1 if self._sequence else first
        if first != expected or last != first + count - 1:
            raise FramingError(f"confirms {first} to {last} are {count}, {expected} is next")
        self._sequence = last
        self._count += count


class NatsReader:
    """Pulls messages and acks them: each, every hundredth (which acks all before it), or none."""

    def __init__(self, connection: NatsConnection, stream: str, shape: Shape, size: int) -> None:
        self.sock = connection.sock
        self._connection = connection
        self._shape = shape
        self._size = size
        self._order = OrderCheck()
        self._message = re.compile(
            rb"MSG \S+ 1 (\S+) %d\r\n(.{8}).{%d}\r\n" % (size, size - 8), re.DOTALL
        )
        consumer = _CONSUMER
        if shape is Shape.LOG:
            consumer = f"replay{self.sock.getsockname()[1]}"
            _make_consumer(connection, stream, consumer, shape)
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        batch = json.dumps({"batch": _REQUEST}).encode()
        self._next = pub(subject, batch, connection.inbox)
        self._asked = 0
        self._acked = 0
        self._last = b""
        self._rest = b""

    @property
    def count(self) -> int:
        return self._order.count

    def begin(self) -> None:
        self._asked = 2 * _REQUEST
        self.sock.sendall(self._next * 2)

    def feed(self, data: bytes) -> None:
        data = self._rest + data
        if PING in data:
            self.sock.sendall(PONG)
            data = data.replace(PING, b"")
        found = self._message.findall(data)
        if not found:
            self._keep(data)
            return
        replies = [reply for reply, _ in found]
        last = replies[-1]
        self._keep(data[data.rfind(last) + len(last) + len(f" {self._size}") + self._size + 4 :])
        self._order.add([stamp for _, stamp in found])
        out = self._acks(replies)
        while self._asked - self.count <= _REQUEST:
            self._asked += _REQUEST
            out += self._next
        if out:
            self.sock.sendall(out)

    def finish(self) -> None:
        if self._rest:
            raise FramingError("the last message is incomplete")
        if self._shape is Shape.ACK_MANY and self._last and self._acked < self.count:
            self.sock.sendall(b"PUB %s 0\r\n\r\n" % self._last)
        self.sock.settimeout(60.0)
        self._connection.flush()
        self._connection.close()

    def _keep(self, rest: bytes) -> None:
        if rest.startswith((b"HMSG", b"-ERR")):
            raise FramingError(f"expected a message, got {rest[:200].decode(errors='replace')}")
        self._rest = rest

    def _acks(self, replies: list[bytes]) -> bytes:
        self._last = replies[-1]
        if self._shape is Shape.ACK_EACH:
            return b"".join([b"PUB %s 0\r\n\r\n" % reply for reply in replies])
        if self._shape is Shape.LOG:
            return b""
        first = self.count - len(replies)
        due = range(self._acked + _ACK_EVERY, self.count + 1, _ACK_EVERY)
        if due:
            self._acked = due[-1]
        return b"".join([b"PUB %s 0\r\n\r\n" % replies[number - first - 1] for number in due])


@dataclass(frozen=True, slots=True)
class Nats:
    """The client; see `benchmarks.peers.client.Client`."""

    def declare(self, address: Address, name: str, shape: Shape) -> None:
        connection, stream = NatsConnection(address), _stream(name)
        config = {
            "name": stream,
            "subjects": [name],
            "retention": _RETENTION[shape],
            "storage": "file",
            "num_replicas": 1,
        }
        connection.request(f"$JS.API.STREAM.CREATE.{stream}", config)
        if shape is not Shape.LOG:
            _make_consumer(connection, stream, _CONSUMER, shape)
        connection.close()

    def delete(self, address: Address, name: str) -> None:
        connection = NatsConnection(address)
        try:
            connection.request(f"$JS.API.STREAM.DELETE.{_stream(name)}")
        except RefusedError:
            return
        finally:
            connection.close()

    def left(self, address: Address, name: str) -> int:
        connection = NatsConnection(address)
        info = connection.request(f"$JS.API.STREAM.INFO.{_stream(name)}")
        connection.close()
        return int(info["state"]["messages"])

    def blob(self, name: str, body_size: int) -> Blob:
        messages = [pub(name, body(n, body_size), _confirms_of(name)) for n in range(CYCLE)]
        return Blob(b"".join(messages), CYCLE)

    def writer(self, address: Address, name: str) -> Writer:
        connection = NatsConnection(address)
        connection.subscribe(_confirms_of(name))
        return Writer(connection.sock, NatsConfirms(connection.sock))

    def reader(self, address: Address, name: str, shape: Shape, body_size: int) -> NatsReader:
        return NatsReader(NatsConnection(address), _stream(name), shape, body_size)

    def idle_connection(self, address: Address) -> socket.socket:
        return NatsConnection(address).sock

    def version(self, address: Address) -> str:
        connection = NatsConnection(address)
        connection.close()
        version = str(connection.server["version"])
        can_sync = tuple(map(int, version.split(".")[:2])) >= NATS_CAN_SYNC_SINCE
        return version if can_sync else f"{version} (not synced)"


def _make_consumer(connection: NatsConnection, stream: str, name: str, shape: Shape) -> None:
    config: dict[str, Any] = {
        "durable_name": name,
        "deliver_policy": "all",
        "replay_policy": "instant",
        "ack_policy": _ACK_POLICY[shape],
    }
    if shape is not Shape.LOG:
        config["max_ack_pending"] = _PREFETCH
    subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{name}"
    connection.request(subject, {"stream_name": stream, "config": config})


def _stream(name: str) -> str:
    """The name of a queue's stream: it must not contain dots."""
    return name.replace(".", "-")


def _confirms_of(name: str) -> str:
    """The subject of the confirms of a queue's only publisher."""
    return f"{INBOX}.confirms.{name}"
