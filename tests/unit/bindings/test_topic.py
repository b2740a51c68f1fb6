"""The topic trie against a naive matcher that tries every alignment."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.bindings import MAX_STEPS, Binding, Destination, DestinationKind, TopicMatcher
from leveret.exchange import Exchange, ExchangeSpec
from leveret.model.errors import PreconditionFailed


def naive_match(pattern, key):
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
"""Two `#` between words that match nearly everywhere in a key that repeats one word."""
same = st.integers(0, 12).map(lambda count: ".".join("a" * count))


@settings(max_examples=300, deadline=None)
@given(st.lists(patterns | worst, max_size=8), keys | same, st.sets(st.integers(0, 7)))
def test_trie_matches_like_the_naive_matcher_also_after_unbinding(bound, key, removed):
    matcher = TopicMatcher()
    bindings = {}
    for number, pattern in enumerate(bound):
        bindings[number] = binding(pattern, f"q{number}")
        matcher.add(bindings[number])
    for number in removed & bindings.keys():
        matcher.remove(bindings.pop(number))
    expected = {f"q{n}" for n, bound in bindings.items() if naive_match(bound.routing_key, key)}
    assert {to.name for to in matcher.match(key, {})} == expected
    assert len(list(matcher.match(key, {}))) == len(expected)


def test_trie_is_empty_after_all_bindings_are_removed():
    matcher = TopicMatcher()
    first, second = binding("a.b", "q1"), binding("a.b.c.#", "q2")
    matcher.add(first)
    matcher.add(second)
    matcher.remove(second)
    matcher.remove(first)
    assert not matcher._root.children
    assert not matcher._root.shape.shapes and matcher.steps == 0


class CountingChildren(dict[str, object]):
    """The children of a node; counts visits of the node and lookups of its children."""

    lookups = visits = 0

    def get(self, word, *default):
        CountingChildren.lookups += 1
        CountingChildren.visits += word == "#"
        return super().get(word, *default)

    def __iter__(self):
        CountingChildren.lookups += len(self)
        return super().__iter__()


def count_lookups(node):
    node.children = CountingChildren(node.children)
    CountingChildren.lookups = CountingChildren.visits = 0
    return 1 + sum(count_lookups(child) for child in node.children.values())


def add_all(matcher, patterns):
    for number, pattern in enumerate(patterns):
        matcher.add(binding(pattern, f"q{number}"))
    return count_lookups(matcher._root)


def slow_patterns(count, hashes=2):
    """Binding keys that match a key of 128 words `a` everywhere except at their end."""
    source = random.Random(count)
    for _ in range(count):
        words = ["#"] * hashes + [source.choice("a*") for _ in range(120)]
        yield ".".join([*words[:1], *words[2:60], *words[1:2], *words[60:], "b"])


@pytest.mark.parametrize("hashes", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 100])
def test_r35_no_node_is_visited_twice(count, hashes):
    matcher = TopicMatcher()
    nodes = add_all(matcher, slow_patterns(count, hashes))
    assert list(matcher.match(".".join("a" * 128), {})) == []
    assert nodes // 2 < CountingChildren.visits <= nodes
    assert CountingChildren.lookups <= 5 * nodes


@settings(max_examples=300, deadline=None)
@given(st.lists(patterns | worst, max_size=30), keys | same, st.integers(0, 30))
def test_r35_match_visits_at_most_the_nodes_that_shapes_predict(bound, key, removed):
    matcher = TopicMatcher()
    bindings = [binding(pattern, f"q{number}") for number, pattern in enumerate(bound)]
    for added in bindings:
        matcher.add(added)
    for unbound in bindings[:removed]:
        matcher.remove(unbound)
    fresh = TopicMatcher()
    for remaining in bindings[removed:]:
        fresh.add(remaining)
    assert matcher.steps == fresh.steps
    count_lookups(matcher._root)
    matcher.match(key, {})
    assert CountingChildren.visits <= matcher.steps + 1


def test_r35_lookups_are_limited_by_the_words_of_the_key():
    matcher = TopicMatcher()
    add_all(matcher, [f"#.w{number}.#" for number in range(1_000)])
    assert {to.name for to in matcher.match("x.w7.y.w9", {})} == {"q9", "q7"}
    assert matcher.steps <= 2 * 128 + 1
    assert CountingChildren.lookups < 20


def make_exchange(kind="topic", **arguments):
    return Exchange(ExchangeSpec("x", kind, arguments=arguments))


@pytest.mark.parametrize(
    "exchange", [make_exchange(), make_exchange("x-delayed-message", **{"x-delayed-type": "topic"})]
)
def test_r35_binding_keys_that_make_matching_slow_are_refused(exchange):
    patterns = [binding(pattern, "q") for pattern in slow_patterns(200)]
    with pytest.raises(PreconditionFailed, match="wildcards in too many different places"):
        for slow in patterns:
            exchange.bind(slow)
    count = len(exchange.bindings)
    assert 50 < count < 100 and exchange.matcher.steps <= MAX_STEPS
    assert not exchange.bind(patterns[0])
    assert exchange.bind(binding("orders.#", "q"))
    assert exchange.unbind(patterns[0]) and exchange.bind(patterns[count])


def test_r35_stored_bindings_stay_and_free_ones_can_still_be_added():
    exchange = make_exchange()
    for pattern in slow_patterns(100):
        assert exchange.bind(binding(pattern, "q"), is_stored=True)
    exchange.bind(binding("orders.*.new", "q"), is_stored=True)
    assert exchange.matcher.steps > MAX_STEPS
    assert exchange.bind(binding("orders.*.new", "other"))
    with pytest.raises(PreconditionFailed):
        exchange.bind(binding(next(slow_patterns(1)), "q"))


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
def test_r35_ordinary_binding_keys_are_never_refused(pattern):
    matcher = TopicMatcher()
    for number in range(5_000):
        matcher.add(binding(pattern.format(number, number % 7), "q"))
    assert matcher.steps < MAX_STEPS // 10
