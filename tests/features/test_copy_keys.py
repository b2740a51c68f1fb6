"""CC and BCC keys that take too many steps: refused on publish, ignored on dead-lettering."""

from __future__ import annotations

from collections import Counter

import pytest

from leveret.bindings import DirectMatcher
from leveret.exchange import routing
from leveret.model.errors import PreconditionFailed
from leveret.queues.entry import Outcome

COPIES = {"CC": [f"k{number}" for number in range(50)]}


@pytest.fixture
def low_limit(monkeypatch):
    monkeypatch.setattr(routing, "MAX_STEPS_OF_COPIES", 100)


async def test_repeated_key_is_matched_once(harness, monkeypatch):
    matches: Counter[str] = Counter()
    match = DirectMatcher.match

    def count_and_match(matcher, key, headers):
        matches[key] += 1
        return match(matcher, key, headers)

    monkeypatch.setattr(DirectMatcher, "match", count_and_match)
    harness.publish("amq.direct", "a", headers={"CC": ["a", "b"] * 20, "BCC": ["b", "c"]})
    assert matches == {"a": 1, "b": 1, "c": 1}


async def test_message_with_too_many_steps_is_refused(harness, low_limit):
    harness.queue("q")
    harness.bind("amq.topic", "q", "#")
    with pytest.raises(PreconditionFailed, match="by 51 keys takes more than 100 steps"):
        harness.publish("amq.topic", "a", headers=COPIES)
    harness.publish("amq.topic", "a", b"x", headers={"CC": ["k1", "k2"]})
    assert await harness.bodies("q") == [b"x"]


async def test_steps_of_all_exchanges_are_counted(harness, low_limit):
    for number in range(20):
        harness.exchange(f"x{number}", "direct")
        if number:
            harness.bind_exchange(f"x{number - 1}", f"x{number}", "a")
    harness.publish("x0", "a", headers={"CC": ["a"]})
    with pytest.raises(PreconditionFailed, match="by 3 keys"):
        harness.publish("x0", "a", headers={"CC": ["b", "c"]})


async def test_dead_letter_or_delayed_message_is_routed_without_copies(harness, low_limit):
    harness.queue("dead")
    harness.bind("amq.topic", "dead", "#")
    harness.exchange("d", "x-delayed-message", delayed_type="topic")
    harness.bind("d", "dead", "#")
    harness.queue("dying", dead_letter_exchange="amq.topic")
    harness.publish("", "dying", b"died", headers=COPIES)
    await harness.take("dying", outcome=Outcome.REJECT)
    harness.publish("d", "k", b"waited", headers={"x-delay": 1_000, **COPIES})
    await harness.settle()
    await harness.advance(1.5)
    await harness.until(lambda: harness.vhost.queues["dead"].ready_count == 2)
    assert await harness.bodies("dead") == [b"died", b"waited"]
