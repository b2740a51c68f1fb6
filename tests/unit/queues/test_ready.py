"""Requeued entries return to their old places without a scan of the whole queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.history import Keep
from leveret.model.message import Address, Message, content_frames, encode_properties, scan
from leveret.model.run import Run
from leveret.queues.classic.ready import FifoReady, PriorityReady, Ready, make_ready
from leveret.queues.entry import Entry, RunPart, estimate_header_bytes

ADDRESS = Address.of("", "q")


def entries_of(ids: Iterable[int], levels: int = 1) -> list[Entry]:
    entries = []
    for number in ids:
        properties = encode_properties({"priority": number % levels})
        message = Message.build(ADDRESS, properties, b"")
        message.id = number
        entries.append(Entry(message))
    return entries


def add(ready: Ready, entries: Iterable[Entry]) -> None:
    for entry in entries:
        ready.append(entry)


@given(
    st.sets(st.integers(1, 60)), st.data(), st.sampled_from([None, 2]), st.sampled_from([0, 1, 64])
)
def test_requeued_entries_return_to_their_places(
    ids: set[int], data: st.DataObject, max_priority: int | None, min_distance: int
) -> None:
    entries = entries_of(sorted(ids), 3)
    removed = data.draw(st.lists(st.sampled_from(entries), unique=True)) if entries else []
    ready = make_ready(max_priority)
    add(ready, [entry for entry in entries if entry not in removed])
    with patch("leveret.queues.classic.ready.MIN_DISTANCE", min_distance):
        for part in (removed[::2], removed[1::2]):
            ready.put_back(part)
    untouched = make_ready(max_priority)
    add(untouched, entries)
    assert list(ready) == list(untouched)
    assert len(ready) == len(entries)


class CountingDeque(deque[Entry | RunPart]):
    """Counts the entries removed from the front."""

    pops = 0

    def popleft(self) -> Entry | RunPart:
        self.pops += 1
        return super().popleft()


def counting(entries: Iterable[Entry] = ()) -> tuple[FifoReady, CountingDeque]:
    ready, items = FifoReady(), CountingDeque()
    ready._items = items
    add(ready, entries)
    return ready, items


@pytest.mark.parametrize("count", [10, 1_000])
def test_requeueing_one_by_one_does_not_walk_the_whole_queue(count: int) -> None:
    entries = entries_of(range(count + 10))
    ready, items = counting(entries[10:])
    for entry in entries[:10]:
        ready.put_back([entry])
    assert [entry.id for entry in ready] == list(range(count + 10))
    assert items.pops == sum(range(10))


def test_requeueing_one_by_one_does_not_walk_the_entries_requeued_before() -> None:
    """As when a connection ends that had thousands of consumers with one message each."""
    entries = entries_of(range(3_000))
    ready, items = counting(entries[2_000:])
    for entry in entries[:2_000]:
        ready.put_back([entry])
    assert [entry.id for entry in ready] == list(range(3_000))
    assert items.pops < 3_000


def test_requeueing_many_to_a_priority_queue_merges_once_per_priority() -> None:
    entries = entries_of(range(3_000), 3)
    ready = PriorityReady(2)
    levels = [counting() for _ in range(3)]
    ready._levels = [level for level, _ in levels]
    add(ready, entries[1_000:])
    ready.put_back(entries[:1_000])
    assert sum(items.pops for _, items in levels) == 0
    assert [entry.id for entry in ready][:2] == [2, 5]


def test_header_bytes_of_many_entries_are_estimated_from_a_sample() -> None:
    assert estimate_header_bytes(0, []) == 0
    assert estimate_header_bytes(99, [14] * 99) == 99 * 14
    assert 900 * 14 <= estimate_header_bytes(999, [14] * 999) <= 1000 * 14


# Parts of runs ----------------------------------------------------------------------------------


def run_of(first_id: int, count: int, *, persistent: bool = True, body: bytes = b"body") -> Run:
    properties = encode_properties({"delivery_mode": 2 if persistent else 1})
    frames = content_frames(1, properties, body, 1 << 17)
    size = 12 + len(properties)
    found = scan(properties)
    run = Run(ADDRESS, 1, [frames] * count, [size] * count, [len(body)] * count, found)
    run.ids = range(first_id, first_id + count)
    run.time_ms, run.origin, run.keep = 5, 6, Keep.FULL
    return run


class ReadyModel:
    """Ready messages beside a plain list of ids."""

    def __init__(self) -> None:
        self.ready = FifoReady()
        self.ids: list[int] = []
        self.taken: dict[int, Entry] = {}
        self.next_id = 1

    def check(self) -> None:
        assert len(self.ready) == len(self.ids)
        assert [entry.id for entry in self.ready] == self.ids
        if self.ids:
            assert (self.ready.first_id, self.ready.last_id) == (self.ids[0], self.ids[-1])

    def append(self, count: int) -> None:
        if count > 1:
            self.ready.append_run(run_of(self.next_id, count))
        else:
            add(self.ready, entries_of([self.next_id]))
        self.ids += range(self.next_id, self.next_id + count)
        self.next_id += count

    def take(self, credit: int, last_id: int) -> None:
        if not self.ids or self.ids[0] > last_id:
            return
        taken = self.ready.take(credit, last_id)
        entries = taken.entries() if isinstance(taken, RunPart) else taken
        count = len(entries)
        assert 0 < count <= credit
        assert [entry.id for entry in entries] == self.ids[:count]
        assert entries[-1].id <= last_id
        del self.ids[:count]
        self.taken |= {entry.id: entry for entry in entries}

    def pop(self) -> None:
        if self.ids:
            assert self.ready.first().id == self.ids[0]
            entry = self.ready.popleft()
            assert entry.id == self.ids.pop(0)
            self.taken[entry.id] = entry

    def put_back(self, ids: list[int]) -> None:
        self.ready.put_back([self.taken.pop(number) for number in ids])
        self.ids = sorted([*self.ids, *ids])


@given(st.data(), st.sampled_from([0, 1, 64]))
def test_runs_and_entries_leave_in_order(data: st.DataObject, min_distance: int) -> None:
    model = ReadyModel()
    with patch("leveret.queues.classic.ready.MIN_DISTANCE", min_distance):
        for _ in range(data.draw(st.integers(1, 12))):
            step = data.draw(st.sampled_from(["append", "take", "pop", "put back"]))
            if step == "append":
                model.append(data.draw(st.integers(1, 6)))
            elif step == "take":
                model.take(data.draw(st.integers(1, 8)), data.draw(st.integers(1, 40)))
            elif step == "pop":
                model.pop()
            elif model.taken:
                chosen = st.lists(st.sampled_from(sorted(model.taken)), unique=True)
                model.put_back(data.draw(chosen))
            model.check()


def test_a_run_is_taken_in_parts_of_limited_size() -> None:
    ready = FifoReady()
    ready.append_run(run_of(1, 10, body=bytes(50_000)))
    assert [len(ready.take(100, 1_000)) for _ in range(4)] == [3, 3, 3, 1]


def test_messages_of_a_run_are_made_when_they_are_needed_and_share_what_the_run_knows() -> None:
    run = run_of(7, 3)
    assert run.is_packed
    run.is_stored = True
    first, *_ = run.messages
    assert not run.is_packed
    assert (first.routing_key, first.body) == ("q", b"body")
    assert [message.id for message in run] == [7, 8, 9]
    assert (first.time_ms, first.origin, first.keep, first.stored) == (5, 6, Keep.FULL, True)
    assert run.messages[0] is first


@pytest.mark.parametrize("body", [b"", b"body"])
def test_frames_of_a_run_are_made_once_for_another_channel(body: bytes) -> None:
    run = run_of(1, 2, body=body)
    properties = encode_properties({"delivery_mode": 2})
    expected = content_frames(300, properties, body, 4096)
    assert run.frames_for(slice(1, 2), 300) == [expected]
    assert (run.frames[0], run.channel) == (run_of(1, 1, body=body).frames[0], 1)
    whole = slice(0, 2)
    assert run.frames_for(whole, 300) == run.frames == [expected] * 2
    assert run.frames_for(whole, 300)[0] is run.frames[0]


def test_the_longest_frame_of_a_run_is_its_header_or_its_body() -> None:
    assert run_of(1, 2, body=bytes(4088)).longest_frame == 4096
    assert run_of(1, 2, body=b"").longest_frame == len(run_of(1, 1, body=b"").frames[0])


def facts_of(message: Message) -> tuple[object, ...]:
    """All attributes of a message; a compiled class has no list of them."""
    return (
        message.address, message.channel, message.frames, message.header_size, message.body_size,
        message.scan, message.id, message.time_ms, message.origin, message.keep, message.stored,
    )  # fmt: skip


def test_the_copy_of_a_part_of_a_run_has_the_same_messages() -> None:
    run = run_of(7, 9)
    other = encode_properties({"delivery_mode": 2, "type": "other"})
    run.frames[3], run.header_sizes[3] = content_frames(1, other, b"body", 1 << 17), 12 + len(other)
    for part in (slice(1, 4), slice(0, 9, 3), slice(8, 9)):
        copy = run.copy(part)
        assert (len(copy), copy.is_packed) == (len(run.ids[part]), True)
        for made, expected in zip(copy.messages, run.make_messages(part), strict=True):
            assert made.frames is expected.frames
            assert facts_of(made) == facts_of(expected)
    assert run.is_packed
    assert len(run.messages) == 9
    assert run.copy(slice(2, 4)).messages == run.messages[2:4]
