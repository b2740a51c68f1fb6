"""Rows C-110 to C-130: deliveries, acknowledgements, prefetch and consumers."""

from __future__ import annotations

import itertools

import pytest
from pamqp.commands import Basic, Channel, Queue

from tests.support import wire


@pytest.fixture
def queue(channel, names):
    """A declared queue."""
    queue = names.queue()
    channel.declare(queue)
    return queue


def bodies(contents):
    return [content.body for content in contents]


def lose(channel):
    """Close the channel by an error, which requeues what it had unacked; then reopen it."""
    channel.refused(Queue.Declare(queue="no-such-queue", passive=True), 404)
    channel.open()


# -- delivery tags and acknowledgements ------------------------------------------------------


def test_c110_delivery_tags_grow_over_consume_and_get(channel, queue, names):
    polled = names.queue()
    channel.declare(polled)
    channel.fill(queue, "ab")
    channel.fill(polled, "xy")
    assert channel.get_one(polled, no_ack=False).tag == 1
    channel.consume(queue)
    assert [got.tag for got in channel.deliveries(2)] == [2, 3]
    assert channel.get_one(polled).tag == 4
    channel.nack(2)
    assert channel.deliver().tag == 5


def test_c110_delivery_tags_restart_with_the_channel(channel, queue):
    channel.fill(queue, "ab")
    channel.get_one(queue)
    lose(channel)
    assert channel.get_one(queue).tag == 1


@pytest.mark.parametrize("how", ["ack", "nack", "reject"])
def test_c111_unknown_delivery_tag(channel, queue, how):
    method = {"ack": Basic.Ack(7), "nack": Basic.Nack(7), "reject": Basic.Reject(7)}[how]
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


def test_c113_multiple_with_a_tag_never_given(channel, queue):
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
    assert [(got.body, got.redelivered) for got in again] == [
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
    assert [(got.body, got.redelivered) for got in again] == [
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


def test_c114_rejected_without_requeue_is_gone(channel, queue):
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
    assert all(got.redelivered for got in again)
    assert [got.tag for got in again] == [3, 4]


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


# -- consumers -------------------------------------------------------------------------------


def test_c118_cancel_of_an_unknown_tag(channel):
    assert channel.call(Basic.Cancel(consumer_tag="nobody")).consumer_tag == "nobody"


def test_c119_nothing_is_delivered_after_cancel_ok(channel, queue):
    channel.fill(queue, "a")
    tag = channel.consume(queue)
    channel.deliver()
    channel.cancel(tag)
    channel.fill(queue, "b")
    channel.expect_silence()
    channel.ack(1)
    lose(channel)
    assert channel.drain(queue) == [b"b"]


def test_c119_unacked_deliveries_survive_the_cancel(channel, queue):
    channel.fill(queue, "a")
    tag = channel.consume(queue)
    channel.deliver()
    channel.cancel(tag)
    channel.expect_silence(0.05)
    assert channel.ready(queue) == 0
    channel.nack(1)
    channel.wait_ready(queue, 1)


def test_c120_consumer_tag_used_twice(client, channel, queue):
    channel.consume(queue, "mine")
    channel.send(Basic.Consume(queue=queue, consumer_tag="mine"))
    client.expect_close(530, "attempt to reuse consumer tag 'mine'")


def test_c120_consumer_tag_is_free_on_another_channel_and_after_cancel(client, channel, queue):
    channel.consume(queue, "mine")
    client.channel(2).consume(queue, "mine")
    channel.cancel("mine")
    channel.consume(queue, "mine")


def test_c121_server_makes_a_consumer_tag(channel, queue):
    tag = channel.consume(queue)
    assert tag.startswith("amq.ctag-")
    assert channel.consume(queue) != tag


def test_c122_exclusive_consumer_keeps_others_out(client, channel, queue, broker):
    channel.consume(queue, "only", exclusive=True)
    text = f"queue '{queue}' in vhost '{broker.vhost}' in exclusive use"
    other = client.channel(2)
    other.refused(Basic.Consume(queue=queue), 403, text)
    other.open()
    other.refused(Basic.Consume(queue=queue, exclusive=True), 403, text)
    other.open()
    channel.cancel("only")
    other.consume(queue)


def test_c122_exclusive_consumer_comes_too_late(client, channel, queue):
    channel.consume(queue)
    client.channel(2).refused(Basic.Consume(queue=queue, exclusive=True), 403, "in exclusive use")


def test_c123_consumer_is_told_that_its_queue_was_deleted(connect, client, channel, queue):
    told = connect().channel()
    untold = connect(capabilities={}).channel()
    told.consume(queue, "told")
    untold.consume(queue, "untold")
    channel.call(Queue.Delete(queue=queue))
    assert told.expect(Basic.Cancel).consumer_tag == "told"
    told.expect_silence(0.02)
    untold.expect_silence()


def test_c123_who_deletes_is_answered_before_its_own_consumers_are_told(channel, queue):
    channel.consume(queue, "one")
    channel.consume(queue, "two")
    channel.call(Queue.Delete(queue=queue))
    assert {channel.expect(Basic.Cancel).consumer_tag for _ in range(2)} == {"one", "two"}


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])
def test_c123_a_refused_delete_tells_nobody(channel, names, durable):
    queue = names.queue()
    channel.declare(queue, durable=durable)
    channel.consume(queue, "one")
    channel.refused(Queue.Delete(queue=queue, if_unused=True), 406, "in use")
    channel.open()
    channel.consume(queue, "one")
    channel.call(Queue.Delete(queue=queue))
    channel.expect(Basic.Cancel)


def test_c123_consumer_tag_is_free_after_the_notice(channel, queue, names):
    other = names.queue()
    channel.declare(other)
    channel.consume(queue, "t")
    channel.send(Queue.Delete(queue=queue, nowait=True))
    channel.expect(Basic.Cancel)
    channel.consume(other, "t", no_ack=True)
    channel.publish("", other)
    channel.deliver()


# -- prefetch --------------------------------------------------------------------------------


def test_c124_prefetch_is_per_consumer_started_later(channel, queue, names):
    second = names.queue()
    channel.declare(second)
    channel.qos(2)
    channel.consume(queue, "one")
    channel.consume(second, "two")
    for one, two in zip("abc", "vwx", strict=True):
        channel.publish("", queue, one.encode())
        channel.publish("", second, two.encode())
    got = channel.deliveries(4)
    channel.expect_silence()
    assert sorted(bodies(got)) == [b"a", b"b", b"v", b"w"]
    channel.ack(next(item.tag for item in got if item.body == b"a"))
    assert channel.deliver().body == b"c"
    channel.expect_silence()


def test_c124_a_later_qos_and_a_running_consumer(channel, queue, expected):
    channel.fill(queue, "abcde")
    channel.qos(1)
    channel.consume(queue)
    assert channel.deliver().body == b"a"
    channel.qos(3)
    # RabbitMQ leaves the running consumer at 1; kombu relies on the new limit reaching it.
    more = expected(leveret=2, rabbitmq=0)
    assert len(channel.deliveries(more)) == more
    channel.expect_silence()


def test_c125_prefetch_shared_by_the_channel(channel, queue, names):
    second = names.queue()
    channel.declare(second)
    channel.qos(3, shared=True)
    channel.consume(queue, "one")
    channel.consume(second, "two")
    for target in [queue, second] * 3:
        channel.publish("", target)
    channel.deliveries(3)
    channel.expect_silence()
    channel.ack(1)
    channel.deliver()
    channel.expect_silence()
    channel.ack(0, multiple=True)
    channel.deliveries(2)


def test_c125_both_limits_apply_together(channel, queue, names):
    second = names.queue()
    channel.declare(second)
    channel.fill(queue, "abcd")
    channel.fill(second, "wxyz")
    channel.qos(3)
    channel.qos(5, shared=True)  # in this order: RabbitMQ drops the shared limit at the other
    channel.consume(queue, "one")
    assert bodies(channel.deliveries(3)) == [b"a", b"b", b"c"]
    channel.expect_silence()
    channel.consume(second, "two")
    assert bodies(channel.deliveries(2)) == [b"w", b"x"]
    channel.expect_silence()


def test_c125_raising_the_shared_limit_reaches_running_consumers(channel, queue):
    channel.fill(queue, "abcd")
    channel.qos(1, shared=True)
    channel.consume(queue)
    channel.deliver()
    channel.expect_silence()
    channel.qos(3, shared=True)
    assert bodies(channel.deliveries(2)) == [b"b", b"c"]
    channel.expect_silence()


def test_c125_a_later_limit_per_consumer_lifts_the_shared_one(channel, queue, names):
    second = names.queue()
    channel.declare(second)
    channel.fill(queue, "abcd")
    channel.fill(second, "wxyz")
    channel.qos(4, shared=True)
    channel.qos(3)
    channel.consume(queue, "one")
    assert bodies(channel.deliveries(3)) == [b"a", b"b", b"c"]
    channel.consume(second, "two")
    assert bodies(channel.deliveries(3)) == [b"w", b"x", b"y"]
    channel.expect_silence()


def test_c125_lifting_the_shared_limit_reaches_running_consumers(channel, queue):
    channel.fill(queue, "abcd")
    channel.qos(1, shared=True)
    channel.consume(queue)
    channel.deliver()
    channel.expect_silence()
    channel.qos(0)
    assert bodies(channel.deliveries(3)) == [b"b", b"c", b"d"]


def test_c126_prefetch_zero_is_no_limit(channel, queue):
    channel.fill(queue, "abcdefgh")
    channel.qos(0)
    channel.consume(queue)
    assert len(channel.deliveries(8)) == 8


def test_c126_prefetch_size_is_not_implemented(client, channel):
    channel.send(Basic.Qos(prefetch_size=1))
    client.expect_close(540)


def test_c127_get_ignores_qos_and_counts_what_is_left(channel, queue):
    channel.fill(queue, "abc")
    channel.qos(1)
    got = [channel.get_one(queue, no_ack=False) for _ in range(3)]
    assert [item.method.message_count for item in got] == [2, 1, 0]
    assert channel.get(queue) is None
    assert (got[0].method.exchange, got[0].method.routing_key) == ("", queue)


def test_c127_get_from_a_missing_queue(channel):
    channel.refused(Basic.Get(queue="no-such-queue"), 404)


def test_c128_automatic_acks_are_not_counted_and_not_kept(connect, channel, queue):
    channel.fill(queue, "abcde")
    other = connect()
    consumer = other.channel()
    consumer.qos(1)
    consumer.consume(queue, no_ack=True)
    assert len(consumer.deliveries(5)) == 5
    other.drop()
    channel.wait_consumers(queue, 0)
    assert channel.ready(queue) == 0


def test_c129_no_local_is_ignored(channel, queue):
    channel.consume(queue, no_ack=True, no_local=True)
    channel.publish("", queue, b"own")
    assert channel.deliver().body == b"own"


# -- dispatch --------------------------------------------------------------------------------


def test_c130_equal_consumers_take_turns(client, channel, queue):
    consumers = [client.channel(number) for number in (2, 3, 4)]
    for consumer in consumers:
        consumer.consume(queue, no_ack=True)
    for number in range(9):
        channel.publish("", queue, b"%d" % number)
    shares = [bodies(consumer.deliveries(3)) for consumer in consumers]
    assert sorted(itertools.chain(*shares)) == [b"%d" % number for number in range(9)]


def test_c130_a_message_waits_for_nobody_in_particular(client, channel, queue):
    full, free = client.channel(2), client.channel(3)
    full.qos(1)
    full.consume(queue)
    channel.publish("", queue, b"first")
    full.deliver()
    free.qos(0)
    free.consume(queue)
    for body in (b"second", b"third"):
        channel.publish("", queue, body)
    assert bodies(free.deliveries(2)) == [b"second", b"third"]


def test_c130_higher_priority_first_while_it_has_credit(client, channel, queue):
    low, high = client.channel(2), client.channel(3)
    low.consume(queue)
    high.qos(2)
    high.consume(queue, arguments={"x-priority": 10})
    for body in (b"a", b"b", b"c"):
        channel.publish("", queue, body)
    assert bodies(high.deliveries(2)) == [b"a", b"b"]
    assert low.deliver().body == b"c"
    high.ack(1)
    high.call(Channel.Flow(active=True))
    channel.wait_ready(queue, 0)
    channel.publish("", queue, b"d")
    assert high.deliver().body == b"d"


def test_c130_priority_may_be_negative(client, channel, queue):
    low, normal = client.channel(2), client.channel(3)
    low.consume(queue, arguments={"x-priority": -1}, no_ack=True)
    normal.consume(queue, no_ack=True)
    for _ in range(3):
        channel.publish("", queue)
    normal.deliveries(3)
    low.expect_silence()


def test_c130_priority_of_a_wrong_type(channel, queue):
    channel.refused(Basic.Consume(queue=queue, arguments={"x-priority": "high"}), 406, "x-priority")


@pytest.mark.parametrize("how", ["consume", "get"])
def test_c134_a_delivery_nobody_acks_costs_the_channel(
    client, connect, channel, names, expected, how
):
    queue = names.queue()
    channel.declare(queue, arguments={"x-consumer-timeout": 200})
    channel.fill(queue, "a")
    late = connect().channel()
    if how == "consume":
        late.consume(queue)
        late.deliver()
    else:
        late.get_one(queue, no_ack=False)
    # RabbitMQ 3.10 knows no such argument, only a setting, and looks once a minute.
    if expected(leveret=True, rabbitmq=False):
        late.client.timeout = 30
        close = late.expect_close(406, "delivery acknowledgement on channel 1 timed out")
        assert (close.class_id, close.method_id) == (0, 0)
        channel.wait_ready(queue, 1)
        assert channel.get_one(queue).redelivered
