"""Rows C-89 to C-94, C-100, C-103, C-115, C-131, C-132 and C-135 to C-138: queue arguments."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pamqp.commands import Basic, Exchange, Queue

from tests.semantics.managed import NOTHING, PASSWORD, managing
from tests.semantics.steps import get_dead_letter, newest_death

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
def test_c089_invalid_argument_is_refused(channel, names, argument, value):
    method = Queue.Declare(queue=names.queue(), arguments={argument: value})
    channel.refused(method, 406, f"PRECONDITION_FAILED - invalid arg '{argument}' for queue")


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-queue-mode": "lazy"},
        {"x-queue-version": 2},
        {"x-ha-policy": "all"},
        {"x-unknown": "this"},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_c089_arguments_without_effect_are_accepted(channel, names, arguments):
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
def test_c089_quorum_queue_refuses_these_properties(channel, names, options, text):
    properties = {"queue": names.queue(), **options, "arguments": {"x-queue-type": "quorum"}}
    channel.refused(Queue.Declare(**properties), 406, text)


def test_c090_ttl_zero_and_max_length_zero_are_allowed(channel, make):
    no_time, no_room = make(message_ttl=0), make(max_length=0)
    for queue in (no_time, no_room):
        channel.publish("", queue)
        channel.wait_ready(queue, 0)
    channel.consume(no_time, no_ack=True)
    channel.publish("", no_time, b"at once")
    assert channel.deliver().body == b"at once"


def test_c091_unused_queue_expires_without_dead_lettering(channel, source, dead_letter_queue):
    queue = source(expires=1500)
    channel.fill(queue, "a")
    channel.confirm_select()
    while exists(channel, queue):
        time.sleep(0.1)
    channel.refused(Queue.Declare(queue=queue, passive=True), 404)
    channel.open()
    assert channel.ready(dead_letter_queue) == 0


def exists(channel, queue):
    """Tested with a publish, because a passive declare would restart the expiry."""
    channel.publish("", queue, mandatory=True)
    answer = channel.client.next_on(channel.number).decode()
    if isinstance(answer, Basic.Return):
        for _ in ("header", "body"):
            channel.client.next_on(channel.number)
        channel.expect(Basic.Ack)
        return False
    assert isinstance(answer, Basic.Ack)
    return True


@pytest.mark.parametrize("method_name", ["get", "declare"])
def test_c091_get_and_declare_restart_the_expiry(channel, make, method_name):
    queue = make(expires=3000)
    for _ in range(14):
        time.sleep(0.25)
        if method_name == "get":
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
    [({"read": NOTHING}, "queue"), ({"write": NOTHING}, "exchange 'dead-letters' in vhost")],
    ids=["read", "write"],
)
def test_c094_dead_lettering_needs_read_on_the_queue_and_write_on_the_exchange(
    managed, names, rights, text
):
    with login(managed, managed.user(**rights)) as client:
        channel = client.channel()
        channel.declare(names.queue())
        arguments: dict[str, Any] = {"x-dead-letter-exchange": "dead-letters"}
        method = Queue.Declare(queue=names.queue(), arguments=arguments)
        channel.refused(method, 403, f"to {text}" if text == "queue" else text)


def test_c094_alternate_exchange_needs_read_and_write_permission(managed, names):
    with login(managed, managed.user(write=NOTHING)) as client:
        arguments: dict[str, Any] = {"alternate-exchange": "others"}
        method = Exchange.Declare(exchange=names.exchange(), arguments=arguments)
        client.channel().refused(method, 403, "exchange 'others' in vhost")


# -- publishing ------------------------------------------------------------------------------


def test_c100_nack_if_one_queue_rejects_and_the_others_keep_the_message(channel, make, names):
    full, roomy = make(max_length=0, overflow="reject-publish"), make()
    exchange = names.exchange()
    channel.exchange(exchange, "fanout")
    for queue in (full, roomy):
        channel.bind(queue, exchange)
    channel.confirm_select()
    channel.publish(exchange, "")
    assert channel.expect(Basic.Nack).delivery_tag == 1
    channel.wait_ready(roomy, 1)


def test_c103_expiration_zero(channel, source, dead_letter_queue):
    queue = source()
    channel.publish("", queue, expiration="0")
    assert newest_death(get_dead_letter(channel, dead_letter_queue))["reason"] == "expired"
    channel.consume(queue, no_ack=True)
    channel.publish("", queue, b"at once", expiration="0")
    assert channel.deliver().body == b"at once"


# -- queueing --------------------------------------------------------------------------------


@pytest.mark.parametrize("of_queue", [True, False])
@pytest.mark.parametrize("has_other_consumer", [True, False])
def test_c115_message_with_ttl_zero_expires_when_it_is_requeued(
    channel, source, dead_letter_queue, of_queue, has_other_consumer
):
    queue = source(message_ttl=0) if of_queue else source()
    channel.consume(queue)
    if has_other_consumer:
        channel.consume(queue)
    channel.publish("", queue, b"brief", **({} if of_queue else {"expiration": "0"}))
    channel.nack(channel.deliver().tag, requeue=True)
    assert channel.ready(queue) == 0
    assert newest_death(get_dead_letter(channel, dead_letter_queue))["reason"] == "expired"


def test_c115_message_requeued_after_its_ttl_expires(channel, source, dead_letter_queue):
    queue = source(message_ttl=2500)
    channel.publish("", queue)
    channel.wait_ready(queue, 1)
    tag = channel.get_one(queue, no_ack=False).tag
    time.sleep(2.6)
    channel.nack(tag)
    assert newest_death(get_dead_letter(channel, dead_letter_queue))["reason"] == "expired"


def test_c131_single_active_consumer_is_replaced_when_it_is_cancelled(client, channel, make):
    queue = make(single_active_consumer=True)
    other = client.channel(2)
    first = channel.consume(queue, no_ack=True)
    other.consume(queue, no_ack=True)
    channel.publish("", queue, b"1")
    channel.publish("", queue, b"2")
    assert [message.body for message in channel.deliveries(2)] == [b"1", b"2"]
    channel.cancel(first)
    channel.publish("", queue, b"3")
    assert other.deliver().body == b"3"


def test_c131_exclusive_consume_is_refused(channel, make):
    queue = make(single_active_consumer=True)
    channel.refused(Basic.Consume(queue=queue, exclusive=True), 403)


def test_c131_get_returns_empty(client, channel, make):
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


def test_c132_delivered_message_is_not_overtaken_by_a_higher_priority(channel, make):
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


def test_c135_expired_message_behind_the_head_is_counted_but_never_delivered(channel, make):
    queue = make()
    channel.publish("", queue, b"head")
    channel.publish("", queue, b"dead", expiration="20")
    channel.wait_ready(queue, 2)
    time.sleep(0.1)
    assert channel.ready(queue) == 2
    assert channel.drain(queue) == [b"head"]


def test_c136_shorter_ttl_applies_and_copies_expire_separately(channel, make, names):
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


def test_c137_oldest_messages_are_dropped_and_the_publish_is_acked(
    channel, source, dead_letter_queue
):
    queue = source(max_length=2)
    channel.confirm_select()
    for body in (b"1", b"2", b"3"):
        channel.publish("", queue, body)
    channel.confirmed(3)
    dead = get_dead_letter(channel, dead_letter_queue)
    assert (dead.body, newest_death(dead)["reason"]) == (b"1", "maxlen")
    assert channel.drain(queue) == [b"2", b"3"]


def test_c137_max_length_bytes_counts_bodies_of_ready_messages(channel, make):
    queue = make(max_length_bytes=6)
    channel.fill(queue, ["abc"])
    channel.get_one(queue, no_ack=False)
    for body in (b"defg", b"hi"):
        channel.publish("", queue, body, headers={"long": "x" * 100})
    channel.wait_ready(queue, 2)
    assert channel.drain(queue) == [b"defg", b"hi"]


def test_c138_reject_publish_nacks_the_newest(channel, make):
    queue = make(max_length=1, overflow="reject-publish")
    channel.publish("", queue, b"kept")
    channel.wait_ready(queue, 1)
    channel.publish("", queue, b"dropped silently")
    channel.confirm_select()
    channel.publish("", queue, b"refused")
    assert channel.expect(Basic.Nack).delivery_tag == 1
    assert channel.drain(queue) == [b"kept"]


def test_c138_reject_publish_dlx_dead_letters_the_newest(channel, source, dead_letter_queue):
    queue = source(max_length=1, overflow="reject-publish-dlx")
    channel.fill(queue, ["kept"])
    channel.confirm_select()
    channel.publish("", queue, b"refused")
    assert channel.expect(Basic.Nack).delivery_tag == 1
    dead = get_dead_letter(channel, dead_letter_queue)
    assert (dead.body, newest_death(dead)["reason"]) == (b"refused", "maxlen")
