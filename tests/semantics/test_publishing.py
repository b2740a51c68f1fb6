"""Rows C-95 to C-109: returns, confirms, transactions and direct replies."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic, Channel, Confirm, Queue, Tx

from tests.support import wire


def test_c095_unroutable_mandatory_message_is_returned_then_acked(channel):
    channel.confirm_select()
    channel.publish(
        "amq.direct", "nowhere", b"come back", mandatory=True, message_id="m", headers={"a": 1}
    )
    back = channel.returned()
    assert (back.method.reply_code, back.method.reply_text) == (312, "NO_ROUTE")
    assert (back.method.exchange, back.method.routing_key) == ("amq.direct", "nowhere")
    assert (back.body, back.properties.message_id, back.headers) == (b"come back", "m", {"a": 1})
    ack = channel.expect(Basic.Ack)
    assert (ack.delivery_tag, ack.multiple) == (1, False)


def test_c095_default_exchange_returns_too(channel):
    channel.publish("", "no-such-queue", b"", mandatory=True)
    back = channel.returned()
    assert (back.method.exchange, back.method.routing_key) == ("", "no-such-queue")
    assert back.body == b""


def test_c095_large_return_is_split_like_a_delivery(connect):
    channel = connect(frame_max=4096).channel()
    channel.publish("amq.direct", "nowhere", b"x" * 10_000, mandatory=True)
    assert channel.returned().body_sizes == (4088, 4088, 10_000 - 2 * 4088)


def test_c096_unroutable_message_is_acked(channel):
    channel.confirm_select()
    channel.publish("amq.direct", "nowhere")
    channel.confirmed(1)
    channel.expect_silence()


def test_c097_immediate_is_not_implemented(client, channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.publish("", queue, immediate=True)
    client.expect_close(540, "NOT_IMPLEMENTED")


def test_c098_confirms_count_from_the_first_select(channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.publish("", queue)  # before the select: not counted
    channel.confirm_select()
    for _ in range(50):
        channel.publish("", queue)
    channel.send(Confirm.Select())
    numbers = collect_acks(channel, 50)
    channel.publish("", queue)
    numbers |= collect_acks(channel, 1, known=numbers)
    assert numbers == set(range(1, 52))
    channel.expect_silence()


def test_c098_channels_count_separately(client, names):
    queue = names.queue()
    for number in (1, 2):
        channel = client.channel(number)
        channel.declare(queue)
        channel.confirm_select()
        channel.publish("", queue)
        channel.confirmed(1)


def test_c098_select_again_after_reopening_starts_at_one(channel, names):
    queue = names.queue()
    channel.declare(queue)
    for _ in range(2):
        channel.confirm_select()
        channel.publish("", queue)
        channel.confirmed(1)
        channel.refused(Queue.Declare(queue="no-such-queue", passive=True), 404)
        channel.open()


def test_c099_confirm_after_tx(channel):
    channel.call(Tx.Select())
    channel.refused(Confirm.Select(), 406, "cannot switch from tx to confirm mode")


def test_c099_tx_after_confirm(channel):
    channel.confirm_select()
    channel.refused(Tx.Select(), 406, "cannot switch from confirm to tx mode")


@pytest.mark.parametrize("persistent", [False, True])
def test_c100_message_is_acked_once_after_all_queues_have_it(channel, names, persistent):
    exchange = names.exchange()
    queues = [names.queue() for _ in range(5)]
    channel.exchange(exchange, "fanout")
    for queue in queues:
        channel.declare(queue, durable=True)
        channel.bind(queue, exchange)
    channel.confirm_select()
    channel.publish(exchange, "", delivery_mode=2 if persistent else 1)
    channel.confirmed(1)
    assert [channel.drain(queue) for queue in queues] == [[b"x"]] * 5
    channel.expect_silence()


def test_c101_queue_deleted_under_a_pending_confirm(channel, names):
    queue = names.queue()
    channel.declare(queue, durable=True)
    channel.confirm_select()
    for _ in range(20):
        channel.publish("", queue, delivery_mode=2)
    channel.send(Queue.Delete(queue=queue, nowait=True))
    channel.confirmed(20)


@pytest.mark.parametrize("expiration", ["x", "-1", "1.5", " 1", "315360000001"])
def test_c102_expiration_that_is_not_a_number_is_refused(channel, names, expiration):
    queue = names.queue()
    channel.declare(queue)
    channel.confirm_select()
    channel.publish("", queue, expiration=expiration)
    close = channel.expect_close(406, "invalid expiration")
    assert (close.class_id, close.method_id) == (60, 40)


def test_c102_ten_years_are_allowed(channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.publish("", queue, b"patient", expiration="315360000000")
    channel.wait_ready(queue, 1)
    assert channel.get_one(queue).properties.expiration == "315360000000"


def test_c104_user_id_of_another_user(channel, names, broker):
    queue = names.queue()
    channel.declare(queue)
    channel.publish("", queue, user_id=broker.user)
    channel.wait_ready(queue, 1)
    channel.publish("", queue, user_id="somebody")
    channel.expect_close(406, "user_id property set to 'somebody' but authenticated user was")


def test_c106_reply_to_without_a_reply_consumer(channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.publish("", queue, reply_to="amq.rabbitmq.reply-to")
    channel.expect_close(406, "fast reply consumer does not exist")


def test_c106_reply_consumer_that_would_ack(channel):
    channel.refused(
        Basic.Consume(queue="amq.rabbitmq.reply-to"), 406, "reply consumer cannot acknowledge"
    )


def test_c106_second_reply_consumer(channel):
    channel.consume("amq.rabbitmq.reply-to", "one", no_ack=True)
    channel.refused(
        Basic.Consume(queue="amq.rabbitmq.reply-to", consumer_tag="two", no_ack=True),
        406,
        "reply consumer already set",
    )


def test_c106_direct_reply_to(connect, channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.consume("amq.rabbitmq.reply-to", "replies", no_ack=True)
    channel.publish("", queue, b"ask", reply_to="amq.rabbitmq.reply-to", correlation_id="7")
    server = connect().channel()
    server.wait_ready(queue, 1)
    request = server.get_one(queue)
    address = request.properties.reply_to
    assert address.startswith("amq.rabbitmq.reply-to.")
    server.publish("", address, b"answer", correlation_id=request.properties.correlation_id)
    answer = channel.deliver()
    assert (answer.body, answer.properties.correlation_id) == (b"answer", "7")
    assert (answer.method.consumer_tag, answer.method.routing_key) == ("replies", address)
    # A passive declare of the reply address tests whether the requester still consumes.
    server.send(wire.queue_declare(1, address, flags=1))
    assert server.client.next_on(1).payload[4:].startswith(wire.shortstr(address))


def test_c106_reply_to_a_closed_channel(connect, channel, names):
    queue = names.queue()
    channel.declare(queue)
    asking = connect()
    asker = asking.channel()
    asker.consume("amq.rabbitmq.reply-to", no_ack=True)
    asker.publish("", queue, reply_to="amq.rabbitmq.reply-to")
    channel.wait_ready(queue, 1)
    address = channel.get_one(queue).properties.reply_to
    asking.close()
    channel.confirm_select()
    channel.publish("", address, b"too late")
    channel.confirmed(1)


def test_c107_message_published_in_a_transaction_is_invisible_until_commit(client, channel, names):
    queue = names.queue()
    other = client.channel(2)
    channel.declare(queue)
    channel.call(Tx.Select())
    channel.publish("", queue, b"a")
    channel.publish("", queue, b"b")
    channel.expect_silence(0.03)
    assert other.get(queue) is None
    channel.call(Tx.Commit())
    other.wait_ready(queue, 2)
    assert other.drain(queue) == [b"a", b"b"]


def test_c107_runs_of_messages_are_committed_in_order(client, channel, names):
    """Also to a queue that is deleted before the commit."""
    queues = [names.queue() for _ in range(3)]
    for queue in queues:
        channel.declare(queue, durable=True)
    channel.call(Tx.Select())
    sent = b""
    for number in range(600):
        queue = queues[number // 20 % 3]
        head = wire.content_header(1, 3, b"\x10\x00\x02")
        sent += wire.publish(1, "", queue) + head + wire.body(1, b"%03d" % number)
    channel.client.send_bytes(sent)
    channel.call(Channel.Flow(active=True))
    other = client.channel(2)
    other.call(Queue.Delete(queue=queues[2]))
    channel.call(Tx.Commit())
    for index in (0, 1):
        bodies = [b"%03d" % number for number in range(600) if number // 20 % 3 == index]
        assert other.drain(queues[index]) == bodies


def test_c107_return_is_sent_after_commit_and_before_commit_ok(channel):
    channel.call(Tx.Select())
    channel.publish("amq.direct", "nowhere", b"back", mandatory=True)
    channel.expect_silence(0.05)
    channel.send(Tx.Commit())
    assert channel.returned().body == b"back"
    channel.expect(Tx.CommitOk)


def test_c107_error_at_publish_is_immediate(channel, names):
    channel.call(Tx.Select())
    channel.publish("no-such-exchange", "k")
    channel.expect_close(404)


def test_c107_acks_take_effect_at_commit(client, channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.fill(queue, "ab")
    channel.call(Tx.Select())
    for _ in range(2):
        channel.ack(channel.get_one(queue, no_ack=False).tag)
    channel.call(Tx.Commit())
    channel.refused(Queue.Declare(queue="no-such-queue", passive=True), 404)
    other = client.channel(2)
    other.expect_silence()
    assert other.ready(queue) == 0


def test_c107_nack_in_a_transaction_requeues_at_commit(client, channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.fill(queue, "a")
    channel.call(Tx.Select())
    channel.nack(channel.get_one(queue, no_ack=False).tag)
    channel.expect_silence(0.05)
    assert client.channel(2).ready(queue) == 0
    channel.call(Tx.Commit())
    channel.wait_ready(queue, 1)


def test_c107_messages_acked_in_an_uncommitted_transaction_are_requeued(client, channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.fill(queue, "a")
    channel.call(Tx.Select())
    channel.ack(channel.get_one(queue, no_ack=False).tag)
    channel.publish("", queue, b"lost")
    channel.refused(Queue.Declare(queue="no-such-queue", passive=True), 404)
    other = client.channel(2)
    other.wait_ready(queue, 1)
    assert other.get_one(queue).body == b"a"


def test_c108_rollback_discards_publishes_and_acks(client, channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.fill(queue, "a")
    channel.call(Tx.Select())
    message = channel.get_one(queue, no_ack=False)
    channel.ack(message.tag)
    channel.publish("", queue, b"never")
    channel.call(Tx.Rollback())
    channel.expect_silence(0.05)
    assert channel.ready(queue) == 0  # not requeued either
    channel.ack(message.tag)
    channel.call(Tx.Commit())
    channel.call(Tx.Select())
    channel.refused(Queue.Declare(queue="no-such-queue", passive=True), 404)
    other = client.channel(2)
    other.expect_silence(0.05)
    assert other.ready(queue) == 0


@pytest.mark.parametrize("method", [Tx.Commit(), Tx.Rollback()], ids=["commit", "rollback"])
def test_c109_commit_or_rollback_without_select(channel, method):
    channel.refused(method, 406, "channel is not transactional")


def collect_acks(channel, count, known=frozenset()):
    """Read confirms until `count` new publishes are confirmed, single or multiple."""
    numbers: set[int] = set()
    while len(numbers) < count:
        answer = channel.client.next_on(1).decode()
        if answer.name == "Confirm.SelectOk":
            continue
        assert answer.name == "Basic.Ack"
        tag = answer.delivery_tag
        fresh = set(range(1, tag + 1)) - known - numbers if answer.multiple else {tag}
        assert fresh
        assert not fresh & (numbers | known)
        numbers |= fresh
    return numbers
