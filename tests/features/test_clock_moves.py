"""R-21: a system clock set between two runs neither loses messages nor gives them a second life."""

from __future__ import annotations

import asyncio

import pytest

from leveret.model.clock import ManualClock, SystemClock
from leveret.model.store import ParameterDefinition
from tests.features.hub import Hub

HOUR_MS = 3_600_000
MOVES = [HOUR_MS, -HOUR_MS, 24 * HOUR_MS, -24 * HOUR_MS]
DOWN_MS = 2_000


async def begin(folder, **settings):
    return await Hub.start(folder, ManualClock(boot="first"), **settings)


async def again(hub, move_ms, boot="first"):
    """Stop, wait two seconds while somebody sets the clock, start."""
    await hub.settle()
    await hub.stop()
    old = hub.clock
    wall_ms = old.wall_ms() + DOWN_MS + move_ms
    up_ms = old.up_ms + DOWN_MS if boot == "first" else 0
    return await Hub.start(hub.directory, ManualClock(wall_ms, boot, up_ms))


def ready(hub, name="q"):
    return hub.vhost.queues[name].ready_count


async def read_back(hub):
    """Until everything is at hand again: what is on disk only cannot expire."""
    await hub.until(lambda: not hub.vhost.queues["q"].backlog)
    await hub.settle()


@pytest.mark.parametrize("move_ms", MOVES)
async def test_a_message_lives_exactly_as_long_as_it_should(tmp_path, move_ms):
    hub = await begin(tmp_path)
    hub.queue("grave")
    hub.queue("q", message_ttl=10_000, dead_letter_exchange="", dead_letter_routing_key="grave")
    hub.publish("", "grave", b"for ever")
    hub.publish("", "q", b"old")
    await hub.advance(4)
    hub = await again(hub, move_ms)
    await read_back(hub)
    assert ready(hub) == 1
    hub.publish("", "q", b"new")
    await hub.advance(3.9)  # 9.9 s
    assert ready(hub) == 2
    await hub.advance(0.2)
    await hub.until(lambda: ready(hub) == 1)
    hub = await again(hub, -move_ms)
    await read_back(hub)
    assert await hub.bodies("grave") == [b"for ever", b"old"]
    assert await hub.bodies("q") == [b"new"]
    await hub.stop()


@pytest.mark.parametrize("move_ms", MOVES)
async def test_a_delay_ends_when_it_should(tmp_path, move_ms):
    hub = await begin(tmp_path)
    hub.exchange("later", "x-delayed-message", delayed_type="fanout")
    hub.queue("q")
    hub.bind("later", "q")
    hub.publish("later", "", b"x", headers={"x-delay": 10_000})
    await hub.advance(4)
    for move in (move_ms, 2 * move_ms):  # 8 s after both restarts
        hub = await again(hub, move)
        for delayed in hub.broker.stations.delays.by_exchange.values():
            delayed.snapshot()
    await hub.advance(1.9)
    assert ready(hub) == 0
    await hub.advance(0.2)
    await hub.until(lambda: ready(hub) == 1)
    await hub.stop()


async def test_moves_add_up_until_nothing_from_before_is_left(tmp_path):
    hub = await begin(tmp_path)
    hub.queue("q", message_ttl=60_000)
    hub.publish("", "q", b"first")
    hub = await again(hub, HOUR_MS)
    hub.publish("", "q", b"second")
    hub = await again(hub, 2 * HOUR_MS)
    hub = await again(hub, 300)  # no more than an adjustment
    await read_back(hub)
    ids = [entry.id for entry in hub.vhost.queues["q"].ready]
    moves = hub.broker.clock_moves
    assert [moves.of(one) for one in ids] == [3 * HOUR_MS, 2 * HOUR_MS]
    assert await hub.bodies("q") == [b"first", b"second"]
    hub = await again(hub, 0)
    assert moves.of(ids[0]) and not hub.broker.clock_moves.of(ids[0])
    assert not list(hub.broker.parameters)
    await hub.stop()


async def test_after_another_boot_the_system_clock_is_believed(tmp_path):
    hub = await begin(tmp_path)
    hub.queue("q", message_ttl=10_000)
    hub.publish("", "q", b"x")
    hub = await again(hub, HOUR_MS, boot="second")
    await hub.until(lambda: ready(hub) == 0)
    await hub.stop()


async def test_the_anchor_stays_where_it_is_while_the_clock_is_not_set():
    first = SystemClock()
    await asyncio.sleep(0)
    second = SystemClock()
    assert first.anchor().boot == second.anchor().boot
    assert abs(first.anchor().offset_ms - second.anchor().offset_ms) < 1_000
    second.not_before(second.wall_ms() + HOUR_MS)
    assert second.anchor().offset_ms - first.anchor().offset_ms > HOUR_MS - 1_000


async def test_only_the_brokers_own_parameter_says_how_the_clock_was_set(tmp_path):
    """In a data directory that somebody wrote to while that was allowed."""
    hub = await begin(tmp_path)
    hub.queue("q", message_ttl=HOUR_MS)
    hub.publish("", "q", b"kept")
    hub.broker.store.delete(ParameterDefinition("", "x-clock", "moves"))
    for vhost, name in (("", "a"), ("/", "moves")):
        value = '{"boot": "none", "offset_ms": 0, "moves": [[36028797018963968, -10000000000]]}'
        hub.broker.store.save(ParameterDefinition(vhost, "x-clock", name, value))
    hub = await again(hub, 0)
    await read_back(hub)
    assert await hub.bodies("q") == [b"kept"]
    await hub.stop()
