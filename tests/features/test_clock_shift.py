"""R-21: setting the system clock between two runs changes no TTL and no delay."""

from __future__ import annotations

import asyncio

import pytest

from leveret.model.clock import ManualClock, SystemClock
from leveret.model.definitions import ParameterDefinition
from tests.features.harness import BrokerHarness

HOUR_MS = 3_600_000
MOVES = [HOUR_MS, -HOUR_MS, 24 * HOUR_MS, -24 * HOUR_MS]
DOWN_MS = 2_000


async def start(folder, **settings):
    return await BrokerHarness.start(folder, ManualClock(boot="first"), **settings)


async def restart(harness, move_ms, boot="first"):
    """Restart with a pause of two seconds, in which the clock is set."""
    await harness.settle()
    await harness.stop()
    old = harness.clock
    wall_ms = old.wall_ms() + DOWN_MS + move_ms
    up_ms = old.up_ms + DOWN_MS if boot == "first" else 0
    return await BrokerHarness.start(harness.directory, ManualClock(wall_ms, boot, up_ms))


def ready(harness, name="q"):
    return harness.vhost.queues[name].ready_count


async def load_backlog(harness):
    """Wait until all messages are in memory; messages that are only on disk cannot expire."""
    await harness.until(lambda: not harness.vhost.queues["q"].backlog)
    await harness.settle()


@pytest.mark.parametrize("move_ms", MOVES)
async def test_message_ttl_is_exact_after_the_clock_was_set(tmp_path, move_ms):
    harness = await start(tmp_path)
    harness.queue("dlq")
    harness.queue("q", message_ttl=10_000, dead_letter_exchange="", dead_letter_routing_key="dlq")
    harness.publish("", "dlq", b"for ever")
    harness.publish("", "q", b"old")
    await harness.advance(4)
    harness = await restart(harness, move_ms)
    await load_backlog(harness)
    assert ready(harness) == 1
    harness.publish("", "q", b"new")
    await harness.advance(3.9)  # 9.9 s
    assert ready(harness) == 2
    await harness.advance(0.2)
    await harness.until(lambda: ready(harness) == 1)
    harness = await restart(harness, -move_ms)
    await load_backlog(harness)
    assert await harness.bodies("dlq") == [b"for ever", b"old"]
    assert await harness.bodies("q") == [b"new"]
    await harness.stop()


@pytest.mark.parametrize("move_ms", MOVES)
async def test_delay_is_exact_after_the_clock_was_set(tmp_path, move_ms):
    harness = await start(tmp_path)
    harness.exchange("later", "x-delayed-message", delayed_type="fanout")
    harness.queue("q")
    harness.bind("later", "q")
    harness.publish("later", "", b"x", headers={"x-delay": 10_000})
    await harness.advance(4)
    for move in (move_ms, 2 * move_ms):  # 8 s after both restarts
        harness = await restart(harness, move)
        for delayed in harness.broker.plugin_exchanges.delay_queues.by_exchange.values():
            delayed.snapshot()
    await harness.advance(1.9)
    assert ready(harness) == 0
    await harness.advance(0.2)
    await harness.until(lambda: ready(harness) == 1)
    await harness.stop()


async def test_shifts_add_up_until_no_older_message_is_left(tmp_path):
    harness = await start(tmp_path)
    harness.queue("q", message_ttl=60_000)
    harness.publish("", "q", b"first")
    harness = await restart(harness, HOUR_MS)
    harness.publish("", "q", b"second")
    harness = await restart(harness, 2 * HOUR_MS)
    harness = await restart(harness, 300)  # too small to be a shift
    await load_backlog(harness)
    ids = [entry.id for entry in harness.vhost.queues["q"].ready]
    shift = harness.broker.clock_shift
    assert [shift.offset_ms(message_id) for message_id in ids] == [3 * HOUR_MS, 2 * HOUR_MS]
    assert await harness.bodies("q") == [b"first", b"second"]
    harness = await restart(harness, 0)
    assert shift.offset_ms(ids[0]) and not harness.broker.clock_shift.offset_ms(ids[0])
    assert not list(harness.broker.parameters)
    await harness.stop()


async def test_system_clock_is_trusted_after_a_reboot(tmp_path):
    harness = await start(tmp_path)
    harness.queue("q", message_ttl=10_000)
    harness.publish("", "q", b"x")
    harness = await restart(harness, HOUR_MS, boot="second")
    await harness.until(lambda: ready(harness) == 0)
    await harness.stop()


async def test_anchor_is_constant_while_the_clock_is_not_set():
    first = SystemClock()
    await asyncio.sleep(0)
    second = SystemClock()
    assert first.anchor().boot == second.anchor().boot
    assert abs(first.anchor().offset_ms - second.anchor().offset_ms) < 1_000
    second.not_before(second.wall_ms() + HOUR_MS)
    assert second.anchor().offset_ms - first.anchor().offset_ms > HOUR_MS - 1_000


async def test_only_the_hidden_parameter_shifts_times(tmp_path):
    """In older versions clients could write parameters of this component."""
    harness = await start(tmp_path)
    harness.queue("q", message_ttl=HOUR_MS)
    harness.publish("", "q", b"kept")
    harness.broker.store.delete(ParameterDefinition("", "x-clock", "moves"))
    for vhost, name in (("", "a"), ("/", "moves")):
        value = '{"boot": "none", "offset_ms": 0, "moves": [[36028797018963968, -10000000000]]}'
        harness.broker.store.save(ParameterDefinition(vhost, "x-clock", name, value))
    harness = await restart(harness, 0)
    await load_backlog(harness)
    assert await harness.bodies("q") == [b"kept"]
    await harness.stop()
