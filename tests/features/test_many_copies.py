"""Keys in CC and BCC that would take long to follow: refused, or left out where it is too late."""

from __future__ import annotations

from collections import Counter

import pytest

from bindings import DirectMatcher
from exchange import routing
from leveret.model.errors import PreconditionFailed
from queues import Outcome

COPIES = {"CC": [f"k{number}" for number in range(50)]}


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(routing, "MOST_STEPS_OF_COPIES", 100)


async def test_a_key_that_is_named_twice_is_matched_once(hub, monkeypatch):
    asked: Counter[str] = Counter()
    match = DirectMatcher.match

    def ask(matcher, key, headers):
        asked[key] += 1
        return match(matcher, key, headers)

    monkeypatch.setattr(DirectMatcher, "match", ask)
    hub.publish("amq.direct", "a", headers={"CC": ["a", "b"] * 20, "BCC": ["b", "c"]})
    assert asked == {"a": 1, "b": 1, "c": 1}


async def test_such_a_message_is_refused(hub, few):
    hub.queue("q")
    hub.bind("amq.topic", "q", "#")
    with pytest.raises(PreconditionFailed, match="by 51 keys takes more than 100 steps"):
        hub.publish("amq.topic", "a", headers=COPIES)
    hub.publish("amq.topic", "a", b"x", headers={"CC": ["k1", "k2"]})
    assert await hub.bodies("q") == [b"x"]


async def test_steps_at_all_exchanges_on_the_way_count(hub, few):
    for number in range(20):
        hub.exchange(f"x{number}", "direct")
        if number:
            hub.bind_exchange(f"x{number - 1}", f"x{number}", "a")
    hub.publish("x0", "a", headers={"CC": ["a"]})
    with pytest.raises(PreconditionFailed, match="by 3 keys"):
        hub.publish("x0", "a", headers={"CC": ["b", "c"]})


async def test_a_dead_letter_or_delayed_message_then_follows_its_own_key(hub, few):
    hub.queue("dead")
    hub.bind("amq.topic", "dead", "#")
    hub.exchange("d", "x-delayed-message", delayed_type="topic")
    hub.bind("d", "dead", "#")
    hub.queue("dying", dead_letter_exchange="amq.topic")
    hub.publish("", "dying", b"died", headers=COPIES)
    await hub.take("dying", outcome=Outcome.REJECT)
    hub.publish("d", "k", b"waited", headers={"x-delay": 1_000, **COPIES})
    await hub.settle()
    await hub.advance(1.5)
    await hub.until(lambda: hub.vhost.queues["dead"].ready_count == 2)
    assert await hub.bodies("dead") == [b"died", b"waited"]
