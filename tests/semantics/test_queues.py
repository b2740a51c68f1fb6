"""Rows C-74 to C-88, C-92 and C-94: declaring, locking and deleting queues."""

from __future__ import annotations

import struct
import time

import pytest
from pamqp.commands import Basic, Channel, Queue

from tests.support import wire

LOCKED = "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue"


def test_c074_empty_name_gets_a_server_generated_name(channel):
    first = channel.declare("", exclusive=True).queue
    second = channel.declare("", exclusive=True).queue
    assert first.startswith("amq.gen-")
    assert second.startswith("amq.gen-")
    assert first != second
    assert len(first) >= len("amq.gen-") + 20


def test_c075_empty_name_means_the_last_declared_queue(channel, names):
    queue = names.queue()
    channel.declare(names.queue())
    channel.declare(queue)
    channel.publish("", queue, b"one")
    assert channel.get_one("").body == b"one"
    channel.fill(queue, "ab")
    assert channel.call(Queue.Purge(queue="")).message_count == 2
    channel.consume("", "t")
    assert channel.declare(queue, passive=True).consumer_count == 1
    channel.cancel("t")
    assert channel.call(Queue.Delete(queue="")).message_count == 0
    channel.refused(Queue.Declare(queue=queue, passive=True), 404)


def test_c075_passive_declare_refuses_an_empty_name(channel, names):
    channel.declare(names.queue())
    channel.refused(Queue.Declare(queue="", passive=True), 404, "no queue '' in vhost")


def test_c075_passive_declare_also_sets_the_last_queue(client, channel, names):
    queue = names.queue()
    channel.declare(queue)
    other = client.channel(2)
    other.declare(queue, passive=True)
    other.publish("", queue, b"one")
    assert other.get_one("").body == b"one"


def test_c075_bind_with_empty_name_and_key_uses_the_name_as_key(channel, names):
    queue, exchange = names.queue(), names.exchange()
    channel.exchange(exchange)
    channel.declare(queue)
    channel.bind("", exchange, "")
    channel.publish(exchange, queue, b"by name")
    channel.wait_ready(queue, 1)


def test_c075_bind_with_empty_name_and_a_key_keeps_the_key(channel, names):
    queue, exchange = names.queue(), names.exchange()
    channel.exchange(exchange)
    channel.declare(queue)
    channel.bind("", exchange, "k")
    channel.fill_through(exchange, "k", queue, 1)


@pytest.mark.parametrize(
    "method",
    [
        Queue.Bind(queue="", exchange="amq.direct", routing_key="k"),
        Queue.Purge(queue=""),
        Queue.Delete(queue=""),
        Basic.Consume(queue=""),
        Basic.Get(queue=""),
    ],
    ids=lambda method: method.name,
)
def test_c075_empty_name_without_a_declared_queue(channel, method):
    channel.refused(method, 404)


def test_c076_reserved_name(channel):
    channel.refused(
        Queue.Declare(queue="amq.nonsense"),
        403,
        "ACCESS_REFUSED - queue name 'amq.nonsense' contains reserved prefix 'amq.*'",
    )


def test_c076_server_generated_name_declared_again(channel):
    queue = channel.declare("", exclusive=True).queue
    channel.declare(queue, passive=True)
    channel.refused(Queue.Declare(queue=queue, exclusive=True), 403, "reserved prefix 'amq.*'")


def test_c077_passive_declare_of_a_missing_queue(channel, broker):
    channel.refused(
        Queue.Declare(queue="no-such-queue", passive=True),
        404,
        f"NOT_FOUND - no queue 'no-such-queue' in vhost '{broker.vhost}'",
    )


def test_c078_passive_declare_ignores_flags_and_counts_ready_messages(channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.fill(queue, "abc")
    channel.get_one(queue, no_ack=False)
    answer = channel.declare(
        queue, passive=True, durable=True, auto_delete=True, arguments={"x-max-length": 5}
    )
    assert (answer.queue, answer.message_count, answer.consumer_count) == (queue, 2, 0)
    channel.qos(1)
    channel.consume(queue)
    channel.deliver()
    answer = channel.declare(queue)
    assert (answer.message_count, answer.consumer_count) == (1, 1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"durable": True},
            "'durable' for queue '{}' in vhost '{}': received 'true' but current is 'false'",
        ),
        (
            {"auto_delete": True},
            "'auto_delete' for queue '{}' in vhost '{}': received 'true' but current is 'false'",
        ),
    ],
    ids=["durable", "auto_delete"],
)
def test_c079_redeclare_with_other_flags(channel, names, broker, change, text):
    queue = names.queue()
    channel.declare(queue)
    channel.refused(
        Queue.Declare(queue=queue, **change),
        406,
        "PRECONDITION_FAILED - inequivalent arg " + text.format(queue, broker.vhost),
    )


def test_c079_redeclare_with_other_arguments(channel, names, broker):
    queue = names.queue()
    channel.declare(queue, arguments={"x-max-length": 5})
    start = f"inequivalent arg 'x-max-length' for queue '{queue}' in vhost '{broker.vhost}': "
    channel.refused(
        Queue.Declare(queue=queue),
        406,
        start + "received none but current is the value '5' of type",
    )
    channel.open()
    channel.refused(
        Queue.Declare(queue=queue, arguments={"x-max-length": 6}),
        406,
        start + "received '6' but current is '5'",
    )
    channel.open()
    channel.declare(queue, arguments={"x-max-length": 5})


NUMBERS = {
    "I": struct.pack(">i", 10),
    "l": struct.pack(">q", 10),
    "b": b"\x0a",
    "s": struct.pack(">h", 10),
    "T": struct.pack(">Q", 10),
    "d": struct.pack(">d", 10),
    "f": struct.pack(">f", 10),
    "S": wire.longstr("10"),
    "t": b"\x01",
}
"""The number 10, and what is like it, by field type."""


@pytest.mark.parametrize("argument", ["x-message-ttl", "x-max-length"])
def test_c079_integers_of_all_types_are_equivalent_and_nothing_else(channel, names, argument):
    queue = names.queue()
    channel.declare(queue, arguments={argument: 10})
    refused = []
    for kind, data in NUMBERS.items():
        table = wire.table((argument, wire.typed(kind, data)))
        channel.send(wire.queue_declare(1, queue, arguments=table))
        answer = channel.expect((Queue.DeclareOk, Channel.Close))
        if isinstance(answer, Channel.Close):
            refused.append(kind)
            assert answer.reply_code == 406 and "inequivalent arg" in answer.reply_text
            channel.send(Channel.CloseOk())
            channel.open()
    assert refused == ["d", "f", "S", "t"]


def test_c079_strings_and_bytes_are_equivalent(channel, names):
    queue, argument = names.queue(), "x-dead-letter-exchange"
    channel.declare(queue, arguments={argument: "amq.direct"})
    for kind in "xS":
        value = wire.typed(kind, wire.longstr("amq.direct"))
        table = wire.table((argument, value))
        channel.send(wire.queue_declare(1, queue, arguments=table))
        channel.expect(Queue.DeclareOk)


def test_c079_flags_are_named_in_lower_case(channel, names):
    queue, flag = names.queue(), {"x-single-active-consumer": True}
    channel.declare(queue, arguments=flag)
    text = "received none but current is the value 'true' of type 'bool'"
    channel.refused(Queue.Declare(queue=queue), 406, text)


def test_c079_redeclare_with_a_known_argument_added(channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.refused(
        Queue.Declare(queue=queue, arguments={"x-dead-letter-exchange": "dead"}),
        406,
        "received the value 'dead' of type 'longstr' but current is none",
    )


def test_c079_queue_type_absent_is_classic(channel, names):
    queue = names.queue()
    channel.declare(queue, durable=True)
    channel.declare(queue, durable=True, arguments={"x-queue-type": "classic"})


def test_c080_unknown_arguments_are_not_compared(channel, names):
    queue = names.queue()
    channel.declare(queue, arguments={"x-nonsense": 1})
    channel.declare(queue, arguments={"x-nonsense": "other", "comment": "more"})
    channel.declare(queue)


@pytest.mark.parametrize(
    "make",
    [
        lambda queue: Queue.Declare(queue=queue, exclusive=True),
        lambda queue: Queue.Declare(queue=queue),
        lambda queue: Queue.Declare(queue=queue, passive=True),
        lambda queue: Basic.Consume(queue=queue),
        lambda queue: Basic.Get(queue=queue),
        lambda queue: Queue.Purge(queue=queue),
        lambda queue: Queue.Delete(queue=queue),
        lambda queue: Queue.Bind(queue=queue, exchange="amq.direct", routing_key="k"),
    ],
    ids=["declare", "declare plain", "passive", "consume", "get", "purge", "delete", "bind"],
)
def test_c081_exclusive_queue_is_locked_to_its_connection(connect, channel, names, make):
    queue = names.queue()
    connect().channel().declare(queue, exclusive=True)
    channel.refused(make(queue), 405, LOCKED)


def test_c081_other_channels_of_the_owner_may_use_it(client, channel, names):
    queue = names.queue()
    channel.declare(queue, exclusive=True)
    other = client.channel(2)
    other.declare(queue, exclusive=True)
    other.publish("", queue)
    assert other.get_one(queue).body == b"x"


def test_c082_publish_to_another_connections_exclusive_queue(connect, channel, names):
    queue = names.queue()
    owner = connect().channel()
    owner.declare(queue, exclusive=True)
    owner.consume(queue, no_ack=True)
    channel.confirm_select()
    channel.publish("", queue, b"for you", mandatory=True)
    channel.confirmed(1)
    assert owner.deliver().body == b"for you"


def test_c083_declare_exclusive_over_an_existing_queue(channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.refused(Queue.Declare(queue=queue, exclusive=True), 405, "RESOURCE_LOCKED")


def test_c084_exclusive_queue_is_deleted_when_its_connection_is_lost(connect, channel, names):
    queue = names.queue()
    owner = connect()
    owner.channel().declare(queue, exclusive=True)
    owner.drop()
    wait_until_missing(channel, queue)


def test_c085_auto_delete_queue_is_deleted_with_its_last_consumer(client, channel, names):
    queue = names.queue()
    channel.declare(queue, auto_delete=True)
    channel.consume(queue, "a")
    channel.consume(queue, "b")
    channel.cancel("a")
    channel.declare(queue, passive=True)
    channel.cancel("b")
    channel.refused(Queue.Declare(queue=queue, passive=True), 404)


@pytest.mark.parametrize("end", ["channel", "connection"])
def test_c085_auto_delete_queue_is_deleted_when_its_consumer_is_lost(connect, channel, names, end):
    queue = names.queue()
    channel.declare(queue, auto_delete=True)
    consumer = connect()
    other = consumer.channel()
    other.consume(queue)
    if end == "channel":
        other.refused(Queue.Declare(queue="no-such-queue", passive=True), 404)
    else:
        consumer.drop()
    wait_until_missing(channel, queue)


def test_c085_never_consumed_or_only_polled_auto_delete_queue_stays(channel, names):
    queue = names.queue()
    channel.declare(queue, auto_delete=True)
    channel.publish("", queue)
    channel.get_one(queue)
    assert channel.get(queue) is None
    channel.declare(queue, passive=True)


def test_c086_delete_if_unused(channel, names, broker):
    queue = names.queue()
    channel.declare(queue)
    channel.consume(queue)
    text = f"queue '{queue}' in vhost '{broker.vhost}' in use"
    channel.refused(Queue.Delete(queue=queue, if_unused=True), 406, text)
    channel.open()
    channel.wait_consumers(queue, 0)
    channel.call(Queue.Delete(queue=queue, if_unused=True))


def test_c086_delete_if_empty(channel, names, broker):
    queue = names.queue()
    channel.declare(queue)
    channel.fill(queue, "a")
    text = f"queue '{queue}' in vhost '{broker.vhost}' not empty"
    channel.refused(Queue.Delete(queue=queue, if_empty=True), 406, text)
    channel.open()
    channel.get_one(queue, no_ack=False)  # an unacked message is not ready
    channel.call(Queue.Delete(queue=queue, if_empty=True))


def test_c087_delete_of_a_missing_queue(channel):
    assert channel.call(Queue.Delete(queue="no-such-queue")).message_count == 0


def test_c087_delete_counts_ready_messages(channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.fill(queue, "abc")
    channel.get_one(queue, no_ack=False)
    assert channel.call(Queue.Delete(queue=queue)).message_count == 2


def test_c087_delete_counts_no_unacked_messages(connect, names):
    queue = names.queue()
    channel = connect(capabilities={}).channel()  # no basic.cancel before or after delete-ok
    channel.declare(queue)
    channel.fill(queue, "ab")
    channel.consume(queue)
    channel.deliveries(2)
    assert channel.call(Queue.Delete(queue=queue)).message_count == 0


def test_c088_purge_removes_ready_messages_only(channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.fill(queue, "abc")
    message = channel.get_one(queue, no_ack=False)
    assert channel.call(Queue.Purge(queue=queue)).message_count == 2
    channel.nack(message.tag)
    channel.wait_ready(queue, 1)
    assert channel.drain(queue) == [b"a"]


def test_c088_purge_of_a_missing_queue(channel):
    channel.refused(Queue.Purge(queue="no-such-queue"), 404)


def test_c092_durable_has_no_effect_on_an_exclusive_queue(channel, names):
    queue = names.queue()
    channel.declare(queue, exclusive=True, durable=True)
    channel.declare(queue, exclusive=True)
    other = names.queue()
    channel.declare(other, exclusive=True)
    channel.declare(other, exclusive=True, durable=True)


def test_c094_alternate_exchange_may_be_missing_until_needed(channel, names):
    exchange = names.exchange()
    channel.exchange(exchange, arguments={"alternate-exchange": "no-such-exchange"})
    channel.confirm_select()
    channel.publish(exchange, "nowhere")
    channel.confirmed(1)
    channel.publish(exchange, "nowhere", mandatory=True)
    channel.returned()


def wait_until_missing(channel, queue):
    """Poll until the queue is deleted; a locked or missing queue closes the channel."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        channel.send(Queue.Declare(queue=queue, passive=True))
        answer = channel.client.next_on(1).decode()
        if isinstance(answer, Queue.DeclareOk):
            continue
        channel.send(Channel.CloseOk())
        if answer.reply_code == 404:
            return
        channel.open()
    raise AssertionError(f"{queue} is still there")
