from __future__ import annotations

import tracemalloc
from array import array

from hypothesis import given
from hypothesis import strategies as st

from queues.storage.fold import Fold, is_ascending, slice_between


def folded(fold: Fold) -> dict[str | None, dict[int, int]]:
    return {part.detail: dict(zip(part.ids, part.sizes, strict=True)) for part in fold.result()}


@given(
    st.lists(st.tuples(st.sampled_from([None, "5"]), st.sets(st.integers(1, 40)))),
    st.lists(st.sets(st.integers(1, 50))),
)
def test_fold_is_entered_minus_settled(
    entered: list[tuple[str | None, set[int]]], settled: list[set[int]]
):
    fold = Fold()
    model: dict[str | None, set[int]] = {}
    for detail, ids in entered:
        fold.enter(detail, array("Q", ids), array("I", (i * 10 for i in ids)))
        model.setdefault(detail, set()).update(ids)
    for ids in settled:
        fold.settle(array("Q", ids))
    gone = set().union(*settled)
    expected = {
        detail: {i: i * 10 for i in sorted(ids - gone)}
        for detail, ids in model.items()
        if ids - gone
    }
    assert folded(fold) == expected
    assert all(is_ascending(part.ids) for part in fold.result())
    assert fold.settled == sum(map(len, settled))


def test_the_order_of_rows_does_not_matter():
    fold = Fold()
    fold.settle(array("Q", [3, 1]))
    fold.enter(None, array("Q", [3, 2, 1]), array("I", [30, 20, 10]))
    assert folded(fold) == {None: {2: 20}}


def test_nothing_left_is_no_part():
    fold = Fold()
    fold.enter(None, array("Q", [1]), array("I", [1]))
    fold.settle(array("Q", [1]))
    assert fold.result() == ()


def test_is_ascending_is_strict():
    assert is_ascending(array("Q"))
    assert is_ascending(array("Q", [1, 2, 9]))
    assert not is_ascending(array("Q", [1, 1]))
    assert not is_ascending(array("Q", [2, 1]))


def test_slice_between_includes_both_ends():
    ids = array("Q", [2, 4, 6, 8])
    assert slice_between(ids, 4, 6) == array("Q", [4, 6])
    assert slice_between(ids, 3, 7) == array("Q", [4, 6])
    assert not slice_between(ids, 9, 20)


def half_settled(messages: int) -> Fold:
    fold = Fold()
    for start in range(0, messages, 1000):
        fold.enter(None, array("Q", range(start, start + 1000)), array("I", bytes(4000)))
    for start in range(0, messages // 2, 1000):
        fold.settle(array("Q", range(start, start + 1000)))
    return fold


def test_folding_takes_memory_for_arrays_only():
    tracemalloc.start()
    try:
        (live,) = half_settled(200_000).result()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(live.ids) == 100_000
    assert peak < 200_000 * 50
