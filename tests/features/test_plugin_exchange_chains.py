"""Plugin exchanges bound to each other: a message visits each of them once."""

from __future__ import annotations

import pytest

from leveret.broker import vhost as vhosts
from leveret.exchange import DEDUPLICATING, RECENT_HISTORY, routing
from leveret.queues.entry import Outcome

KEY = {"headers": {"x-deduplication-header": "a"}}


def history_of(harness, name):
    history = harness.broker.plugin_exchanges._histories[harness.vhost.exchanges[name]]
    return [message.body for message in history.newest_first()]


def chain(harness, kind, length):
    for number in range(length):
        harness.exchange(f"s{number}", kind)
        if number:
            harness.bind_exchange(f"s{number - 1}", f"s{number}")
    harness.queue("q")
    harness.bind(f"s{length - 1}", "q")


async def test_layered_exchanges_are_walked_once(harness, monkeypatch):
    walks = []

    def walk(exchanges, start, *rest):
        walks.append(start.name)
        return routing.route(exchanges, start, *rest)

    monkeypatch.setattr(vhosts, "route", walk)
    names = [f"{layer}.{side}" for layer in range(9) for side in "ab"]
    for name in names:
        harness.exchange(name, RECENT_HISTORY)
        for before in names:
            if int(before[0]) == int(name[0]) - 1:
                harness.bind_exchange(before, name)
    harness.queue("q")
    harness.bind("8.a", "q")
    harness.bind("8.b", "q")
    harness.publish("0.a", "", b"x")
    reached = [name for name in names if name != "0.b"]
    # The first exchange is walked twice: to reach it, and for the exchanges behind it.
    assert sorted(walks) == sorted(["0.a", *reached])
    assert [history_of(harness, name) for name in reached] == [[b"x"]] * len(reached)
    assert await harness.bodies("q") == [b"x"]


@pytest.mark.parametrize("kind", [RECENT_HISTORY, DEDUPLICATING])
async def test_chain_may_be_longer_than_the_recursion_limit(harness, kind):
    chain(harness, kind, 1_200)
    for body in (b"1", b"2"):
        assert harness.publish("s0", "", body, **KEY).routed
    await harness.settle()
    assert await harness.bodies("q") == ([b"1", b"2"] if kind == RECENT_HISTORY else [b"1"])


async def test_dead_letter_passes_a_long_chain(harness):
    chain(harness, RECENT_HISTORY, 1_200)
    harness.queue("dying", dead_letter_exchange="s0")
    harness.publish("", "dying", b"x")
    await harness.take("dying", outcome=Outcome.REJECT)
    assert await harness.bodies("q") == [b"x"]


async def test_cycle_of_recent_history_exchanges_ends(harness):
    chain(harness, RECENT_HISTORY, 3)
    harness.bind_exchange("s2", "s0")
    harness.publish("s1", "", b"x")
    assert [history_of(harness, f"s{number}") for number in range(3)] == [[b"x"]] * 3
    assert await harness.bodies("q") == [b"x"]


async def test_rejected_message_is_remembered_only_where_accepted(harness):
    """The outer exchange routes it again, the inner exchange does not."""
    chain(harness, DEDUPLICATING, 2)
    harness.queue("full", max_length=1, overflow="reject-publish")
    harness.publish("", "full", b"earlier")
    harness.bind("s0", "full")
    assert not harness.publish("s0", "", b"1", **KEY).accepted
    await harness.take("full")
    assert harness.publish("s0", "", b"2", **KEY).accepted
    await harness.settle()
    assert await harness.bodies("full") == [b"2"]
    assert await harness.bodies("q") == [b"1"]


async def test_message_with_several_keys_is_delayed_once(harness):
    for name in ("r", "left", "right"):
        harness.exchange(name, RECENT_HISTORY)
    harness.exchange("d", "x-delayed-message", delayed_type="fanout")
    harness.queue("q")
    harness.bind("d", "q")
    for side in ("left", "right"):
        harness.bind_exchange("r", side)
        harness.bind_exchange(side, "d")
    harness.publish("r", "k", b"x", headers={"x-delay": 1_000, "CC": ["other"]})
    await harness.settle()
    await harness.advance(1.5)
    await harness.until(lambda: harness.vhost.queues["q"].ready_count > 0)
    assert await harness.bodies("q") == [b"x"]
