"""One AMQP connection: login, tuning, its channels, its output, and exactly one end.

The wire (wire.py) calls `on_header`, `on_method` and `on_refused_content`; publishes and acks go
from the wire to their channel. Output gathers in `out` and is written once per tick. All limits on
input are in flow_control.py.

A soft error closes its channel and nothing else. A hard error leaves the wire's `receive` and
closes the connection. Any other exception is a bug: it is logged once, and the connection is closed
with internal-error. Event-loop thread only; after a crash the client reconnects, and everything
that it held unacknowledged is ready again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from leveret.amqp_server import handshake
from leveret.amqp_server.channel import Channel
from leveret.amqp_server.cleanup import Cleanup
from leveret.amqp_server.codec import (
    HEARTBEAT_FRAME,
    PROTOCOL_HEADER,
    Method,
    commands,
    encode_method,
)
from leveret.amqp_server.flow_control import (
    PARTIAL_BYTES_TOLERATED,
    FlowControl,
    PauseReason,
    Transport,
)
from leveret.amqp_server.publish_cache import PublishCache
from leveret.amqp_server.replies import ChannelOpenOk
from leveret.amqp_server.transport import WRITE_HIGH_WATER
from leveret.amqp_server.wire import (
    BadProtocolHeader,
    ChannelState,
    ConnectionEvent,
    ConnectionState,
    Wire,
)
from leveret.broker import Broker, User, VirtualHost
from leveret.broker.access.authentication import Refusal, Refused
from leveret.broker.access.limits import require_channel_limit
from leveret.model.clients import ConnectionInfo
from leveret.model.errors import BrokerError, ConnectionForced, NotAllowed, ReplyCode
from leveret.model.message import LARGE_BODY, LargeContent
from leveret.model.store import StoreState

log = logging.getLogger("leveret.amqp")

UNAUTHENTICATED_USER = User("", "")
MAX_OUTPUT_BYTES = 64 * 1024
"""Output is written before the end of the tick when it exceeds this."""
CLOSE_GRACE_SECONDS = 5.0
"""How long we wait for the answer to our connection.close."""
DISCONNECT_SECONDS = 30.0
"""How long a client that has our close-ok may take to close its socket, at most one heartbeat
interval."""
NO_HEARTBEAT_CHECK_SECONDS = 5.0
"""How often a connection without heartbeats is checked."""
LOST_FRAMING_GRACE_SECONDS = 1.0
"""After frame boundaries are lost no answer can be read: only time to send what was written."""
REFUSED_LOGIN_SECONDS = 3.0
"""Delay before a client that does not understand connection.close is disconnected."""
NO_METHOD = (0, 0)


class AmqpConnection:
    channel_type: type[Channel] = Channel

    def __init__(self, broker: Broker, transport: Transport) -> None:
        self.broker = broker
        self.transport = transport
        peer, local = transport.peer, transport.local
        self.name = f"{peer[0]}:{peer[1]} -> {local[0]}:{local[1]}"
        self.wire = Wire(self, broker.settings.max_message_size)
        self.flow = FlowControl(self, transport, self.wire)
        self.user = UNAUTHENTICATED_USER
        self.is_authenticated = False
        self.vhost: VirtualHost = broker.vhosts[next(iter(broker.vhosts))]
        self.channels: dict[int, Channel] = {}
        self.client_properties: dict[str, Any] = {}
        self._capabilities: dict[str, Any] = {}
        self._mechanism = ""
        self.frame_max = handshake.MIN_FRAME_MAX
        self.channel_max = broker.settings.channel_max
        self.heartbeat = 0
        self.connected_ms = self.flow.now_ms
        self.connected = self._last_sent = self.flow.last_received
        self.out: list[bytes | LargeContent] = []
        self._out_size = 0
        self.sent = 0
        self._confirming: dict[Channel, None] = {}
        self._has_ended = False

    def __repr__(self) -> str:
        return f"<AmqpConnection {self.name} {self.wire.state.name} channels={len(self.channels)}>"

    @property
    def received(self) -> int:
        return self.flow.received

    @property
    def pending_bytes(self) -> int:
        """Bytes of incomplete messages, and of input that waits for a tick or for a commit."""
        return self.flow.pending_bytes

    def info(self) -> ConnectionInfo:
        peer, local, tls = self.transport.peer, self.transport.local, self.transport.tls
        given_name = self.client_properties.get("connection_name")
        return ConnectionInfo(
            name=self.name,
            user_provided_name=given_name if isinstance(given_name, str) else None,
            vhost=self.vhost.name,
            user=self.user.name,
            state="blocked" if self.is_blocked else "running",
            auth_mechanism=self._mechanism,
            peer_host=peer[0],
            peer_port=peer[1],
            host=local[0],
            port=local[1],
            ssl=tls is not None,
            ssl_protocol=tls.protocol if tls is not None else None,
            ssl_cipher=tls.cipher if tls is not None else None,
            peer_cert_subject=tls.subject if tls is not None else None,
            peer_cert_issuer=tls.issuer if tls is not None else None,
            peer_cert_validity=tls.validity if tls is not None else None,
            channels=len(self.channels),
            channel_max=self.channel_max,
            frame_max=self.frame_max,
            timeout=self.heartbeat,
            connected_at=self.connected_ms,
            client_properties=self.client_properties,
            recv_oct=self.flow.received,
            send_oct=self.sent,
            send_pend=self._out_size,
            node=self.broker.settings.node_name,
        )

    # Output ------------------------------------------------------------------------------------

    def send(self, frames: bytes | LargeContent) -> None:
        self.out.append(frames)
        self.wrote(len(frames))

    def _send_method(self, channel: int, method: Method) -> None:
        self.send(encode_method(channel, method))

    def wrote(self, size: int) -> None:
        """`size` bytes have been appended to `out`."""
        self._out_size += size
        if self._out_size > MAX_OUTPUT_BYTES:
            self.flush()
        else:
            self.broker.scheduler.mark_output(self)

    def mark_confirms_ready(self, channel: Channel) -> None:
        """This channel has publisher confirms to send at the end of the tick."""
        if not channel.closed:
            self._confirming[channel] = None
            self.broker.scheduler.mark_output(self)

    def flush(self) -> None:
        if self._confirming:
            for channel in self._confirming:
                if channel.confirms is not None and not channel.closed:
                    before = channel.confirms.settled
                    self.out.append(channel.confirms.answers())
                    settled = channel.confirms.settled - before
                    self.broker.counters.confirmed += settled
                    self.vhost.counters.confirmed += settled
            self._confirming.clear()
        if self._out_size > LARGE_BODY or self.flow.unsent:
            self._write_portion()
        elif self.out:
            data = b"".join(self.out)  # type: ignore[arg-type]  # a large message is larger
            self.out.clear()
            self._out_size = 0
            self.sent += len(data)
            self._last_sent = self.broker.clock.monotonic()
            self.transport.write(data)
            if not self.flow.is_writable:
                self.flow.pause_if_output_unread()

    def _write_portion(self) -> None:
        """Write the next portion of a large message, or of the output queued behind it."""
        self.flow.unsent.add(self.out)
        self.out.clear()
        self._out_size = 0
        self.flow.on_write_buffer_full()  # no more deliveries until all of it is written
        if self.transport.unsent_bytes() <= WRITE_HIGH_WATER:
            portion = self.flow.unsent.next_portion()
            self.sent += len(portion)
            self._last_sent = self.broker.clock.monotonic()
            self.transport.write(portion)
        self.flow.pause_if_output_unread()
        if self.transport.unsent_bytes() > WRITE_HIGH_WATER:
            return  # continues with `resume_writing`
        if self.flow.unsent:
            self.broker.scheduler.mark_output(self)
        else:
            self.resume_writing()

    def resume_writing(self) -> None:
        """The socket's write buffer has drained: write more, or give consumers credit again."""
        if self.flow.unsent:
            self.broker.scheduler.mark_output(self)
            return
        self.flow.on_write_buffer_drained()
        for channel in self.channels.values():
            channel.mark_queues_ready()

    # Heartbeats --------------------------------------------------------------------------------

    def check_heartbeat(self, now: float) -> float:
        """Enforce the login timeout and heartbeats; returns seconds until the next check."""
        if self.wire.state not in (ConnectionState.OPEN, ConnectionState.CLOSE_RECEIVED):
            timeout = self.broker.settings.handshake_timeout
            if now - self.connected > timeout:
                self.drop(f"did not log in within {timeout:g} s")
            return 0
        interval = self.heartbeat
        if not interval:
            return NO_HEARTBEAT_CHECK_SECONDS
        silent = self.flow.measure_silence(now)
        if silent > 2.5 * interval:
            log.warning("%s: no heartbeat for %d s, closing", self.name, int(2.5 * interval))
            self.end()
            self.wire.ignore_input()  # TLS may still deliver data that came too late
            self.transport.close()
        elif now - self._last_sent >= interval / 2:
            self._last_sent = now
            self.transport.write(HEARTBEAT_FRAME)
        return min(self._last_sent + interval / 2 - now, 2.5 * interval - silent)

    def restart_timeouts(self, now: float) -> None:
        """The process was stopped or starved for a while: the client was not the silent one."""
        self.flow.restart_timeout(now)
        self.connected = now

    def shift_timeouts(self, seconds: float, heartbeats: bool) -> None:
        """A test moved the clock: the login timeout stands still, and heartbeats if asked for."""
        self.connected += seconds
        if heartbeats:
            self.flow.restart_timeout(self.flow.last_received + seconds)

    # Handshake ---------------------------------------------------------------------------------

    def on_header(self) -> None:
        """The protocol header arrived: offer login mechanisms."""
        properties = handshake.server_properties(self.broker)
        mechanisms = handshake.mechanisms(self.broker, self.transport.tls)
        self._send_method(0, commands.Connection.Start(0, 9, properties, mechanisms, "en_US"))

    def on_protocol_error(self, error: BrokerError) -> None:
        """The wire refused a frame, or a method failed with an error that closes the connection."""
        if isinstance(error, BadProtocolHeader):  # another protocol: answer with our version
            self.transport.write(PROTOCOL_HEADER)
            self.drop(str(error))
        else:
            self.fail(error)

    def _on_start_ok(self, method: Any) -> None:
        """Check the credentials. That may take a thread some time: the socket is not read, and the
        wire buffers, until the login is decided."""
        self.client_properties = dict(method.client_properties or {})
        capabilities = self.client_properties.get("capabilities")
        self._capabilities = capabilities if isinstance(capabilities, dict) else {}
        self._mechanism = mechanism = method.mechanism
        authenticator, host = self.broker.authenticator, self.transport.peer[0]
        certified = ""
        if mechanism == handshake.EXTERNAL:
            certified = handshake.certificate_user(self.broker, self.transport.tls)
        name, password = certified, ""
        if not certified:
            name, password = handshake.credentials(mechanism, method.response)
        self.wire.advance(ConnectionEvent.START_OK)
        self.flow.pause(PauseReason.AUTHENTICATING)
        if certified:
            self._on_login_decided(certified, authenticator.accept(certified, host))
        else:
            authenticator.authenticate(
                name,
                password,
                host,
                lambda answer: self._on_login_decided(name, answer),
                lambda: not self._has_ended,
            )

    def _on_login_decided(self, name: str, answer: User | Refused) -> None:
        if self._has_ended or self.wire.state is not ConnectionState.AUTHENTICATING:
            return
        self._announce_login(name, answer)
        if isinstance(answer, Refused):
            self._refuse_login(name, answer)
            return
        self.user, self.is_authenticated = answer, True
        self.transport.on_authenticated()
        settings = self.broker.settings
        self.wire.advance(ConnectionEvent.AUTHENTICATED)
        self._send_method(
            0,
            commands.Connection.Tune(settings.channel_max, settings.frame_max, settings.heartbeat),
        )
        self.flow.resume_after_login()

    def _announce_login(self, name: str, answer: User | Refused) -> None:
        if isinstance(answer, Refused):
            self.broker.counters.logins_failed += 1
        else:
            self.broker.counters.logins_succeeded += 1
        host, port = self.transport.peer
        facts = {
            "name": name,
            "connection_name": self.name,
            "connection_type": "network",
            "auth_mechanism": self._mechanism,
            "protocol": "0-9-1",
            "host": self.transport.local[0],
            "peer_host": host,
            "peer_port": port,
            "ssl": self.transport.tls is not None,
        }
        self.broker.events.login(facts, answer.why.value if isinstance(answer, Refused) else None)

    def _refuse_login(self, name: str, answer: Refused) -> None:
        reason = answer.why.value
        facts = {"event": "login refused", "user": name, "why": reason}
        log.warning(
            "%s: login of %r refused (%s): %s",
            self.name,
            name,
            self._mechanism,
            reason,
            extra={"facts": facts | {"peer": self.transport.peer[0]}},
        )
        if answer.why is Refusal.QUEUE_FULL:  # not a wrong password: the client may try again
            self.wire.advance(ConnectionEvent.CLOSED)
            self.transport.close()
        elif self._capabilities.get("authentication_failure_close") is True:
            self.flow.resume(PauseReason.AUTHENTICATING)
            text = (
                f"Login was refused using authentication mechanism {self._mechanism}. "
                "For details see the broker logfile."
            )
            self.fail(BrokerError(text, ReplyCode.ACCESS_REFUSED), is_logged=True)
        else:
            self.wire.advance(ConnectionEvent.CLOSED)
            self.transport.close_in(REFUSED_LOGIN_SECONDS)

    def _on_tune_ok(self, method: Any) -> None:
        handshake.check_tuning(self.broker, method.channel_max, method.frame_max)
        self.channel_max, self.frame_max = method.channel_max, method.frame_max
        self.heartbeat = method.heartbeat
        self.wire.tune(method.frame_max)

    def _on_open(self, method: Any) -> None:
        broker, name = self.broker, method.virtual_host
        self.user = user = handshake.require_current_user(broker, self.user)
        self.vhost = vhost = handshake.require_vhost(broker, user, name)
        self.wire.open(vhost.publish_caches.setdefault(user.name, PublishCache()))
        broker.connections[self] = None
        broker.counters.connections_opened += 1
        broker.events.connection(self, "created")
        facts = {"event": "connection opened", "user": user.name, "vhost": name}
        facts |= {"peer": self.transport.peer[0], "mechanism": self._mechanism}
        log.info("%s: user %r opened vhost %r", self.name, user.name, name, extra={"facts": facts})
        self._send_method(0, commands.Connection.OpenOk())

    # Methods -----------------------------------------------------------------------------------

    def on_method(self, channel: int, method: Method, table: bytes) -> None:
        if channel == 0:
            _CONNECTION_HANDLERS[type(method)](self, method)
        elif isinstance(method, commands.Channel.Open):
            self._open_channel(channel)
        elif isinstance(method, commands.Channel.CloseOk):
            self._on_channel_close_ok(channel)
        else:
            target = self.channels.get(channel)
            if target is not None:
                target.receive_method(method, table)
            elif isinstance(method, commands.Channel.Close):
                self.close_channel(channel)

    def on_refused_content(self, channel: int, error: BrokerError) -> None:
        self.refuse(channel, error)

    def run(self, channel: int, call: Callable[[], None]) -> None:
        """Run something that a channel had deferred; errors are handled as for a new method."""
        if self._has_ended:
            return
        try:
            call()
        except BrokerError as error:
            if error.closes_channel_only:
                self.refuse(channel, error)
            else:
                self.fail(error)
        except Exception:
            log.exception("%s: unexpected error in a deferred method", self.name)
            self.fail(BrokerError("internal error"))

    # Channels ----------------------------------------------------------------------------------

    def _open_channel(self, number: int) -> None:
        if len(self.channels) >= self.channel_max:
            raise NotAllowed(
                f"number of channels opened has reached channel_max {self.channel_max}"
            )
        require_channel_limit(self.broker, self.user)
        channel = self.channels[number] = self.channel_type(self, number)
        self.wire.open_channel(number, channel)
        self.broker.counters.channels_opened += 1
        self.broker.events.channel(self, number, "created")
        self._send_method(number, ChannelOpenOk(""))

    def close_channel(self, number: int) -> None:
        """The client closes the channel, perhaps while we close it too, or twice: the second close
        was deferred with the first. Each is answered, as in RabbitMQ."""
        self._end_channel(number)
        self.wire.remove_channel(number)
        self._send_method(number, commands.Channel.CloseOk())

    def _on_channel_close_ok(self, number: int) -> None:
        if self.wire.channels[number].state is ChannelState.CLOSING:
            self.wire.remove_channel(number)

    def refuse(
        self, number: int, error: BrokerError, method: tuple[int, int] | None = None
    ) -> None:
        """Close one channel because of an error. `method` caused it, by default the last one."""
        if not error.closes_channel_only:
            raise error
        wire_channel = self.wire.channels.get(number)
        if wire_channel is None or wire_channel.state is ChannelState.CLOSING:
            return
        self.wire.begin_channel_close(number)
        class_id, method_id = self.wire.last_method if method is None else method
        self._log_error(logging.INFO, f" channel {number}", error)
        close = commands.Channel.Close(int(error.code), error.reply_text, class_id, method_id)
        self._end_channel(number)
        self._send_method(number, close)
        self.on_channel_idle()

    def _end_channel(self, number: int) -> None:
        channel = self.channels.pop(number, None)
        if channel is not None:
            if channel in self._confirming:
                Cleanup(self.name).run(self.flush)
            with channel.acting():
                channel.close()
            self.broker.counters.channels_closed += 1
            self.broker.events.channel(self, number, "closed")

    def recheck_permissions(self) -> None:
        """The user's permissions have changed: cancel consumers that may no longer read."""
        for channel in list(self.channels.values()):
            channel.recheck_permissions()

    @property
    def wants_cancel_notify(self) -> bool:
        return self._capabilities.get("consumer_cancel_notify") is True

    # Closing -----------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self._has_ended

    def close(self, reason: str) -> None:
        """An operator, or the shutdown of the broker, closes the connection."""
        if self.wire.state is ConnectionState.CLOSED:
            self.transport.close()
        else:
            self.fail(ConnectionForced(reason))

    def _on_close(self, _method: Any) -> None:
        """The client closes: exclusive queues are deleted before it gets close-ok."""
        if self.wire.state is ConnectionState.CLOSING:  # our close crossed it: await the answer
            self._send_method(0, commands.Connection.CloseOk())
            self.flush()
        elif any(channel.is_waiting for channel in self.channels.values()):
            # Methods sent before the close are still deferred: close after them.
            self.wire.advance(ConnectionEvent.CLOSE_RECEIVED)
        else:
            self.end()
            self._send_method(0, commands.Connection.CloseOk())
            self.wire.advance(ConnectionEvent.CLOSED)
            self.flush()
            self._discard_until_disconnected()

    def _discard_until_disconnected(self) -> None:
        """The client may still be writing. If we closed the socket now, its writes would fail,
        perhaps before it has read our close-ok."""
        self.wire.ignore_input()
        self.flow.keep_reading()
        self.transport.close_in(min(self.heartbeat or DISCONNECT_SECONDS, DISCONNECT_SECONDS))

    def on_channel_idle(self) -> None:
        """A channel has no deferred methods any more: a pending close of the client may go on."""
        if self.wire.state is ConnectionState.CLOSE_RECEIVED and not self._has_ended:
            self._on_close(None)

    def _on_close_ok(self, _method: Any) -> None:
        self.wire.advance(ConnectionEvent.CLOSED)
        self.transport.close()

    def _on_update_secret(self, _method: Any) -> None:
        self._send_method(0, commands.Connection.UpdateSecretOk())

    def drop(self, reason: str) -> None:
        """Disconnect without an AMQP close: a peer that has not logged in may not speak AMQP."""
        if self.wire.state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
            return  # already logged and closing
        facts = {"event": "refused", "peer": self.transport.peer[0], "why": reason}
        log.warning("%s: dropped: %s", self.name, reason, extra={"facts": facts})
        self.wire.advance(ConnectionEvent.CLOSED)
        self.transport.close()
        self.transport.close_in(LOST_FRAMING_GRACE_SECONDS)  # TLS would wait for its close_notify

    def fail(self, error: BrokerError, is_logged: bool = False) -> None:
        """Close the connection because of an error of the peer, or because we have to."""
        if self.wire.state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
            return
        if self.wire.state is ConnectionState.AWAIT_HEADER:
            self.transport.close()
            return
        is_forced = isinstance(error, ConnectionForced)
        class_id, method_id = NO_METHOD if is_forced else self.wire.last_method
        if not is_logged:
            self._log_error(logging.WARNING, ": closing", error)
        self.end()
        self.wire.advance(ConnectionEvent.CLOSE_SENT)
        self._send_method(
            0,
            commands.Connection.Close(int(error.code), error.reply_text, class_id, method_id),
        )
        self.flush()
        self.flow.keep_reading()  # the answer, and what the client writes before it
        self.transport.close_in(
            LOST_FRAMING_GRACE_SECONDS if self.wire.ignores_input else CLOSE_GRACE_SECONDS
        )

    def _log_error(self, level: int, subject: str, error: BrokerError) -> None:
        facts = {"event": "refused", "code": int(error.code), "user": self.user.name}
        facts |= {"vhost": self.vhost.name, "peer": self.transport.peer[0]}
        log.log(level, "%s%s: %s", self.name, subject, error.reply_text, extra={"facts": facts})

    def end(self) -> None:
        """Release everything this connection holds. Further calls do nothing."""
        if self._has_ended:
            return
        self._has_ended = True
        cleanup = Cleanup(self.name)
        cleanup.run(self.wire.drop_contents)
        for number in list(self.channels):
            cleanup.run(self._end_channel, number)
        for queue in self.vhost.take_exclusive_queues(self):
            cleanup.run(self.vhost.remove_queue, queue)
        cleanup.run(self._unregister)

    def _unregister(self) -> None:
        if self.broker.connections.pop(self, _MISSING) is not _MISSING:
            self.broker.counters.connections_closed += 1
            self.vhost.counters.received += self.flow.received
            self.vhost.counters.sent += self.sent
            self.broker.events.connection(self, "closed")

    def on_connection_aborted(self) -> None:
        """The transport aborts the connection; the reason has been logged."""
        self.wire.advance(ConnectionEvent.CLOSED)

    def on_connection_lost(self) -> None:
        """The socket is closed: release everything, and break the reference cycles."""
        self._log_early_disconnect()
        self.flow.on_write_buffer_full()
        self.end()
        self.out.clear()  # the tick's flush has nowhere to write
        self.flow.unsent.clear()
        self.wire.detach()
        self.flow.detach()

    def _log_early_disconnect(self) -> None:
        """Log a client that left before it opened a vhost, unless another line says why.

        A port scan sends nothing, and is logged at debug level only.
        """
        if self.wire.state not in _ENDS_ARE_LOGGED:
            level = logging.INFO if self.flow.received else logging.DEBUG
            facts = {"event": "connection left", "user": self.user.name}
            facts |= {"peer": self.transport.peer[0]}
            text = "%s: disconnected before it opened a vhost"
            log.log(level, text, self.name, extra={"facts": facts})

    # Alarms ------------------------------------------------------------------------------------

    def on_first_publish(self) -> None:
        self.flow.on_first_publish()
        if self.broker.alarms.reason:
            self.block(self.broker.alarms.reason)

    @property
    def is_blocked(self) -> bool:
        return PauseReason.ALARM in self.flow.gate

    def block(self, reason: str) -> None:
        """An alarm: stop reading if this connection publishes or keeps many partial bytes."""
        flow = self.flow
        is_publisher = flow.publishes or flow.partial_bytes > PARTIAL_BYTES_TOLERATED
        if is_publisher and not self.is_blocked:
            if self._waits_for_failed_store():
                self.fail(BrokerError(reason))
                return
            flow.pause(PauseReason.ALARM)
            if self._capabilities.get("connection.blocked") is True:
                self._send_method(0, commands.Connection.Blocked(reason))

    def _waits_for_failed_store(self) -> bool:
        """It has a transaction, and a failed store never answers a commit."""
        return self.broker.store.state is StoreState.FAILED and any(
            channel.transaction is not None for channel in self.channels.values()
        )

    def unblock(self) -> None:
        if self.is_blocked:
            self.flow.resume(PauseReason.ALARM)
            if self._capabilities.get("connection.blocked") is True:
                self._send_method(0, commands.Connection.Unblocked())


_MISSING = object()
_ENDS_ARE_LOGGED = (
    ConnectionState.OPEN,
    ConnectionState.CLOSE_RECEIVED,
    ConnectionState.CLOSING,
    ConnectionState.CLOSED,
)
_CONNECTION_HANDLERS: dict[type[Method], Callable[[AmqpConnection, Any], None]] = {
    commands.Connection.StartOk: AmqpConnection._on_start_ok,
    commands.Connection.TuneOk: AmqpConnection._on_tune_ok,
    commands.Connection.Open: AmqpConnection._on_open,
    commands.Connection.Close: AmqpConnection._on_close,
    commands.Connection.CloseOk: AmqpConnection._on_close_ok,
    commands.Connection.UpdateSecret: AmqpConnection._on_update_secret,
}
