"""Rows C-110 to C-117: delivery tags, acknowledgements and requeueing."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic, Channel, Queue

from tests.semantics.steps import bodies, lose
from tests.support import wire

# -- delivery tags and acknowledgements ------------------------------------------------------


def test_c110_delivery_tags_grow_over_consume_and_get(channel, queue, names):
    polled = names.queue()
    channel.declare(polled)
    channel.fill(queue, "ab")
    channel.fill(polled, "xy")
    assert channel.get_one(polled, no_ack=False).tag == 1
    channel.consume(queue)
    assert [message.tag for message in channel.deliveries(2)] == [2, 3]
    assert channel.get_one(polled).tag == 4
    channel.nack(2)
    assert channel.deliver().tag == 5


def test_c110_delivery_tags_restart_with_the_channel(channel, queue):
    channel.fill(queue, "ab")
    channel.get_one(queue)
    lose(channel)
    assert channel.get_one(queue).tag == 1


@pytest.mark.parametrize("method_name", ["ack", "nack", "reject"])
def test_c111_unknown_delivery_tag(channel, queue, method_name):
    method = {"ack": Basic.Ack(7), "nack": Basic.Nack(7), "reject": Basic.Reject(7)}[method_name]
    channel.refused(method, 406, "PRECONDITION_FAILED - unknown delivery tag 7")


def test_c111_repeated_ack(channel, queue):
    channel.fill(queue, "a")
    channel.get_one(queue, no_ack=False)
    channel.ack(1)
    channel.refused(Basic.Ack(1), 406, "unknown delivery tag 1")


def test_c111_delivery_of_another_channel(client, channel, queue):
    channel.fill(queue, "a")
    channel.get_one(queue, no_ack=False)
    client.channel(2).refused(Basic.Ack(1), 406, "unknown delivery tag 1")


def test_c111_ack_of_an_automatic_delivery(channel, queue):
    channel.fill(queue, "a")
    channel.consume(queue, no_ack=True)
    channel.deliver()
    channel.refused(Basic.Ack(1), 406, "unknown delivery tag 1")


def test_c112_multiple_with_tag_zero_means_all(client, channel, queue):
    channel.ack(0, multiple=True)  # none outstanding: no error
    channel.fill(queue, "abc")
    for _ in range(3):
        channel.get_one(queue, no_ack=False)
    channel.ack(0, multiple=True)
    channel.nack(0, multiple=True)
    lose(channel)
    assert channel.get(queue) is None


def test_c112_single_with_tag_zero_is_unknown(channel, queue):
    channel.refused(Basic.Ack(0), 406, "unknown delivery tag 0")


def test_c112_multiple_covers_all_up_to_its_tag(channel, queue):
    channel.fill(queue, "abcd")
    for _ in range(4):
        channel.get_one(queue, no_ack=False)
    channel.ack(2)
    channel.ack(3, multiple=True)
    lose(channel)
    channel.wait_ready(queue, 1)
    assert channel.drain(queue) == [b"d"]


def test_c113_multiple_with_a_tag_already_acked(channel, queue):
    channel.fill(queue, "ab")
    for _ in range(2):
        channel.get_one(queue, no_ack=False)
    channel.ack(2)
    channel.refused(Basic.Ack(2, multiple=True), 406, "unknown delivery tag 2")


def test_c113_multiple_with_a_tag_never_sent(channel, queue):
    channel.fill(queue, "a")
    channel.get_one(queue, no_ack=False)
    channel.refused(Basic.Ack(5, multiple=True), 406, "unknown delivery tag 5")


# -- requeueing ------------------------------------------------------------------------------


def test_c114_requeued_messages_return_to_their_place(channel, queue):
    channel.fill(queue, "abcdef")
    for _ in range(4):
        channel.get_one(queue, no_ack=False)
    channel.nack(3)
    channel.nack(1)
    channel.send(Basic.Reject(4, requeue=True))
    channel.wait_ready(queue, 5)
    again = [channel.get_one(queue) for _ in range(5)]
    assert [(message.body, message.redelivered) for message in again] == [
        (b"a", True),
        (b"c", True),
        (b"d", True),
        (b"e", False),
        (b"f", False),
    ]


def test_c114_nack_multiple_requeues_in_order(channel, queue):
    channel.fill(queue, "abcd")
    for _ in range(3):
        channel.get_one(queue, no_ack=False)
    channel.nack(3, multiple=True)
    channel.wait_ready(queue, 4)
    assert channel.drain(queue) == [b"a", b"b", b"c", b"d"]


def test_c114_channel_close_requeues_in_order(client, channel, queue):
    channel.fill(queue, "abcd")
    other = client.channel(2)
    other.qos(3)
    other.consume(queue)
    other.deliveries(3)
    other.call(Channel.Close(200, "", 0, 0))
    channel.wait_ready(queue, 4)
    again = [channel.get_one(queue) for _ in range(4)]
    assert [(message.body, message.redelivered) for message in again] == [
        (b"a", True),
        (b"b", True),
        (b"c", True),
        (b"d", False),
    ]


def test_c114_lost_connection_requeues(connect, channel, queue):
    channel.fill(queue, "ab")
    other = connect()
    consumer = other.channel()
    consumer.consume(queue)
    consumer.deliveries(2)
    other.drop()
    channel.wait_ready(queue, 2)
    assert channel.get_one(queue).redelivered


def test_c114_message_rejected_without_requeue_is_dropped(channel, queue):
    channel.fill(queue, "abc")
    for _ in range(3):
        channel.get_one(queue, no_ack=False)
    channel.send(Basic.Reject(1, requeue=False))
    channel.nack(3, multiple=True, requeue=False)
    lose(channel)
    assert channel.get(queue) is None


def test_c116_recover_requeues_and_answers_first(channel, queue):
    channel.fill(queue, "abc")
    channel.qos(2)
    channel.consume(queue)
    assert bodies(channel.deliveries(2)) == [b"a", b"b"]
    channel.send(Basic.Recover(requeue=True))
    channel.expect(Basic.RecoverOk)
    again = channel.deliveries(2)
    assert bodies(again) == [b"a", b"b"]
    assert all(message.redelivered for message in again)
    assert [message.tag for message in again] == [3, 4]


def test_c116_recover_async_is_silent(channel, queue):
    channel.fill(queue, "a")
    channel.get_one(queue, no_ack=False)
    channel.send(wire.method(1, 60, 100, b"\1"))
    channel.wait_ready(queue, 1)


def test_c116_recover_without_requeue_is_not_implemented(client, channel):
    channel.send(Basic.Recover(requeue=False))
    client.expect_close(540)


def test_c117_ack_after_the_queue_was_deleted(client, channel, queue):
    channel.fill(queue, "ab")
    for _ in range(2):
        channel.get_one(queue, no_ack=False)
    channel.call(Queue.Delete(queue=queue))
    channel.ack(1)
    channel.nack(2)
    channel.call(Channel.Flow(active=True))
