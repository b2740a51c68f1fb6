"""Memory alarms by headers, replies, delayed messages and open transactions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial

import pika
import pytest
from pamqp.commands import Connection
from pika.exceptions import ChannelClosedByBroker

from leveret.testing import LeveretBroker
from tests.support import wire
from tests.support.rawclient import NoFrameError, RawClient

MIB = 1024 * 1024
HEADERS = pika.BasicProperties(headers={"h": "x" * 100_000})


@pytest.fixture
def broker():
    """The process is over this limit, so messages may use half of it."""
    with LeveretBroker(memory_high_watermark="16MiB") as broker:
        yield broker


@pytest.fixture
def url(broker):
    return broker.url


@pytest.fixture
def client(broker):
    with RawClient(*broker.amqp_address) as client:
        yield client.handshake("/", capabilities={"connection.blocked": True})


def listen(connection):
    """A list that grows with connection.blocked and connection.unblocked."""
    received: list[str] = []
    connection.add_on_connection_blocked_callback(lambda *_: received.append("blocked"))
    connection.add_on_connection_unblocked_callback(lambda *_: received.append("unblocked"))
    return received


def until(connection, condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        connection.process_data_events(0.05)


def publish_until(connection, is_blocked, publish):
    """Publish one by one: a blocked client that fills the socket buffers would wait for ever."""
    deadline = time.monotonic() + 60
    while not is_blocked():
        assert time.monotonic() < deadline
        publish()
        connection.process_data_events(0.01)


def test_headers_count_as_memory(url):
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        received = listen(connection)
        channel = connection.channel()
        channel.queue_declare("memory")
        publish = partial(channel.basic_publish, "", "memory", b"", HEADERS)
        publish_until(connection, lambda: received == ["blocked"], publish)
        with pika.BlockingConnection(pika.URLParameters(url)) as other:
            other.channel().queue_purge("memory")
        until(connection, lambda: received == ["blocked", "unblocked"])


@pytest.mark.parametrize("first", ["memory", "disk"])
def test_unblocked_is_sent_when_the_last_alarm_is_cleared(broker, url, first):
    alarms = broker.running.broker.alarms

    def is_only_alarm(name):
        return broker.call(lambda: list(alarms.raised)) == [name]

    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        received = listen(connection)
        channel = connection.channel()
        channel.queue_declare("memory")
        publish = partial(channel.basic_publish, "", "memory", b"x" * 100_000)
        publish_until(connection, lambda: received == ["blocked"], publish)
        broker.call(lambda: alarms.set("disk", "low on disk"))
        with pika.BlockingConnection(pika.URLParameters(url)) as other:
            end: dict[str, Callable[[], object]] = {
                "memory": partial(other.channel().queue_purge, "memory"),
                "disk": lambda: broker.call(lambda: alarms.set("disk", "")),
            }
            last = "disk" if first == "memory" else "memory"
            end[first]()
            until(connection, lambda: is_only_alarm(last))
            connection.process_data_events(0.2)
            assert received == ["blocked"]
            end[last]()
            until(connection, lambda: received == ["blocked", "unblocked"])


def test_memory_is_checked_after_received_bytes_and_not_only_by_the_clock(broker, client):
    """In a quarter of a second a publisher can send hundreds of megabytes."""
    tasks = broker.running.broker.resource_monitor._tasks
    broker.call(lambda: [task.cancel() for task in tasks])  # no timed checks any more
    channel = client.channel()
    channel.declare("memory")
    message = wire.publish(1, "", "memory") + wire.content_header(1, 100_000)
    message += wire.body(1, bytes(100_000))
    for _ in range(1_000):
        client.send_bytes(message)
        with contextlib.suppress(NoFrameError):
            client.expect(Connection.Blocked, timeout=0.01)
            break
    else:
        pytest.fail("100 MB passed a watermark of 16 MiB")


def test_unread_replies_count_as_memory(broker, client):
    requester = client.channel()
    requester.consume("amq.rabbitmq.reply-to", no_ack=True)
    [name] = broker.call(lambda: list(broker.running.broker.vhosts["/"].reply_queues))
    with RawClient(*broker.amqp_address) as other:
        other.handshake("/", capabilities={"connection.blocked": True})
        channel = other.channel()
        reply = wire.publish(1, "", name) + wire.content_header(1, 100_000)
        reply += wire.body(1, bytes(100_000))
        for _ in range(1_000):
            other.send_bytes(reply)
            with contextlib.suppress(NoFrameError):
                other.expect(Connection.Blocked, timeout=0.01)
                break
        else:
            pytest.fail("not blocked by 100 MB")
        client.drop()
        other.expect(Connection.Unblocked)
        assert channel.declare("alive").queue == "alive"


def test_bcc_keys_of_delayed_messages_count_as_memory(url):
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        received = listen(connection)
        channel = connection.channel()
        arguments = {"x-delayed-type": "direct"}
        channel.exchange_declare("later", "x-delayed-message", arguments=arguments)
        headers = {"x-delay": 3_600_000, "BCC": ["k" * 240 + str(i) for i in range(400)]}
        properties = pika.BasicProperties(headers=headers)
        publish = partial(channel.basic_publish, "later", "", b"", properties)
        publish_until(connection, lambda: received == ["blocked"], publish)
        with pika.BlockingConnection(pika.URLParameters(url)) as other:
            other.channel().exchange_delete("later")
        until(connection, lambda: received == ["blocked", "unblocked"])


def test_plans_of_messages_in_open_transactions_count_as_memory(url):
    """A message with CC has its own plan, which is much larger than the message."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("all", "fanout")
        for number in range(300):
            channel.queue_declare(f"q{number}", exclusive=True)
            channel.queue_bind(f"q{number}", "all")
        channel.tx_select()
        copied = pika.BasicProperties(headers={"CC": ["k"]})
        sent = 0
        with pytest.raises(ChannelClosedByBroker, match="commit more often"):
            while sent < 10_000:
                channel.basic_publish("all", "", b"", copied)
                sent += 1
                if sent % 100 == 0:
                    connection.process_data_events()
            channel.tx_commit()


def test_open_transactions_have_a_memory_limit(url):
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare("memory")
        channel.tx_select()
        with pytest.raises(ChannelClosedByBroker, match="commit more often") as refused:
            for _ in range(10):
                channel.basic_publish("", "memory", b"x" * MIB)
            channel.tx_commit()
        assert refused.value.reply_code == 406
        for end in ("tx_commit", "tx_rollback", "close", "tx_commit"):
            channel = connection.channel()
            channel.tx_select()
            for _ in range(5):  # each transaction frees its memory when it ends
                channel.basic_publish("", "memory", b"x" * MIB)
            getattr(channel, end)()
            connection.channel().queue_purge("memory")
        channel.basic_publish("", "memory", b"last")
        channel.tx_commit()
        assert channel.basic_get("memory")[2] == b"last"
