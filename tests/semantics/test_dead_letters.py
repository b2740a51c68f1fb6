"""Rows C-139 to C-146: dead-lettering and its headers."""

from __future__ import annotations

import time

from pamqp.commands import Basic

from tests.semantics.steps import get_dead_letter, newest_death


def reject(channel, queue):
    channel.wait_ready(queue, 1)
    tag = channel.get_one(queue, no_ack=False).tag
    channel.send(Basic.Reject(delivery_tag=tag, requeue=False))


def test_c139_dead_letter_keeps_its_routing_keys(channel, make, names, expected):
    exchange = names.exchange()
    channel.exchange(exchange)
    dead = make(dead_letter_exchange=exchange)
    by_key, by_copy, by_blind_copy = make(), make(), make()
    for queue, key in ((by_key, dead), (by_copy, "copy"), (by_blind_copy, "blind")):
        channel.bind(queue, exchange, key)
    channel.publish("", dead, headers={"CC": ["copy"], "BCC": ["blind"], "mine": "kept"})
    reject(channel, dead)
    for queue in (by_key, by_copy):
        dead_letter = get_dead_letter(channel, queue)
        assert (dead_letter.method.exchange, dead_letter.method.routing_key) == (exchange, dead)
        assert dead_letter.headers["CC"] == ["copy"]
        assert dead_letter.headers["mine"] == "kept"
        assert "BCC" not in dead_letter.headers
    # Blind copies are not stored with the message.
    channel.wait_ready(by_blind_copy, expected(leveret=0, rabbitmq=1))


def test_c139_dead_letter_routing_key_replaces_the_keys(channel, source, dead_letter_queue):
    queue = source()
    channel.publish("", queue, headers={"CC": ["copy"]})
    reject(channel, queue)
    dead_letter = get_dead_letter(channel, dead_letter_queue)
    assert dead_letter.method.routing_key == dead_letter_queue
    assert "CC" not in dead_letter.headers
    assert newest_death(dead_letter)["routing-keys"] == [queue, "copy"]


def test_c139_internal_exchange_accepts_dead_letters(channel, make, names, dead_letter_queue):
    exchange = names.exchange()
    channel.exchange(exchange, "fanout", internal=True)
    channel.bind(dead_letter_queue, exchange)
    queue = make(dead_letter_exchange=exchange)
    channel.publish("", queue, b"within")
    reject(channel, queue)
    assert get_dead_letter(channel, dead_letter_queue).body == b"within"


def test_c140_x_death_has_all_fields(channel, source, dead_letter_queue):
    queue = source()
    channel.publish("", queue, expiration="30", message_id="m", headers={"mine": 1})
    dead_letter = get_dead_letter(channel, dead_letter_queue)
    entry = newest_death(dead_letter)
    when = entry.pop("time")
    assert abs(when.timestamp() - time.time()) < 60
    assert entry == {
        "count": 1,
        "reason": "expired",
        "queue": queue,
        "exchange": "",
        "routing-keys": [queue],
        "original-expiration": "30",
    }
    assert (dead_letter.properties.expiration, dead_letter.properties.message_id) == (None, "m")
    assert dead_letter.headers["mine"] == 1


def test_c140_x_death_field_types(channel, source, dead_letter_queue):
    queue = source()
    channel.publish("", queue)
    reject(channel, queue)
    payload = get_dead_letter(channel, dead_letter_queue).header_payload
    for field in (b"countl", b"timeT", b"queueS", b"reasonS", b"exchangeS", b"routing-keysA"):
        name, kind = field[:-1], field[-1:]
        assert bytes([len(name)]) + name + kind in payload, field
    assert b"\x07x-deathA" in payload


def test_c140_one_entry_per_queue_and_reason_newest_first(channel, names):
    first, second = names.queue(), names.queue()
    for queue, target in ((first, second), (second, first)):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
        channel.declare(queue, arguments=arguments)
    channel.publish("", first)
    for queue in (first, second, first):
        reject(channel, queue)
    dead_letter = get_dead_letter(channel, second)
    seen = [
        (death["queue"], death["reason"], death["count"])
        for death in dead_letter.headers["x-death"]
    ]
    assert seen == [(first, "rejected", 2), (second, "rejected", 1)]


def test_c141_first_and_last_death(channel, make, source, dead_letter_queue, expected):
    middle = source(message_ttl=30)
    first = make(dead_letter_exchange="", dead_letter_routing_key=middle)
    channel.publish("", first)
    reject(channel, first)
    headers = get_dead_letter(channel, dead_letter_queue).headers
    assert headers["x-first-death-queue"] == first
    assert headers["x-first-death-reason"] == "rejected"
    assert headers["x-first-death-exchange"] == ""
    last = {name: headers.get(f"x-last-death-{name}") for name in ("queue", "reason")}
    assert last == expected(
        leveret={"queue": middle, "reason": "expired"}, rabbitmq={"queue": None, "reason": None}
    )


def test_c142_x_death_header_from_a_client(channel, source, dead_letter_queue, expected):
    queue = source()
    lie = {"queue": queue, "reason": "rejected", "count": 5, "exchange": "", "routing-keys": []}
    channel.publish("", queue, headers={"x-death": [lie]})
    reject(channel, queue)
    assert newest_death(get_dead_letter(channel, dead_letter_queue))["count"] == expected(
        leveret=1, rabbitmq=6
    )


def test_c143_cycle_without_rejection_ends(channel, names):
    queue = names.queue()
    arguments = {
        "x-message-ttl": 30,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
    }
    channel.declare(queue, arguments=arguments)
    channel.publish("", queue)
    channel.wait_ready(queue, 0)
    channel.expect_silence()
    assert channel.ready(queue) == 0


def test_c144_cycle_with_rejection_continues_and_counts(channel, names):
    queue = names.queue()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    channel.declare(queue, arguments=arguments)
    channel.publish("", queue)
    for _ in range(3):
        reject(channel, queue)
    assert newest_death(get_dead_letter(channel, queue))["count"] == 3


def test_c145_delivery_limit(channel, names, dead_letter_queue):
    """In RabbitMQ only quorum queues have a delivery limit."""
    queue = names.queue()
    arguments = {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead_letter_queue,
    }
    channel.declare(queue, durable=True, arguments=arguments)
    channel.publish("", queue)
    counts = []
    for _ in range(2):
        channel.wait_ready(queue, 1)
        message = channel.get_one(queue, no_ack=False)
        counts.append(message.headers.get("x-delivery-count"))
        assert b"\x10x-delivery-countl" in message.header_payload
        channel.nack(message.tag)
    assert counts == [0, 1]
    dead = get_dead_letter(channel, dead_letter_queue)
    assert newest_death(dead)["reason"] == "delivery_limit"
    assert "x-delivery-count" not in dead.headers


def test_c145_consumer_gets_x_delivery_count_after_the_first_requeue(channel, names):
    queue = names.queue()
    channel.declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    channel.publish("", queue)
    channel.consume(queue)
    counts = []
    for _ in range(3):
        message = channel.deliver()
        counts.append(message.headers.get("x-delivery-count"))
        channel.nack(message.tag)
    assert counts == [None, 1, 2]


def test_c146_missing_dead_letter_exchange_drops_the_message(channel, make):
    queue = make(dead_letter_exchange="no-such-exchange")
    channel.publish("", queue)
    reject(channel, queue)
    channel.wait_ready(queue, 0)


def test_c146_full_dead_letter_target(channel, make, expected):
    """A deliberate difference: RabbitMQ loses a message that its target refuses."""
    full = make(max_length=1, overflow="reject-publish")
    queue = make(dead_letter_exchange="", dead_letter_routing_key=full)
    channel.fill(full, "a")
    channel.publish("", queue, b"late")
    reject(channel, queue)
    channel.wait_ready(queue, 0)
    assert channel.drain(full) == [b"a"]
    delivered = expected(leveret=[b"late"], rabbitmq=[])
    if delivered:
        channel.wait_ready(full, 1)
    else:
        channel.expect_silence(1.2)
    assert channel.drain(full) == delivered
