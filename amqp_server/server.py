"""The asyncio shell: sockets to sessions, and one clock for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, cast

from amqp_server.certificates import Secured, maybe_secured
from amqp_server.login import tell_of_leaving
from amqp_server.patience import Patience
from amqp_server.pulse import Pulse
from amqp_server.session import Session
from amqp_server.tidying import Tidier
from amqp_server.wire import ConnectionState
from leveret.broker import Broker
from leveret.broker.access.strangers import Stranger, Strangers

if TYPE_CHECKING:
    from leveret.broker.access.handshakes import Context, Handshakes

BEAT_SECONDS = 0.25
NEXT_BEAT_SECONDS = 0.01
"""When there are more to look at than are looked at at once."""
BEATS_PER_LOOK_FOR_ACKS = 4
WRITE_HIGH_WATER = 256 * 1024
BACKLOG = 1024
STOP_SECONDS = 2.0
STALL_SECONDS = 1.5
"""Longer between two beats, and the silence of clients may be our own."""
DEAD_PEER_MS = 50_000
_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

log = logging.getLogger("leveret.amqp")


class Connection(asyncio.Protocol):
    """One socket. Knows bytes and nothing of AMQP."""

    def __init__(self, server: AmqpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._session: Session | None = None
        self._lost = False
        self._is_stranger = False
        self._ending: asyncio.TimerHandle | None = None
        self.peer: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.secured: Secured | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        with self._server.broker.apart:
            self._welcome(transport)

    def _welcome(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.peer = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))
        self.secured = maybe_secured(transport)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _watch(raw)
        if not self._server.admit(self.peer[0], self):
            self._transport.abort()
            return
        self._is_stranger = True
        self._session = self._server.session_type(self._server.broker, self)
        self._server.sessions[self._session] = None
        self._server.pulse.add(self._session, self._session.connected)

    def data_received(self, data: bytes) -> None:
        if self._session is not None:
            self._session.receive(data)

    def pause_writing(self) -> None:
        if self._session is not None:
            self._session.pause()

    def resume_writing(self) -> None:
        if self._session is not None:
            self._session.resume()

    def eof_received(self) -> bool:
        if self._session is not None:
            self._session.hear_out()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._end_at(None)  # a timer would keep what has gone until it is due
        self.let_in()
        if self._session is not None:
            self._session.writable = False
            tell_of_leaving(self._session)
            self._session.end()
            self._session.wire.deaf = True
            self._server.forget(self._session)
            del self._session.wire.sink  # no circle: it is freed now, not when somebody looks
            self._session = None

    # Line --------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def let_in(self) -> None:
        if self._is_stranger:
            self._is_stranger = False
            self._server.strangers.go(self.peer[0], self)

    def unread(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def end(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def end_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if not self._lost and (self._ending is None or due < self._ending.when()):
            self._end_at(loop.call_at(due, self.drop))

    def _end_at(self, ending: asyncio.TimerHandle | None) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._ending = ending

    def drop(self) -> None:
        if self._session is not None:
            self._session.wire.state = ConnectionState.CLOSED  # whoever drops it has told why
        if self._transport is not None and not self._lost:
            self._transport.abort()

    def stop_reading(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def go_on_reading(self) -> None:
        if self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()


def _watch(raw: socket.socket) -> None:
    """Without heartbeats, too, a peer that has vanished is found within a minute."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)


def _address(name: object) -> tuple[str, int]:
    if isinstance(name, tuple) and len(name) >= 2:
        return str(name[0]), int(name[1])
    return "", 0


class AmqpServer:
    """Listens, beats the hearts of its sessions, and lets them go."""

    session_type: type[Session] = Session

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.sessions: dict[Session, None] = {}
        self.pulse = Pulse()
        self.strangers = Strangers(broker.settings, log)
        self.handshakes: list[Handshakes] = []
        self._patience = Patience()
        self._tidier = Tidier(self._renew)
        self._listening: list[asyncio.Server] = []
        self._beat: asyncio.TimerHandle | None = None
        self._beats = 0
        self._all_gone: asyncio.Event | None = None

    def admit(self, host: str, stranger: Stranger) -> bool:
        """May one more connect? It is a stranger until it has logged in."""
        most = self.broker.settings.connection_max
        shaking = sum(len(one) for one in self.handshakes)
        is_full = most and len(self.sessions) + shaking >= most
        no_room = f"connection_max {most} is reached" if is_full else None
        return self.strangers.admit(host, stranger, no_room)

    def forget(self, session: Session) -> None:
        self.sessions.pop(session, None)
        self.pulse.remove(session)
        self._tidier.went(self.broker.clock.monotonic())
        if not self.sessions and self._all_gone is not None:
            self._all_gone.set()

    def start(self) -> None:
        """Beat, and hear of alarms; whoever wants clients calls `listen` as well."""
        self._schedule_beat()
        self.broker.alarms.subscribe(self._on_alarm)

    async def listen(self, host: str, port: int, tls: Context | None = None) -> tuple[str, int]:
        """Accept clients here, over TLS if a context is given; where it listens now."""
        if tls is not None:
            from leveret.broker.access.handshakes import Handshakes

            shaking = Handshakes(tls, self._make, self.admit, self.strangers, log)
            self.handshakes.append(shaking)
            return await shaking.listen(host, port)
        server = await asyncio.get_running_loop().create_server(
            self._make, host, port, backlog=BACKLOG
        )
        self._listening.append(server)
        bound: tuple[str, int] = server.sockets[0].getsockname()[:2]
        return bound

    def _make(self) -> Connection:
        """The event loop calls this first, and then makes the transport."""
        apart = self.broker.apart
        apart.__enter__()
        asyncio.get_running_loop().call_soon(apart.__exit__, None, None, None)
        return Connection(self)

    def _schedule_beat(self, seconds: float = BEAT_SECONDS) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        self._beat = loop.call_at(due, self._wake, due)

    def _wake(self, due: float) -> None:
        if asyncio.get_running_loop().time() - due > STALL_SECONDS:
            self._forgive()
        self._beat_all()

    def _forgive(self) -> None:
        """We have not run for a while (stopped, swapped out): read first, judge later."""
        now = self.broker.clock.monotonic()
        for session in self.sessions:
            session.last_received = session.connected = now

    def _beat_all(self) -> None:
        if self.pulse.beat(self.broker.clock.monotonic()):
            self._schedule_beat(NEXT_BEAT_SECONDS)
            return
        self._beats += 1
        if self._beats % BEATS_PER_LOOK_FOR_ACKS == 0:
            self.look_for_late_acks()
            self._tidier.look(self.broker.clock.monotonic())
        self._schedule_beat()

    def _renew(self) -> None:
        """Tables that have grown with a crowd do not shrink by themselves."""
        self.sessions = dict(self.sessions)
        self.broker.connections = dict(self.broker.connections)
        self.pulse.renew()

    def look_for_late_acks(self) -> None:
        channels = [one for session in self.sessions for one in session.channels.values()]
        self._patience.look(channels, self.broker.clock.monotonic())

    def _on_alarm(self, reason: str) -> None:
        for session in list(self.sessions):
            if reason:
                session.block(reason)
            else:
                session.unblock()

    async def stop(self, reason: str = "broker is shutting down") -> None:
        """Stop accepting, ask clients to go, wait a moment, cut off the rest."""
        if self._beat is not None:
            self._beat.cancel()
        for server in self._listening:
            server.close()
        for shaking in self.handshakes:
            shaking.stop()
        for session in list(self.sessions):
            session.close(reason)
        if self.sessions:
            self._all_gone = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), STOP_SECONDS)
        for session in list(self.sessions):
            session.line.end_in(0)
        await asyncio.sleep(0)
