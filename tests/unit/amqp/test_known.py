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
    memory.leads_to(1, 0)
    first = memory.learn(frame("a"))
    assert memory.by_frame[frame("a")] is first
    assert (first.address.exchange, first.address.routing_key) == ("x" * 200, "a")
    each = known.MOST_OCTETS // len(memory.by_frame)
    memory.leads_to(1, each // 8)
    assert not memory.by_frame and memory.learn(frame("a")) is not first


def test_all_is_forgotten_when_a_way_is_found_in_a_newer_version():
    memory = Known()
    memory.leads_to(1, 1)
    first, second = memory.learn(frame("a")), memory.learn(frame("b"))
    memory.leads_to(1, 1)
    assert list(memory.by_frame.values()) == [first, second]
    memory.leads_to(2, 1)
    assert not memory.by_frame
    memory.learn(frame("a"))
    memory.leads_to(2, 1)
    assert list(memory.by_frame) == [frame("a")]


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
