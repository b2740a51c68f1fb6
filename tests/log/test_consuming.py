"""Consumers of one log: start offsets, deliveries, acks and requeues."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pika
import pytest

from tests.log.conftest import declare, numbered, publish, wait_for


@pytest.fixture
def log(channel):
    declare(channel, "log")
    publish(channel, "", numbered(10), "log")
    return "log"


@pytest.mark.parametrize(
    ("asked", "first"), [("first", 0), ("last", 9), (4, 4), (-3, 0), ("1h", 0), ("10D", 0)]
)
def test_start(log, readers, asked, first):
    reader = readers(log, x_stream_offset=asked).read(10 - first)
    assert reader.offsets == list(range(first, 10))
    assert reader.bodies == numbered(10)[first:]


@pytest.mark.parametrize("arguments", [{}, {"x_stream_offset": "next"}, {"x_stream_offset": 99}])
def test_start_at_the_end(log, channel, readers, arguments):
    reader = readers(log, **arguments).quiet(0.1)
    publish(channel, "", [b"new"], log)
    assert reader.read(1).bodies == [b"new"]
    assert reader.offsets == [10]


def test_start_at_a_time(log, channel, readers):
    time.sleep(1.1 - time.time() % 1)  # AMQP timestamps are whole seconds
    now = datetime.now(UTC)
    publish(channel, "", [b"later"], log)
    assert readers(log, x_stream_offset=now).read(1).bodies == [b"later"]
    assert readers(log, x_stream_offset=datetime(2020, 1, 1, tzinfo=UTC)).read(11)


def test_consuming_removes_no_record(log, channel, readers):
    first = readers(log, x_stream_offset="first").read(10)
    second = readers(log, x_stream_offset="first").read(10)
    middle = readers(log, x_stream_offset=5).read(5)
    publish(channel, "", [b"more"], log)
    for reader, count in ((first, 11), (second, 11), (middle, 6)):
        assert reader.read(count).bodies[-1] == b"more"
    assert channel.queue_declare(log, passive=True).method.message_count == 11


def test_properties_and_headers_are_delivered_with_the_offset(channel, readers):
    declare(channel, "log")
    sent = pika.BasicProperties(
        content_type="text/plain",
        headers={"a": 1, "b": "two"},
        delivery_mode=2,
        correlation_id="c",
        message_id="m",
        timestamp=1234,
        app_id="app",
    )
    channel.basic_publish("", "log", b"body", sent)
    channel.basic_publish("amq.topic", "nowhere", b"")
    channel.queue_bind("log", "amq.topic", "a.#")
    channel.basic_publish("amq.topic", "a.b", b"", pika.BasicProperties())
    reader = readers("log", x_stream_offset="first").read(2)
    method, properties, body = reader.records[0]
    assert properties.headers == {"a": 1, "b": "two", "x-stream-offset": 0}
    for name in ("content_type", "correlation_id", "message_id", "timestamp", "app_id"):
        assert getattr(properties, name) == getattr(sent, name)
    assert (method.exchange, method.routing_key, body) == ("", "log", b"body")
    method, properties, body = reader.records[1]
    assert (method.exchange, method.routing_key, body) == ("amq.topic", "a.b", b"")
    assert properties.headers == {"x-stream-offset": 1}


def test_offset_header_of_the_publisher_is_replaced(channel, readers):
    declare(channel, "log")
    headers = {"x-stream-offset": 77, "x-partition": 5, "kept": "yes"}
    channel.basic_publish("", "log", b"x", pika.BasicProperties(headers=headers))
    reader = readers("log", x_stream_offset="first").read(1)
    assert reader.records[0][1].headers == {"kept": "yes", "x-stream-offset": 0}


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 3_000_000])
def test_bodies_of_any_size(channel, readers, size):
    declare(channel, "log")
    body = bytes(range(256)) * (size // 256 + 1)
    publish(channel, "", [body[:size], b"after"], "log")
    assert readers("log", x_stream_offset="first").read(2).bodies == [body[:size], b"after"]


def test_acks_restore_credit(log, readers):
    reader = readers(log, prefetch=3, acks=False, x_stream_offset="first").read(3).quiet(0.1)
    assert reader.offsets == [0, 1, 2]
    reader.channel.basic_ack(reader.records[1][0].delivery_tag, multiple=True)
    assert reader.read(5).quiet(0.1).offsets == [0, 1, 2, 3, 4]


def test_requeued_record_is_redelivered_to_the_same_consumer(log, readers):
    other = readers(log, x_stream_offset="first").read(10)
    reader = readers(log, prefetch=4, acks=False, x_stream_offset="first").read(4)
    reader.channel.basic_nack(reader.records[1][0].delivery_tag, requeue=True)
    reader.channel.basic_reject(reader.records[2][0].delivery_tag, requeue=False)
    assert reader.read(6).quiet(0.1).offsets == [0, 1, 2, 3, 1, 4]
    assert [method.redelivered for method, _, _ in reader.records] == [False] * 4 + [True, False]
    assert other.quiet(0.1).offsets == list(range(10))


def test_long_log_is_replayed_in_order(channel, home, readers):
    declare(channel, "log")
    fast = home.connect().channel()
    for body in numbered(6_000):
        fast.basic_publish("", "log", body)
    fast.connection.close()
    wait_for(lambda: home.hub.logs.describe("/", "log").messages == 6_000)
    reader = readers("log", prefetch=500, x_stream_offset="first").read(6_000)
    assert reader.offsets == list(range(6_000))
    assert reader.bodies == numbered(6_000)
    home.restart()
    again = readers("log", prefetch=500, x_stream_offset=1_234).read(4_766)
    assert again.offsets == list(range(1_234, 6_000))


def test_cancel_stops_a_consumer_and_deletion_cancels_it(log, channel, readers):
    stays = readers(log)
    goes = readers(log)
    goes.channel.basic_cancel(goes.tag)
    publish(channel, "", [b"x"], log)
    assert stays.read(1).bodies == [b"x"]
    assert goes.quiet(0.1).bodies == []
    channel.queue_delete(log)
    wait_for(lambda: not stays.channel.consumer_tags, stays)


def test_log_and_classic_queue_bound_to_one_exchange(channel, readers):
    """A message routed to a log and to classic queues is in all of them."""
    declare(channel, "log")
    channel.queue_declare("durable", durable=True)
    channel.queue_declare("passing")
    for queue in ("log", "durable", "passing"):
        channel.queue_bind(queue, "amq.fanout")
    channel.basic_publish("amq.fanout", "k", b"all", pika.BasicProperties(delivery_mode=2))
    assert readers("log", x_stream_offset="first").read(1).bodies == [b"all"]
    for queue in ("durable", "passing"):
        assert channel.basic_get(queue)[2] == b"all"
