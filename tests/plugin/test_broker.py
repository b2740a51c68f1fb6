"""`leveret.testing`: inspecting a broker, waiting for it, injecting faults."""

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
    def test_depth_counts_ready_messages(self, channel, leveret_broker):
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

    def test_timeout_reports_the_actual_counts(self, channel, leveret_broker):
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"x")
        with pytest.raises(AssertionError, match=r"queue 'q': 1 ready, 0 unacked, 0 consumers; ex"):
            leveret_broker.wait_depth("q", 2, timeout=0)
        with pytest.raises(AssertionError, match=r"1 ready.* expected 1 ready and 4 unacked"):
            leveret_broker.wait_depth("q", 1, unacked=4, timeout=0)
        with pytest.raises(AssertionError, match="0 acked; expected 1 acked"):
            leveret_broker.wait_acked("q", timeout=0)

    def test_timeout_reports_an_undeclared_queue(self, leveret_broker):
        with pytest.raises(AssertionError, match="queue 'q' is not declared; expected 0 ready"):
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
        with pytest.raises(AssertionError, match="1 acked; expected 2 acked"):
            leveret_broker.wait_acked("q", 2, timeout=0)


class TestPublished:
    def test_published_message_is_complete(self, channel, leveret_broker):
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

    def test_filter_by_exchange_and_key(self, channel, leveret_broker):
        for exchange, key in (("amq.topic", "a"), ("amq.topic", "b"), ("amq.direct", "a")):
            channel.basic_publish(exchange, key, f"{exchange} {key}".encode())
        assert [message.body for message in leveret_broker.published("amq.topic")] == [
            b"amq.topic a",
            b"amq.topic b",
        ]
        assert [message.exchange for message in leveret_broker.published(routing_key="a")] == [
            "amq.topic",
            "amq.direct",
        ]

    def test_waits_for_unconfirmed_publishes(self, connection, leveret_broker):
        channel = connection.channel()
        channel.basic_publish("amq.topic", "a", b"x")
        assert len(leveret_broker.published(at_least=1)) == 1
        with pytest.raises(AssertionError, match="1 published; expected at least 2"):
            leveret_broker.published(at_least=2, timeout=0)

    def test_transaction_is_recorded_at_commit(self, connection, leveret_broker):
        channel = connection.channel()
        channel.tx_select()
        channel.basic_publish("amq.topic", "a", b"x")
        channel.tx_rollback()
        channel.basic_publish("amq.topic", "a", b"y")
        channel.tx_commit()
        assert [message.body for message in leveret_broker.published()] == [b"y"]


class TestFaults:
    def test_dropped_connections_get_no_close(self, connection, leveret_broker):
        assert leveret_broker.drop_connections() == 1
        with pytest.raises(pika.exceptions.AMQPConnectionError) as caught:
            connection.process_data_events(LONG)
        assert not isinstance(caught.value, pika.exceptions.ConnectionClosedByBroker)

    def test_connections_are_dropped_by_name(self, connection, leveret_broker):
        parameters = pika.URLParameters(leveret_broker.url)
        parameters.client_properties = {"connection_name": "named"}
        named = pika.BlockingConnection(parameters)
        assert leveret_broker.drop_connections("other") == 0
        assert leveret_broker.drop_connections("named") == 1
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            named.process_data_events(LONG)
        connection.channel()

    def test_nacked_publishes_are_not_stored(self, channel, leveret_broker):
        channel.queue_declare("q")
        leveret_broker.nack_next(2)
        for _ in range(2):
            with pytest.raises(pika.exceptions.NackError):
                channel.basic_publish("", "q", b"refused")
        channel.basic_publish("", "q", b"accepted")
        leveret_broker.wait_depth("q", 1)
        assert [message.body for message in leveret_broker.published()] == [b"accepted"]

    def test_publish_without_confirm_is_not_nacked(self, connection, channel, leveret_broker):
        channel.queue_declare("q")
        leveret_broker.nack_next()
        connection.channel().basic_publish("", "q", b"unconfirmed")
        leveret_broker.wait_depth("q", 1)
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "q", b"confirmed")

    def test_blocked_publishers_get_the_reason(self, connection, channel, leveret_broker):
        blocked = []
        connection.add_on_connection_blocked_callback(lambda _, frame: blocked.append(frame.method))
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"x")
        with leveret_broker.block_publishers("for a while"):
            while not blocked:
                connection.process_data_events(LONG)

            assert blocked[0].reason == "for a while"
        channel.basic_publish("", "q", b"y")
        leveret_broker.wait_depth("q", 2)


async def test_async_methods_keep_the_loop_running(leveret_broker):
    async with await aio_pika.connect(leveret_broker.url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("q")

        async def ack(message):
            await message.ack()

        await queue.consume(ack)
        await channel.default_exchange.publish(aio_pika.Message(b"x"), "q")
        await leveret_broker.wait_acked_async("q")
        await leveret_broker.wait_depth_async("q", 0, unacked=0)
        assert len(await leveret_broker.published_async(at_least=1)) == 1


def test_open_connection_does_not_delay_the_stop():
    with LeveretBroker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        threads = threading.active_count()
    assert threading.active_count() == threads - 1
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connection.process_data_events(LONG)


def test_broker_that_is_not_running_raises():
    with pytest.raises(RuntimeError, match="is not running"):
        LeveretBroker().block_publishers().__enter__()


def test_error_on_the_brokers_thread_is_raised(leveret_broker):
    with pytest.raises(ZeroDivisionError):
        leveret_broker.call(lambda: 1 / 0)
    assert leveret_broker.call(lambda: threading.current_thread().name) == "leveret"


def test_settings_are_validated(tmp_path):
    with LeveretBroker(data_dir=str(tmp_path), max_message_size="1MB") as broker:
        assert broker.running is not None
        assert broker.running.settings.max_message_size == 1_000_000
        assert (tmp_path / "leveret.db").exists()
    with pytest.raises(ConfigError, match="max_message_size"):
        LeveretBroker(max_mesage_size=1)


class TestMessages:
    def test_messages_stay_in_the_queue(self, channel, leveret_broker):
        channel.queue_declare("q")
        properties = pika.BasicProperties(headers={"n": 1}, content_type="text/plain")
        channel.basic_publish("", "q", b"first", properties)
        channel.basic_publish("", "q", b"second")
        channel.basic_get("q")
        for _ in range(2):
            first, second = leveret_broker.messages("q")
            assert (first.body, second.body) == (b"first", b"second")
        first, _ = leveret_broker.messages("q")
        assert (first.headers, first.routing_key) == ({"n": 1}, "q")
        leveret_broker.wait_depth("q", 1, unacked=1)

    def test_unknown_queue(self, leveret_broker):
        with pytest.raises(AssertionError, match="queue 'q' is not declared"):
            leveret_broker.messages("q")


def declare_and_publish(url, body):
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("kept", durable=True)
    channel.queue_declare("gone", durable=False)
    channel.basic_publish("", "kept", body, pika.BasicProperties(delivery_mode=2))
    return connection, channel


class TestRestart:
    @pytest.mark.leveret(on_disk=True, http_enabled=True)
    @pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
    def test_durable_messages_survive_on_the_same_ports(self, leveret_broker, is_killed):
        url, http_url = leveret_broker.url, leveret_broker.http_url
        connection, channel = declare_and_publish(url, b"confirmed")
        method, _, _ = channel.basic_get("kept")
        assert not method.redelivered
        if is_killed:
            leveret_broker.kill()
        leveret_broker.restart()
        assert (leveret_broker.url, leveret_broker.http_url) == (url, http_url)
        with pytest.raises(pika.exceptions.AMQPError):
            connection.process_data_events(LONG)
        again = pika.BlockingConnection(pika.URLParameters(url))
        method, _, body = again.channel().basic_get("kept")
        assert (method.redelivered, body) == (True, b"confirmed")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            again.channel().queue_declare("gone", passive=True)
        again.close()

    @pytest.mark.leveret(on_disk=True)
    def test_killed_broker_loses_only_what_was_not_confirmed(self, leveret_broker):
        connection, _ = declare_and_publish(leveret_broker.url, b"confirmed")
        plain = connection.channel()  # without confirms
        scheduler = leveret_broker.running.broker.scheduler
        scheduler._flush_store = lambda: None  # batches do not reach the disk
        for _ in range(3):
            plain.basic_publish("", "kept", b"lost", pika.BasicProperties(delivery_mode=2))
        leveret_broker.wait_depth("kept", 4)
        leveret_broker.kill()
        with pytest.raises(pika.exceptions.AMQPError):
            connection.process_data_events(LONG)
        leveret_broker.restart()
        leveret_broker.wait_depth("kept", 1)
        assert [message.body for message in leveret_broker.messages("kept")] == [b"confirmed"]

    def test_killed_broker_may_stay_down(self, leveret_broker):
        url = leveret_broker.url
        leveret_broker.kill()
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            pika.BlockingConnection(pika.URLParameters(url))

    def test_restart_in_memory_is_refused(self, leveret_broker):
        with pytest.raises(RuntimeError, match=r"would lose it: use @pytest\.mark\.leveret"):
            leveret_broker.restart()
