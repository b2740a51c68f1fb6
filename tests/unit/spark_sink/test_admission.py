"""The option `max_rows`: how many rows of each partition a streaming batch admits."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from leveret.spark_sink.admission import admit

BACKLOGS = st.dictionaries(st.integers(1, 2000).map(str), st.integers(0, 10_000), max_size=40)


@given(BACKLOGS, st.integers(0, 50_000))
def test_limit_is_used_up_and_never_exceeded(backlogs, max_rows):
    admitted = admit(backlogs, max_rows)
    assert sum(admitted.values()) == min(max_rows, sum(backlogs.values()))
    assert all(0 < rows <= backlogs[key] for key, rows in admitted.items())


@given(BACKLOGS, st.integers(0, 50_000))
def test_every_partition_with_a_backlog_progresses_in_proportion(backlogs, max_rows):
    waiting = {key: backlog for key, backlog in backlogs.items() if backlog}
    admitted = admit(backlogs, max_rows)
    if max_rows < len(waiting):
        return
    assert admitted.keys() == waiting.keys()
    spare = min(max_rows, sum(waiting.values())) - len(waiting)
    rest = sum(waiting.values()) - len(waiting)
    for key, backlog in waiting.items():
        exact = 1 + Fraction(spare * (backlog - 1), rest or 1)
        assert abs(admitted[key] - exact) < 1, key


@given(BACKLOGS, st.integers(0, 50_000), st.randoms())
def test_result_depends_on_nothing_but_the_backlogs(backlogs, max_rows, random):
    items = list(backlogs.items())
    random.shuffle(items)
    assert admit(dict(items), max_rows) == admit(backlogs, max_rows)


@given(st.dictionaries(st.integers(1, 99).map(str), st.integers(0, 60)), st.integers(1, 20))
def test_no_partition_starves(backlogs, max_rows):
    """Batch after batch everything is read, also with fewer rows than partitions."""
    left, batches = dict(backlogs), 0
    total = sum(left.values())
    while any(left.values()):
        for key, rows in admit(left, max_rows).items():
            left[key] -= rows
        batches += 1
    assert batches == -(-total // max_rows)


def test_equal_backlogs_advance_together():
    assert admit({"1": 1000, "2": 1000, "3": 1000, "4": 1000}, 400) == {
        "1": 100, "2": 100, "3": 100, "4": 100
    }  # fmt: skip


def test_with_fewer_rows_than_partitions_the_largest_backlogs_come_first():
    assert admit({"1": 5, "2": 9, "3": 9, "4": 0}, 2) == {"2": 1, "3": 1}
