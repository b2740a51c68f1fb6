"""Decoded publishes are cached within a memory limit that long addresses cannot exceed."""

from __future__ import annotations

import tracemalloc

from leveret.amqp_server import publish_cache
from leveret.amqp_server.publish_cache import PublishCache
from tests.support import wire


def frame(key: str) -> bytes:
    return wire.publish(1, "x" * 200, key)[3:-1]


def test_entry_is_kept_until_the_cache_is_too_large():
    cache = PublishCache()
    cache.add_plan(1, 0)
    first = cache.add(frame("a"))
    assert cache.by_frame[frame("a")] is first
    assert (first.address.exchange, first.address.routing_key) == ("x" * 200, "a")
    each = publish_cache.MAX_BYTES // len(cache.by_frame)
    cache.add_plan(1, each // 8)
    assert not cache.by_frame and cache.add(frame("a")) is not first


def test_cache_is_cleared_by_a_plan_of_a_newer_topology():
    cache = PublishCache()
    cache.add_plan(1, 1)
    first, second = cache.add(frame("a")), cache.add(frame("b"))
    cache.add_plan(1, 1)
    assert list(cache.by_frame.values()) == [first, second]
    cache.add_plan(2, 1)
    assert not cache.by_frame
    cache.add(frame("a"))
    cache.add_plan(2, 1)
    assert list(cache.by_frame) == [frame("a")]


def test_long_addresses_stay_within_the_memory_limit(monkeypatch):
    monkeypatch.setattr(publish_cache, "MAX_BYTES", 1 << 20)
    cache, largest = PublishCache(), 0
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(4_000):
        cache.add(frame(str(number).rjust(200, "k"))).plan = [None]
        largest = max(largest, tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    assert len(cache.by_frame) < 4_000
    assert largest < 1 << 20
