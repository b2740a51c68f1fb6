"""Load control of one connection: how much is read from it, parsed and kept, and when.

Bytes flow from the transport through `FlowControl.receive` to the wire. Everything that limits them
is here:

- the read budget of a tick, which all connections share (leveret/broker/runtime/scheduler.py):
  when it is used up, bytes are buffered, and the connection waits in the scheduler's queue;
- the reasons for which the socket is not read (`PauseReason`); it is read again when the last one
  is gone;
- deferred work: methods that arrive on a channel that waits for the disk, and answers that wait
  until the peer has read earlier ones;
- the bytes that a client may send before it has logged in, and partial frames during an alarm;
- the store's backlog and the memory check, for connections that publish.

Nothing that was received is lost: buffered bytes are handled when the peer has disconnected, and
after our own close, because the answer to it may be among them. Event-loop thread only; a crash
loses what was buffered, and none of it was confirmed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from leveret.amqp_server.tls_info import TlsInfo
from leveret.amqp_server.unsent_output import UnsentOutput
from leveret.amqp_server.wire import ConnectionState, Wire
from leveret.broker import BACKLOG_HIGH
from leveret.model.errors import BrokerError

if TYPE_CHECKING:
    from leveret.amqp_server.connection import AmqpConnection

log = logging.getLogger("leveret.amqp")

MAX_UNSENT_BYTES = 1024 * 1024
"""Output that may wait for a slow peer before the connection is not read any more."""
MAX_DEFERRED_BYTES = 4 * 1024 * 1024
DEFERRED_METHOD_BYTES = 1000
"""Estimated memory of a deferred method; its argument table takes this many times its size:"""
DEFERRED_TABLE_FACTOR = 16
PARTIAL_BYTES_TOLERATED = 4096
"""During an alarm, a connection with more partial bytes than this is treated as a publisher."""


class PauseReason(Enum):
    """Why the socket of a connection is not read."""

    ALARM = auto()
    """A memory, disk or store alarm pauses publishers (`AmqpConnection.block`)."""
    STORE_BACKLOG = auto()
    """Too many bytes wait to be written to disk (`ResourceMonitor`)."""
    OUTPUT_UNREAD = auto()
    """The client does not read what it is sent."""
    AUTHENTICATING = auto()
    """The password is being checked (`AmqpConnection`)."""
    CHANNELS_WAITING = auto()
    """Too many methods are deferred behind replies that wait for the disk."""
    READ_BUDGET = auto()
    """The time for input of this tick is used up (`LoopScheduler`)."""


PAUSED_BY_US = frozenset(
    {
        PauseReason.ALARM,
        PauseReason.STORE_BACKLOG,
        PauseReason.CHANNELS_WAITING,
        PauseReason.READ_BUDGET,
    }
)
"""Pause reasons that the peer did not cause; no heartbeats are expected meanwhile."""


class Transport(Protocol):
    """The socket as a connection sees it."""

    peer: tuple[str, int]
    local: tuple[str, int]
    tls: TlsInfo | None

    def write(self, data: bytes) -> None: ...

    def unsent_bytes(self) -> int:
        """Bytes written that the operating system has not taken yet."""

    def on_authenticated(self) -> None:
        """The client has logged in: it no longer counts as unauthenticated."""

    def close(self) -> None:
        """Close once everything written has been sent."""

    def close_in(self, seconds: float) -> None:
        """Abort the connection after this time, unless it is closed before."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class ReadGate:
    """Reads the socket only while no reason against it is left."""

    __slots__ = ("_reasons", "_transport")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._reasons: set[PauseReason] = set()

    def __contains__(self, reason: PauseReason) -> bool:
        return reason in self._reasons

    @property
    def is_paused(self) -> bool:
        return bool(self._reasons)

    def is_paused_by(self, reasons: frozenset[PauseReason]) -> bool:
        return not reasons.isdisjoint(self._reasons)

    def pause(self, reason: PauseReason) -> None:
        self._reasons.add(reason)
        self._transport.pause_reading()

    def resume(self, reason: PauseReason) -> None:
        """Remove this reason; the socket is read again if it was the last one."""
        if reason in self._reasons:
            self._reasons.discard(reason)
            if not self._reasons:
                self._transport.resume_reading()

    def resume_all(self) -> None:
        """Remove all reasons except the read budget, which lasts only until a later tick."""
        for reason in self._reasons - {PauseReason.READ_BUDGET}:
            self.resume(reason)


class FlowControl:
    __slots__ = (
        "_allowance",
        "_broker",
        "_clock",
        "_connection",
        "_deferred_bytes",
        "_scheduler",
        "_transport",
        "_when_drained",
        "_wire",
        "gate",
        "is_writable",
        "last_received",
        "now_ms",
        "publishes",
        "received",
        "unsent",
    )

    def __init__(self, connection: AmqpConnection, transport: Transport, wire: Wire) -> None:
        broker = connection.broker
        self._broker = broker
        self._clock = broker.clock
        self._allowance = broker.resource_monitor.read_allowance
        self._scheduler = broker.scheduler
        self._connection = connection
        self._transport = transport
        self._wire = wire
        self.gate = ReadGate(transport)
        self.received = 0
        self.last_received = self._clock.monotonic()
        self.now_ms = self._clock.wall_ms()
        """Wall-clock time at which the current input is handled; messages get it."""
        self.publishes = False
        self.is_writable = True
        """False while the socket's write buffer is full: no consumer here has credit then."""
        self.unsent = UnsentOutput()
        self._deferred_bytes = 0
        self._when_drained: list[Callable[[], None]] = []

    def detach(self) -> None:
        """The socket is gone. Break the reference cycle; the wire ignores input from now on."""
        self.is_writable = False
        del self._connection

    @property
    def pending_bytes(self) -> int:
        """Bytes of input kept in memory: partial frames and messages, buffered and deferred."""
        return self._wire.partial_bytes + self._wire.deferred_bytes + self._deferred_bytes

    @property
    def partial_bytes(self) -> int:
        return self._wire.partial_bytes

    # Reading -----------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Handle bytes from the socket within the budget of this tick, or buffer them."""
        wire = self._wire
        self.received += len(data)
        self.last_received = now = self._clock.monotonic()
        if wire.has_more:  # a reader is queued already; TLS may deliver data after a pause
            wire.buffer(data)
            self._limit_unauthenticated()
        elif self._scheduler.take_read_budget(now):
            self._handle(data)
        else:
            wire.buffer(data)
            self._read_later()
            self._limit_unauthenticated()
        if self.publishes:
            allowance = self._allowance
            allowance.bytes -= len(data)
            if allowance.bytes < 0:
                self._broker.resource_monitor.check_memory()

    def _handle(self, data: bytes, to_end: bool = False) -> None:
        """Pass bytes to the wire until all are handled or the budget is used up, then check what
        the connection may keep."""
        wire, connection, broker = self._wire, self._connection, self._broker
        self.now_ms = self._clock.wall_ms()
        while True:
            try:
                wire.receive(data)
            except BrokerError as error:
                connection.on_protocol_error(error)
                data = b""
                continue  # a close may follow in the buffer
            except Exception:
                log.exception("%s: unexpected error while handling input", connection.name)
                connection.fail(BrokerError("internal error"))
            if not wire.has_more:
                break
            if not to_end and not self.take_read_budget():
                self._read_later()
                break
            data = b""
        if connection.is_over or to_end:
            return
        if self.publishes:
            if broker.store.backlog > BACKLOG_HIGH:
                self.gate.pause(PauseReason.STORE_BACKLOG)
                broker.resource_monitor.pause_until_backlog_drained(self)
        else:
            self._limit_non_publisher()

    def _limit_non_publisher(self) -> None:
        """Limits for a connection that does not publish: before its login, and during an alarm."""
        if not self._connection.is_authenticated:
            self._limit_unauthenticated()
        if self._wire.partial_bytes > PARTIAL_BYTES_TOLERATED:
            reason = self._broker.alarms.reason
            if reason:
                self._connection.block(reason)

    def _limit_unauthenticated(self) -> None:
        """Drop a client that sends more than it may before it has logged in."""
        limit = self._broker.settings.login_buffer
        if not self._connection.is_authenticated and self._wire.buffered > limit:
            self._connection.drop(f"sent more than {limit} bytes before it logged in")
            self._wire.ignore_input()

    def _read_later(self) -> None:
        self.gate.pause(PauseReason.READ_BUDGET)
        self._scheduler.enqueue_reader(self._read_buffered)

    def _read_buffered(self) -> None:
        """Called by the scheduler for a waiting connection: handle buffered bytes."""
        if not self._wire.ignores_input:
            self.last_received = self._clock.monotonic()
            self._handle(b"")
        if not self._wire.has_more:
            self.gate.resume(PauseReason.READ_BUDGET)

    def read_to_end(self) -> None:
        """The peer has disconnected: handle everything that it sent before."""
        if self._wire.has_more and self._wire.state is ConnectionState.OPEN:
            self._handle(b"", to_end=True)
        for channel in list(self._connection.channels.values()):
            channel.run_deferred_to_end()

    def resume_after_login(self) -> None:
        """The login is decided: handle what was received meanwhile."""
        self.gate.resume(PauseReason.AUTHENTICATING)
        if self._wire.buffered:
            self.receive(b"")

    # Budget ------------------------------------------------------------------------------------

    def take_read_budget(self) -> bool:
        """Whether more methods may be handled in this tick."""
        return self._scheduler.take_read_budget(self._clock.monotonic())

    def stop_if_over_budget(self) -> None:
        """After a slow method: leave the rest of the buffer to a later tick if time is up."""
        if not self.take_read_budget():
            self._wire.stop_after_this_frame()

    def enqueue_reader(self, resume: Callable[[], None]) -> None:
        """Call `resume` in a later tick: the budget of this one is used up."""
        self._scheduler.enqueue_reader(resume)

    def pause(self, reason: PauseReason) -> None:
        """Stop reading the socket for this reason."""
        self.gate.pause(reason)

    def resume(self, reason: PauseReason) -> None:
        """Read again; the client could not send heartbeats while it was not read."""
        self.last_received = self._clock.monotonic()
        self.gate.resume(reason)

    def keep_reading(self) -> None:
        """The connection is closing: read until the peer has closed it, too."""
        self.gate.resume_all()

    def on_backlog_drained(self) -> None:
        """The store has written its backlog: read this publisher again."""
        self.resume(PauseReason.STORE_BACKLOG)

    def measure_silence(self, now: float) -> float:
        """Seconds since the peer sent something; pauses that it did not cause restart the count."""
        if self.gate.is_paused_by(PAUSED_BY_US):
            self.last_received = now
        return now - self.last_received

    def restart_timeout(self, now: float) -> None:
        """Count the peer's silence from now on."""
        self.last_received = now

    def on_first_publish(self) -> None:
        """From now on this connection is a publisher: alarms and the store's backlog pause it."""
        self.publishes = True

    # Deferred work -----------------------------------------------------------------------------

    def add_deferred(self, size: int) -> int:
        """A channel has deferred a method with arguments of about `size` bytes; returns how much
        memory is charged for it."""
        size += DEFERRED_METHOD_BYTES
        self._deferred_bytes += size
        if self._deferred_bytes > MAX_DEFERRED_BYTES:
            self.gate.pause(PauseReason.CHANNELS_WAITING)
        return size

    def release_deferred(self, size: int) -> None:
        """The deferred methods of a channel have run, or never will."""
        self._deferred_bytes -= size
        if self._deferred_bytes <= MAX_DEFERRED_BYTES:
            self.gate.resume(PauseReason.CHANNELS_WAITING)

    # Output ------------------------------------------------------------------------------------

    @property
    def has_unread_output(self) -> bool:
        """The peer does not read: much more is written than the socket takes."""
        if self.is_writable:
            return False
        return self._transport.unsent_bytes() + self.unsent.bytes > MAX_UNSENT_BYTES

    def pause_if_output_unread(self) -> None:
        if self.has_unread_output:
            self.gate.pause(PauseReason.OUTPUT_UNREAD)

    def when_drained(self, call: Callable[[], None]) -> None:
        """Run `call` when the peer has read the output written so far."""
        self._when_drained.append(call)

    def on_write_buffer_full(self) -> None:
        self.is_writable = False

    def on_write_buffer_drained(self) -> None:
        self.is_writable = True
        self.gate.resume(PauseReason.OUTPUT_UNREAD)
        waiting, self._when_drained = self._when_drained, []
        for call in waiting:
            call()
