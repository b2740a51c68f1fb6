"""Many keys, many bindings: what is looked at, and how often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings import Binding, Destination, DestinationKind
from exchange import Exchange, ExchangeSpec, route
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
