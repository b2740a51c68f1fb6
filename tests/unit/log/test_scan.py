"""R-09: recovery of torn tails, on the recovery code itself."""

import random
from dataclasses import dataclass

import pytest

from leveret.queues.log.files.batch import Batch
from leveret.queues.log.files.errors import Damage
from leveret.queues.log.files.scan import SegmentId, Span, recover_tail, walk
from tests.unit.log.helpers import encoded, entries

LOG = 99
SEGMENT = SegmentId(LOG, 0)
TAIL = 65_536


@dataclass(frozen=True)
class BytesSource:
    """A segment in memory."""

    data: bytes

    def read(self, position: int, size: int) -> bytes:
        return self.data[position : position + size]


def make(batches: int, count: int, size: int) -> list[bytes]:
    return [
        encoded(LOG, i * count, entries(i * count, count, size), 1000 + i) for i in range(batches)
    ]


def tail_of_64_kib() -> list[bytes]:
    """Batches of different sizes, 64 KiB in total."""
    batches: list[bytes] = []
    offset, left = 0, TAIL
    while left > 6000:
        count = 5 + len(batches) % 20
        batch = encoded(LOG, offset, entries(offset, count, 90), 1000 + len(batches))
        batches.append(batch)
        offset, left = offset + count, left - len(batch)
    rest = encoded(LOG, offset, entries(offset, 1, 10), 5000)
    body = 10 + left - len(rest)
    batches.append(encoded(LOG, offset, entries(offset, 1, body), 5000))
    return batches


def ends_of(batches: list[bytes]) -> list[int]:
    ends, at = [0], 0
    for batch in batches:
        at += len(batch)
        ends.append(at)
    return ends


def test_every_cut_of_a_64_kib_tail_keeps_the_complete_batches():
    batches = tail_of_64_kib()
    data, ends = b"".join(batches), ends_of(batches)
    assert len(data) == TAIL
    counts = [0]
    for batch in walk(BytesSource(data), SEGMENT, Span(0, TAIL, 0)):
        assert isinstance(batch, Batch)
        counts.append(batch.header.next_offset)
    whole = 0
    for cut in range(TAIL):
        while whole + 1 < len(ends) and ends[whole + 1] <= cut:
            whole += 1
        # Earlier batches are walked with the larger cuts.
        start = max(whole - 1, 0)
        span = Span(ends[start], cut, counts[start])
        tail = recover_tail(BytesSource(data[:cut]), SEGMENT, span)
        assert (tail.end, tail.cut) == (ends[whole], cut - ends[whole])
        assert tail.next_offset == counts[whole]
        assert tail.damage == ()


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 65, 30_000, 65_535])
def test_cut_tail_walked_from_its_start(cut):
    batches = tail_of_64_kib()
    data, ends = b"".join(batches)[:cut], ends_of(batches)
    seen: list[Batch] = []
    tail = recover_tail(BytesSource(data), SEGMENT, Span(0, cut, 0), on_batch=seen.append)
    assert tail.end == max(end for end in ends if end <= cut)
    assert [b"".join(batches)[: tail.end]] == [b"".join(batch.data for batch in seen)]


def test_2000_bit_flips_in_the_tail_lose_one_batch_each():
    batches = tail_of_64_kib()
    data, ends = b"".join(batches), ends_of(batches)
    rng = random.Random(9)
    for _ in range(2000):
        bit = rng.randrange(TAIL * 8)
        hurt = bytearray(data)
        hurt[bit // 8] ^= 1 << bit % 8
        victim = max(i for i, end in enumerate(ends) if end <= bit // 8)
        seen: list[Batch] = []
        tail = recover_tail(
            BytesSource(bytes(hurt)), SEGMENT, Span(0, TAIL, 0), on_batch=seen.append
        )
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
    unsynced = recover_tail(BytesSource(bytes(data)), SEGMENT, Span(0, len(data), 0))
    assert unsynced.cut > 0 and unsynced.damage == ()
    synced = recover_tail(BytesSource(bytes(data)), SEGMENT, Span(0, len(data), 0), len(data))
    assert synced.cut == 0 and synced.end == len(data)
    assert [d.first_offset for d in synced.damage] == [10]


def test_trailing_zeros_are_cut():
    data = b"".join(make(2, 5, 50))
    tail = recover_tail(BytesSource(data + bytes(5000)), SEGMENT, Span(0, len(data) + 5000, 0))
    assert (tail.end, tail.cut) == (len(data), 5000)


def test_batch_inside_a_body_is_not_accepted():
    """A publisher can send any bytes, but does not know the id of the log."""
    forged = encoded(LOG + 1, 50, entries(50, 3), 0)
    carrier = (b"", b"", b"", bytes(4) + forged * 3)
    batches = [
        encoded(LOG, 0, [carrier] * 2, 0),
        encoded(LOG, 2, entries(2, 2), 0),
    ]
    data = bytearray(b"".join(batches))
    data[20] ^= 1
    items = list(walk(BytesSource(bytes(data)), SEGMENT, Span(0, len(data), 0)))
    assert items[0] == Damage(0, 0, len(batches[0]), 0, 2, "no valid header")
    assert isinstance(items[1], Batch)
    assert items[1].data == batches[1]


def test_descending_offsets_are_damage():
    data = b"".join([encoded(LOG, 5, entries(5, 5), 0), encoded(LOG, 7, entries(7, 1), 0)])
    items = list(walk(BytesSource(data), SEGMENT, Span(0, len(data), 5)))
    assert isinstance(items[0], Batch)
    assert isinstance(items[1], Damage)


def test_batch_larger_than_the_window_is_read_completely():
    data = b"".join(make(3, 4, 100_000))
    items = list(walk(BytesSource(data), SEGMENT, Span(0, len(data), 0)))
    assert [batch.header.base_offset for batch in items if isinstance(batch, Batch)] == [0, 4, 8]
