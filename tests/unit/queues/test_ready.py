"""Requeued entries return to their old places without a scan of the whole queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.message import Address, Message, encode_properties
from leveret.queues.classic.ready import PriorityReady, make_ready, put_back
from leveret.queues.entry import Entry, estimate_header_bytes

ADDRESS = Address.of("", "q")


def entries_of(ids: Iterable[int], levels: int = 1) -> list[Entry]:
    entries = []
    for number in ids:
        properties = encode_properties({"priority": number % levels})
        message = Message.build(ADDRESS, properties, b"")
        message.id = number
        entries.append(Entry(message))
    return entries


@given(
    st.sets(st.integers(1, 60)), st.data(), st.sampled_from([None, 2]), st.sampled_from([0, 1, 64])
)
def test_requeued_entries_return_to_their_places(
    ids: set[int], data: st.DataObject, max_priority: int | None, min_distance: int
) -> None:
    entries = entries_of(sorted(ids), 3)
    removed = data.draw(st.lists(st.sampled_from(entries), unique=True)) if entries else []
    ready = make_ready(max_priority)
    ready.extend([entry for entry in entries if entry not in removed])
    with patch("leveret.queues.classic.ready.MIN_DISTANCE", min_distance):
        for part in (removed[::2], removed[1::2]):
            put_back(ready, part)
    untouched = make_ready(max_priority)
    untouched.extend(entries)
    assert list(ready) == list(untouched)
    assert len(ready) == len(entries)


class CountingDeque(deque[Entry]):
    """Counts the entries removed from the front."""

    pops = 0

    def popleft(self) -> Entry:
        self.pops += 1
        return super().popleft()


@pytest.mark.parametrize("count", [10, 1_000])
def test_requeueing_one_by_one_does_not_walk_the_whole_queue(count: int) -> None:
    entries = entries_of(range(count + 10))
    ready = CountingDeque(entries[10:])
    for entry in entries[:10]:
        put_back(ready, [entry])
    assert [entry.id for entry in ready] == list(range(count + 10))
    assert ready.pops == sum(range(10))


def test_requeueing_one_by_one_does_not_walk_the_entries_requeued_before() -> None:
    """As when a connection ends that had thousands of consumers with one message each."""
    entries = entries_of(range(3_000))
    ready = CountingDeque(entries[2_000:])
    for entry in entries[:2_000]:
        put_back(ready, [entry])
    assert [entry.id for entry in ready] == list(range(3_000))
    assert ready.pops < 3_000


def test_requeueing_many_to_a_priority_queue_merges_once_per_priority() -> None:
    entries = entries_of(range(3_000), 3)
    ready = PriorityReady(2)
    ready._levels = [CountingDeque() for _ in range(3)]
    ready.extend(entries[1_000:])
    put_back(ready, entries[:1_000])
    assert sum(level.pops for level in ready._levels if isinstance(level, CountingDeque)) == 0
    assert [entry.id for entry in ready][:2] == [2, 5]


def test_header_bytes_of_many_entries_are_estimated_from_a_sample() -> None:
    entry = Entry(Message.build(ADDRESS, bytes(2), b""))
    size = entry.message.header_size
    assert estimate_header_bytes(0, []) == 0
    assert estimate_header_bytes(99, [entry] * 99) == 99 * size
    assert 900 * size <= estimate_header_bytes(999, [entry] * 999) <= 1000 * size
