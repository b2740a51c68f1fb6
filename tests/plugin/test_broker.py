"""`leveret.testing`: what a test can see, wait for and break."""

from __future__ import annotations

import json
import threading

import aio_pika
import pika
import pytest

from leveret.config import ConfigError
from leveret.testing import LeveretBroker, Published

LONG = 30.0


@pytest.fixture
def connection(leveret_url):
    connection = pika.BlockingConnection(pika.URLParameters(leveret_url))
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def channel(connection):
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


class TestWaiting:
    def test_depth_counts_what_is_ready(self, channel, leveret_broker):
        channel.queue_declare("q")
        for _ in range(3):
            channel.basic_publish("", "q", b"x")
        channel.basic_get("q")
        leveret_broker.wait_depth("q", 2)
        leveret_broker.wait_depth("q", 2, unacked=1)

    def test_depth_waits_for_another_thread(self, channel, leveret_broker):
        channel.queue_declare("q")
        waiter = threading.Thread(target=leveret_broker.wait_depth, args=("q", 1))
        waiter.start()
        channel.basic_publish("", "q", b"x")
        waiter.join(LONG)
        assert not waiter.is_alive()

    def test_what_was_there_instead_is_told(self, channel, leveret_broker):
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"x")
        with pytest.raises(AssertionError, match=r"queue 'q': 1 ready, 0 unacked, 0 consumers; wa"):
            leveret_broker.wait_depth("q", 2, timeout=0)
        with pytest.raises(AssertionError, match=r"1 ready.* wanted 1 ready and 4 unacked"):
            leveret_broker.wait_depth("q", 1, unacked=4, timeout=0)
        with pytest.raises(AssertionError, match="0 acked; wanted 1 acked"):
            leveret_broker.wait_acked("q", timeout=0)

    def test_a_queue_nobody_declared_is_told(self, leveret_broker):
        with pytest.raises(AssertionError, match="queue 'q' is not declared; wanted 0 ready"):
            leveret_broker.wait_depth("q", 0, timeout=0)
        with pytest.raises(AssertionError, match="queue 'q' is not declared, 0 acked"):
            leveret_broker.wait_acked("q", vhost="elsewhere", timeout=0)

    def test_acked_counts_acks_and_not_rejects(self, channel, leveret_broker):
        channel.queue_declare("q")
        for _ in range(2):
            channel.basic_publish("", "q", b"x")
        channel.basic_reject(channel.basic_get("q")[0].delivery_tag, requeue=False)
        channel.basic_ack(channel.basic_get("q")[0].delivery_tag)
        leveret_broker.wait_acked("q", 1)
        with pytest.raises(AssertionError, match="1 acked; wanted 2 acked"):
            leveret_broker.wait_acked("q", 2, timeout=0)


class TestPublished:
    def test_everything_of_a_message_is_there(self, channel, leveret_broker):
        properties = pika.BasicProperties(message_id="m1", headers={"a": 1}, delivery_mode=2)
        channel.basic_publish("amq.topic", "no.where", json.dumps([1]).encode(), properties)
        assert leveret_broker.published() == [
            Published(
                vhost="/",
                exchange="amq.topic",
                routing_key="no.where",
                properties={"message_id": "m1", "headers": {"a": 1}, "delivery_mode": 2},
                body=b"[1]",
            )
        ]
        assert leveret_broker.published()[0].headers == {"a": 1}
        assert leveret_broker.published()[0].json() == [1]

    def test_chosen_by_exchange_and_key(self, channel, leveret_broker):
        for exchange, key in (("amq.topic", "a"), ("amq.topic", "b"), ("amq.direct", "a")):
            channel.basic_publish(exchange, key, f"{exchange} {key}".encode())
        assert [one.body for one in leveret_broker.published("amq.topic")] == [
            b"amq.topic a",
            b"amq.topic b",
        ]
        assert [one.exchange for one in leveret_broker.published(routing_key="a")] == [
            "amq.topic",
            "amq.direct",
        ]

    def test_waits_for_what_is_not_confirmed(self, connection, leveret_broker):
        channel = connection.channel()
        channel.basic_publish("amq.topic", "a", b"x")
        assert len(leveret_broker.published(at_least=1)) == 1
        with pytest.raises(AssertionError, match="1 published; wanted at least 2"):
            leveret_broker.published(at_least=2, timeout=0)

    def test_a_transaction_counts_when_it_is_committed(self, connection, leveret_broker):
        channel = connection.channel()
        channel.tx_select()
        channel.basic_publish("amq.topic", "a", b"x")
        channel.tx_rollback()
        channel.basic_publish("amq.topic", "a", b"y")
        channel.tx_commit()
        assert [one.body for one in leveret_broker.published()] == [b"y"]


class TestFaults:
    def test_dropped_connections_end_without_a_word(self, connection, leveret_broker):
        assert leveret_broker.drop_connections() == 1
        with pytest.raises(pika.exceptions.AMQPConnectionError) as caught:
            connection.process_data_events(LONG)
        assert not isinstance(caught.value, pika.exceptions.ConnectionClosedByBroker)

    def test_dropped_by_name(self, connection, leveret_broker):
        parameters = pika.URLParameters(leveret_broker.url)
        parameters.client_properties = {"connection_name": "one"}
        named = pika.BlockingConnection(parameters)
        assert leveret_broker.drop_connections("other") == 0
        assert leveret_broker.drop_connections("one") == 1
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            named.process_data_events(LONG)
        connection.channel()

    def test_nacked_publishes_are_not_stored(self, channel, leveret_broker):
        channel.queue_declare("q")
        leveret_broker.nack_next(2)
        for _ in range(2):
            with pytest.raises(pika.exceptions.NackError):
                channel.basic_publish("", "q", b"refused")
        channel.basic_publish("", "q", b"taken")
        leveret_broker.wait_depth("q", 1)
        assert [one.body for one in leveret_broker.published()] == [b"taken"]

    def test_a_publish_without_confirm_is_not_nacked(self, connection, channel, leveret_broker):
        channel.queue_declare("q")
        leveret_broker.nack_next()
        connection.channel().basic_publish("", "q", b"unconfirmed")
        leveret_broker.wait_depth("q", 1)
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "q", b"confirmed")

    def test_blocked_publishers_are_told_and_not_read(self, connection, channel, leveret_broker):
        told = []
        connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method))
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"x")
        with leveret_broker.block_publishers("for a while"):
            while not told:
                connection.process_data_events(LONG)

            assert told[0].reason == "for a while"
        channel.basic_publish("", "q", b"y")
        leveret_broker.wait_depth("q", 2)


async def test_asyncio_twins_let_the_loop_go_on(leveret_broker):
    async with await aio_pika.connect(leveret_broker.url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("q")

        async def take(message):
            await message.ack()

        await queue.consume(take)
        await channel.default_exchange.publish(aio_pika.Message(b"x"), "q")
        await leveret_broker.wait_acked_async("q")
        await leveret_broker.wait_depth_async("q", 0, unacked=0)
        assert len(await leveret_broker.published_async(at_least=1)) == 1


def test_an_open_connection_does_not_hold_up_the_end():
    with LeveretBroker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        threads = threading.active_count()
    assert threading.active_count() == threads - 1
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connection.process_data_events(LONG)


def test_a_broker_that_was_not_started_says_so():
    with pytest.raises(RuntimeError, match="not been started"):
        LeveretBroker().block_publishers().__enter__()


def test_an_error_on_the_brokers_thread_comes_back(leveret_broker):
    with pytest.raises(ZeroDivisionError):
        leveret_broker.call(lambda: 1 / 0)
    assert leveret_broker.call(lambda: threading.current_thread().name) == "leveret"


def test_settings_are_checked_and_read_as_anywhere(tmp_path):
    with LeveretBroker(data_dir=str(tmp_path), max_message_size="1MB") as broker:
        assert broker.running is not None
        assert broker.running.settings.max_message_size == 1_000_000
        assert (tmp_path / "leveret.db").exists()
    with pytest.raises(ConfigError, match="max_message_size"):
        LeveretBroker(max_mesage_size=1)
