"""The topic trie against a matcher that tries everything."""

from hypothesis import given, settings
from hypothesis import strategies as st

from bindings import Binding, Destination, DestinationKind, TopicMatcher


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


@settings(max_examples=300, deadline=None)
@given(st.lists(patterns, max_size=8), keys, st.sets(st.integers(0, 7)))
def test_trie_agrees_with_the_naive_matcher_also_after_unbinding(bound, key, removed):
    matcher = TopicMatcher()
    held = {}
    for number, pattern in enumerate(bound):
        held[number] = binding(pattern, f"q{number}")
        matcher.add(held[number])
    for number in removed & held.keys():
        matcher.remove(held.pop(number))
    expected = {f"q{n}" for n, one in held.items() if naive_wild(one.routing_key, key)}
    assert {to.name for to in matcher.match(key, {})} == expected
    assert len(list(matcher.match(key, {}))) == len(expected)


def naive_wild(pattern, key):
    return naive(pattern, key)


def test_a_trie_without_bindings_is_empty_again():
    matcher = TopicMatcher()
    kept, gone = binding("a.b", "q1"), binding("a.b.c.#", "q2")
    matcher.add(kept)
    matcher.add(gone)
    matcher.remove(gone)
    matcher.remove(kept)
    assert not matcher._root.children


class Counting(dict[str, object]):
    """The children of a node, counting how often one is looked for."""

    looks = 0

    def get(self, *arguments):
        Counting.looks += 1
        return super().get(*arguments)


def count_looks(node):
    node.children = Counting(node.children)
    return 1 + sum(count_looks(child) for child in node.children.values())


def test_r35_worst_pattern_costs_no_more_than_the_product_of_the_lengths():
    key = ".".join("a" * 128)
    pattern = ".".join(["#", *"a" * 40, "#", *"a" * 60, "b"])
    matcher = TopicMatcher()
    matcher.add(binding(pattern, "q"))
    nodes = count_looks(matcher._root)
    Counting.looks = 0
    assert list(matcher.match(key, {})) == []
    assert 0 < Counting.looks <= 3 * nodes * 129  # it was fifteen times as much
