"""The AMQP server: listening sockets, open connections, and one timer for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from leveret.amqp_server.ack_timeout import AckTimeouts
from leveret.amqp_server.connection import AmqpConnection
from leveret.amqp_server.heartbeats import HeartbeatWheel
from leveret.amqp_server.transport import AmqpTransport
from leveret.broker import Broker
from leveret.broker.access.unauthenticated import UnauthenticatedConnection, UnauthenticatedLimits

if TYPE_CHECKING:
    from leveret.broker.access.tls_listener import CurrentContext, TlsListener

TICK_SECONDS = 0.25
SHORT_TICK_SECONDS = 0.01
"""Until the next tick, if more connections were due than one tick checks."""
TICKS_PER_ACK_CHECK = 4
ACCEPT_BACKLOG = 1024
STOP_SECONDS = 2.0
STALL_SECONDS = 1.5
"""If a tick is later than this, the broker was stalled, and the silence of clients may be its
own."""

log = logging.getLogger("leveret.amqp")


class AmqpServer:
    """Accepts connections, checks heartbeats and acknowledgement timeouts, and shuts down."""

    connection_type: type[AmqpConnection] = AmqpConnection

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.connections: dict[AmqpConnection, None] = {}
        self.heartbeats = HeartbeatWheel()
        self.unauthenticated = UnauthenticatedLimits(broker.settings, log)
        self.tls_listeners: list[TlsListener] = []
        self._ack_timeouts = AckTimeouts()
        self._listeners: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ticks = 0
        self._all_closed: asyncio.Event | None = None

    # Connections -------------------------------------------------------------------------------

    def admit(self, host: str, connection: UnauthenticatedConnection) -> bool:
        """Whether to accept one more connection; it is unauthenticated until it logs in."""
        limit = self.broker.settings.connection_max
        handshaking = sum(len(listener) for listener in self.tls_listeners)
        is_full = limit and len(self.connections) + handshaking >= limit
        refusal = f"connection_max {limit} is reached" if is_full else None
        return self.unauthenticated.admit(host, connection, refusal)

    def add_connection(self, transport: AmqpTransport) -> AmqpConnection:
        connection = self.connection_type(self.broker, transport)
        self.connections[connection] = None
        self.heartbeats.add(connection, connection.connected)
        return connection

    def remove_connection(self, connection: AmqpConnection) -> None:
        self.connections.pop(connection, None)
        self.heartbeats.remove(connection)
        if not self.connections and self._all_closed is not None:
            self._all_closed.set()

    def _on_alarm(self, reason: str) -> None:
        for connection in list(self.connections):
            if reason:
                connection.block(reason)
            else:
                connection.unblock()

    # Starting and stopping ---------------------------------------------------------------------

    def start(self) -> None:
        """Start the timer and subscribe to alarms; call `listen` to accept clients."""
        self._schedule_tick(TICK_SECONDS)
        self.broker.alarms.subscribe(self._on_alarm)

    async def listen(
        self, host: str, port: int, tls: CurrentContext | None = None
    ) -> tuple[str, int]:
        """Accept clients at this address, over TLS if a context is given; returns the address."""
        if tls is not None:
            from leveret.broker.access.tls_listener import TlsListener

            listener = TlsListener(tls, self._make_transport, self.admit, self.unauthenticated, log)
            self.tls_listeners.append(listener)
            return await listener.listen(host, port)
        server = await asyncio.get_running_loop().create_server(
            self._make_transport, host, port, backlog=ACCEPT_BACKLOG
        )
        self._listeners.append(server)
        bound: tuple[str, int] = server.sockets[0].getsockname()[:2]
        return bound

    def _make_transport(self) -> AmqpTransport:
        return AmqpTransport(self)

    async def stop(self, reason: str = "broker is shutting down") -> None:
        """Stop accepting, send connection.close, wait briefly, and abort what is left."""
        self._stop_accepting()
        for connection in list(self.connections):
            connection.close(reason)
        if self.connections:
            self._all_closed = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), STOP_SECONDS)
        for connection in list(self.connections):
            connection.transport.close_in(0)
        await asyncio.sleep(0)

    def kill(self) -> None:
        """Stop accepting and abort all connections, as the end of a killed process does."""
        self._stop_accepting()
        for connection in list(self.connections):
            connection.transport.close_in(0)

    def _stop_accepting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for server in self._listeners:
            server.close()
        for listener in self.tls_listeners:
            listener.stop()

    # Timer -------------------------------------------------------------------------------------

    def _schedule_tick(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        self._timer = loop.call_at(due, self._tick, due)

    def _tick(self, due: float) -> None:
        now = self.broker.clock.monotonic()
        if asyncio.get_running_loop().time() - due > STALL_SECONDS:
            for connection in self.connections:
                connection.restart_timeouts(now)
        if self.heartbeats.check_due(now):
            self._schedule_tick(SHORT_TICK_SECONDS)
            return
        self._ticks += 1
        if self._ticks % TICKS_PER_ACK_CHECK == 0:
            self.check_ack_timeouts()
        self._schedule_tick(TICK_SECONDS)

    def check_ack_timeouts(self) -> None:
        channels = [
            channel for connection in self.connections for channel in connection.channels.values()
        ]
        self._ack_timeouts.check(channels, self.broker.clock.monotonic())
