"""The broker can add its headers to a message that has the maximum number of header fields."""

from __future__ import annotations

import pika
import pytest

import leveret

MAX_FIELDS = 4096


@pytest.fixture
def channel():
    with leveret.ThreadedBroker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
        connection.close()


def publish_three(channel):
    for number in range(3):
        headers = {f"h{i}": True for i in range(MAX_FIELDS if number == 1 else 1)}
        properties = pika.BasicProperties(headers=headers)
        channel.basic_publish("", "source", str(number).encode(), properties)


def drain(channel, queue):
    results = [channel.basic_get(queue, auto_ack=True) for _ in range(4)]
    return [(body, properties.headers) for method, properties, body in results if method]


def test_message_with_full_headers_is_dead_lettered(channel):
    channel.queue_declare("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("source", arguments=arguments)
    publish_three(channel)
    for _ in range(3):
        tag = channel.basic_get("source")[0].delivery_tag
        channel.basic_reject(tag, requeue=False)
    dead = drain(channel, "dead")
    assert [body for body, _ in dead] == [b"0", b"1", b"2"]
    assert all(headers["x-death"][0]["queue"] == "source" for _, headers in dead)


def test_message_with_full_headers_is_requeued_with_its_delivery_count(channel):
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 5}
    channel.queue_declare("source", durable=True, arguments=arguments)
    publish_three(channel)
    tags = [channel.basic_get("source")[0].delivery_tag for _ in range(3)]
    channel.basic_nack(tags[-1], multiple=True, requeue=True)
    redelivered = drain(channel, "source")
    assert [(body, headers["x-delivery-count"]) for body, headers in redelivered] == [
        (b"0", 1), (b"1", 1), (b"2", 1)
    ]  # fmt: skip
