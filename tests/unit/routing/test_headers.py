"""Headers matching: the same answers as looking at every rule, from a look at few of them."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from bindings import Binding, Destination, DestinationKind, HeadersMatcher
from bindings.headers import _parse, _Rule

values = st.sampled_from([None, 1, 1.0, True, "1", b"1", 0.5, float("nan"), [1], {"a": 1}])
tables = st.dictionaries(st.sampled_from(["a", "b", "c", "x-d", ""]), values, max_size=4)
modes = st.sampled_from(["all", "any", "all-with-x", "any-with-x"])


def binding(number, arguments):
    to = Destination(DestinationKind.QUEUE, f"q{number}")
    return Binding.of("x", to, str(number), arguments)


@given(st.lists(st.tuples(modes, tables), max_size=8), st.lists(tables, max_size=5), st.data())
def test_it_finds_what_a_look_at_every_rule_finds(rules, messages, data):
    matcher = HeadersMatcher()
    bound = [binding(number, {**t, "x-match": m}) for number, (m, t) in enumerate(rules)]
    for one in bound:
        matcher.add(one)
    gone = data.draw(st.sets(st.sampled_from(bound))) if bound else set()
    for one in gone:
        matcher.remove(one)
    left = [one for one in bound if one not in gone]
    for headers in messages:
        wanted = [one for one in left if _parse(one.arguments).holds(headers)]
        assert matcher.explain("", headers) == wanted
    for one in left:
        matcher.remove(one)
    assert matcher.steps == 0 and not matcher._index._filed and not matcher._index._places


def looks(matcher, headers):
    with mock.patch.object(_Rule, "holds", autospec=True, side_effect=_Rule.holds) as asked:
        found = list(matcher.match("", headers))
    return asked.call_count, len(found)


def test_rules_that_differ_in_one_field_are_not_looked_at_for_the_others():
    matcher = HeadersMatcher()
    for number in range(1_000):
        matcher.add(binding(number, {"x-match": "all", "common": 1, "own": number}))
        matcher.add(binding(number, {"x-match": "any", "this": number, "that": -number}))
    assert matcher.steps == 6_000
    assert looks(matcher, {"common": 1, "own": 7, "else": 7}) == (2, 1)  # the first has no choice
    assert looks(matcher, {"common": 2, "own": "7"}) == (0, 0)
    assert looks(matcher, {"this": 5, "that": -5}) == (1, 1)
