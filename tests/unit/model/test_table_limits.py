"""Tables with too many fields or levels are rejected before anything is encoded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.model.errors import ProtocolError
from leveret.model.tables import (
    MAX_ARGUMENTS,
    MAX_DEPTH,
    MAX_FIELDS,
    check_table,
    encode_table,
    require_encodable,
    require_table_limits,
)


class _Untouchable(list[Any]):
    """Fails if its items are read; only its length may be."""

    def __iter__(self) -> Any:
        raise AssertionError("items were read")


def _deep(levels: int, kind: type) -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels - 1):
        value = [value] if kind is list else {"x": value}
    return {"x": value}


def test_table_with_too_many_fields_is_rejected_unread() -> None:
    for table in (
        {"x": _Untouchable([{}] * MAX_FIELDS)},
        {"a": 1, "x": [_Untouchable([0] * MAX_FIELDS)]},
    ):
        with pytest.raises(ValueError, match="more than 4096 fields"):
            require_table_limits(table)
        with pytest.raises(ValueError, match="cannot be written as AMQP: table has more than 4096"):
            require_encodable(table)


@pytest.mark.parametrize("kind", [list, dict])
def test_nesting_is_limited_as_on_the_wire(kind: type) -> None:
    require_encodable(_deep(MAX_DEPTH, kind))
    for levels in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(ValueError, match="nested deeper than 32"):
            require_encodable(_deep(levels, kind))


def test_encoded_table_must_fit_in_a_frame() -> None:
    require_encodable({"x": "x" * (MAX_ARGUMENTS - 100)})
    with pytest.raises(ValueError, match="longer than 131072 bytes"):
        require_encodable({"x": "x" * MAX_ARGUMENTS})


def _grown(table: dict[str, Any], fields: int, levels: int) -> dict[str, Any]:
    return {"table": table, "many": [0] * fields, "deep": _deep(levels, list)}


tables = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.integers(0, 9),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
    ),
    max_size=5,
)


@settings(max_examples=40)
@given(tables, st.sampled_from((0, 4000, 4080, 4096)), st.sampled_from((1, 29, 30, 31, 32)))
def test_limits_are_those_of_the_check_of_encoded_tables(
    table: dict[str, Any], fields: int, levels: int
) -> None:
    grown = _grown(table, fields, levels)
    encoded = encode_table(grown)
    try:
        check_table(encoded, 0, len(encoded))
        is_accepted = True
    except ProtocolError:
        is_accepted = False
    try:
        require_table_limits(grown)
    except ValueError:
        assert not is_accepted
    else:
        assert is_accepted
