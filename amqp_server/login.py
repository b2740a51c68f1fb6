"""Who the client says it is, and who we say we are; what both agree on; where it goes.

`begin` takes connection.start-ok and answers with connection.tune or refuses. Knowing a password
may take a thread some time: until then the wire is in state LOGGING_IN and keeps what comes, and
the socket is not read. `agree` takes connection.tune-ok and `enter` connection.open.
"""

from __future__ import annotations

import logging
import platform
from functools import partial
from typing import TYPE_CHECKING, Any

from amqp_server.codec import commands, encode_method
from amqp_server.known import Known
from amqp_server.line import Deaf
from amqp_server.wire import ConnectionState
from leveret import __version__
from leveret.broker import Broker, User
from leveret.broker.access.logins import Refusal, Refused
from leveret.model.errors import BrokerError, NotAllowed, ReplyCode
from leveret.model.tables import decode_table

if TYPE_CHECKING:
    from amqp_server.session import Session

log = logging.getLogger("leveret.amqp")

SMALLEST_FRAME_MAX = 4096
REFUSED_LOGIN_SECONDS = 3.0
"""How long a client that does not understand a close is kept waiting for its end."""
MECHANISMS = "PLAIN AMQPLAIN"
EXTERNAL = "EXTERNAL"

CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)


def server_properties(broker: Broker) -> dict[str, Any]:
    return {
        "product": broker.settings.product,
        "version": __version__,
        "platform": f"Python {platform.python_version()}",
        "copyright": "Copyright the Leveret authors",
        "information": "Leveret, a RabbitMQ-compatible broker",
        "cluster_name": broker.settings.node_name,
        "capabilities": dict.fromkeys(CAPABILITIES, True),
    }


def mechanisms(session: Session) -> str:
    """What a client may log in with: EXTERNAL only where a certificate says who it is."""
    return f"{MECHANISMS} {EXTERNAL}" if _certified(session) else MECHANISMS


def _certified(session: Session) -> str:
    """The user that the client's certificate stands for; empty without one."""
    secured = session.line.secured
    return "" if secured is None else secured.user(session.broker.settings.tls_login)


def begin(session: Session, method: Any) -> None:
    """connection.start-ok: a name and its proof."""
    session.client_properties = dict(method.client_properties or {})
    capabilities = session.client_properties.get("capabilities")
    session.capabilities = capabilities if isinstance(capabilities, dict) else {}
    session.mechanism = method.mechanism
    logins, host = session.broker.access.logins, session.line.peer[0]
    certified = _certified(session) if method.mechanism == EXTERNAL else ""
    given = ("", "") if certified else credentials(method.mechanism, method.response)
    session.wire.state = ConnectionState.LOGGING_IN
    session.listening.stop(Deaf.LOGGING_IN)
    if certified:
        _decided(session, certified, logins.accept(certified, host))
    else:
        decided = partial(_decided, session, given[0])
        logins.begin(*given, host, decided, lambda: not session.is_over)


def _decided(session: Session, name: str, answer: User | Refused) -> None:
    if session.is_over or session.wire.state is not ConnectionState.LOGGING_IN:
        return
    _tell(session, name, answer)
    if isinstance(answer, Refused):
        _refuse(session, name, answer)
        return
    session.user = answer
    session.line.let_in()
    settings = session.broker.settings
    tune = commands.Connection.Tune(settings.channel_max, settings.frame_max, settings.heartbeat)
    session.wire.state = ConnectionState.AWAIT_TUNE_OK
    session.send(encode_method(0, tune))
    session.listening.go_on(Deaf.LOGGING_IN)
    if session.wire.buffered:
        session.receive(b"")


def _tell(session: Session, name: str, answer: User | Refused) -> None:
    host, port = session.line.peer[:2]
    facts = {
        "name": name,
        "connection_name": session.name,
        "connection_type": "network",
        "auth_mechanism": session.mechanism,
        "protocol": "0-9-1",
        "host": session.line.local[0],
        "peer_host": host,
        "peer_port": port,
        "ssl": session.line.secured is not None,
    }
    session.broker.events.login(facts, answer.why.value if isinstance(answer, Refused) else None)


def _refuse(session: Session, name: str, answer: Refused) -> None:
    mechanism, why = session.mechanism, answer.why.value
    facts = {"event": "login refused", "user": name, "peer": session.line.peer[0], "why": why}
    said = (session.name, name, mechanism, why)
    log.warning("%s: login of %r refused (%s): %s", *said, extra={"facts": facts})
    if answer.why is Refusal.CROWDED:  # cut off: it must not take this for a wrong password
        session.wire.state = ConnectionState.CLOSED
        session.line.end()
        return
    if session.capabilities.get("authentication_failure_close") is True:
        session.listening.go_on(Deaf.LOGGING_IN)
        session.fail(
            BrokerError(
                f"Login was refused using authentication mechanism {mechanism}. "
                "For details see the broker logfile.",
                ReplyCode.ACCESS_REFUSED,
            ),
            is_told=True,
        )
        return
    session.wire.state = ConnectionState.CLOSED
    session.line.end_in(REFUSED_LOGIN_SECONDS)


def credentials(mechanism: str, response: str | bytes) -> tuple[str, str]:
    """User and password from the response of PLAIN or AMQPLAIN."""
    raw = response.encode() if isinstance(response, str) else response
    if mechanism == "PLAIN":
        parts = raw.split(b"\x00")
        if len(parts) == 3:
            return _text(parts[1]), _text(parts[2])
    elif mechanism == "AMQPLAIN":
        table = decode_table(len(raw).to_bytes(4, "big") + raw)
        name, password = table.get("LOGIN"), table.get("PASSWORD")
        if isinstance(name, str) and isinstance(password, str):
            return name, password
    else:
        raise BrokerError(
            f"unknown authentication mechanism '{mechanism}'", ReplyCode.COMMAND_INVALID
        )
    return "", ""


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def agree(session: Session, method: Any) -> None:
    """connection.tune-ok: not more than was offered."""
    settings = session.broker.settings
    _negotiate("channel_max", method.channel_max, 1, settings.channel_max)
    _negotiate("frame_max", method.frame_max, SMALLEST_FRAME_MAX, settings.frame_max)
    session.channel_max, session.frame_max = method.channel_max, method.frame_max
    session.wire.frame_limit = method.frame_max
    session.heartbeat = method.heartbeat
    session.wire.state = ConnectionState.AWAIT_OPEN


def _negotiate(name: str, value: int, lowest: int, offered: int) -> None:
    if value < lowest or value > offered:
        raise NotAllowed(f"negotiated {name} {value} is outside {lowest} to {offered}")


def enter(session: Session, method: Any) -> None:
    """connection.open: a virtual host that this user may enter."""
    broker, user, name = session.broker, session.user, method.virtual_host
    now = broker.users.by_name.get(user.name)
    if now is None or now.password_id != user.password_id:
        raise NotAllowed(f"user '{user.name}' was deleted or has another password: log in again")
    session.user = user = now
    vhost = broker.vhosts.get(name)
    if vhost is None:
        raise NotAllowed(f"vhost {name} not found")
    if not broker.users.may_enter(user.name, name):
        raise NotAllowed(f"access to vhost '{name}' refused for user '{user.name}'")
    broker.require_room(user, vhost)
    session.vhost = vhost
    session.wire.share(vhost.front_memory.setdefault(user.name, Known()))
    session.wire.state = ConnectionState.OPEN
    broker.connections[session] = None
    broker.counters.connections_opened += 1
    broker.events.connection(session, "created")
    facts = {"event": "connection opened", "user": user.name, "vhost": name}
    facts |= {"peer": session.line.peer[0], "mechanism": session.mechanism}
    log.info("%s: user %r opened vhost %r", session.name, user.name, name, extra={"facts": facts})
    session.send(encode_method(0, commands.Connection.OpenOk()))


def tell_of_leaving(session: Session) -> None:
    """Its client has gone before it opened a vhost, or was refused: that has no other line. Who
    only looks whether somebody listens says nothing, and is worth a line to nobody."""
    if session.wire.state in _TOLD:
        return
    level = logging.INFO if session.received else logging.DEBUG
    facts = {"event": "connection left", "user": session.user.name, "peer": session.line.peer[0]}
    log.log(level, "%s: left before it opened a vhost", session.name, extra={"facts": facts})


_TOLD = (ConnectionState.OPEN, ConnectionState.CLOSING, ConnectionState.CLOSED)
