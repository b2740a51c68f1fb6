"""Invalid declarations and consumers of logs, with the error texts of RabbitMQ 3.10 (probed)."""

from __future__ import annotations

import functools

import pika.exceptions
import pytest

from tests.log.conftest import STREAM, declare, publish

CHANNEL = pika.exceptions.ChannelClosedByBroker
CONNECTION = pika.exceptions.ConnectionClosedByBroker


def refused(kind, call):
    with pytest.raises(kind) as caught:
        call()
    return caught.value.reply_text


Q = "queue 'q' in vhost '/'"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"durable": False}, f"invalid property 'non-durable' for {Q}"),
        ({"exclusive": True}, f"invalid property 'exclusive-owner' for {Q}"),
        ({"auto_delete": True}, f"invalid property 'auto-delete' for {Q}"),
        ({"queue": ""}, "Cannot declare a server-named queue for type rabbit_stream_queue"),
    ],
)
def test_properties(channel, options, text):
    given = {"queue": "q", "durable": True, "arguments": STREAM, **options}
    assert (
        refused(CHANNEL, lambda: channel.queue_declare(**given)) == f"PRECONDITION_FAILED - {text}"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-message-ttl", 1000),
        ("x-expires", 1000),
        ("x-dead-letter-exchange", "x"),
        ("x-max-length", 5),
        ("x-max-priority", 5),
        ("x-overflow", "drop-head"),
        ("x-single-active-consumer", True),
        ("x-delivery-limit", 3),
    ],
)
def test_arguments_of_other_queues(channel, name, value):
    arguments = {**STREAM, name: value}
    text = refused(CHANNEL, lambda: channel.queue_declare("q", durable=True, arguments=arguments))
    expected = f"PRECONDITION_FAILED - invalid arg '{name}' for {Q} of queue type "
    assert text == expected + "rabbit_stream_queue"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("x-max-age", "5x", ": invalid_max_age"),
        ("x-max-age", 5, ": {unacceptable_type,signedint}"),
        ("x-max-length-bytes", -1, ": "),
        ("x-max-length-bytes", "a", ": "),
        ("x-partitions", 0, ": must be between 1 and 1000"),
        ("x-cleanup-policy", "burn", ": must be delete or compact"),
    ],
)
def test_values(channel, name, value, reason):
    arguments = {**STREAM, name: value}
    text = refused(CHANNEL, lambda: channel.queue_declare("q", durable=True, arguments=arguments))
    assert text.startswith(f"PRECONDITION_FAILED - invalid arg '{name}' for {Q}{reason}")


def test_segment_size(channel):
    arguments = {**STREAM, "x-stream-max-segment-size-bytes": 4_000_000_000}
    text = refused(CHANNEL, lambda: channel.queue_declare("q", durable=True, arguments=arguments))
    assert text.endswith("Exceeded max value for x-stream-max-segment-size-bytes")


def test_another_declaration(channel, connection):
    declare(channel, "q")
    text = refused(CHANNEL, lambda: declare(channel, "q", max_age="1D"))
    assert text == (
        f"PRECONDITION_FAILED - inequivalent arg 'x-max-age' for {Q}: "
        "received the value '1D' of type 'longstr' but current is none"
    )
    other = connection.channel()
    text = refused(CHANNEL, lambda: other.queue_declare("q", durable=True))
    assert "inequivalent arg 'x-queue-type'" in text


def test_consuming_needs_a_prefetch(channel):
    declare(channel, "q")
    text = refused(CHANNEL, lambda: channel.basic_consume("q", print))
    assert text == f"PRECONDITION_FAILED - consumer prefetch count is not set for '{Q}'"


def test_consuming_needs_acks(channel):
    declare(channel, "q")
    channel.basic_qos(prefetch_count=1)
    text = refused(CONNECTION, lambda: channel.basic_consume("q", print, auto_ack=True))
    expected = f"NOT_IMPLEMENTED - automatic acknowledgement not supported by stream queues {Q}"
    assert text == expected


def test_global_prefetch(channel):
    declare(channel, "q")
    channel.basic_qos(prefetch_count=1)
    channel.basic_qos(prefetch_count=1, global_qos=True)
    text = refused(CONNECTION, lambda: channel.basic_consume("q", print))
    assert text == f"NOT_IMPLEMENTED - {Q} does not support global qos"


@pytest.mark.parametrize("offset", ["1x", "bogus", True])
def test_invalid_offsets_are_rejected(channel, offset):
    declare(channel, "q")
    channel.basic_qos(prefetch_count=1)
    arguments = {"x-stream-offset": offset}
    text = refused(CHANNEL, lambda: channel.basic_consume("q", print, arguments=arguments))
    assert text.startswith(f"PRECONDITION_FAILED - invalid arg 'x-stream-offset' for {Q}: ")


def test_get_and_purge(home, channel):
    declare(channel, "q")
    publish(channel, "", [b"stays"], "q")
    text = refused(CONNECTION, lambda: channel.basic_get("q"))
    assert text == f"NOT_IMPLEMENTED - basic.get not supported by stream queues {Q}"
    channel = home.connect().channel()
    text = refused(CONNECTION, lambda: channel.queue_purge("q"))
    assert text == f"NOT_IMPLEMENTED - queue.purge not supported by stream queues {Q}"
    assert home.hub.logs.describe("/", "q").messages == 1


def test_group_arguments(home, channel, connection, readers):
    declare(channel, "q")
    channel.basic_qos(prefetch_count=1)
    wrong = [
        {"x-group": ""},
        {"x-group": 5},
        {"x-group": "g", "x-commit": "never"},
        {"x-group": "g", "x-commit-interval": 100},
        {"x-group": "g", "x-commit": "interval", "x-commit-interval": 0},
        {"x-group": "g", "x-commit": "interval", "x-commit-interval": "1s"},
    ]
    for arguments in wrong:
        other = connection.channel()
        other.basic_qos(prefetch_count=1)
        consume = functools.partial(other.basic_consume, "q", print, arguments=arguments)
        assert refused(CHANNEL, consume).startswith("PRECONDITION_FAILED - invalid arg 'x-")
    assert home.hub.logs.groups("/", "q") == []
    readers("q", x_group="g", x_commit="delivery")
    text = refused(CHANNEL, lambda: channel.basic_consume("q", print, arguments={"x-group": "g"}))
    assert text.endswith("the members of group 'g' commit by delivery")
