"""What a connection was sent, looked at in portions: all connections take turns (broker/turn.py).

When the time is up, what has been read is set aside, the connection is not read any more and waits
in line; so it does while the wire `has_more` of it. Nothing of it is lost: it is heard to the end
when the peer has gone, and after our own close, since the answer may be in it.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from amqp_server.codec import PROTOCOL_HEADER
from amqp_server.line import Deaf
from amqp_server.wire import BadProtocolHeader, ConnectionState
from leveret.broker import BACKLOG_HIGH, User
from leveret.model.errors import BrokerError

if TYPE_CHECKING:
    from amqp_server.session import Session

log = logging.getLogger("leveret.amqp")

NOBODY = User("", "")
SETTLED_OCTETS = 2048
"""What a client has said when it has logged in, opened a channel, declared and consumed."""
KEPT_UNNOTICED = 4096
"""So much of what has not come whole is nobody's business; more makes a publisher."""
_HERE = nullcontext()


def receive(session: Session, data: bytes) -> None:
    session.received += len(data)
    session.last_received = now = session.broker.clock.monotonic()
    if session.wire.has_more:  # it waits in line already: TLS may bring more than was asked for
        session.wire.set_aside(data)
        _watch_stranger(session)
    elif session.broker.turn.has_time(now):
        _look_at(session, data)
    else:
        session.wire.set_aside(data)
        _wait_in_line(session)
        _watch_stranger(session)
    if session.publishes:
        session.broker.upkeep.came(len(data))


def hear_out(session: Session) -> None:
    """The peer has gone. What was set aside counts: TLS ends with the read that it came in."""
    while session.wire.has_more and session.wire.state is ConnectionState.OPEN:
        _take(session, b"")
    for channel in list(session.channels.values()):
        while channel.is_in_line and not channel.closed:
            channel.next_portion()


def _wait_in_line(session: Session) -> None:
    session.listening.stop(Deaf.TURN_OVER)
    session.broker.turn.wait_in_line(partial(_next_portion, session))


def _next_portion(session: Session) -> None:
    session.last_received = session.broker.clock.monotonic()
    _look_at(session, b"")
    if not session.wire.has_more:
        session.listening.go_on(Deaf.TURN_OVER)


def _look_at(session: Session, data: bytes) -> None:
    broker, wire = session.broker, session.wire
    session.now_ms = broker.clock.wall_ms()
    with _HERE if session.received - len(data) > SETTLED_OCTETS else broker.apart:
        _take(session, data)
    while wire.has_more:
        if not broker.turn.has_time(broker.clock.monotonic()):
            _wait_in_line(session)
            break
        _take(session, b"")
    if not session.is_over:
        _watch(session)


def _watch(session: Session) -> None:
    """Has it sent more than may be kept?"""
    broker, wire = session.broker, session.wire
    _watch_stranger(session)
    if session.publishes:
        if broker.store.backlog > BACKLOG_HIGH:
            session.listening.stop(Deaf.DISK_BEHIND)
            broker.hold_back(session)
    elif wire.kept > KEPT_UNNOTICED and broker.alarms.reason:
        session.block(broker.alarms.reason)


def _watch_stranger(session: Session) -> None:
    most = session.broker.settings.login_buffer
    if session.user is NOBODY and session.wire.buffered > most:
        session.drop("has sent too much before it logged in")
        session.wire.deaf = True
        session.wire.receive(b"")  # which lets go of all that has come


def _take(session: Session, data: bytes) -> None:
    """Hand bytes to the wire, and after what it refuses the rest: a close may follow."""
    while not _is_taken(session, data):
        data = b""


def _is_taken(session: Session, data: bytes) -> bool:
    try:
        session.wire.receive(data)
    except BadProtocolHeader as error:
        session.line.write(PROTOCOL_HEADER)
        session.drop(str(error))
    except BrokerError as error:
        session.fail(error)
        return False
    except Exception:
        log.exception("unexpected error on %s", session.name)
        session.fail(BrokerError("internal error"))
    return True
