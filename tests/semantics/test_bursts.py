"""A burst that arrives in one piece: limits count what no consumer can take, as if each message
had come alone (C-137, C-138)."""

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
def test_c137_a_consumer_that_keeps_up_misses_nothing(connect, channel, limited, limit, durable):
    queue = limited(limit, durable)
    channel.consume(queue, no_ack=True)
    publisher = connect()
    publisher.channel()
    publisher.send_bytes(burst(queue))
    assert [one.body for one in channel.deliveries(COUNT)] == BODIES


def test_c137_only_what_no_consumer_can_take_makes_room(connect, channel, limited):
    queue = limited(10)
    channel.qos(20)
    channel.consume(queue)
    publisher = connect()
    publisher.channel()
    publisher.send_bytes(burst(queue))
    assert [one.body for one in channel.deliveries(20)] == BODIES[:20]
    channel.wait_ready(queue, 10)
    channel.ack(0, multiple=True)
    assert [one.body for one in channel.deliveries(10)] == BODIES[-10:]


@pytest.mark.parametrize("dies_on", [False, True])
def test_c137_who_asks_behind_a_burst_sees_what_is_left_of_it(channel, names, limited, dies_on):
    grave = names.queue()
    channel.declare(grave)
    target = {"dead_letter_exchange": "", "dead_letter_routing_key": grave} if dies_on else {}
    queue = limited(10, **target)
    channel.client.send_bytes(burst(queue) + wire.encode(1, Basic.Get(queue=queue, no_ack=True)))
    assert channel.client.content(Basic.GetOk, 1).body == BODIES[-10]
    assert channel.call(Queue.Purge(queue=queue)).message_count == 9
    channel.wait_ready(grave, COUNT - 10 if dies_on else 0)


def test_c137_a_circle_of_full_queues_ends(channel, names):
    """Each message that leaves one makes room in the other for one that leaves it, too."""
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


def test_c138_a_consumer_that_keeps_up_leaves_room(connect, channel, limited):
    queue = limited(10, overflow="reject-publish")
    channel.consume(queue, no_ack=True)
    publisher = connect()
    publishing = publisher.channel()
    publishing.confirm_select()
    publisher.send_bytes(burst(queue))
    publishing.confirmed(COUNT)
    assert [one.body for one in channel.deliveries(COUNT)] == BODIES
