"""Incomplete messages and deferred methods count as memory in use, and are limited."""

from __future__ import annotations

import contextlib
import time

import pytest
from pamqp.commands import Channel, Connection

from leveret.amqp_server.flow_control import MAX_DEFERRED_BYTES, PauseReason
from leveret.model.errors import PreconditionFailed
from leveret.testing import LeveretBroker
from tests.support import wire
from tests.support.polling import wait_until
from tests.support.rawclient import NoFrameError, RawClient

MIB = 1024 * 1024
PART = 128 * 1024 - 8
CHANNELS = 8
BLOCKED = {"connection.blocked": True}


@pytest.fixture
def broker():
    """The process uses more than this, so messages may use half of it."""
    with LeveretBroker(memory_high_watermark="16MiB") as broker:
        yield broker


@pytest.fixture
def connect(broker):
    with contextlib.ExitStack() as clients:

        def connect(heartbeat: int = 0) -> RawClient:
            client = clients.enter_context(RawClient(*broker.amqp_address))
            return client.handshake("/", capabilities=BLOCKED, heartbeat=heartbeat)

        yield connect


def begin(client, channel, size=16 * MIB):
    """Announce a message, without any of its body."""
    client.channel(channel)
    client.send_bytes(wire.publish(channel, "", "nowhere") + wire.content_header(channel, size))


def fill(client):
    """Send parts of messages, none of them complete, until the broker stops reading."""
    for channel in range(1, CHANNELS + 1):
        begin(client, channel)
    for number in range(100 * CHANNELS):
        client.send_bytes(wire.body(number % CHANNELS + 1, bytes(PART)))
        with contextlib.suppress(NoFrameError):
            client.expect(Connection.Blocked, timeout=0.01)
            return
    pytest.fail("not blocked by 100 MB")


def fill_the_socket(client):
    """Send as much as the socket takes without blocking."""
    for number in range(100 * CHANNELS):
        if send_some(client, wire.body(number % CHANNELS + 1, bytes(PART))):
            return
    pytest.fail("a blocked publisher could send 100 MB")


def send_some(client, data):
    """Send without blocking; returns what was not sent."""
    client._socket.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        data = data[client._socket.send(data) :]
    return data


def send_until_unread(broker, client, data):
    """Send the same data until the broker stops reading; returns the unsent rest and the count."""
    gate, rest, count = connection_of(broker).flow.gate, b"", 0
    deadline = time.monotonic() + 60
    while not rest or PauseReason.CHANNELS_WAITING not in gate:
        assert time.monotonic() < deadline and count * len(data) < 100 * MIB
        count += 0 if rest else 1
        rest = send_some(client, rest or data)
    return rest, count


def connection_of(broker):
    return broker.call(lambda: next(iter(broker.running.amqp.connections)))


def pending(broker):
    return broker.call(
        lambda: sum(each.pending_bytes for each in broker.running.broker.connections)
    )


def test_incomplete_messages_raise_the_memory_alarm(broker, connect):
    broker.clock.freeze()  # on a slow machine, the incomplete messages would become too old
    hostile = connect(heartbeat=10)
    fill(hostile)
    wait_until(lambda: PauseReason.ALARM in connection_of(broker).flow.gate)
    before = pending(broker)
    assert before > 8 * MIB
    fill_the_socket(hostile)
    assert pending(broker) == before
    other, consumer = connect(), connect()
    begin(other, 1, MIB)
    other.send_bytes(wire.body(1, bytes(PART)))
    other.expect(Connection.Blocked)
    assert pending(broker) <= before + 2 * PART
    assert consumer.channel().declare("alive").queue == "alive"
    hostile.drop()
    for _ in range(3):  # detected by missing heartbeats
        broker.clock.advance(6)
    other.expect(Connection.Unblocked)
    rest = bytes(MIB - PART)  # far less than would raise the alarm again
    for start in range(0, len(rest), PART):
        other.send_bytes(wire.body(1, rest[start : start + PART]))
    other.send(1, Channel.Close(200, "", 0, 0))
    other.expect(Channel.CloseOk, 1)
    assert pending(broker) == 0


def test_connection_that_keeps_up_the_memory_alarm_is_closed(broker, connect):
    hostile, other = connect(), connect()
    begin(other, 1)
    other.send_bytes(wire.body(1, bytes(PART)))
    fill(hostile)
    other.expect(Connection.Blocked)
    hostile.expect_silence()
    broker.clock.advance(31)
    close = hostile.expect(Connection.Close)
    assert close.reply_code == 320 and "bytes of incomplete messages" in close.reply_text
    other.expect(Connection.Unblocked)
    assert pending(broker) <= 2 * PART


def test_alarm_blocks_connections_with_large_partial_frames(broker, connect):
    long, short = connect(), connect()
    long.send_bytes(wire.frame(wire.METHOD, 1, bytes(50_000))[:-1])
    short.send_bytes(wire.frame(wire.METHOD, 0, bytes(1_000))[:-1])
    with broker.block_publishers():
        late = connect()
        late.send_bytes(wire.frame(wire.METHOD, 1, bytes(50_000))[:-1])
        long.expect(Connection.Blocked)
        late.expect(Connection.Blocked)
        short.expect_silence()
    for client in (long, late):
        client.expect(Connection.Unblocked)
    assert pending(broker) > 100_000
    for client in (long, short, late):
        client.drop()  # connection.close would be read as the rest of the frame


def test_closed_channel_drops_its_incomplete_message(broker, connect):
    client = connect()
    begin(client, 1)
    client.send_bytes(wire.body(1, bytes(PART)))
    second = client.channel(2)
    second.declare("in order")
    assert pending(broker) > PART
    connection = connection_of(broker)
    broker.call(lambda: connection.refuse(1, PreconditionFailed("closed by a test")))
    client.expect(Channel.Close, 1)
    assert pending(broker) == 0


def test_deferred_publishes_are_limited(broker, connect):
    client = connect()
    client.channel(1)
    connection = connection_of(broker)
    channel = broker.call(lambda: connection.channels[1])
    broker.call(lambda: channel.begin_waiting())  # as if it waited for the disk
    message = wire.publish(1, "", "nowhere") + wire.content_header(1, 65_536)
    message += wire.body(1, bytes(65_536))
    rest, sent = send_until_unread(broker, client, message)
    assert MAX_DEFERRED_BYTES < pending(broker) < 2 * MAX_DEFERRED_BYTES
    broker.call(lambda: channel.resume(lambda: None))
    client.send_bytes(rest)
    client.send(1, Channel.Flow(True))
    client.expect(Channel.FlowOk, 1)
    assert channel.published == sent
    assert pending(broker) == 0


def test_deferred_methods_are_limited_and_dropped_with_their_channel(broker, connect):
    client = connect()
    client.channel(1)
    connection = connection_of(broker)
    broker.call(lambda: connection.channels[1].begin_waiting())
    rest, _ = send_until_unread(broker, client, 1_000 * wire.encode(1, Channel.Flow(True)))
    assert pending(broker) < 3 * MAX_DEFERRED_BYTES
    broker.call(lambda: connection.refuse(1, PreconditionFailed("closed by a test")))
    client.expect(Channel.Close, 1)
    client.send_bytes(rest)
    assert client.channel(2).declare("alive").queue == "alive"
    assert pending(broker) == 0
