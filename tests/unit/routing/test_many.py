"""Many keys, many bindings: what is looked at, and how often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings import Binding, ConsistentHashMatcher, Destination, DestinationKind
from exchange import Exchange, ExchangeSpec, TooManySteps, Walk, route
from exchange.routing import MOST_STEPS_OF_COPIES
from leveret.broker.judging import MOST_COPIES, copy_keys
from leveret.model.errors import PreconditionFailed

KEYS = [str(number) for number in range(50)]


def made(kind, **arguments):
    return Exchange(ExchangeSpec("x", kind, arguments=arguments))


def binding(queue, key="", **arguments):
    return Binding.of("x", Destination(DestinationKind.QUEUE, queue), key, arguments)


@pytest.mark.parametrize(
    ("kind", "arguments", "looks"),
    [
        ("fanout", {}, 1),
        ("headers", {}, 1),
        ("x-consistent-hash", {"hash-header": "h"}, 1),
        ("x-consistent-hash", {}, 50),
        ("direct", {}, 50),
        ("topic", {}, 50),
    ],
)
def test_who_does_not_look_at_keys_is_asked_once(kind, arguments, looks, monkeypatch):
    exchange = made(kind, **arguments)
    exchange.bind(binding("q", "7"))
    asked: list[str] = []
    match = exchange.matcher.match

    def ask(key, headers):
        asked.append(key)
        return match(key, headers)

    monkeypatch.setattr(exchange.matcher, "match", ask)
    assert route({"x": exchange}, exchange, KEYS, {"h": 1}).queues == ("q",)
    assert asked == KEYS[:looks]


@given(st.permutations(range(8)), st.permutations(range(8)))
def test_bindings_of_one_of_them_are_in_the_same_order_whenever_they_came(added, removed):
    here, there = made("x-modulus-hash"), made("x-modulus-hash")
    some = [binding(f"q{number % 3}", str(number)) for number in range(8)]
    for number in added:
        here.bind(some[number])
    for number in removed[:4]:
        here.unbind(some[number])
    for number in sorted(removed[4:]):
        there.bind(some[number])
    for key in KEYS:
        assert here.matcher.explain(key, {}) == there.matcher.explain(key, {})


def test_keys_of_copies_have_a_limit():
    half = ["k"] * (MOST_COPIES // 2)
    assert len(copy_keys({"CC": half, "BCC": half})) == MOST_COPIES
    with pytest.raises(PreconditionFailed, match=r"CC and BCC have 1001 keys"):
        copy_keys({"CC": half, "BCC": [*half, "k"]})


def wide(kind, count, key):
    exchange = made(kind)
    for number in range(count):
        exchange.bind(binding(f"q{number}", key(number)))
    return exchange


@pytest.mark.parametrize(
    ("exchange", "each"),
    [
        (wide("x-consistent-hash", 400, lambda number: str(number + 1)), 400),
        (wide("topic", 400, lambda number: f"{'*.' * (number % 9)}#.a.{number}"), 20),
        (wide("topic", 400, lambda number: "#"), 400),
        (wide("direct", 400, str), 1),
    ],
    ids=["hash", "topic", "many that match", "direct"],
)
def test_a_walk_counts_what_it_looks_at_and_ends_if_copies_make_it_long(exchange, each):
    keys = [f"0.1.2.3.4.5.a.{number}" for number in range(1_000)]
    walk = Walk()
    route({"x": exchange}, exchange, keys[:10], {}, walk)
    assert each * 10 <= walk.steps <= (each * 4 + 3) * 10
    if each * len(keys) < MOST_STEPS_OF_COPIES // 4:
        route({"x": exchange}, exchange, keys, {})
        return
    walk = Walk()
    with pytest.raises(TooManySteps, match="by 1000 keys"):
        route({"x": exchange}, exchange, keys, {}, walk)
    assert walk.steps < MOST_STEPS_OF_COPIES * 1.1


def test_a_message_with_one_key_goes_however_many_steps_it_takes():
    exchange = wide("fanout", MOST_STEPS_OF_COPIES + 1, str)
    assert len(route({"x": exchange}, exchange, ["k"], {}).queues) == MOST_STEPS_OF_COPIES + 1


def test_a_hash_over_too_many_bindings_is_refused(monkeypatch):
    monkeypatch.setattr(ConsistentHashMatcher, "most_steps", 5)
    exchange = wide("x-consistent-hash", 5, lambda number: "1")
    with pytest.raises(PreconditionFailed, match="has too many bindings"):
        exchange.bind(binding("q5", "1"))
    exchange.bind(binding("q5", "1"), is_stored=True)
    assert len(exchange.bindings) == exchange.matcher.steps == 6
