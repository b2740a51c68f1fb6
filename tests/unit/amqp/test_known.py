"""What publishes mean is remembered, within bounds that nobody's addresses can pass."""

from __future__ import annotations

import tracemalloc

from amqp_server import known
from amqp_server.known import Known
from tests.support import wire


def frame(key: str) -> bytes:
    return wire.publish(1, "x" * 200, key)[3:-1]


def test_it_is_one_object_until_there_are_too_many():
    memory = Known()
    first = memory.learn(frame("a"))
    assert memory.by_frame[frame("a")] is first
    assert (first.address.exchange, first.address.routing_key) == ("x" * 200, "a")
    each = known.MOST_OCTETS // len(memory.by_frame)
    memory.leads_to(first, 1, each // 8)
    assert not memory.by_frame and memory.learn(frame("a")) is not first


def test_where_an_address_led_is_forgotten_when_another_is_found_in_a_newer_version():
    memory = Known()
    first, second, third = (memory.learn(frame(key)) for key in "abc")
    for publish, version in ((first, 1), (second, 1), (first, 2)):
        publish.plan = object()
        memory.leads_to(publish, version, 1)
    assert first.plan is not None and second.plan is None
    third.plan = object()
    memory.leads_to(third, 3, 1)
    assert first.plan is None and third.plan is not None
    assert memory.by_frame[frame("a")] is first


def test_long_addresses_take_no_more_than_they_may(monkeypatch):
    monkeypatch.setattr(known, "MOST_OCTETS", 1 << 20)
    memory, largest = Known(), 0
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(4_000):
        memory.learn(frame(str(number).rjust(200, "k"))).plan = [None]
        largest = max(largest, tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    assert len(memory.by_frame) < 4_000
    assert largest < 1 << 20
