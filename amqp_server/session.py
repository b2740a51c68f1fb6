"""A connection's meaning: log in, tune, open, channels come and go, and it ends exactly once.

The wire calls in; what is to be said gathers in `out` and is written once per loop turn. A soft
error closes its channel and nothing else; a hard one leaves through `receive` and closes the
connection; anything else is our bug: logged once, closed with internal-error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from amqp_server.channel import Channel
from amqp_server.codec import (
    HEARTBEAT_FRAME,
    ChannelOpenOk,
    Method,
    Publish,
    commands,
    encode_method,
)
from amqp_server.describe import describe_connection
from amqp_server.ending import Ending
from amqp_server.line import OURS, Deaf, Line, Listening
from amqp_server.login import SMALLEST_FRAME_MAX, agree, begin, enter, mechanisms, server_properties
from amqp_server.putting_off import TABLE_FACTOR, PuttingOff
from amqp_server.reading import KEPT_UNNOTICED, NOBODY, hear_out, receive
from amqp_server.wire import (
    ChannelState,
    ConnectionState,
    Wire,
    WireChannel,
)
from leveret.broker import Broker, VirtualHost
from leveret.model.errors import (
    BrokerError,
    ConnectionForced,
    NotAllowed,
)
from leveret.model.message import Message
from leveret.model.store import StoreState

log = logging.getLogger("leveret.amqp")

FLUSH_AT = 64 * 1024
MOST_UNREAD = 1024 * 1024
CLOSE_GRACE_SECONDS = 5.0
QUIET_SECONDS = 5.0
"""How long a client without heartbeats is left alone."""
DEAF_GRACE_SECONDS = 1.0
"""Framing is lost, or was never there, so nothing is heard: only time to read what we said."""


class Session:
    channel_type: type[Channel] = Channel
    describe = describe_connection
    receive = receive
    hear_out = hear_out

    def __init__(self, broker: Broker, line: Line) -> None:
        self.broker = broker
        self.line = line
        self.wire = Wire(self, broker.settings.max_message_size)
        self.name = f"{line.peer[0]}:{line.peer[1]} -> {line.local[0]}:{line.local[1]}"
        self.user = NOBODY
        self.vhost: VirtualHost = broker.vhosts[next(iter(broker.vhosts))]
        self.channels: dict[int, Channel] = {}
        self.client_properties: dict[str, Any] = {}
        self.capabilities: dict[str, Any] = {}
        self.mechanism = ""
        self.frame_max = SMALLEST_FRAME_MAX
        self.channel_max = broker.settings.channel_max
        self.heartbeat = 0
        self.now_ms = self.connected_ms = broker.clock.wall_ms()
        self.out: list[bytes] = []
        self.out_size = 0
        self.writable = True
        self.publishes = False
        self.received = self.sent = 0
        self.last_received = self.last_sent = self.connected = broker.clock.monotonic()
        self._confirming: dict[Channel, None] = {}
        self.listening = Listening(line)
        self.putting_off = PuttingOff(self.listening)
        self._is_leaving = False
        self._ended = False

    def __repr__(self) -> str:
        return f"<Session {self.name} {self.wire.state.name} channels={len(self.channels)}>"

    # Bytes -------------------------------------------------------------------------------------

    def let_go(self) -> None:
        """The store has caught up: go on reading this publisher."""
        self.last_received = self.broker.clock.monotonic()
        self.listening.go_on(Deaf.DISK_BEHIND)

    def send(self, frame: bytes) -> None:
        self.out.append(frame)
        self.wrote(len(frame))

    def wrote(self, size: int) -> None:
        """So many octets have been put into `out`."""
        self.out_size += size
        if self.out_size > FLUSH_AT:
            self.flush()
        else:
            self.broker.turn.speak(self)

    def confirm(self, channel: Channel) -> None:
        """This channel has confirms to send at the end of the turn."""
        self._confirming[channel] = None
        self.broker.turn.speak(self)

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
        if self.out:
            data = b"".join(self.out)
            self.out.clear()
            self.out_size = 0
            self.sent += len(data)
            self.last_sent = self.broker.clock.monotonic()
            self.line.write(data)
            if self.is_choked:
                self.listening.stop(Deaf.ANSWERS_UNREAD)

    def pause(self) -> None:
        """The socket is full: no consumer here has credit until it drains."""
        self.writable = False

    @property
    def is_choked(self) -> bool:
        """More has been written than the peer has cared to read."""
        return not self.writable and self.line.unread() > MOST_UNREAD

    def resume(self) -> None:
        self.writable = True
        self.listening.go_on(Deaf.ANSWERS_UNREAD)
        waiting, self.putting_off.until_read = self.putting_off.until_read, []
        for call in waiting:
            call()
        for channel in self.channels.values():
            for consumer in channel.consumers.values():
                self.broker.turn.touch(consumer.queue)
            if channel.replies.queue is not None:
                self.broker.turn.touch(channel.replies.queue)

    def beat(self, now: float) -> float:
        """Log-in limit, heartbeats both ways; for how many seconds it may then be left alone."""
        if self.wire.state is not ConnectionState.OPEN:
            if now - self.connected > self.broker.settings.handshake_timeout:
                self.drop("has not logged in in time")
            return 0
        interval = self.heartbeat
        if not interval:
            return QUIET_SECONDS
        if self.listening.is_stopped_by(OURS):
            self.last_received = now
        if now - self.last_received > 2.5 * interval:
            log.warning("%s: no heartbeat for %d s, closing", self.name, int(2.5 * interval))
            self.end()
            self.wire.deaf = True  # TLS may still bring what came too late
            self.line.end()
        elif now - self.last_sent >= interval / 2:
            self.last_sent = now
            self.line.write(HEARTBEAT_FRAME)
        return min(self.last_sent + interval / 2, self.last_received + 2.5 * interval) - now

    # From the wire -----------------------------------------------------------------------------

    def on_header(self) -> None:
        ours = server_properties(self.broker)
        self._say(0, commands.Connection.Start(0, 9, ours, mechanisms(self), "en_US"))

    def on_publish(self, channel: int, publish: Publish, messages: list[Message]) -> None:
        meant = self.channels[channel]
        try:
            if meant.inbox is None:
                meant.on_publish(publish, messages)
            else:
                call = partial(meant.on_publish, publish, messages)
                octets = sum([len(message.frames) for message in messages])
                self.putting_off.add(meant, octets, partial(self._name_and_call, (60, 40), call))
        except BrokerError as error:
            self.wire.last_method = (60, 40)
            self.refuse(channel, error)
        if not self.publishes:
            self._starts_publishing()

    def on_ack(self, channel: int, tags: list[int], multiple: bool) -> None:
        meant = self.channels[channel]
        try:
            if meant.inbox is None:
                meant.on_ack(tags, multiple)
            else:
                call = partial(meant.on_ack, tags, multiple)
                octets = 64 * len(tags)
                self.putting_off.add(meant, octets, partial(self._name_and_call, (60, 80), call))
        except BrokerError as error:
            self.refuse(channel, error)

    def on_refused_content(self, channel: int, error: BrokerError) -> None:
        self.wire.last_method = (60, 40)
        self.refuse(channel, error)

    def on_method(self, channel: int, method: Method, table: bytes) -> None:
        if channel == 0:
            _CONNECTION_HANDLERS[type(method)](self, method)
        elif isinstance(method, commands.Channel.Open):
            self._open_channel(channel)
        elif isinstance(method, commands.Channel.CloseOk):
            self._channel_closed(channel)
        else:
            meant = self.channels.get(channel)
            if meant is not None and meant.inbox is not None:
                octets = TABLE_FACTOR * len(table)
                self.putting_off.add(meant, octets, lambda: self._handle(channel, method, table))
            else:
                self._handle(channel, method, table)

    def _handle(self, channel: int, method: Method, table: bytes) -> None:
        if isinstance(method, commands.Channel.Close):
            self._close_channel(channel)
            return
        meant = self.channels.get(channel)
        if meant is None:
            return
        try:
            meant.on_method(method, table)
        except BrokerError as error:
            self.wire.last_method = (method.index >> 16, method.index & 0xFFFF)
            self.refuse(channel, error)

    def _name_and_call(self, method: tuple[int, int], call: Callable[[], None]) -> None:
        """What a held channel had put off; an error in it names this method."""
        self.wire.last_method = method
        call()

    def run(self, channel: int, call: Callable[[], None]) -> None:
        """Go on with something a channel had put off, with the same care for errors."""
        if self._ended:
            return
        try:
            call()
        except BrokerError as error:
            if error.closes_channel_only:
                self.refuse(channel, error)
            else:
                self.fail(error)

    # Channels ----------------------------------------------------------------------------------

    def _open_channel(self, number: int) -> None:
        if len(self.channels) >= self.channel_max:
            raise NotAllowed(
                f"number of channels opened has reached channel_max {self.channel_max}"
            )
        self.broker.require_channel_room(self.user)
        self.wire.channels[number] = WireChannel()
        self.channels[number] = self.channel_type(self, number)
        self.broker.counters.channels_opened += 1
        self.broker.events.channel(self, number, "created")
        self._say(number, ChannelOpenOk(""))

    def _close_channel(self, number: int) -> None:
        """The client closes it (perhaps while we do)."""
        self._end_channel(number)
        del self.wire.channels[number]
        self._say(number, commands.Channel.CloseOk())

    def _channel_closed(self, number: int) -> None:
        """The client answered our close: the number is free."""
        if self.wire.channels[number].state is ChannelState.CLOSING:
            del self.wire.channels[number]

    def refuse(self, number: int, error: BrokerError) -> None:
        """Close one channel because of what was asked on it."""
        if not error.closes_channel_only:
            raise error
        held = self.wire.channels.get(number)
        if held is None or held.state is ChannelState.CLOSING:
            return
        self.wire.close_channel(held)
        class_id, method_id = self.wire.last_method
        self._tell_of(logging.INFO, f" channel {number}", error)
        close = commands.Channel.Close(int(error.code), error.reply_text, class_id, method_id)
        self._end_channel(number)
        self._say(number, close)
        self.caught_up()

    def _end_channel(self, number: int) -> None:
        channel = self.channels.pop(number, None)
        if channel is not None:
            if channel in self._confirming:
                Ending(self.name).take(self.flush)
            with channel.acting():
                channel.close()
            self.broker.counters.channels_closed += 1
            self.broker.events.channel(self, number, "closed")

    # The connection ----------------------------------------------------------------------------

    def _say(self, channel: int, method: Method) -> None:
        self.send(encode_method(channel, method))

    def _update_secret(self, method: Any) -> None:
        self._say(0, commands.Connection.UpdateSecretOk())

    def _close(self, method: Any) -> None:
        """The client goes: exclusive queues are gone before it is told close-ok."""
        self._is_leaving = any(one.inbox is not None for one in self.channels.values())
        if self._is_leaving:
            return  # what it sent before counts: close behind it
        self.end()
        self._say(0, commands.Connection.CloseOk())
        if self.wire.state is ConnectionState.CLOSING:  # ours crossed it; its answer will come
            self.flush()
            return
        self.wire.state = ConnectionState.CLOSED
        self.flush()
        self.line.end()

    def caught_up(self) -> None:
        """A channel has nothing put off any more: a client that waited for it may leave."""
        if self._is_leaving and not self._ended:
            self._close(None)

    def _close_ok(self, method: Any) -> None:
        self.wire.state = ConnectionState.CLOSED
        self.line.end()

    def drop(self, why: str) -> None:
        """End it without a word about why: who has not logged in may not even speak AMQP."""
        if self.wire.state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
            return  # it has its line, and its end
        facts = {"event": "refused", "peer": self.line.peer[0], "why": why}
        log.warning("%s: dropped: %s", self.name, why, extra={"facts": facts})
        self.wire.state = ConnectionState.CLOSED
        self.line.end()
        self.line.end_in(DEAF_GRACE_SECONDS)  # TLS would wait for its goodbye, and keep its place

    def fail(self, error: BrokerError, is_told: bool = False) -> None:
        """Close the connection because of what the peer did (or because we must)."""
        if self.wire.state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
            return
        if self.wire.state is ConnectionState.AWAIT_HEADER:
            self.line.end()
            return
        class_id, method_id = (
            self.wire.last_method if not isinstance(error, ConnectionForced) else (0, 0)
        )
        if not is_told:
            self._tell_of(logging.WARNING, ": closing", error)
        self.end()
        self.wire.state = ConnectionState.CLOSING
        self._say(
            0,
            commands.Connection.Close(int(error.code), error.reply_text, class_id, method_id),
        )
        self.flush()
        self.line.end_in(DEAF_GRACE_SECONDS if self.wire.deaf else CLOSE_GRACE_SECONDS)

    def _tell_of(self, level: int, what: str, error: BrokerError) -> None:
        facts = {"event": "refused", "code": int(error.code), "user": self.user.name}
        facts |= {"vhost": self.vhost.name, "peer": self.line.peer[0]}
        log.log(level, "%s%s: %s", self.name, what, error.reply_text, extra={"facts": facts})

    def close(self, reason: str) -> None:
        """An operator, or the end of the broker, closes it."""
        self.fail(ConnectionForced(reason))

    @property
    def is_over(self) -> bool:
        return self._ended

    def review_rights(self) -> None:
        """The user's rights have changed: consumers of what it may no longer read are cancelled."""
        for channel in list(self.channels.values()):
            channel.review_rights()

    def end(self) -> None:
        """Give back everything this connection held. Twice is free."""
        if self._ended:
            return
        self._ended = True
        ending = Ending(self.name)
        ending.take(self.wire.forget_contents)
        for number in list(self.channels):
            ending.take(self._end_channel, number)
        for queue in self.vhost.disown(self):
            ending.take(self.vhost.forget_queue, queue)
        ending.take(self._leave)

    def _leave(self) -> None:
        if self.broker.connections.pop(self, _MISSING) is not _MISSING:
            self.broker.counters.connections_closed += 1
            self.vhost.counters.received += self.received
            self.vhost.counters.sent += self.sent
            self.broker.events.connection(self, "closed")

    # Blocking publishers -----------------------------------------------------------------------

    def _starts_publishing(self) -> None:
        self.publishes = True
        if self.broker.alarms.reason:
            self.block(self.broker.alarms.reason)

    @property
    def kept(self) -> int:
        """Octets of what has not come whole, or waits for its turn or for a disk."""
        return self.wire.kept + self.wire.set_aside_octets + self.putting_off.octets

    @property
    def blocked(self) -> bool:
        return Deaf.ALARM in self.listening

    def block(self, reason: str) -> None:
        """An alarm: not to be read are publishers, and who keeps much that has not come whole."""
        if (self.publishes or self.wire.kept > KEPT_UNNOTICED) and not self.blocked:
            if self._waits_in_vain():
                self.fail(BrokerError(reason))
                return
            self.listening.stop(Deaf.ALARM)
            if self.capabilities.get("connection.blocked") is True:
                self._say(0, commands.Connection.Blocked(reason))

    def _waits_in_vain(self) -> bool:
        """For a commit that a store which has failed will never answer."""
        return self.broker.store.state is StoreState.FAILED and any(
            one.transaction is not None for one in self.channels.values()
        )

    def unblock(self) -> None:
        if self.blocked:
            self.listening.go_on(Deaf.ALARM)
            self.last_received = self.broker.clock.monotonic()
            if self.capabilities.get("connection.blocked") is True:
                self._say(0, commands.Connection.Unblocked())

    @property
    def wants_cancel_notify(self) -> bool:
        return self.capabilities.get("consumer_cancel_notify") is True


_MISSING = object()
_CONNECTION_HANDLERS: dict[type[Method], Callable[[Session, Any], None]] = {
    commands.Connection.StartOk: begin,
    commands.Connection.TuneOk: agree,
    commands.Connection.Open: enter,
    commands.Connection.Close: Session._close,
    commands.Connection.CloseOk: Session._close_ok,
    commands.Connection.UpdateSecret: Session._update_secret,
}
