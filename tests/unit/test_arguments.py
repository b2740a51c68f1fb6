"""Arguments come back from the store as they were declared, whatever a client calls its keys."""

import datetime
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.arguments import dump_arguments, load_arguments

MARKS = ("!bytes", "!bytearray", "!decimal", "!time", "!", "!!", "!!bytes", "!!!time")


def at(milliseconds):
    """As pamqp makes timestamps of what came over the wire."""
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)


keys = st.sampled_from(MARKS) | st.text(max_size=10)
fields = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.sampled_from(("YQ==", "abc", "1.5", 10**18))
    | st.binary(max_size=20)
    | st.binary(max_size=20).map(bytearray)
    | st.builds(
        lambda raw, scale: Decimal(raw) * Decimal(10) ** -scale,
        st.integers(-(2**31), 2**31 - 1),
        st.integers(0, 255),
    )
    | st.integers(0, 253_402_300_799_999).map(at)
)
values = st.recursive(
    fields,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=2),
    max_leaves=12,
)


def typed(value):
    """With the types, which `==` passes over: 1 == 1.0 == True, b"" == bytearray()."""
    if isinstance(value, dict):
        return {key: typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    return type(value), repr(value)


@given(st.dictionaries(keys, values, max_size=3))
def test_any_table_survives(table):
    assert typed(load_arguments(dump_arguments(table))) == typed(table)


@pytest.mark.parametrize(
    ("stored", "loaded"),
    [
        ('{"a":{"!bytes":"YQ=="}}', {"a": b"a"}),
        ('{"a":{"!decimal":"1.25"}}', {"a": Decimal("1.25")}),
        ('{"a":{"!time":1577836800.0}}', {"a": at(1577836800_000)}),
        ('{"!two":1,"!!keys":2}', {"!two": 1, "!!keys": 2}),
        ('{"a":{"!other":1}}', {"a": {"!other": 1}}),
    ],
)
def test_what_older_versions_stored_is_read_as_before(stored, loaded):
    assert typed(load_arguments(stored)) == typed(loaded)


@pytest.mark.parametrize(
    "table",
    [
        {"!bytes": "YQ=="},
        {"a": {"!decimal": "abc"}},
        {"a": {"!time": 10**18}},
        {"a": {"!time": 10**400}},
        {"a": {"!time": "now"}},
        {"a": {"!bytes": 5}},
        {"a": {"!bytes": "no base64"}},
    ],
)
def test_a_table_that_an_older_version_stored_as_it_was_is_a_table(table):
    assert load_arguments(json.dumps(table)) == table


def test_arguments_that_are_no_table_are_refused():
    with pytest.raises(ValueError, match="a table, not list"):
        load_arguments("[]")
