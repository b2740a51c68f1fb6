"""Request and reply on NATS: a transient request with an inbox as its reply subject.

Neither is stored, as with AMQP's direct reply-to.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.connection import Address
from benchmarks.peers.client import raw, receive
from benchmarks.peers.nats import PING, PONG, NatsConnection, pub
from benchmarks.roles import STALL_SECONDS
from benchmarks.workers import DeliveryCounts, Report, RunError

_WARM_UP = 100
_REQUESTS = "bench.requests"
_MESSAGE = re.compile(rb"MSG \S+ 1 (?:(\S+) )?\d+\r\nx*\r\n")


@dataclass(slots=True)
class NatsRequester:
    """Sends one request at a time, with an inbox as its reply subject, and waits for the reply."""

    address: Address
    seconds: float
    body_size: int = 100
    _connection: NatsConnection = field(init=False, repr=False)

    def prepare(self) -> None:
        self._connection = NatsConnection(self.address)

    def work(self, counts: DeliveryCounts) -> Report:
        request = pub(_REQUESTS, b"x" * self.body_size, self._connection.inbox)
        times: list[float] = []
        sock = raw(self._connection.sock)
        replies = _messages(self._connection, counts)
        started = now = time.monotonic()
        while now - started < self.seconds:
            sent_at = now
            sock.sendall(request)
            next(replies)
            now = time.monotonic()
            times.append(now - sent_at)
        self._connection.close()
        return Report(len(times), started, now, tuple(times[_WARM_UP:]))


@dataclass(slots=True)
class NatsResponder:
    """Answers every request of one requester."""

    address: Address
    body_size: int = 100
    _connection: NatsConnection = field(init=False, repr=False)

    def prepare(self) -> None:
        self._connection = NatsConnection(self.address)
        self._connection.subscribe(_REQUESTS)

    def work(self, counts: DeliveryCounts) -> Report:
        started, count, body = time.monotonic(), 0, b"x" * self.body_size
        sock = raw(self._connection.sock)
        for reply_to in _messages(self._connection, counts):
            sock.sendall(pub(reply_to, body))
            count += 1
        self._connection.close()
        return Report(count, started, time.monotonic())


def _messages(connection: NatsConnection, counts: DeliveryCounts) -> Iterator[str]:
    """The reply subjects of messages one by one, until the parent ends the run."""
    pending, last = b"", time.monotonic()
    while True:
        if found := _MESSAGE.match(pending):
            pending = pending[found.end() :]
            yield (found[1] or b"").decode()
            continue
        if pending.startswith(PING):
            pending = pending[len(PING) :]
            connection.sock.sendall(PONG)
            continue
        if pending.startswith((b"HMSG", b"-ERR")):
            raise RunError(f"expected a message, got {pending.decode(errors='replace')}")
        try:
            pending += receive(connection.sock)
            last = time.monotonic()
        except BlockingIOError:
            if counts.expected >= 0:
                return
            if time.monotonic() - last > STALL_SECONDS:
                raise RunError(f"no message for {STALL_SECONDS:.0f} s") from None
