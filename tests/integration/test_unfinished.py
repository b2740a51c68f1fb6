"""Messages of which a part has come, and what waits behind a disk: it counts as memory in use."""

from __future__ import annotations

import contextlib
import time
from collections import deque

import pytest
from pamqp.commands import Channel, Connection

from amqp_server.line import Deaf
from amqp_server.putting_off import MOST_OCTETS
from leveret.model.errors import PreconditionFailed
from leveret.testing import LeveretBroker
from tests.support import wire
from tests.support.rawclient import NothingCameError, RawClient

MIB = 1024 * 1024
PART = 128 * 1024 - 8
CHANNELS = 8
BLOCKED = {"connection.blocked": True}


@pytest.fixture
def broker():
    """The process has more than this, so half of it is left to messages."""
    with LeveretBroker(memory_high_watermark="16MiB") as broker:
        yield broker


@pytest.fixture
def connect(broker):
    with contextlib.ExitStack() as clients:

        def connect(heartbeat: int = 0) -> RawClient:
            client = clients.enter_context(RawClient(*broker.amqp_address))
            return client.handshake("/", capabilities=BLOCKED, heartbeat=heartbeat)

        yield connect


def begin(client, channel):
    """A message of 16 MiB, of which nothing has come yet."""
    client.channel(channel)
    client.send_bytes(wire.publish(channel, "", "nowhere") + wire.content_header(channel, 16 * MIB))


def fill(client):
    """Parts of messages, none of them whole, until the broker reads no more."""
    for channel in range(1, CHANNELS + 1):
        begin(client, channel)
    for number in range(100 * CHANNELS):
        client.send_bytes(wire.body(number % CHANNELS + 1, bytes(PART)))
        with contextlib.suppress(NothingCameError):
            client.expect(Connection.Blocked, timeout=0.01)
            return
    pytest.fail("not blocked by 100 MB")


def fill_the_socket(client):
    """As much as is taken without waiting."""
    for number in range(100 * CHANNELS):
        if send_some(client, wire.body(number % CHANNELS + 1, bytes(PART))):
            return
    pytest.fail("100 MB were taken from a publisher that is blocked")


def send_some(client, data):
    """What of it was not taken at once."""
    client._socket.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        data = data[client._socket.send(data) :]
    return data


def send_until_unread(broker, client, data):
    """The same again and again, until the broker reads no more; what is left, how often."""
    listening, rest, count = session_of(broker).listening, b"", 0
    deadline = time.monotonic() + 60
    while not rest or Deaf.CHANNELS_HELD not in listening:
        assert time.monotonic() < deadline and count * len(data) < 100 * MIB
        count += 0 if rest else 1
        rest = send_some(client, rest or data)
    return rest, count


def session_of(broker):
    return broker.call(lambda: next(iter(broker.running.amqp.sessions)))


def kept(broker):
    return broker.call(lambda: sum(one.kept for one in broker.running.broker.connections))


def test_unfinished_messages_raise_the_alarm_and_then_nothing_more_is_read(broker, connect):
    hostile = connect(heartbeat=10)
    fill(hostile)
    before = kept(broker)
    assert before > 8 * MIB
    fill_the_socket(hostile)
    assert kept(broker) == before
    other, consumer = connect(), connect()
    begin(other, 1)
    other.send_bytes(wire.body(1, bytes(PART)))
    other.expect(Connection.Blocked)
    assert kept(broker) <= before + 2 * PART
    assert consumer.channel().declare("alive").queue == "alive"
    hostile.drop()
    for _ in range(3):  # found out when a heartbeat does not arrive
        broker.clock.advance(6)
    other.expect(Connection.Unblocked)
    rest = bytes(16 * MIB - PART)
    for start in range(0, len(rest), PART):
        other.send_bytes(wire.body(1, rest[start : start + PART]))
    other.send(1, Channel.Close(200, "", 0, 0))
    other.expect(Channel.CloseOk, 1)
    assert kept(broker) == 0


def test_who_is_in_the_way_of_everybody_for_long_is_closed(broker, connect):
    hostile, other = connect(), connect()
    begin(other, 1)
    other.send_bytes(wire.body(1, bytes(PART)))
    fill(hostile)
    other.expect(Connection.Blocked)
    hostile.expect_silence()
    broker.clock.advance(31)
    close = hostile.expect(Connection.Close)
    assert close.reply_code == 320 and "have not come whole" in close.reply_text
    other.expect(Connection.Unblocked)
    assert kept(broker) <= 2 * PART


def test_frame_that_does_not_end_blocks_whom_it_belongs_to(broker, connect):
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
    assert kept(broker) > 100_000
    for client in (long, short, late):
        client.drop()  # a goodbye would be taken for the rest of the frame


def test_closed_channel_keeps_nothing(broker, connect):
    client = connect()
    begin(client, 1)
    client.send_bytes(wire.body(1, bytes(PART)))
    second = client.channel(2)
    second.declare("in order")
    assert kept(broker) > PART
    session = session_of(broker)
    broker.call(lambda: session.refuse(1, PreconditionFailed("a test says so")))
    client.expect(Channel.Close, 1)
    assert kept(broker) == 0


def test_what_waits_behind_a_disk_is_bounded(broker, connect):
    client = connect()
    client.channel(1)
    session = session_of(broker)
    channel = broker.call(lambda: session.channels[1])
    broker.call(lambda: setattr(channel, "inbox", deque()))  # as if held by the disk
    message = wire.publish(1, "", "nowhere") + wire.content_header(1, 65_536)
    message += wire.body(1, bytes(65_536))
    rest, sent = send_until_unread(broker, client, message)
    assert MOST_OCTETS < kept(broker) < 2 * MOST_OCTETS
    broker.call(lambda: channel.go_on(lambda: None))
    client.send_bytes(rest)
    client.send(1, Channel.Flow(True))
    client.expect(Channel.FlowOk, 1)
    assert channel.published == sent
    assert kept(broker) == 0


def test_methods_that_wait_count_and_are_forgotten_with_their_channel(broker, connect):
    client = connect()
    client.channel(1)
    session = session_of(broker)
    broker.call(lambda: setattr(session.channels[1], "inbox", deque()))
    rest, _ = send_until_unread(broker, client, 1_000 * wire.encode(1, Channel.Flow(True)))
    assert kept(broker) < 3 * MOST_OCTETS
    broker.call(lambda: session.refuse(1, PreconditionFailed("a test says so")))
    client.expect(Channel.Close, 1)
    client.send_bytes(rest)
    assert client.channel(2).declare("alive").queue == "alive"
    assert kept(broker) == 0
