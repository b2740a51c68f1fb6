"""The effects of queue arguments for a pika client. Only tests advance the clock."""

import contextlib
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, NackError

AFTER_TTL = 5.0


@pytest.fixture
def channel(broker):
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    with contextlib.suppress(Exception):
        connection.close()


def declare(channel, durable=False, **arguments):
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return channel.queue_declare("", durable=durable, arguments=named).method.queue


def publish(channel, queue, *bodies, **properties):
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


def drain(channel, queue):
    """The bodies and properties of all ready messages."""
    messages: list[Any] = []
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return messages
        messages.append((body, properties))


def bodies(messages):
    return [body for body, _ in messages]


def ready(channel, queue):
    return channel.queue_declare(queue, passive=True).method.message_count


def receive(channel, received, count):
    """Run the connection until callbacks have received `count` messages."""
    for _ in range(3000):
        if len(received) >= count:
            return
        channel.connection.process_data_events(0.01)
    raise AssertionError(f"received {len(received)} of {count}")


class TestTtl:
    def test_queue_ttl_expires_without_consumers(self, channel, clock):
        queue = declare(channel, message_ttl=5_000)
        publish(channel, queue, b"a", b"b")
        clock.advance(4.9)
        assert ready(channel, queue) == 2
        clock.advance(0.2)
        assert ready(channel, queue) == 0

    def test_expiration_applies_to_a_single_message(self, channel, clock):
        queue = declare(channel)
        publish(channel, queue, b"short", expiration="3000")
        publish(channel, queue, b"long")
        clock.advance(AFTER_TTL)
        assert bodies(drain(channel, queue)) == [b"long"]

    @pytest.mark.parametrize(("queue_ttl", "own"), [(60_000, "3000"), (3_000, "60000")])
    def test_smaller_ttl_of_queue_and_message_applies(self, channel, clock, queue_ttl, own):
        queue = declare(channel, message_ttl=queue_ttl)
        publish(channel, queue, b"x", expiration=own)
        clock.advance(2.9)
        assert ready(channel, queue) == 1
        clock.advance(0.2)
        assert ready(channel, queue) == 0

    def test_expired_message_behind_the_head_is_not_delivered(self, channel, clock):
        queue = declare(channel)
        publish(channel, queue, b"head")
        publish(channel, queue, b"dead", expiration="2000")
        clock.advance(AFTER_TTL)
        assert ready(channel, queue) == 2
        assert bodies(drain(channel, queue)) == [b"head"]

    def test_ttl_zero_is_delivered_to_a_waiting_consumer_or_dropped(self, channel):
        queue = declare(channel, message_ttl=0)
        publish(channel, queue, b"dropped")
        assert ready(channel, queue) == 0
        received = []
        channel.basic_consume(queue, lambda c, m, p, b: received.append(b), auto_ack=True)
        publish(channel, queue, b"delivered")
        receive(channel, received, 1)
        assert received == [b"delivered"]

    @pytest.mark.parametrize("expiration", ["x", "-1", "1.5", ""])
    def test_invalid_expiration_is_refused(self, channel, expiration):
        queue = declare(channel)
        with pytest.raises(ChannelClosedByBroker, match="invalid expiration"):
            publish(channel, queue, b"", expiration=expiration)

    def test_message_requeued_after_its_ttl_expires(self, channel, clock):
        queue = declare(channel, message_ttl=4_000)
        publish(channel, queue, b"x")
        for _ in range(2):
            method, _, _ = channel.basic_get(queue)
            clock.advance(3.0)
            channel.basic_nack(method.delivery_tag, requeue=True)
        assert drain(channel, queue) == []


class TestLength:
    def test_drop_head_keeps_the_newest(self, channel):
        queue = declare(channel, max_length=2)
        publish(channel, queue, b"1", b"2", b"3")
        assert bodies(drain(channel, queue)) == [b"2", b"3"]

    def test_max_length_bytes_counts_bodies(self, channel):
        queue = declare(channel, max_length_bytes=5)
        publish(channel, queue, b"abc", b"de", b"f")
        assert bodies(drain(channel, queue)) == [b"de", b"f"]

    def test_unacked_messages_do_not_count(self, channel):
        queue = declare(channel, max_length=1)
        publish(channel, queue, b"1")
        channel.basic_get(queue)
        publish(channel, queue, b"2")
        assert channel.queue_declare(queue, passive=True).method.message_count == 1

    def test_reject_publish_nacks_the_newest(self, channel):
        queue = declare(channel, max_length=1, overflow="reject-publish")
        publish(channel, queue, b"1")
        with pytest.raises(NackError):
            publish(channel, queue, b"2")
        assert bodies(drain(channel, queue)) == [b"1"]

    def test_max_length_zero_drops_every_message(self, channel):
        queue = declare(channel, max_length=0)
        publish(channel, queue, b"1")
        assert drain(channel, queue) == []


class TestPriority:
    def test_messages_are_ordered_by_priority_and_then_by_age(self, channel):
        queue = declare(channel, max_priority=5)
        for body, priority in ((b"a0", None), (b"b3", 3), (b"c9", 9), (b"d3", 3), (b"e5", 5)):
            publish(channel, queue, body, priority=priority)
        assert bodies(drain(channel, queue)) == [b"c9", b"e5", b"b3", b"d3", b"a0"]

    def test_requeued_message_returns_to_its_place(self, channel):
        queue = declare(channel, max_priority=3)
        for body, priority in ((b"a", 1), (b"b", 1), (b"c", 2)):
            publish(channel, queue, body, priority=priority)
        tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(2)]
        for tag in tags:
            channel.basic_nack(tag, requeue=True)
        assert bodies(drain(channel, queue)) == [b"c", b"a", b"b"]


class TestDeadLetters:
    def pair(self, channel, **arguments):
        dlq = declare(channel)
        source = declare(channel, dead_letter_exchange="", dead_letter_routing_key=dlq, **arguments)
        return source, dlq

    def death(self, channel, dlq):
        ((body, properties),) = drain(channel, dlq)
        return body, properties, properties.headers["x-death"][0]

    def test_rejected_message_has_x_death(self, channel):
        source, dlq = self.pair(channel)
        publish(channel, source, b"x", message_id="m1", headers={"mine": 1})
        method, _, _ = channel.basic_get(source)
        channel.basic_reject(method.delivery_tag, requeue=False)
        body, properties, death = self.death(channel, dlq)
        assert (body, properties.message_id, properties.headers["mine"]) == (b"x", "m1", 1)
        assert death["queue"] == source
        assert (death["reason"], death["count"], death["exchange"]) == ("rejected", 1, "")
        assert death["routing-keys"] == [source]
        assert properties.headers["x-first-death-reason"] == "rejected"
        assert properties.headers["x-last-death-queue"] == source

    def test_expiration_moves_to_original_expiration(self, channel, clock):
        source, dlq = self.pair(channel)
        publish(channel, source, b"x", expiration="2000")
        clock.advance(AFTER_TTL)
        _, properties, death = self.death(channel, dlq)
        assert (death["reason"], death["original-expiration"]) == ("expired", "2000")
        assert properties.expiration is None

    def test_message_dropped_by_max_length_is_dead_lettered(self, channel):
        source, dlq = self.pair(channel, max_length=1)
        publish(channel, source, b"1", b"2")
        body, _, death = self.death(channel, dlq)
        assert (body, death["reason"]) == (b"1", "maxlen")

    def test_message_refused_by_reject_publish_dlx_is_dead_lettered(self, channel):
        source, dlq = self.pair(channel, max_length=1, overflow="reject-publish-dlx")
        publish(channel, source, b"1")
        with pytest.raises(NackError):
            publish(channel, source, b"2")
        body, _, death = self.death(channel, dlq)
        assert (body, death["reason"]) == (b"2", "maxlen")

    def test_message_over_its_delivery_limit_is_dead_lettered(self, channel):
        source, dlq = self.pair(channel, delivery_limit=2)
        publish(channel, source, b"x")
        counts = []
        for _ in range(3):
            method, properties, _ = channel.basic_get(source)
            counts.append((properties.headers or {}).get("x-delivery-count"))
            channel.basic_nack(method.delivery_tag, requeue=True)
        assert counts == [None, 1, 2]
        assert self.death(channel, dlq)[2]["reason"] == "delivery_limit"

    def test_cycle_without_rejects_ends(self, channel, clock):
        first, second = f"{declare(channel)}-cycle-1"[8:], f"{declare(channel)}-cycle-2"[8:]
        for queue, target in ((first, second), (second, first)):
            arguments = {
                "x-message-ttl": 1_000,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": target,
            }
            channel.queue_declare(queue, arguments=arguments)
        publish(channel, first, b"x")
        received = [(ready(channel, first), ready(channel, second))]
        for _ in range(3):
            clock.advance(1.5)
            received.append((ready(channel, first), ready(channel, second)))
        assert received == [(1, 0), (0, 1), (0, 0), (0, 0)]

    def test_repeated_rejects_are_counted(self, channel):
        name = declare(channel)
        channel.queue_delete(name)
        channel.queue_declare(
            name := f"again-{name[8:]}",
            arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name},
        )
        publish(channel, name, b"x")
        for expected in (0, 1, 2):
            method, properties, _ = channel.basic_get(name)
            deaths = (properties.headers or {}).get("x-death") or [{"count": 0}]
            assert deaths[0]["count"] == expected
            channel.basic_reject(method.delivery_tag, requeue=False)
        channel.queue_delete(name)

    def test_x_death_of_a_client_is_ignored(self, channel):
        source, dlq = self.pair(channel)
        forged = [{"queue": source, "reason": "rejected", "count": 41}]
        publish(channel, source, b"x", headers={"x-death": forged})
        method, _, _ = channel.basic_get(source)
        channel.basic_reject(method.delivery_tag, requeue=False)
        assert self.death(channel, dlq)[2]["count"] == 1

    def test_dead_letters_for_a_missing_exchange_are_dropped(self, channel):
        source = declare(channel, dead_letter_exchange="nowhere")
        publish(channel, source, b"x")
        method, _, _ = channel.basic_get(source)
        channel.basic_reject(method.delivery_tag, requeue=False)
        assert ready(channel, source) == 0


class TestSingleActiveConsumer:
    def test_next_consumer_becomes_active_when_the_first_is_cancelled(self, broker, channel):
        queue = declare(channel, single_active_consumer=True)
        received = []
        first = channel.basic_consume(queue, lambda c, m, p, b: received.append(1), auto_ack=True)
        channel.basic_consume(queue, lambda c, m, p, b: received.append(2), auto_ack=True)
        publish(channel, queue, b"a", b"b", b"c")
        receive(channel, received, 3)
        channel.basic_cancel(first)
        publish(channel, queue, b"d")
        receive(channel, received, 4)
        assert received == [1, 1, 1, 2]

    def test_exclusive_consume_is_refused(self, channel):
        queue = declare(channel, single_active_consumer=True)
        with pytest.raises(ChannelClosedByBroker) as caught:
            channel.basic_consume(queue, print, exclusive=True)
        assert caught.value.reply_code == 403


class TestExpiry:
    def test_unused_queue_is_deleted(self, channel, clock):
        queue = declare(channel, expires=4_000)
        for _ in range(3):
            clock.advance(3.0)
            assert ready(channel, queue) == 0  # a passive declare counts as use
        clock.advance(AFTER_TTL)
        with pytest.raises(ChannelClosedByBroker) as caught:
            channel.queue_declare(queue, passive=True)
        assert caught.value.reply_code == 404

    def test_queue_with_a_consumer_does_not_expire(self, channel, clock):
        queue = declare(channel, expires=4_000)
        channel.basic_consume(queue, lambda *a: None, auto_ack=True)
        clock.advance(20.0)
        assert channel.queue_declare(queue, passive=True).method.queue == queue


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-message-ttl", -1),
        ("x-message-ttl", "5"),
        ("x-expires", 0),
        ("x-max-priority", 256),
        ("x-overflow", "sideways"),
        ("x-dead-letter-routing-key", "alone"),
        ("x-queue-type", "imaginary"),
        ("x-single-active-consumer", 1),
    ],
)
def test_invalid_arguments_are_refused(channel, name, value):
    with pytest.raises(ChannelClosedByBroker, match=f"invalid arg '{name}' for queue") as caught:
        channel.queue_declare("q", arguments={name: value})
    assert caught.value.reply_code == 406
