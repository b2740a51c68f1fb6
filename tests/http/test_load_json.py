"""Large documents are read on another thread, and to the same values and errors as small ones."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from leveret.http_admin import json_response
from leveret.http_admin.json_response import load_json

values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_response, "LARGE_DOCUMENT", 0)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values.map(lambda value: json.dumps(value).encode()))
@example(b'{"n": [18446744073709551615, 18446744073709551616, -9223372036854775809]}')
@example(b'"\\ud83d\\ude00"')
async def test_same_value(raw: bytes) -> None:
    try:
        expected = orjson.loads(raw)
    except orjson.JSONDecodeError:
        with pytest.raises(orjson.JSONDecodeError):
            await load_json(raw)
    else:
        assert await load_json(raw) == expected


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[NaN]", b"[Infinity]", b'"\\ud800"', b'"\\uDC00"', b'"\xed\xa0\x80"', b"\xff",
     '{"a": 1}'.encode("utf-16"), b"[" * 100_000],
)  # fmt: skip
async def test_same_error(raw: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError) as expected:
        orjson.loads(raw)
    with pytest.raises(orjson.JSONDecodeError) as found:
        await load_json(raw)
    assert str(found.value) == str(expected.value)
