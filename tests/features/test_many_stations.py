"""Stations behind stations: a message visits each once, however many ways lead there."""

from __future__ import annotations

import pytest

from exchange import DEDUPLICATING, RECENT_HISTORY, routing
from leveret.broker import vhost as vhosts
from queues import Outcome

KEY = {"headers": {"x-deduplication-header": "a"}}


def remembered(hub, name):
    held = hub.broker.stations._histories[hub.vhost.exchanges[name]]
    return [message.body for message in held.newest_first()]


def chain(hub, kind, length):
    for number in range(length):
        hub.exchange(f"s{number}", kind)
        if number:
            hub.bind_exchange(f"s{number - 1}", f"s{number}")
    hub.queue("q")
    hub.bind(f"s{length - 1}", "q")


async def test_layers_are_walked_once_not_once_for_every_way(hub, monkeypatch):
    walks = []

    def walk(exchanges, start, *rest):
        walks.append(start.name)
        return routing.route(exchanges, start, *rest)

    monkeypatch.setattr(vhosts, "route", walk)
    names = [f"{layer}.{side}" for layer in range(9) for side in "ab"]
    for name in names:
        hub.exchange(name, RECENT_HISTORY)
        for before in names:
            if int(before[0]) == int(name[0]) - 1:
                hub.bind_exchange(before, name)
    hub.queue("q")
    hub.bind("8.a", "q")
    hub.bind("8.b", "q")
    hub.publish("0.a", "", b"x")
    reached = [name for name in names if name != "0.b"]
    assert sorted(walks) == sorted(["0.a", *reached])  # and once to see that the first is one
    assert [remembered(hub, name) for name in reached] == [[b"x"]] * len(reached)
    assert await hub.bodies("q") == [b"x"]


@pytest.mark.parametrize("kind", [RECENT_HISTORY, DEDUPLICATING])
async def test_a_chain_may_be_longer_than_python_goes_deep(hub, kind):
    chain(hub, kind, 1_200)
    for body in (b"1", b"2"):
        assert hub.publish("s0", "", body, **KEY).routed
    await hub.settle()
    assert await hub.bodies("q") == ([b"1", b"2"] if kind == RECENT_HISTORY else [b"1"])


async def test_a_dead_letter_goes_through_such_a_chain_too(hub):
    chain(hub, RECENT_HISTORY, 1_200)
    hub.queue("dying", dead_letter_exchange="s0")
    hub.publish("", "dying", b"x")
    await hub.take("dying", outcome=Outcome.REJECT)
    assert await hub.bodies("q") == [b"x"]


async def test_a_circle_of_stations_ends(hub):
    chain(hub, RECENT_HISTORY, 3)
    hub.bind_exchange("s2", "s0")
    hub.publish("s1", "", b"x")
    assert [remembered(hub, f"s{number}") for number in range(3)] == [[b"x"]] * 3
    assert await hub.bodies("q") == [b"x"]


async def test_what_is_refused_behind_one_is_remembered_where_it_was_taken(hub):
    """The outer one lets it pass again, the inner one does not."""
    chain(hub, DEDUPLICATING, 2)
    hub.queue("full", max_length=1, overflow="reject-publish")
    hub.publish("", "full", b"there before")
    hub.bind("s0", "full")
    assert not hub.publish("s0", "", b"1", **KEY).taken
    await hub.take("full")
    assert hub.publish("s0", "", b"2", **KEY).taken
    await hub.settle()
    assert await hub.bodies("full") == [b"2"]
    assert await hub.bodies("q") == [b"1"]


async def test_a_message_with_several_keys_is_delayed_once(hub):
    for name in ("r", "left", "right"):
        hub.exchange(name, RECENT_HISTORY)
    hub.exchange("d", "x-delayed-message", delayed_type="fanout")
    hub.queue("q")
    hub.bind("d", "q")
    for side in ("left", "right"):
        hub.bind_exchange("r", side)
        hub.bind_exchange(side, "d")
    hub.publish("r", "k", b"x", headers={"x-delay": 1_000, "CC": ["other"]})
    await hub.settle()
    await hub.advance(1.5)
    await hub.until(lambda: hub.vhost.queues["q"].ready_count > 0)
    assert await hub.bodies("q") == [b"x"]
