"""Headers matching: the index gives the same results as a check of every rule, with few checks."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from leveret.bindings import Binding, Destination, DestinationKind, HeadersMatcher
from leveret.bindings.headers import _parse, _Rule

values = st.sampled_from([None, 1, 1.0, True, "1", b"1", 0.5, float("nan"), [1], {"a": 1}])
tables = st.dictionaries(st.sampled_from(["a", "b", "c", "x-d", ""]), values, max_size=4)
modes = st.sampled_from(["all", "any", "all-with-x", "any-with-x"])


def make_binding(number, arguments):
    to = Destination(DestinationKind.QUEUE, f"q{number}")
    return Binding.of("x", to, str(number), arguments)


@given(st.lists(st.tuples(modes, tables), max_size=8), st.lists(tables, max_size=5), st.data())
def test_index_finds_the_same_bindings_as_a_check_of_every_rule(rules, messages, data):
    matcher = HeadersMatcher()
    bindings = [
        make_binding(number, {**table, "x-match": mode})
        for number, (mode, table) in enumerate(rules)
    ]
    for binding in bindings:
        matcher.add(binding)
    removed = data.draw(st.sets(st.sampled_from(bindings))) if bindings else set()
    for binding in removed:
        matcher.remove(binding)
    remaining = [binding for binding in bindings if binding not in removed]
    for headers in messages:
        expected = [binding for binding in remaining if _parse(binding.arguments).matches(headers)]
        assert matcher.explain("", headers) == expected
    for binding in remaining:
        matcher.remove(binding)
    assert matcher.steps == 0 and matcher._index.is_empty()


def count_checks(matcher, headers):
    """How many rules were checked, and how many matched."""
    with mock.patch.object(_Rule, "matches", autospec=True, side_effect=_Rule.matches) as checked:
        destinations = list(matcher.match("", headers))
    return checked.call_count, len(destinations)


def test_rules_that_differ_in_one_field_are_found_by_that_field():
    matcher = HeadersMatcher()
    for number in range(1_000):
        matcher.add(make_binding(number, {"x-match": "all", "common": 1, "own": number}))
        matcher.add(make_binding(number, {"x-match": "any", "this": number, "that": -number}))
    assert matcher.steps == 6_000
    # The first rule is indexed by "common": no field had fewer rules when it was added.
    assert count_checks(matcher, {"common": 1, "own": 7, "else": 7}) == (2, 1)
    assert count_checks(matcher, {"common": 2, "own": "7"}) == (0, 0)
    assert count_checks(matcher, {"this": 5, "that": -5}) == (1, 1)
