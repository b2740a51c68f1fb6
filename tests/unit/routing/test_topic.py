"""The topic trie against a matcher that tries everything."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bindings import MOST_STEPS, Binding, Destination, DestinationKind, TopicMatcher
from exchange import Exchange, ExchangeSpec
from leveret.model.errors import PreconditionFailed


def naive(pattern, key):
    def match(p, k):
        if not p:
            return not k
        if p[0] == "#":
            return any(match(p[1:], k[i:]) for i in range(len(k) + 1))
        return bool(k) and p[0] in ("*", k[0]) and match(p[1:], k[1:])

    return match(pattern.split(".") if pattern else [], key.split(".") if key else [])


def binding(key, name):
    return Binding.of("x", Destination(DestinationKind.QUEUE, name), key, {})


word = st.sampled_from(["a", "b", "", "#", "*", "a#", "**"])
keys = st.lists(word, max_size=5).map(".".join)
patterns = keys.filter(lambda key: key.split(".").count("#") <= 2)
near = st.sampled_from("aaa*")
worst = st.tuples(*(st.lists(near, max_size=4) for _ in range(3)), st.sampled_from(["", ".b"])).map(
    lambda parts: ".#.".join(".".join(part) for part in parts[:3]).strip(".") + parts[3]
)
"""Two `#` between words that fit nearly everywhere in keys of one word."""
same = st.integers(0, 12).map(lambda count: ".".join("a" * count))


@settings(max_examples=300, deadline=None)
@given(st.lists(patterns | worst, max_size=8), keys | same, st.sets(st.integers(0, 7)))
def test_trie_agrees_with_the_naive_matcher_also_after_unbinding(bound, key, removed):
    matcher = TopicMatcher()
    held = {}
    for number, pattern in enumerate(bound):
        held[number] = binding(pattern, f"q{number}")
        matcher.add(held[number])
    for number in removed & held.keys():
        matcher.remove(held.pop(number))
    expected = {f"q{n}" for n, one in held.items() if naive(one.routing_key, key)}
    assert {to.name for to in matcher.match(key, {})} == expected
    assert len(list(matcher.match(key, {}))) == len(expected)


def test_a_trie_without_bindings_is_empty_again():
    matcher = TopicMatcher()
    kept, gone = binding("a.b", "q1"), binding("a.b.c.#", "q2")
    matcher.add(kept)
    matcher.add(gone)
    matcher.remove(gone)
    matcher.remove(kept)
    assert not matcher._root.children
    assert not matcher._root.shape.shapes and matcher.steps == 0


class Counting(dict[str, object]):
    """The children of a node, counting how often the node is visited and one of them looked for."""

    looks = visits = 0

    def get(self, word, *default):
        Counting.looks += 1
        Counting.visits += word == "#"
        return super().get(word, *default)

    def __iter__(self):
        Counting.looks += len(self)
        return super().__iter__()


def count_looks(node):
    node.children = Counting(node.children)
    Counting.looks = Counting.visits = 0
    return 1 + sum(count_looks(child) for child in node.children.values())


def bound_to(matcher, patterns):
    for number, pattern in enumerate(patterns):
        matcher.add(binding(pattern, f"q{number}"))
    return count_looks(matcher._root)


def hostile(count, hashes=2):
    """Binding keys that fit the key of 128 times `a` everywhere but at their end."""
    source = random.Random(count)
    for _ in range(count):
        words = ["#"] * hashes + [source.choice("a*") for _ in range(120)]
        yield ".".join([*words[:1], *words[2:60], *words[1:2], *words[60:], "b"])


@pytest.mark.parametrize("hashes", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 100])
def test_r35_no_place_in_the_trie_is_visited_twice(count, hashes):
    matcher = TopicMatcher()
    nodes = bound_to(matcher, hostile(count, hashes))
    assert list(matcher.match(".".join("a" * 128), {})) == []
    assert nodes // 2 < Counting.visits <= nodes
    assert Counting.looks <= 5 * nodes


@settings(max_examples=300, deadline=None)
@given(st.lists(patterns | worst, max_size=30), keys | same, st.integers(0, 30))
def test_r35_no_match_visits_more_than_the_shapes_say(bound, key, removed):
    matcher = TopicMatcher()
    held = {binding(pattern, f"q{number}"): None for number, pattern in enumerate(bound)}
    for one in held:
        matcher.add(one)
    for one in list(held)[:removed]:
        matcher.remove(one)
    left = TopicMatcher()
    for one in list(held)[removed:]:
        left.add(one)
    assert matcher.steps == left.steps
    count_looks(matcher._root)
    matcher.match(key, {})
    assert Counting.visits <= matcher.steps + 1


def test_r35_many_children_are_looked_at_no_more_than_words_are_there():
    matcher = TopicMatcher()
    bound_to(matcher, [f"#.w{number}.#" for number in range(1_000)])
    assert {to.name for to in matcher.match("x.w7.y.w9", {})} == {"q9", "q7"}
    assert matcher.steps <= 2 * 128 + 1
    assert Counting.looks < 20


def made(kind="topic", **arguments):
    return Exchange(ExchangeSpec("x", kind, arguments=arguments))


@pytest.mark.parametrize(
    "exchange", [made(), made("x-delayed-message", **{"x-delayed-type": "topic"})]
)
def test_r35_binding_keys_that_would_make_matching_slow_are_refused(exchange):
    patterns = [binding(pattern, "q") for pattern in hostile(200)]
    with pytest.raises(PreconditionFailed, match="wildcards in too many different places"):
        for one in patterns:
            exchange.bind(one)
    count = len(exchange.bindings)
    assert 50 < count < 100 and exchange.matcher.steps <= MOST_STEPS
    assert not exchange.bind(patterns[0])
    assert exchange.bind(binding("orders.#", "q"))
    assert exchange.unbind(patterns[0]) and exchange.bind(patterns[count])


def test_r35_what_is_stored_stays_bound_and_leaves_room_for_what_costs_nothing():
    exchange = made()
    for pattern in hostile(100):
        assert exchange.bind(binding(pattern, "q"), is_stored=True)
    exchange.bind(binding("orders.*.new", "q"), is_stored=True)
    assert exchange.matcher.steps > MOST_STEPS
    assert exchange.bind(binding("orders.*.new", "other"))
    with pytest.raises(PreconditionFailed):
        exchange.bind(binding(next(hostile(1)), "q"))


@pytest.mark.parametrize(
    "pattern",
    [
        "{0}.{1}.*",
        "last.{0}.#",
        "#.{0}.#",
        "*.{0}.#.{1}",
        "#.{0}.*.{1}",
        "{0}.#.{1}.#",
        "#.{0}.{1}",
    ],
)
def test_r35_ordinary_binding_keys_are_never_too_many(pattern):
    matcher = TopicMatcher()
    for number in range(5_000):
        matcher.add(binding(pattern.format(number, number % 7), "q"))
    assert matcher.steps < MOST_STEPS // 10
