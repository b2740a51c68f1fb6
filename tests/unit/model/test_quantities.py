"""Durations and sizes as text: settings, ages of log records, intervals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.quantities import (
    format_age,
    format_duration,
    format_size,
    maybe_age_ms,
    maybe_duration,
    maybe_interval,
    maybe_size,
)


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        (10, 10),
        (0.5, 0.5),
        ("10", 10),
        ("500ms", 0.5),
        (" 1.5 H ", 5400),
        ("7d", 604_800),
        ("", None),
        ("-1s", None),
        ("1w", None),
        ("1h30m", None),
        (True, None),
        (None, None),
    ],
)
def test_duration_setting(raw, seconds):
    assert maybe_duration(raw) == seconds


@pytest.mark.parametrize(
    ("raw", "size"),
    [
        (1048576, 1 << 20),
        ("256MiB", 256 << 20),
        ("1gb", 10**9),
        ("2 KB", 2000),
        ("0.5 kib", 512),
        ("1PB", None),
        ("MiB", None),
        ([], None),
    ],
)
def test_size_setting(raw, size):
    assert maybe_size(raw) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        (" 1.5 m ", 90),
        ("1h", 3600),
        ("1d", 86_400),
        ("0s", None),
        ("90", None),
        ("90S", None),
        ("1D", None),
        ("500ms", None),
        ("", None),
    ],
)
def test_interval(text, seconds):
    assert maybe_interval(text) == seconds


@pytest.mark.parametrize(
    ("text", "age_ms"),
    [
        ("1Y", 365 * 86_400_000),
        ("1M", 30 * 86_400_000),
        ("7D", 7 * 86_400_000),
        ("1m", 60_000),
        ("999999999999s", 999_999_999_999_000),
        ("9999999999999s", None),
        ("0D", None),
        ("7d", None),
        ("1.5h", None),
        (" 7D", None),
        ("7D\n", None),
        ("\u0667D", None),
    ],
)
def test_age(text, age_ms):
    assert maybe_age_ms(text) == age_ms


@given(st.integers(1, 10**10))
def test_formatted_age_is_parsed_back(seconds):
    assert maybe_age_ms(format_age(seconds * 1000)) == seconds * 1000


@given(st.integers(0, 1 << 50))
def test_formatted_size_is_parsed_back(size):
    assert maybe_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(604_800, "7d"), (5400, "90m"), (90, "90s"), (1.5, "1.5s"), (0.25, "250ms")],
)
def test_formatted_duration(seconds, text):
    assert format_duration(seconds) == text
    assert maybe_duration(text) == seconds
