"""What queue arguments do, seen by a pika client."""

import contextlib
import time

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, NackError

import leveret


@pytest.fixture(scope="module")
def broker():
    with leveret.ThreadedBroker() as running:
        yield running


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


def drain(channel, queue, seconds=0.0):
    """Bodies in order; waits up to so long for the first."""
    found, deadline = [], time.monotonic() + seconds
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            found.append((body, properties))
        elif found or time.monotonic() > deadline:
            return found
        else:
            channel.connection.process_data_events(0.01)


def bodies(found):
    return [body for body, _ in found]


def wait_empty(channel, queue, seconds=3.0):
    deadline = time.monotonic() + seconds
    while channel.queue_declare(queue, passive=True).method.message_count:
        assert time.monotonic() < deadline, f"{queue} is not empty"
        channel.connection.process_data_events(0.01)


class TestTtl:
    def test_queue_ttl_expires_without_consumers(self, channel):
        queue = declare(channel, message_ttl=50)
        publish(channel, queue, b"a", b"b")
        wait_empty(channel, queue)

    def test_message_ttl_is_its_own(self, channel):
        queue = declare(channel)
        publish(channel, queue, b"short", expiration="30")
        publish(channel, queue, b"long")
        time.sleep(0.1)
        assert bodies(drain(channel, queue)) == [b"long"]

    def test_the_smaller_of_both_holds(self, channel):
        queue = declare(channel, message_ttl=60_000)
        publish(channel, queue, b"x", expiration="30")
        wait_empty(channel, queue)

    def test_behind_a_longer_lived_head_it_waits_but_is_never_delivered(self, channel):
        queue = declare(channel)
        publish(channel, queue, b"head")
        publish(channel, queue, b"dead", expiration="20")
        time.sleep(0.08)
        assert channel.queue_declare(queue, passive=True).method.message_count == 2
        assert bodies(drain(channel, queue)) == [b"head"]

    def test_ttl_zero_is_delivered_to_a_waiting_consumer_or_dropped(self, channel):
        queue = declare(channel, message_ttl=0)
        publish(channel, queue, b"nobody")
        wait_empty(channel, queue)
        got = []
        channel.basic_consume(queue, lambda c, m, p, b: got.append(b), auto_ack=True)
        publish(channel, queue, b"somebody")
        channel.connection.process_data_events(0.2)
        assert got == [b"somebody"]

    @pytest.mark.parametrize("wrong", ["x", "-1", "1.5", ""])
    def test_bad_expiration_is_refused(self, channel, wrong):
        queue = declare(channel)
        with pytest.raises(ChannelClosedByBroker, match="invalid expiration"):
            publish(channel, queue, b"", expiration=wrong)

    def test_requeued_past_its_deadline_it_expires(self, channel):
        queue = declare(channel, message_ttl=80)
        publish(channel, queue, b"x")
        method, _, _ = channel.basic_get(queue)
        time.sleep(0.12)
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
        ((body, properties),) = drain(channel, grave, seconds=3)
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

    def test_expired_keeps_the_original_expiration_and_loses_it(self, channel):
        source, grave = self.pair(channel)
        publish(channel, source, b"x", expiration="20")
        _, properties, death = self.death(channel, grave)
        assert (death["reason"], death["original-expiration"]) == ("expired", "20")
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

    def test_a_cycle_without_rejection_ends(self, channel):
        first = declare(channel, message_ttl=20)
        second = channel.queue_declare(
            "",
            arguments={
                "x-message-ttl": 20,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": first,
            },
        ).method.queue
        channel.queue_delete(first)
        channel.queue_declare(
            f"cycle-{second}",
            auto_delete=False,
            arguments={
                "x-message-ttl": 20,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": f"cycle-{second}",
            },
        )
        publish(channel, f"cycle-{second}", b"x")
        wait_empty(channel, f"cycle-{second}")
        channel.queue_delete(f"cycle-{second}")

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
        wait_empty(channel, source)


class TestSingleActiveConsumer:
    def test_one_gets_all_and_the_next_takes_over(self, broker, channel):
        queue = declare(channel, single_active_consumer=True)
        seen = []
        first = channel.basic_consume(queue, lambda c, m, p, b: seen.append(1), auto_ack=True)
        channel.basic_consume(queue, lambda c, m, p, b: seen.append(2), auto_ack=True)
        publish(channel, queue, b"a", b"b", b"c")
        channel.connection.process_data_events(0.1)
        channel.basic_cancel(first)
        publish(channel, queue, b"d")
        channel.connection.process_data_events(0.1)
        assert seen == [1, 1, 1, 2]

    def test_exclusive_consume_is_refused(self, channel):
        queue = declare(channel, single_active_consumer=True)
        with pytest.raises(ChannelClosedByBroker) as refused:
            channel.basic_consume(queue, print, exclusive=True)
        assert refused.value.reply_code == 403


class TestExpiry:
    def test_an_unused_queue_goes(self, channel):
        queue = declare(channel, expires=60)
        time.sleep(0.3)
        with pytest.raises(ChannelClosedByBroker) as gone:
            channel.queue_declare(queue, passive=True)
        assert gone.value.reply_code == 404

    def test_a_consumer_keeps_it(self, channel):
        queue = declare(channel, expires=60)
        channel.basic_consume(queue, lambda *a: None, auto_ack=True)
        channel.connection.process_data_events(0.3)
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
