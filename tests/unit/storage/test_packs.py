"""Packs give back the messages that were put into them, and notice every damage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.history import Keep
from leveret.model.message import Address, Message, encode_properties
from leveret.model.run import Run
from leveret.model.store import StoredMessage, UnreadableMessage, split_runs
from leveret.queues.storage.packs import (
    NO_SUCH_MESSAGE,
    NOT_KEPT,
    PACK_BYTES,
    DamagedPack,
    Pack,
    PackRow,
    encode_packs,
    stage_pack,
)


@dataclass(frozen=True, slots=True)
class Content:
    properties: bytes
    body: bytes


PROPERTIES = st.sampled_from(
    [
        b"\0\0",
        encode_properties({"delivery_mode": 2}),
        encode_properties({"headers": {"a": 1, "b": "x" * 300}, "message_id": "m"}),
    ]
)
CONTENTS = st.builds(Content, PROPERTIES, st.binary(max_size=20) | st.just(bytes(30_000)))


@st.composite
def batches(draw: st.DrawFn) -> list[Run]:
    """Runs with gaps between their ids, as in a batch with transient messages."""
    runs, next_id = [], draw(st.integers(1, 5))
    for contents in draw(st.lists(st.lists(CONTENTS, min_size=1, max_size=6), max_size=6)):
        address = Address.of(draw(st.sampled_from(["", "ex"])), draw(st.sampled_from(["k", "ž"])))
        keep = draw(st.sampled_from(list(Keep)))
        origin, time_ms = draw(st.integers(0, 9)), draw(st.integers(0, 2**50))
        messages = []
        for content in contents:
            message = Message.build(address, content.properties, content.body)
            message.id, message.time_ms, message.origin = next_id, time_ms, origin
            message.keep = keep
            next_id += draw(st.sampled_from([1, 1, 1, 7]))
            messages.append(message)
        runs.append(Run.of(messages))
    return runs


def stored(runs: list[Run]) -> dict[int, StoredMessage]:
    return {one.id: one for one in split_runs(runs) if isinstance(one, StoredMessage)}


def loaded(pack: Pack) -> dict[int, StoredMessage]:
    return stored([one for one in pack.select(pack.ids) if isinstance(one, Run)])


@given(batches())
def test_packs_hold_exactly_the_messages_of_their_batch(runs: list[Run]) -> None:
    packs = [Pack(row) for row in encode_packs(runs)]
    found: dict[int, StoredMessage] = {}
    for pack in packs:
        found |= loaded(pack)
    assert found == stored(runs)
    keeps = {message.id: message.keep for run in runs for message in run.messages}
    for pack in packs:
        assert {keeps[message_id] for message_id in pack.ids} == {pack.row.keep}
        assert (pack.row.id, pack.row.last_id) == (pack.ids[0], pack.ids[-1])
        bodies = [found[message_id].body for message_id in pack.ids]
        assert pack.row.body_bytes == sum(map(len, bodies))
        times = [found[message_id].time_ms for message_id in pack.ids]
        assert (pack.row.first_ms, pack.row.last_ms) == (min(times), max(times))
        assert len(pack) == 1 or len(pack.row.data or b"") <= PACK_BYTES
    assert all(a.row.last_id < b.row.id for a, b in pairwise(packs))


@given(batches(), st.data())
def test_any_ids_are_selected_in_order(runs: list[Run], data: st.DataObject) -> None:
    for row in encode_packs(runs):
        pack = Pack(row)
        everywhere = range(row.id, row.last_id + 1)
        ids = sorted(data.draw(st.sets(st.sampled_from(everywhere), max_size=12)))
        expected = stored(runs)
        results = list(split_runs(pack.select(ids)))
        assert results == [
            expected.get(one) or UnreadableMessage(one, NO_SUCH_MESSAGE) for one in ids
        ]


@given(batches(), st.data())
def test_messages_and_bodies_can_be_removed(runs: list[Run], data: st.DataObject) -> None:
    expected = stored(runs)
    for row in encode_packs(runs):
        pack = Pack(row)
        chosen = data.draw(st.sets(st.sampled_from(list(pack.ids))))
        smaller = pack.without(chosen.__contains__)
        left = {one: expected[one] for one in pack.ids if one not in chosen}
        assert (loaded(Pack(smaller)) if smaller else {}) == left
        stripped = pack.without_bodies(chosen.__contains__)
        assert stripped is not None
        results = list(split_runs(Pack(stripped).select(pack.ids)))
        for message_id, result in zip(pack.ids, results, strict=True):
            message = expected[message_id]
            if message_id in chosen or not message.body:
                assert result == message
            else:
                assert result == UnreadableMessage(message_id, NOT_KEPT)
        assert stripped.body_bytes == row.body_bytes
        assert bool(stripped.has_bodies) == any(expected[one].body for one in chosen)
        sizes = [size for _, _, size in Pack(stripped).contents()]
        assert sizes == [len(expected[one].body) for one in pack.ids]


def run_of(count: int) -> Run:
    """A run that is not published yet."""
    build = partial(Message.build, Address.of("ex", "key"), b"\0\0")
    return Run.of([build(b"body %d" % number) for number in range(count)])


def packs_of(count: int) -> PackRow:
    messages = []
    for number in range(count):
        message = Message.build(Address.of("ex", "key"), b"\0\0", b"body %d" % number)
        message.id, message.time_ms, message.origin = 10 + 2 * number, 5, 7
        messages.append(message)
    (row,) = encode_packs([Run.of(messages)])
    return row


@pytest.mark.parametrize("field", PackRow._fields[:-2])
def test_every_column_of_the_index_is_checked(field: str) -> None:
    row = packs_of(3)
    value = getattr(row, field)
    changed = bytes([value[0] ^ 1]) + value[1:] if isinstance(value, bytes) else (value or 0) + 1
    with pytest.raises(DamagedPack):
        Pack(PackRow(**{**row._asdict(), field: changed}))


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_a_flipped_bit_of_the_data_makes_one_message_unreadable(place: int, bit: int) -> None:
    row = packs_of(5)
    data = bytearray(row.data or b"")
    data[place % len(data)] ^= 1 << bit
    pack = Pack(row._replace(data=bytes(data)))
    results = list(split_runs(pack.select(pack.ids)))
    assert [result.id for result in results] == [10, 12, 14, 16, 18]
    assert sum(isinstance(result, UnreadableMessage) for result in results) == 1
    damaged = next(one.id for one in results if isinstance(one, UnreadableMessage))
    rewritten = pack.without(lambda message_id: message_id == (12 if damaged == 10 else 10))
    assert rewritten is not None
    again = list(split_runs(Pack(rewritten).select([damaged])))
    assert isinstance(again[0], UnreadableMessage)


def test_data_may_be_stored_in_parts() -> None:
    runs = [run_of(4), run_of(3)]
    pack, parts = stage_pack(runs)
    assert not any(run.ids[0] for run in runs)
    pack.first_part = 9
    for run, first_id in zip(runs, (20, 24), strict=True):
        run.ids = range(first_id, first_id + len(run))
        run.assign_messages()
    assert pack.is_consecutive
    other = run_of(1)
    other.ids = [27]
    other.assign_messages()
    first, second = encode_packs([pack, other])
    assert (first.data, first.first_part, first.parts, second.id) == (None, 9, 1, 27)
    assert loaded(Pack(first, b"".join(parts))) == stored(runs)
    runs[1].ids = [25, 26, 27]
    assert not pack.is_consecutive
