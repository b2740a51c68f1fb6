"""Arguments are read from the store as they were declared, whatever keys a client uses."""

import datetime
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.arguments import dump_arguments, load_arguments

TAGS = ("!bytes", "!bytearray", "!decimal", "!time", "!", "!!", "!!bytes", "!!!time")


def at(milliseconds):
    """A timestamp as pamqp decodes it."""
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)


keys = st.sampled_from(TAGS) | st.text(max_size=10)
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
    """Adds the types, which `==` ignores: 1 == 1.0 == True, b"" == bytearray()."""
    if isinstance(value, dict):
        return {key: typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    return type(value), repr(value)


@given(st.dictionaries(keys, values, max_size=3))
def test_every_table_is_read_back_unchanged(table):
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
def test_arguments_stored_by_older_versions_are_read(stored, loaded):
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
def test_unescaped_tables_of_older_versions_are_tables(table):
    assert load_arguments(json.dumps(table)) == table


def test_arguments_must_be_a_table():
    with pytest.raises(ValueError, match="a table, not list"):
        load_arguments("[]")
