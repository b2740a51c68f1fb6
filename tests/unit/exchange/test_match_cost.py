"""The cost of routing with many keys and many bindings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.bindings import Binding, ConsistentHashMatcher, Destination, DestinationKind
from leveret.broker.publishing.validation import MAX_COPY_KEYS, cc_and_bcc_keys
from leveret.exchange import Exchange, ExchangeSpec, TooManySteps, Walk, route
from leveret.exchange.routing import MAX_STEPS_OF_COPIES
from leveret.model.errors import PreconditionFailed

KEYS = [str(number) for number in range(50)]


def make_exchange(kind, **arguments):
    return Exchange(ExchangeSpec("x", kind, arguments=arguments))


def binding(queue, key="", **arguments):
    return Binding.of("x", Destination(DestinationKind.QUEUE, queue), key, arguments)


@pytest.mark.parametrize(
    ("kind", "arguments", "match_count"),
    [
        ("fanout", {}, 1),
        ("headers", {}, 1),
        ("x-consistent-hash", {"hash-header": "h"}, 1),
        ("x-consistent-hash", {}, 50),
        ("direct", {}, 50),
        ("topic", {}, 50),
    ],
)
def test_matchers_that_ignore_keys_are_called_once(kind, arguments, match_count, monkeypatch):
    exchange = make_exchange(kind, **arguments)
    exchange.bind(binding("q", "7"))
    matched_keys: list[str] = []
    match = exchange.matcher.match

    def count_match(key, headers):
        matched_keys.append(key)
        return match(key, headers)

    monkeypatch.setattr(exchange.matcher, "match", count_match)
    assert route({"x": exchange}, exchange, KEYS, {"h": 1}).queues == ("q",)
    assert matched_keys == KEYS[:match_count]


@given(st.permutations(range(8)), st.permutations(range(8)))
def test_modulus_hash_does_not_depend_on_the_order_of_binding(added, removed):
    exchange, expected = make_exchange("x-modulus-hash"), make_exchange("x-modulus-hash")
    bindings = [binding(f"q{number % 3}", str(number)) for number in range(8)]
    for number in added:
        exchange.bind(bindings[number])
    for number in removed[:4]:
        exchange.unbind(bindings[number])
    for number in sorted(removed[4:]):
        expected.bind(bindings[number])
    for key in KEYS:
        assert exchange.matcher.explain(key, {}) == expected.matcher.explain(key, {})


def test_number_of_cc_and_bcc_keys_is_limited():
    half = ["k"] * (MAX_COPY_KEYS // 2)
    assert len(cc_and_bcc_keys({"CC": half, "BCC": half})) == MAX_COPY_KEYS
    with pytest.raises(PreconditionFailed, match=r"CC and BCC have 1001 keys"):
        cc_and_bcc_keys({"CC": half, "BCC": [*half, "k"]})


def exchange_with_bindings(kind, count, key):
    exchange = make_exchange(kind)
    for number in range(count):
        exchange.bind(binding(f"q{number}", key(number)))
    return exchange


@pytest.mark.parametrize(
    ("exchange", "steps_per_key"),
    [
        (exchange_with_bindings("x-consistent-hash", 400, lambda number: str(number + 1)), 400),
        (
            exchange_with_bindings(
                "topic", 400, lambda number: f"{'*.' * (number % 9)}#.a.{number}"
            ),
            20,
        ),
        (exchange_with_bindings("topic", 400, lambda number: "#"), 400),
        (exchange_with_bindings("direct", 400, str), 1),
    ],
    ids=["hash", "topic", "many that match", "direct"],
)
def test_walk_counts_steps_and_refuses_too_many_for_copies(exchange, steps_per_key):
    keys = [f"0.1.2.3.4.5.a.{number}" for number in range(1_000)]
    walk = Walk()
    route({"x": exchange}, exchange, keys[:10], {}, walk)
    assert steps_per_key * 10 <= walk.steps <= (steps_per_key * 4 + 3) * 10
    if steps_per_key * len(keys) < MAX_STEPS_OF_COPIES // 4:
        route({"x": exchange}, exchange, keys, {})
        return
    walk = Walk()
    with pytest.raises(TooManySteps, match="by 1000 keys"):
        route({"x": exchange}, exchange, keys, {}, walk)
    assert walk.steps < MAX_STEPS_OF_COPIES * 1.1


def test_single_key_has_no_step_limit():
    exchange = exchange_with_bindings("fanout", MAX_STEPS_OF_COPIES + 1, str)
    assert len(route({"x": exchange}, exchange, ["k"], {}).queues) == MAX_STEPS_OF_COPIES + 1


def test_consistent_hash_with_too_many_bindings_is_refused(monkeypatch):
    monkeypatch.setattr(ConsistentHashMatcher, "max_steps", 5)
    exchange = exchange_with_bindings("x-consistent-hash", 5, lambda number: "1")
    with pytest.raises(PreconditionFailed, match="has too many bindings"):
        exchange.bind(binding("q5", "1"))
    exchange.bind(binding("q5", "1"), is_stored=True)
    assert len(exchange.bindings) == exchange.matcher.steps == 6
