"""Rows C-118 to C-134: consumers, prefetch and dispatch."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from pamqp.commands import Basic, Channel, Queue, Tx

from tests.semantics.steps import bodies, lose

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


def test_c120_duplicate_consumer_tag_is_refused(client, channel, queue):
    channel.consume(queue, "mine")
    channel.send(Basic.Consume(queue=queue, consumer_tag="mine"))
    client.expect_close(530, "attempt to reuse consumer tag 'mine'")


def test_c120_consumer_tag_is_free_on_another_channel_and_after_cancel(client, channel, queue):
    channel.consume(queue, "mine")
    client.channel(2).consume(queue, "mine")
    channel.cancel("mine")
    channel.consume(queue, "mine")


def test_c121_server_generates_a_consumer_tag(channel, queue):
    tag = channel.consume(queue)
    assert tag.startswith("amq.ctag-")
    assert channel.consume(queue) != tag


def test_c122_exclusive_consumer_excludes_others(client, channel, queue, broker):
    channel.consume(queue, "only", exclusive=True)
    text = f"queue '{queue}' in vhost '{broker.vhost}' in exclusive use"
    other = client.channel(2)
    other.refused(Basic.Consume(queue=queue), 403, text)
    other.open()
    other.refused(Basic.Consume(queue=queue, exclusive=True), 403, text)
    other.open()
    channel.cancel("only")
    other.consume(queue)


def test_c122_exclusive_consumer_is_refused_if_the_queue_has_consumers(client, channel, queue):
    channel.consume(queue)
    client.channel(2).refused(Basic.Consume(queue=queue, exclusive=True), 403, "in exclusive use")


def test_c123_consumer_is_cancelled_when_its_queue_is_deleted(connect, client, channel, queue):
    notified = connect().channel()
    not_notified = connect(capabilities={}).channel()
    notified.consume(queue, "notified")
    not_notified.consume(queue, "not-notified")
    channel.call(Queue.Delete(queue=queue))
    assert notified.expect(Basic.Cancel).consumer_tag == "notified"
    notified.expect_silence(0.02)
    not_notified.expect_silence()


def test_c123_delete_ok_is_sent_before_the_cancel_of_own_consumers(channel, queue):
    channel.consume(queue, "one")
    channel.consume(queue, "two")
    channel.call(Queue.Delete(queue=queue))
    assert {channel.expect(Basic.Cancel).consumer_tag for _ in range(2)} == {"one", "two"}


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])
def test_c123_refused_delete_cancels_no_consumer(channel, names, durable):
    queue = names.queue()
    channel.declare(queue, durable=durable)
    channel.consume(queue, "one")
    channel.refused(Queue.Delete(queue=queue, if_unused=True), 406, "in use")
    channel.open()
    channel.consume(queue, "one")
    channel.call(Queue.Delete(queue=queue))
    channel.expect(Basic.Cancel)


def test_c123_consumer_tag_can_be_reused_after_the_cancel(channel, queue, names):
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


def test_c124_later_qos_applies_to_a_running_consumer(channel, queue, expected):
    channel.fill(queue, "abcde")
    channel.qos(1)
    channel.consume(queue)
    assert channel.deliver().body == b"a"
    channel.qos(3)
    # RabbitMQ keeps the limit of the running consumer at 1; kombu relies on the new limit.
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
    channel.qos(
        5, shared=True
    )  # in this order, because RabbitMQ drops the shared limit in the other
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


def test_c125_later_prefetch_per_consumer_removes_the_shared_limit(channel, queue, names):
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


def test_c125_removing_the_shared_limit_reaches_running_consumers(channel, queue):
    channel.fill(queue, "abcd")
    channel.qos(1, shared=True)
    channel.consume(queue)
    channel.deliver()
    channel.expect_silence()
    channel.qos(0)
    assert bodies(channel.deliveries(3)) == [b"b", b"c", b"d"]


@pytest.mark.parametrize("prefetch", [1, 5])
def test_c125_shared_limit_serves_all_queues_of_the_channel(client, make, channel, prefetch):
    queues = [make() for _ in range(3)]
    for queue in queues:
        channel.fill(queue, [b"x"] * 60)
    worker = client.channel(2)
    worker.qos(prefetch, shared=True)
    worker.send(*(Basic.Consume(queue=queue, consumer_tag=queue, nowait=True) for queue in queues))
    served: Counter[str] = Counter()
    for _ in range(99):
        delivery = worker.deliver()
        served[delivery.method.consumer_tag] += 1
        worker.ack(delivery.tag)
    assert min(served[queue] for queue in queues) > 15, served


def test_c125_deliveries_of_a_cancelled_consumer_count_for_the_shared_limit(channel, make):
    first, second = make(), make()
    channel.fill(first, "ab")
    channel.fill(second, "w")
    channel.qos(2, shared=True)
    channel.consume(first, "one")
    held = channel.deliveries(2)
    channel.cancel("one")
    channel.consume(second, "two")
    channel.expect_silence()
    channel.ack(held[0].tag)
    assert channel.deliver().body == b"w"


def test_c125_shared_limit_is_free_again_at_the_commit(channel, queue):
    channel.fill(queue, "abc")
    channel.call(Tx.Select())
    channel.qos(2, shared=True)
    channel.consume(queue)
    held = channel.deliveries(2)
    channel.ack(held[0].tag)
    channel.expect_silence()
    channel.send(Tx.Commit())
    channel.expect(Tx.CommitOk)
    assert channel.deliver().body == b"c"


def test_c125_direct_replies_do_not_wait_for_the_shared_limit(channel, queue):
    channel.consume("amq.rabbitmq.reply-to", "replies", no_ack=True)
    channel.fill(queue, "ab")
    channel.qos(1, shared=True)
    channel.consume(queue, "one")
    channel.deliver()
    channel.publish("", queue, b"request", reply_to="amq.rabbitmq.reply-to")
    request = channel.get_one(queue)
    while request.body != b"request":
        request = channel.get_one(queue)
    channel.publish("", request.properties.reply_to, b"reply")
    assert channel.deliver().body == b"reply"


def test_c126_prefetch_zero_is_no_limit(channel, queue):
    channel.fill(queue, "abcdefgh")
    channel.qos(0)
    channel.consume(queue)
    assert len(channel.deliveries(8)) == 8


def test_c126_prefetch_size_is_not_implemented(client, channel):
    channel.send(Basic.Qos(prefetch_size=1))
    client.expect_close(540)


def test_c127_got_messages_do_not_count_for_the_shared_limit(channel, make):
    polled, queue = make(), make()
    channel.fill(polled, "abc")
    channel.fill(queue, "wxyz")
    channel.qos(2, shared=True)
    got = [channel.get_one(polled, no_ack=False) for _ in range(3)]
    channel.consume(queue)
    held = channel.deliveries(2)
    for content in got:
        channel.ack(content.tag)
    channel.expect_silence()
    channel.ack(held[0].tag)
    assert channel.deliver().body == b"y"


def test_c127_get_ignores_qos_and_counts_the_remaining_messages(channel, queue):
    channel.fill(queue, "abc")
    channel.qos(1)
    got = [channel.get_one(queue, no_ack=False) for _ in range(3)]
    assert [item.method.message_count for item in got] == [2, 1, 0]
    assert channel.get(queue) is None
    assert (got[0].method.exchange, got[0].method.routing_key) == ("", queue)


def test_c127_get_from_a_missing_queue(channel):
    channel.refused(Basic.Get(queue="no-such-queue"), 404)


def test_c128_automatic_acks_are_not_counted_as_unacked(connect, channel, queue):
    channel.fill(queue, "abcde")
    other = connect()
    consumer = other.channel()
    consumer.qos(1)
    consumer.consume(queue, no_ack=True)
    assert len(consumer.deliveries(5)) == 5
    other.drop()
    channel.wait_consumers(queue, 0)
    assert channel.ready(queue) == 0


def test_c128_consumer_without_acks_waits_while_the_shared_limit_is_used_up(channel, make):
    queue, other = make(), make()
    channel.fill(queue, "a")
    channel.fill(other, "wxyz")
    channel.qos(1, shared=True)
    channel.consume(queue, "one")
    held = channel.deliver()
    channel.consume(other, "two", no_ack=True)
    channel.expect_silence()
    channel.ack(held.tag)
    assert bodies(channel.deliveries(4)) == [b"w", b"x", b"y", b"z"]


def test_c129_no_local_is_ignored(channel, queue):
    channel.consume(queue, no_ack=True, no_local=True)
    channel.publish("", queue, b"own")
    assert channel.deliver().body == b"own"


# -- dispatch --------------------------------------------------------------------------------


def test_c130_consumers_of_equal_priority_are_served_round_robin(client, channel, queue):
    consumers = [client.channel(number) for number in (2, 3, 4)]
    for consumer in consumers:
        consumer.consume(queue, no_ack=True)
    for number in range(9):
        channel.publish("", queue, b"%d" % number)
    shares = [bodies(consumer.deliveries(3)) for consumer in consumers]
    assert sorted(itertools.chain(*shares)) == [b"%d" % number for number in range(9)]


def test_c130_message_goes_to_any_consumer_with_credit(client, channel, queue):
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


def test_c130_higher_priority_is_served_first_while_it_has_credit(client, channel, queue):
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


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_only_a_stream_has_offsets(client, channel, names, kind):
    queue = names.queue()
    channel.declare(queue, durable=True, arguments={"x-queue-type": kind})
    consume = Basic.Consume(queue=queue, arguments={"x-stream-offset": "next"})
    place = f"for queue '{queue}' in vhost '/' of queue type rabbit_{kind}_queue"
    client.channel(2).refused(consume, 406, f"invalid arg 'x-stream-offset' {place}")


@pytest.mark.parametrize("method_name", ["consume", "get"])
def test_c134_delivery_without_ack_closes_the_channel(
    client, connect, channel, names, expected, method_name
):
    queue = names.queue()
    channel.declare(queue, arguments={"x-consumer-timeout": 200})
    channel.fill(queue, "a")
    late = connect().channel()
    if method_name == "consume":
        late.consume(queue)
        late.deliver()
    else:
        late.get_one(queue, no_ack=False)
    # RabbitMQ 3.10 has only a setting for this, no argument, and checks it once a minute.
    if expected(leveret=True, rabbitmq=False):
        close = late.expect_close(406, "delivery acknowledgement on channel 1 timed out")
        assert (close.class_id, close.method_id) == (0, 0)
        channel.wait_ready(queue, 1)
        assert channel.get_one(queue).redelivered
