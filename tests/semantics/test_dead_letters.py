"""Rows C-139 to C-146: where messages go that nobody took, and what they carry along."""

from __future__ import annotations

import time

from pamqp.commands import Basic

from tests.semantics.graves import buried, death


def reject(channel, queue):
    channel.wait_ready(queue, 1)
    tag = channel.get_one(queue, no_ack=False).tag
    channel.send(Basic.Reject(delivery_tag=tag, requeue=False))


def test_c139_its_own_keys_go_on_with_it(channel, make, names, expected):
    exchange = names.exchange()
    channel.exchange(exchange)
    dead = make(dead_letter_exchange=exchange)
    by_key, by_copy, by_blind_copy = make(), make(), make()
    for queue, key in ((by_key, dead), (by_copy, "copy"), (by_blind_copy, "blind")):
        channel.bind(queue, exchange, key)
    channel.publish("", dead, headers={"CC": ["copy"], "BCC": ["blind"], "mine": "kept"})
    reject(channel, dead)
    for queue in (by_key, by_copy):
        found = buried(channel, queue)
        assert (found.method.exchange, found.method.routing_key) == (exchange, dead)
        assert found.headers["CC"] == ["copy"]
        assert found.headers["mine"] == "kept"
        assert "BCC" not in found.headers
    # Blind copies are not stored with the message.
    channel.wait_ready(by_blind_copy, expected(leveret=0, rabbitmq=1))


def test_c139_a_key_of_the_queue_replaces_them(channel, source, grave):
    queue = source()
    channel.publish("", queue, headers={"CC": ["copy"]})
    reject(channel, queue)
    found = buried(channel, grave)
    assert found.method.routing_key == grave
    assert "CC" not in found.headers
    assert death(found)["routing-keys"] == [queue, "copy"]


def test_c139_an_internal_exchange_takes_dead_letters(channel, make, names, grave):
    exchange = names.exchange()
    channel.exchange(exchange, "fanout", internal=True)
    channel.bind(grave, exchange)
    queue = make(dead_letter_exchange=exchange)
    channel.publish("", queue, b"within")
    reject(channel, queue)
    assert buried(channel, grave).body == b"within"


def test_c140_x_death_in_full(channel, source, grave):
    queue = source()
    channel.publish("", queue, expiration="30", message_id="m", headers={"mine": 1})
    found = buried(channel, grave)
    entry = death(found)
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
    assert (found.properties.expiration, found.properties.message_id) == (None, "m")
    assert found.headers["mine"] == 1


def test_c140_types_that_typed_languages_rely_on(channel, source, grave):
    queue = source()
    channel.publish("", queue)
    reject(channel, queue)
    payload = buried(channel, grave).header_payload
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
    found = buried(channel, second)
    seen = [(one["queue"], one["reason"], one["count"]) for one in found.headers["x-death"]]
    assert seen == [(first, "rejected", 2), (second, "rejected", 1)]


def test_c141_first_and_last_death(channel, make, source, grave, expected):
    middle = source(message_ttl=30)
    first = make(dead_letter_exchange="", dead_letter_routing_key=middle)
    channel.publish("", first)
    reject(channel, first)
    headers = buried(channel, grave).headers
    assert headers["x-first-death-queue"] == first
    assert headers["x-first-death-reason"] == "rejected"
    assert headers["x-first-death-exchange"] == ""
    last = {name: headers.get(f"x-last-death-{name}") for name in ("queue", "reason")}
    assert last == expected(
        leveret={"queue": middle, "reason": "expired"}, rabbitmq={"queue": None, "reason": None}
    )


def test_c142_x_death_of_a_client(channel, source, grave, expected):
    queue = source()
    lie = {"queue": queue, "reason": "rejected", "count": 5, "exchange": "", "routing-keys": []}
    channel.publish("", queue, headers={"x-death": [lie]})
    reject(channel, queue)
    assert death(buried(channel, grave))["count"] == expected(leveret=1, rabbitmq=6)


def test_c143_a_circle_without_rejection_ends(channel, names):
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


def test_c144_a_circle_through_rejection_goes_on_and_counts(channel, names):
    queue = names.queue()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    channel.declare(queue, arguments=arguments)
    channel.publish("", queue)
    for _ in range(3):
        reject(channel, queue)
    assert death(buried(channel, queue))["count"] == 3


def test_c145_delivery_limit(channel, names, grave):
    """Only quorum queues of RabbitMQ have one."""
    queue = names.queue()
    arguments = {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": grave,
    }
    channel.declare(queue, durable=True, arguments=arguments)
    channel.publish("", queue)
    counts = []
    for _ in range(2):
        channel.wait_ready(queue, 1)
        got = channel.get_one(queue, no_ack=False)
        counts.append(got.headers.get("x-delivery-count"))
        assert b"\x10x-delivery-countl" in got.header_payload
        channel.nack(got.tag)
    assert counts == [0, 1]
    dead = buried(channel, grave)
    assert death(dead)["reason"] == "delivery_limit"
    assert "x-delivery-count" not in dead.headers


def test_c145_a_consumer_is_told_of_returns_from_the_first_return_on(channel, names):
    queue = names.queue()
    channel.declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    channel.publish("", queue)
    channel.consume(queue)
    counts = []
    for _ in range(3):
        got = channel.deliver()
        counts.append(got.headers.get("x-delivery-count"))
        channel.nack(got.tag)
    assert counts == [None, 1, 2]


def test_c146_a_missing_target_drops(channel, make):
    queue = make(dead_letter_exchange="no-such-exchange")
    channel.publish("", queue)
    reject(channel, queue)
    channel.wait_ready(queue, 0)


def test_c146_a_full_target(channel, make, expected):
    """On purpose: RabbitMQ loses what its dead-letter target refuses, Leveret keeps it."""
    full = make(max_length=1, overflow="reject-publish")
    queue = make(dead_letter_exchange="", dead_letter_routing_key=full)
    channel.fill(full, "a")
    channel.publish("", queue, b"late")
    reject(channel, queue)
    channel.wait_ready(queue, 0)
    assert channel.drain(full) == [b"a"]
    wanted = expected(leveret=[b"late"], rabbitmq=[])
    if wanted:
        channel.wait_ready(full, 1)
    else:
        channel.expect_silence(1.2)
    assert channel.drain(full) == wanted
