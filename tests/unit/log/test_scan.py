"""R-09: the torn tail of a log, on the recovery code itself."""

import random

import pytest

from queues.log.batch import Batch, encode_batch
from queues.log.errors import Damage
from queues.log.scan import BytesSource, Place, Span, recover_tail, walk
from tests.unit.log.helpers import entries

LOG = 99
PLACE = Place(LOG, 0)
TAIL = 65_536


def make(batches: int, count: int, size: int) -> list[bytes]:
    return [
        encode_batch(LOG, i * count, entries(i * count, count, size), 1000 + i)
        for i in range(batches)
    ]


def tail_of_64_kib() -> list[bytes]:
    """Batches of different sizes, 64 KiB together."""
    batches: list[bytes] = []
    offset, left = 0, TAIL
    while left > 6000:
        count = 5 + len(batches) % 20
        batch = encode_batch(LOG, offset, entries(offset, count, 90), 1000 + len(batches))
        batches.append(batch)
        offset, left = offset + count, left - len(batch)
    rest = encode_batch(LOG, offset, entries(offset, 1, 10), 5000)
    body = 10 + left - len(rest)
    batches.append(encode_batch(LOG, offset, entries(offset, 1, body), 5000))
    return batches


def ends_of(batches: list[bytes]) -> list[int]:
    ends, at = [0], 0
    for batch in batches:
        at += len(batch)
        ends.append(at)
    return ends


def test_every_cut_of_a_64_kib_tail_leaves_the_whole_batches_before_it():
    batches = tail_of_64_kib()
    data, ends = b"".join(batches), ends_of(batches)
    assert len(data) == TAIL
    counts = [0]
    for found in walk(BytesSource(data), PLACE, Span(0, TAIL, 0)):
        assert isinstance(found, Batch)
        counts.append(found.header.next_offset)
    whole = 0
    for cut in range(TAIL):
        while whole + 1 < len(ends) and ends[whole + 1] <= cut:
            whole += 1
        # What comes before the last whole batch is walked in the bigger cuts as well.
        start = max(whole - 1, 0)
        span = Span(ends[start], cut, counts[start])
        tail = recover_tail(BytesSource(data[:cut]), PLACE, span)
        assert (tail.end, tail.cut) == (ends[whole], cut - ends[whole])
        assert tail.next_offset == counts[whole]
        assert tail.damage == ()


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 65, 30_000, 65_535])
def test_a_cut_tail_is_walked_from_its_beginning_too(cut):
    batches = tail_of_64_kib()
    data, ends = b"".join(batches)[:cut], ends_of(batches)
    seen: list[Batch] = []
    tail = recover_tail(BytesSource(data), PLACE, Span(0, cut, 0), take=seen.append)
    assert tail.end == max(end for end in ends if end <= cut)
    assert [b"".join(batches)[: tail.end]] == [b"".join(batch.data for batch in seen)]


def test_2000_bit_flips_in_the_tail_cost_one_batch_each():
    batches = tail_of_64_kib()
    data, ends = b"".join(batches), ends_of(batches)
    rng = random.Random(9)
    for _ in range(2000):
        bit = rng.randrange(TAIL * 8)
        hurt = bytearray(data)
        hurt[bit // 8] ^= 1 << bit % 8
        victim = max(i for i, end in enumerate(ends) if end <= bit // 8)
        seen: list[Batch] = []
        tail = recover_tail(BytesSource(bytes(hurt)), PLACE, Span(0, TAIL, 0), take=seen.append)
        expected = batches[:victim] + batches[victim + 1 :]
        assert [batch.data for batch in seen] == expected, f"bit {bit}"
        if victim == len(batches) - 1:
            assert (tail.end, tail.damage) == (ends[victim], ())
        else:
            assert tail.end == TAIL
            assert [(d.position, d.length) for d in tail.damage] == [
                (ends[victim], len(batches[victim]))
            ]


def test_damage_in_flushed_bytes_is_kept_and_reported():
    data = bytearray(b"".join(make(3, 5, 50)))
    data[-10] ^= 1
    cut = recover_tail(BytesSource(bytes(data)), PLACE, Span(0, len(data), 0))
    assert cut.cut > 0 and cut.damage == ()
    kept = recover_tail(BytesSource(bytes(data)), PLACE, Span(0, len(data), 0), len(data))
    assert kept.cut == 0 and kept.end == len(data)
    assert [d.first_offset for d in kept.damage] == [10]


def test_zeros_at_the_end_are_cut():
    data = b"".join(make(2, 5, 50))
    tail = recover_tail(BytesSource(data + bytes(5000)), PLACE, Span(0, len(data) + 5000, 0))
    assert (tail.end, tail.cut) == (len(data), 5000)


def test_a_batch_inside_a_body_is_never_taken_for_one():
    """A publisher can send any bytes, but does not know the id of the log."""
    forged = encode_batch(LOG + 1, 50, entries(50, 3), 0)
    carrier = (b"", b"", b"", bytes(4) + forged * 3)
    batches = [
        encode_batch(LOG, 0, [carrier] * 2, 0),
        encode_batch(LOG, 2, entries(2, 2), 0),
    ]
    data = bytearray(b"".join(batches))
    data[20] ^= 1
    found = list(walk(BytesSource(bytes(data)), PLACE, Span(0, len(data), 0)))
    assert found[0] == Damage(0, 0, len(batches[0]), 0, 2, "no valid header")
    assert isinstance(found[1], Batch)
    assert found[1].data == batches[1]


def test_offsets_going_backwards_are_damage():
    data = b"".join(
        [encode_batch(LOG, 5, entries(5, 5), 0), encode_batch(LOG, 7, entries(7, 1), 0)]
    )
    found = list(walk(BytesSource(data), PLACE, Span(0, len(data), 5)))
    assert isinstance(found[0], Batch)
    assert isinstance(found[1], Damage)


def test_a_batch_longer_than_the_window_is_read_whole():
    data = b"".join(make(3, 4, 100_000))
    found = list(walk(BytesSource(data), PLACE, Span(0, len(data), 0)))
    assert [batch.header.base_offset for batch in found if isinstance(batch, Batch)] == [0, 4, 8]
