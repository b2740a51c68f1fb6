from __future__ import annotations

import tracemalloc
from array import array

from hypothesis import given
from hypothesis import strategies as st

from leveret.queues.storage.journal_replay import JournalReplay, is_ascending, slice_between
from leveret.queues.storage.packing import pack_ids, pack_sizes


def folded(replay: JournalReplay) -> dict[str | None, dict[int, int]]:
    return {part.detail: dict(zip(part.ids, part.sizes, strict=True)) for part in replay.result()}


@given(
    st.lists(st.tuples(st.sampled_from([None, "5"]), st.sets(st.integers(1, 40)))),
    st.lists(st.sets(st.integers(1, 50))),
)
def test_replay_is_enqueued_minus_settled(
    entered: list[tuple[str | None, set[int]]], settled: list[set[int]]
):
    replay = JournalReplay()
    model: dict[str | None, set[int]] = {}
    for detail, ids in entered:
        replay.enqueue(detail, pack_ids(ids), pack_sizes(i * 10 for i in ids))
        model.setdefault(detail, set()).update(ids)
    for ids in settled:
        replay.settle(pack_ids(ids))
    settled_ids = set().union(*settled)
    expected = {
        detail: {i: i * 10 for i in sorted(ids - settled_ids)}
        for detail, ids in model.items()
        if ids - settled_ids
    }
    assert folded(replay) == expected
    assert all(is_ascending(part.ids) for part in replay.result())
    assert replay.settled == sum(map(len, settled))


def test_order_of_rows_does_not_matter():
    replay = JournalReplay()
    replay.settle(pack_ids([3, 1]))
    replay.enqueue(None, pack_ids([3, 2, 1]), pack_sizes([30, 20, 10]))
    assert folded(replay) == {None: {2: 20}}


def test_fold_without_live_messages_has_no_part():
    replay = JournalReplay()
    replay.enqueue(None, pack_ids([1]), pack_sizes([1]))
    replay.settle(pack_ids([1]))
    assert replay.result() == ()


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


def half_settled(messages: int) -> JournalReplay:
    replay = JournalReplay()
    for start in range(0, messages, 1000):
        replay.enqueue(None, pack_ids(range(start, start + 1000)), bytes(4000))
    for start in range(0, messages // 2, 1000):
        replay.settle(pack_ids(range(start, start + 1000)))
    return replay


def test_replay_needs_memory_only_for_arrays():
    tracemalloc.start()
    try:
        (live,) = half_settled(200_000).result()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(live.ids) == 100_000
    assert peak < 200_000 * 50
