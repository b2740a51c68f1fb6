"""Publishes and further methods in one read have the same effect as if they had arrived one by one:
length limits count only messages that no consumer can take (C-137, C-138), and no method finds a
message in the queue that a consumer can take (C-130)."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic, Queue
from pamqp.header import ContentHeader

from tests.support import wire

COUNT = 300
BODIES = [b"%03d" % number for number in range(COUNT)]


def burst(queue: str) -> bytes:
    head = wire.encode(1, ContentHeader(0, 3, Basic.Properties()))
    return b"".join(wire.publish(1, "", queue) + head + wire.body(1, body) for body in BODIES)


@pytest.fixture
def limited(channel, names):
    def make(limit: int, durable: bool = False, **more):
        arguments = {"x-max-length": limit}
        arguments |= {f"x-{key.replace('_', '-')}": value for key, value in more.items()}
        queue = names.queue()
        channel.declare(queue, durable=durable, arguments=arguments)
        return queue

    return make


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("limit", [0, 1, 10])
def test_c137_consumer_with_credit_gets_every_message_of_a_burst(
    connect, channel, limited, limit, durable
):
    queue = limited(limit, durable)
    channel.consume(queue, no_ack=True)
    publisher = connect()
    publisher.channel()
    publisher.send_bytes(burst(queue))
    assert [message.body for message in channel.deliveries(COUNT)] == BODIES


def test_c137_only_messages_that_no_consumer_can_take_are_dropped(connect, channel, limited):
    queue = limited(10)
    channel.qos(20)
    channel.consume(queue)
    publisher = connect()
    publisher.channel()
    publisher.send_bytes(burst(queue))
    assert [message.body for message in channel.deliveries(20)] == BODIES[:20]
    channel.wait_ready(queue, 10)
    channel.ack(0, multiple=True)
    assert [message.body for message in channel.deliveries(10)] == BODIES[-10:]


@pytest.mark.parametrize("dead_letters", [False, True])
def test_c137_get_after_a_burst_sees_the_queue_within_its_limit(
    channel, names, limited, dead_letters
):
    dead_letter_queue = names.queue()
    channel.declare(dead_letter_queue)
    target = (
        {"dead_letter_exchange": "", "dead_letter_routing_key": dead_letter_queue}
        if dead_letters
        else {}
    )
    queue = limited(10, **target)
    channel.client.send_bytes(burst(queue) + wire.encode(1, Basic.Get(queue=queue, no_ack=True)))
    assert channel.client.content(Basic.GetOk, 1).body == BODIES[-10]
    assert channel.call(Queue.Purge(queue=queue)).message_count == 9
    channel.wait_ready(dead_letter_queue, COUNT - 10 if dead_letters else 0)


def test_c137_cycle_of_full_queues_ends(channel, names):
    """Each message that one queue drops makes the other one drop a message, too."""
    first, second = names.queue(), names.queue()
    for queue, other in ((first, second), (second, first)):
        arguments = {
            "x-max-length": COUNT,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": other,
        }
        channel.declare(queue, arguments=arguments)
    for queue in (first, second, first):
        channel.client.send_bytes(burst(queue))
    channel.wait_ready(first, COUNT)
    channel.wait_ready(second, COUNT)


def test_c138_consumer_with_credit_keeps_the_queue_below_its_limit(connect, channel, limited):
    queue = limited(10, overflow="reject-publish")
    channel.consume(queue, no_ack=True)
    publisher = connect()
    publishing = publisher.channel()
    publishing.confirm_select()
    publisher.send_bytes(burst(queue))
    publishing.confirmed(COUNT)
    assert [message.body for message in channel.deliveries(COUNT)] == BODIES


@pytest.fixture(params=[False, True], ids=["transient", "durable"])
def plain_queue(request, channel, names):
    queue = names.queue()
    channel.declare(queue, durable=request.param)
    return queue


@pytest.fixture
def publisher(connect):
    """A channel of another connection, with number 1."""
    return connect().channel()


def one(queue: str, body: bytes = b"new") -> bytes:
    head = wire.content_header(1, len(body))
    return wire.publish(1, "", queue) + head + wire.body(1, body)


def await_first_delivery(channel, publisher, queue, **options):
    """Consume, and wait for a delivery."""
    channel.consume(queue, "idle", no_ack=True, **options)
    publisher.send(one(queue, b"first"))
    assert channel.deliver().body == b"first"


METHODS = {
    "get": (lambda queue: Basic.Get(queue=queue), Basic.GetEmpty),
    "purge": (lambda queue: Queue.Purge(queue=queue), Queue.PurgeOk),
    "declare": (lambda queue: Queue.Declare(queue=queue, passive=True), Queue.DeclareOk),
    "delete if empty": (lambda queue: Queue.Delete(queue=queue, if_empty=True), Queue.DeleteOk),
    "delete": (lambda queue: Queue.Delete(queue=queue), Queue.DeleteOk),
}


@pytest.mark.parametrize("method", METHODS)
def test_c130_message_for_a_new_consumer_is_never_ready(channel, publisher, plain_queue, method):
    """A durable queue may have to write to the disk before its first delivery."""
    channel.consume(plain_queue, no_ack=True)
    make, answer_kind = METHODS[method]
    publisher.send(one(plain_queue), make(plain_queue))
    answer = publisher.expect(answer_kind)
    assert not getattr(answer, "message_count", 0)
    assert channel.deliver().body == b"new"


@pytest.mark.parametrize("method", METHODS)
def test_c130_message_for_an_idle_consumer_is_never_ready(channel, publisher, plain_queue, method):
    await_first_delivery(channel, publisher, plain_queue)
    make, answer_kind = METHODS[method]
    publisher.send(one(plain_queue), make(plain_queue))
    answer = publisher.expect(answer_kind)
    assert not getattr(answer, "message_count", 0)
    assert channel.deliver().body == b"new"


def test_c130_message_that_is_requeued_goes_to_an_idle_consumer(channel, publisher, plain_queue):
    publisher.send(one(plain_queue))
    publisher.wait_ready(plain_queue, 1)
    tag = publisher.get_one(plain_queue, no_ack=False).tag
    channel.consume(plain_queue, no_ack=True)
    publisher.send(Basic.Reject(tag, requeue=True), Queue.Purge(queue=plain_queue))
    assert publisher.expect(Queue.PurgeOk).message_count == 0
    assert channel.deliver().redelivered


def test_c130_cancelling_consumer_gets_what_was_published_before(channel, publisher, plain_queue):
    await_first_delivery(channel, publisher, plain_queue)
    publisher.call(
        Basic.Consume(
            queue=plain_queue, consumer_tag="high", no_ack=True, arguments={"x-priority": 10}
        )
    )
    publisher.send(one(plain_queue), Basic.Cancel(consumer_tag="high"))
    assert publisher.deliver().method.consumer_tag == "high"
    publisher.expect(Basic.CancelOk)
    channel.expect_silence()


def test_c130_later_consumer_gets_nothing_that_was_published_before(
    channel, publisher, plain_queue
):
    await_first_delivery(channel, publisher, plain_queue)
    consume = Basic.Consume(queue=plain_queue, no_ack=True, arguments={"x-priority": 10})
    publisher.send(one(plain_queue), consume)
    publisher.expect(Basic.ConsumeOk)
    assert channel.deliver().body == b"new"
    publisher.expect_silence()


def test_c130_prefetch_does_not_limit_what_was_published_before(publisher, plain_queue):
    publisher.qos(2)
    publisher.consume(plain_queue, "limited")
    publisher.send(one(plain_queue, b"first"))
    publisher.ack(publisher.deliver().tag)
    publisher.send(one(plain_queue) * 2, Basic.Qos(prefetch_count=1))
    frames = [publisher.client.next_on(1) for _ in range(7)]  # two messages and qos-ok
    assert sum(frame.kind == wire.BODY for frame in frames) == 2
