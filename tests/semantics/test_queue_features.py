"""Rows C-89 to C-94, C-100, C-103, C-115, C-131, C-132 and C-135 to C-138: what arguments do."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pamqp.commands import Basic, Exchange, Queue

from tests.semantics.graves import buried, death
from tests.semantics.managed import NOTHING, PASSWORD, managing

# -- declaring -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-message-ttl", -1),
        ("x-message-ttl", "1000"),
        ("x-expires", 0),
        ("x-max-length", -1),
        ("x-max-priority", 256),
        ("x-overflow", "sideways"),
        ("x-dead-letter-routing-key", "alone"),
        ("x-single-active-consumer", "yes"),
    ],
)
def test_c089_wrong_argument(channel, names, argument, value):
    method = Queue.Declare(queue=names.queue(), arguments={argument: value})
    channel.refused(method, 406, f"PRECONDITION_FAILED - invalid arg '{argument}' for queue")


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-queue-mode": "lazy"},
        {"x-queue-version": 2},
        {"x-ha-policy": "all"},
        {"x-nobody-knows": "this"},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_c089_arguments_that_mean_nothing_are_taken(channel, names, arguments):
    queue = names.queue()
    channel.declare(queue, arguments=arguments)
    channel.fill(queue, "a")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"durable": False}, "invalid property 'non-durable' for queue"),
        ({"durable": True, "exclusive": True}, "invalid property 'exclusive-owner' for queue"),
        ({"durable": True, "auto_delete": True}, "invalid property 'auto-delete' for queue"),
        ({"durable": True, "queue": ""}, "server-named queue for type rabbit_quorum_queue"),
    ],
)
def test_c089_what_a_quorum_queue_cannot_be(channel, names, options, text):
    asked = {"queue": names.queue(), **options, "arguments": {"x-queue-type": "quorum"}}
    channel.refused(Queue.Declare(**asked), 406, text)


def test_c090_no_time_and_no_room_are_legal(channel, make):
    no_time, no_room = make(message_ttl=0), make(max_length=0)
    for queue in (no_time, no_room):
        channel.publish("", queue)
        channel.wait_ready(queue, 0)
    channel.consume(no_time, no_ack=True)
    channel.publish("", no_time, b"at once")
    assert channel.deliver().body == b"at once"


def test_c091_an_unused_queue_expires_and_buries_nothing(channel, source, grave):
    queue = source(expires=1500)
    channel.fill(queue, "a")
    channel.confirm_select()
    while is_there(channel, queue):
        time.sleep(0.1)
    channel.refused(Queue.Declare(queue=queue, passive=True), 404)
    channel.open()
    assert channel.ready(grave) == 0


def is_there(channel, queue):
    """By publishing to it; looking would keep it."""
    channel.publish("", queue, mandatory=True)
    answer = channel.client.next_on(channel.number).decode()
    if isinstance(answer, Basic.Return):
        for _ in ("header", "body"):
            channel.client.next_on(channel.number)
        channel.expect(Basic.Ack)
        return False
    assert isinstance(answer, Basic.Ack)
    return True


@pytest.mark.parametrize("how", ["get", "declare"])
def test_c091_polling_or_declaring_keeps_it(channel, make, how):
    queue = make(expires=3000)
    for _ in range(14):
        time.sleep(0.25)
        if how == "get":
            channel.get(queue)
        else:
            channel.declare(queue, passive=True)
    assert channel.ready(queue) == 0


@pytest.fixture(scope="module")
def managed(broker):
    with managing(broker) as managed:
        yield managed


def login(managed, user):
    target = managed.target
    return target.socket().handshake(target.vhost, user, PASSWORD)


@pytest.mark.parametrize(
    ("rights", "text"),
    [({"read": NOTHING}, "queue"), ({"write": NOTHING}, "exchange 'graves' in vhost")],
    ids=["read", "write"],
)
def test_c094_dead_letters_need_read_here_and_write_there(managed, names, rights, text):
    with login(managed, managed.user(**rights)) as client:
        channel = client.channel()
        channel.declare(names.queue())
        arguments: dict[str, Any] = {"x-dead-letter-exchange": "graves"}
        method = Queue.Declare(queue=names.queue(), arguments=arguments)
        channel.refused(method, 403, f"to {text}" if text == "queue" else text)


def test_c094_alternate_exchange_needs_read_here_and_write_there(managed, names):
    with login(managed, managed.user(write=NOTHING)) as client:
        arguments: dict[str, Any] = {"alternate-exchange": "others"}
        method = Exchange.Declare(exchange=names.exchange(), arguments=arguments)
        client.channel().refused(method, 403, "exchange 'others' in vhost")


# -- publishing ------------------------------------------------------------------------------


def test_c100_one_refusal_is_a_nack_and_the_others_keep_it(channel, make, names):
    full, roomy = make(max_length=0, overflow="reject-publish"), make()
    exchange = names.exchange()
    channel.exchange(exchange, "fanout")
    for queue in (full, roomy):
        channel.bind(queue, exchange)
    channel.confirm_select()
    channel.publish(exchange, "")
    assert channel.expect(Basic.Nack).delivery_tag == 1
    channel.wait_ready(roomy, 1)


def test_c103_expiration_zero(channel, source, grave):
    queue = source()
    channel.publish("", queue, expiration="0")
    assert death(buried(channel, grave))["reason"] == "expired"
    channel.consume(queue, no_ack=True)
    channel.publish("", queue, b"at once", expiration="0")
    assert channel.deliver().body == b"at once"


# -- holding ---------------------------------------------------------------------------------


def test_c115_requeued_past_its_time_it_expires(channel, source, grave):
    queue = source(message_ttl=2500)
    channel.publish("", queue)
    channel.wait_ready(queue, 1)
    tag = channel.get_one(queue, no_ack=False).tag
    time.sleep(2.6)
    channel.nack(tag)
    assert death(buried(channel, grave))["reason"] == "expired"


def test_c131_one_consumer_gets_all_and_the_next_takes_over(client, channel, make):
    queue = make(single_active_consumer=True)
    other = client.channel(2)
    first = channel.consume(queue, no_ack=True)
    other.consume(queue, no_ack=True)
    channel.publish("", queue, b"1")
    channel.publish("", queue, b"2")
    assert [one.body for one in channel.deliveries(2)] == [b"1", b"2"]
    channel.cancel(first)
    channel.publish("", queue, b"3")
    assert other.deliver().body == b"3"


def test_c131_exclusive_consume_is_refused(channel, make):
    queue = make(single_active_consumer=True)
    channel.refused(Basic.Consume(queue=queue, exclusive=True), 403)


def test_c131_polling_is_answered_as_empty(client, channel, make):
    queue = make(single_active_consumer=True)
    client.channel(2).consume(queue)
    channel.publish("", queue)
    assert channel.get(queue) is None


def test_c132_priorities(channel, make):
    queue = make(max_priority=5)
    sent = [(b"a", None), (b"b", 3), (b"c", 9), (b"d", 3), (b"e", 5), (b"f", 0)]
    for body, priority in sent:
        channel.publish("", queue, body, priority=priority)
    channel.wait_ready(queue, len(sent))
    assert channel.drain(queue) == [b"c", b"e", b"b", b"d", b"a", b"f"]


def test_c132_what_was_delivered_is_not_overtaken(channel, make):
    queue = make(max_priority=5)
    channel.qos(1)
    channel.consume(queue)
    channel.publish("", queue, b"low", priority=1)
    low = channel.deliver()
    for body, priority in ((b"middle", 2), (b"high", 5)):
        channel.publish("", queue, body, priority=priority)
    channel.wait_ready(queue, 2)
    channel.ack(low.tag)
    assert channel.deliver().body == b"high"


def test_c135_behind_a_longer_lived_head_it_counts_but_is_never_delivered(channel, make):
    queue = make()
    channel.publish("", queue, b"head")
    channel.publish("", queue, b"dead", expiration="20")
    channel.wait_ready(queue, 2)
    time.sleep(0.1)
    assert channel.ready(queue) == 2
    assert channel.drain(queue) == [b"head"]


def test_c136_the_smaller_time_holds_and_copies_die_separately(channel, make, names):
    brief, lasting = make(message_ttl=30), make(message_ttl=60_000)
    exchange = names.exchange()
    channel.exchange(exchange, "fanout")
    for queue in (brief, lasting):
        channel.bind(queue, exchange)
    channel.publish(exchange, "", b"a")
    channel.wait_ready(lasting, 1)
    channel.wait_ready(brief, 0)
    assert channel.drain(lasting) == [b"a"]
    channel.publish("", lasting, expiration="30")
    channel.wait_ready(lasting, 0)


def test_c137_the_oldest_go_and_the_publisher_is_acked(channel, source, grave):
    queue = source(max_length=2)
    channel.confirm_select()
    for body in (b"1", b"2", b"3"):
        channel.publish("", queue, body)
    channel.confirmed(3)
    gone = buried(channel, grave)
    assert (gone.body, death(gone)["reason"]) == (b"1", "maxlen")
    assert channel.drain(queue) == [b"2", b"3"]


def test_c137_bytes_are_those_of_bodies_and_unacked_do_not_count(channel, make):
    queue = make(max_length_bytes=6)
    channel.fill(queue, ["abc"])
    channel.get_one(queue, no_ack=False)
    for body in (b"defg", b"hi"):
        channel.publish("", queue, body, headers={"long": "x" * 100})
    channel.wait_ready(queue, 2)
    assert channel.drain(queue) == [b"defg", b"hi"]


def test_c138_the_newest_is_refused(channel, make):
    queue = make(max_length=1, overflow="reject-publish")
    channel.publish("", queue, b"kept")
    channel.wait_ready(queue, 1)
    channel.publish("", queue, b"dropped without a word")
    channel.confirm_select()
    channel.publish("", queue, b"refused")
    assert channel.expect(Basic.Nack).delivery_tag == 1
    assert channel.drain(queue) == [b"kept"]


def test_c138_the_newest_is_refused_and_buried(channel, source, grave):
    queue = source(max_length=1, overflow="reject-publish-dlx")
    channel.fill(queue, ["kept"])
    channel.confirm_select()
    channel.publish("", queue, b"refused")
    assert channel.expect(Basic.Nack).delivery_tag == 1
    gone = buried(channel, grave)
    assert (gone.body, death(gone)["reason"]) == (b"refused", "maxlen")
