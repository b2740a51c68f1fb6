"""A series stores values over time in one array."""

from __future__ import annotations

from leveret.broker.metrics import Series


def test_series_is_empty_before_the_first_sample() -> None:
    series = Series(3)
    assert series.rate(0) == 0.0 and series.samples(0, 60, 5) == []


def test_rate_is_that_of_the_last_interval() -> None:
    series = Series(3)
    series.add(1_000, (0, 5))
    assert series.rate(0) == 0.0
    series.add(6_000, (10, 5))
    assert series.rate(0) == 2.0 and series.rate(1) == 0.0
    series.add(11_000, (10, 5))
    assert series.rate(0) == 0.0
    series.add(16_000, (20, 5))
    assert series.rate(0) == 2.0  # since the last sample, not since the last change


def test_samples_are_listed_newest_first() -> None:
    series = Series(10)
    for number in range(4):
        series.add(number * 5_000, (number, 0))
    assert series.samples(0, 15, 5) == [(15_000, 3), (10_000, 2), (5_000, 1), (0, 0)]
    assert series.samples(1, 10, 10) == [(15_000, 0), (5_000, 0)]
    assert series.samples(0, 15, 0) == []
    assert series.samples(0, 60, 10) == [(15_000, 3), (5_000, 1)]


def test_unchanged_values_are_stored_once() -> None:
    series = Series(10)
    for number in range(1_000):
        series.add(number, (7,))
    assert len(series._numbers) == 2
    assert series.samples(0, 0, 1) == [(999, 7)]


def test_old_points_are_dropped_beyond_the_limit() -> None:
    series = Series(100)
    for number in range(1_000):
        series.add(number * 1_000, (number, -number))
    assert 100 * 3 <= len(series._numbers) <= 200 * 3
    samples = series.samples(1, 99, 1)
    assert samples == [(number * 1_000, -number) for number in range(999, 899, -1)]
