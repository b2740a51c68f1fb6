"""What queue arguments do, seen by a pika client. Time stands still unless a test moves it."""

import contextlib
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, NackError

SOON = 5.0


@pytest.fixture
def channel(broker):
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    opened = connection.channel()
    opened.confirm_delivery()
    yield opened
    with contextlib.suppress(Exception):
        connection.close()


def declare(channel, durable=False, **arguments):
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return channel.queue_declare("", durable=durable, arguments=named).method.queue


def publish(channel, queue, *bodies, **properties):
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


def drain(channel, queue):
    """What is ready, in order."""
    found: list[Any] = []
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append((body, properties))


def bodies(found):
    return [body for body, _ in found]


def ready(channel, queue):
    return channel.queue_declare(queue, passive=True).method.message_count


def receive(channel, seen, count):
    """Until call-backs have seen so many."""
    for _ in range(3000):
        if len(seen) >= count:
            return
        channel.connection.process_data_events(0.01)
    raise AssertionError(f"{len(seen)} of {count} came")


class TestTtl:
    def test_queue_ttl_expires_without_consumers(self, channel, clock):
        queue = declare(channel, message_ttl=5_000)
        publish(channel, queue, b"a", b"b")
        clock.advance(4.9)
        assert ready(channel, queue) == 2
        clock.advance(0.2)
        assert ready(channel, queue) == 0

    def test_message_ttl_is_its_own(self, channel, clock):
        queue = declare(channel)
        publish(channel, queue, b"short", expiration="3000")
        publish(channel, queue, b"long")
        clock.advance(SOON)
        assert bodies(drain(channel, queue)) == [b"long"]

    @pytest.mark.parametrize(("queue_ttl", "own"), [(60_000, "3000"), (3_000, "60000")])
    def test_the_smaller_of_both_holds(self, channel, clock, queue_ttl, own):
        queue = declare(channel, message_ttl=queue_ttl)
        publish(channel, queue, b"x", expiration=own)
        clock.advance(2.9)
        assert ready(channel, queue) == 1
        clock.advance(0.2)
        assert ready(channel, queue) == 0

    def test_behind_a_longer_lived_head_it_waits_but_is_never_delivered(self, channel, clock):
        queue = declare(channel)
        publish(channel, queue, b"head")
        publish(channel, queue, b"dead", expiration="2000")
        clock.advance(SOON)
        assert ready(channel, queue) == 2
        assert bodies(drain(channel, queue)) == [b"head"]

    def test_ttl_zero_is_delivered_to_a_waiting_consumer_or_dropped(self, channel):
        queue = declare(channel, message_ttl=0)
        publish(channel, queue, b"nobody")
        assert ready(channel, queue) == 0
        got = []
        channel.basic_consume(queue, lambda c, m, p, b: got.append(b), auto_ack=True)
        publish(channel, queue, b"somebody")
        receive(channel, got, 1)
        assert got == [b"somebody"]

    @pytest.mark.parametrize("wrong", ["x", "-1", "1.5", ""])
    def test_bad_expiration_is_refused(self, channel, wrong):
        queue = declare(channel)
        with pytest.raises(ChannelClosedByBroker, match="invalid expiration"):
            publish(channel, queue, b"", expiration=wrong)

    def test_requeued_past_its_deadline_it_expires(self, channel, clock):
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

    def test_bytes_count_bodies(self, channel):
        queue = declare(channel, max_length_bytes=5)
        publish(channel, queue, b"abc", b"de", b"f")
        assert bodies(drain(channel, queue)) == [b"de", b"f"]

    def test_unacked_do_not_count(self, channel):
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

    def test_zero_keeps_nothing(self, channel):
        queue = declare(channel, max_length=0)
        publish(channel, queue, b"1")
        assert drain(channel, queue) == []


class TestPriority:
    def test_higher_first_and_first_in_first_out_within(self, channel):
        queue = declare(channel, max_priority=5)
        for body, priority in ((b"a0", None), (b"b3", 3), (b"c9", 9), (b"d3", 3), (b"e5", 5)):
            publish(channel, queue, body, priority=priority)
        assert bodies(drain(channel, queue)) == [b"c9", b"e5", b"b3", b"d3", b"a0"]

    def test_requeued_goes_back_to_its_place(self, channel):
        queue = declare(channel, max_priority=3)
        for body, priority in ((b"a", 1), (b"b", 1), (b"c", 2)):
            publish(channel, queue, body, priority=priority)
        tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(2)]
        for tag in tags:
            channel.basic_nack(tag, requeue=True)
        assert bodies(drain(channel, queue)) == [b"c", b"a", b"b"]


class TestDeadLetters:
    def pair(self, channel, **arguments):
        grave = declare(channel)
        source = declare(
            channel, dead_letter_exchange="", dead_letter_routing_key=grave, **arguments
        )
        return source, grave

    def death(self, channel, grave):
        ((body, properties),) = drain(channel, grave)
        return body, properties, properties.headers["x-death"][0]

    def test_rejected(self, channel):
        source, grave = self.pair(channel)
        publish(channel, source, b"x", message_id="m1", headers={"mine": 1})
        method, _, _ = channel.basic_get(source)
        channel.basic_reject(method.delivery_tag, requeue=False)
        body, properties, death = self.death(channel, grave)
        assert (body, properties.message_id, properties.headers["mine"]) == (b"x", "m1", 1)
        assert death["queue"] == source
        assert (death["reason"], death["count"], death["exchange"]) == ("rejected", 1, "")
        assert death["routing-keys"] == [source]
        assert properties.headers["x-first-death-reason"] == "rejected"
        assert properties.headers["x-last-death-queue"] == source

    def test_expired_keeps_the_original_expiration_and_loses_it(self, channel, clock):
        source, grave = self.pair(channel)
        publish(channel, source, b"x", expiration="2000")
        clock.advance(SOON)
        _, properties, death = self.death(channel, grave)
        assert (death["reason"], death["original-expiration"]) == ("expired", "2000")
        assert properties.expiration is None

    def test_dropped_by_length(self, channel):
        source, grave = self.pair(channel, max_length=1)
        publish(channel, source, b"1", b"2")
        body, _, death = self.death(channel, grave)
        assert (body, death["reason"]) == (b"1", "maxlen")

    def test_refused_by_length_also_goes_there_with_the_dlx_overflow(self, channel):
        source, grave = self.pair(channel, max_length=1, overflow="reject-publish-dlx")
        publish(channel, source, b"1")
        with pytest.raises(NackError):
            publish(channel, source, b"2")
        body, _, death = self.death(channel, grave)
        assert (body, death["reason"]) == (b"2", "maxlen")

    def test_delivery_limit(self, channel):
        source, grave = self.pair(channel, delivery_limit=2)
        publish(channel, source, b"x")
        counts = []
        for _ in range(3):
            method, properties, _ = channel.basic_get(source)
            counts.append((properties.headers or {}).get("x-delivery-count"))
            channel.basic_nack(method.delivery_tag, requeue=True)
        assert counts == [None, 1, 2]
        assert self.death(channel, grave)[2]["reason"] == "delivery_limit"

    def test_a_cycle_without_rejection_ends(self, channel, clock):
        first, second = f"{declare(channel)}-cycle-1"[8:], f"{declare(channel)}-cycle-2"[8:]
        for queue, target in ((first, second), (second, first)):
            arguments = {
                "x-message-ttl": 1_000,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": target,
            }
            channel.queue_declare(queue, arguments=arguments)
        publish(channel, first, b"x")
        seen = [(ready(channel, first), ready(channel, second))]
        for _ in range(3):
            clock.advance(1.5)
            seen.append((ready(channel, first), ready(channel, second)))
        assert seen == [(1, 0), (0, 1), (0, 0), (0, 0)]

    def test_rejecting_again_and_again_counts(self, channel):
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

    def test_a_clients_own_x_death_is_not_believed(self, channel):
        source, grave = self.pair(channel)
        lie = [{"queue": source, "reason": "rejected", "count": 41}]
        publish(channel, source, b"x", headers={"x-death": lie})
        method, _, _ = channel.basic_get(source)
        channel.basic_reject(method.delivery_tag, requeue=False)
        assert self.death(channel, grave)[2]["count"] == 1

    def test_a_missing_target_drops(self, channel):
        source = declare(channel, dead_letter_exchange="nowhere")
        publish(channel, source, b"x")
        method, _, _ = channel.basic_get(source)
        channel.basic_reject(method.delivery_tag, requeue=False)
        assert ready(channel, source) == 0


class TestSingleActiveConsumer:
    def test_one_gets_all_and_the_next_takes_over(self, broker, channel):
        queue = declare(channel, single_active_consumer=True)
        seen = []
        first = channel.basic_consume(queue, lambda c, m, p, b: seen.append(1), auto_ack=True)
        channel.basic_consume(queue, lambda c, m, p, b: seen.append(2), auto_ack=True)
        publish(channel, queue, b"a", b"b", b"c")
        receive(channel, seen, 3)
        channel.basic_cancel(first)
        publish(channel, queue, b"d")
        receive(channel, seen, 4)
        assert seen == [1, 1, 1, 2]

    def test_exclusive_consume_is_refused(self, channel):
        queue = declare(channel, single_active_consumer=True)
        with pytest.raises(ChannelClosedByBroker) as refused:
            channel.basic_consume(queue, print, exclusive=True)
        assert refused.value.reply_code == 403


class TestExpiry:
    def test_an_unused_queue_goes(self, channel, clock):
        queue = declare(channel, expires=4_000)
        for _ in range(3):
            clock.advance(3.0)
            assert ready(channel, queue) == 0  # looking keeps it
        clock.advance(SOON)
        with pytest.raises(ChannelClosedByBroker) as gone:
            channel.queue_declare(queue, passive=True)
        assert gone.value.reply_code == 404

    def test_a_consumer_keeps_it(self, channel, clock):
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
def test_wrong_arguments_are_refused_in_words(channel, name, value):
    with pytest.raises(ChannelClosedByBroker, match=f"invalid arg '{name}' for queue") as refused:
        channel.queue_declare("wrong", arguments={name: value})
    assert refused.value.reply_code == 406
