"""How many fields a table has, and how deep they lie, is known before anything is encoded."""

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
    check_extent,
    check_sayable,
    check_table,
    encode_table,
)


class _Unseen(list[Any]):
    """Its length may be asked for, and nothing else."""

    def __iter__(self) -> Any:
        raise AssertionError("looked at")


def _deep(levels: int, kind: type) -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels - 1):
        value = [value] if kind is list else {"x": value}
    return {"x": value}


def test_too_many_fields_are_not_looked_at() -> None:
    for table in ({"x": _Unseen([{}] * MAX_FIELDS)}, {"a": 1, "x": [_Unseen([0] * MAX_FIELDS)]}):
        with pytest.raises(ValueError, match="more than 4096 fields"):
            check_extent(table)
        with pytest.raises(ValueError, match="cannot be written as AMQP: table has more than 4096"):
            check_sayable(table)


@pytest.mark.parametrize("kind", [list, dict])
def test_levels_are_counted_as_on_the_wire(kind: type) -> None:
    check_sayable(_deep(MAX_DEPTH, kind))
    for levels in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(ValueError, match="nested deeper than 32"):
            check_sayable(_deep(levels, kind))


def test_table_is_at_most_as_long_as_a_frame() -> None:
    check_sayable({"x": "x" * (MAX_ARGUMENTS - 100)})
    with pytest.raises(ValueError, match="longer than 131072 octets"):
        check_sayable({"x": "x" * MAX_ARGUMENTS})


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
def test_judges_as_the_check_of_octets_does(
    table: dict[str, Any], fields: int, levels: int
) -> None:
    grown = _grown(table, fields, levels)
    encoded = encode_table(grown)
    try:
        check_table(encoded, 0, len(encoded))
        is_fine = True
    except ProtocolError:
        is_fine = False
    try:
        check_extent(grown)
    except ValueError:
        assert not is_fine
    else:
        assert is_fine
