"""R-10: bit rot in sealed segments and indexes loses only the damaged batch."""

import random
from pathlib import Path

from leveret.queues.log.files import Partition
from leveret.queues.log.files.batch import Batch
from leveret.queues.log.files.checkpoint_file import load_log_id
from leveret.queues.log.files.scan import SegmentId, Span, walk
from leveret.queues.log.files.segment import SegmentFile, index_path, list_segments, log_path
from tests.unit.log.helpers import fill, offsets, small

FLIPS = 500


def layout(directory: Path) -> list[tuple[int, int, int, range]]:
    """Segment, position, length and offsets of every batch."""
    batches = []
    log_id = load_log_id(directory, [])
    assert log_id is not None
    for base, size in list_segments(directory):
        segment = SegmentFile(directory, SegmentId(log_id, base))
        for batch in walk(segment, segment.segment_id, Span(0, size, base)):
            assert isinstance(batch, Batch)
            h = batch.header
            batches.append((base, batch.position, h.length, range(h.base_offset, h.next_offset)))
        segment.close()
    return batches


def flip(path: Path, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def build(directory: Path) -> Partition:
    log = small(directory, 40_000)
    fill(log, 60, count=20, size=60)
    log.roll()
    log.sync()
    return log


def test_500_flips_in_sealed_segments_lose_only_the_damaged_batch(tmp_path):
    build(tmp_path).close()
    batches = layout(tmp_path)
    rng = random.Random(10)
    sizes = list_segments(tmp_path)
    everything = {offset for *_, lost_offsets in batches for offset in lost_offsets}
    for _ in range(FLIPS):
        segment, position, length, lost_offsets = rng.choice(batches)
        path = log_path(tmp_path, segment)
        bit = position * 8 + rng.randrange(length * 8)
        flip(path, bit)
        log = small(tmp_path, 40_000)
        start = rng.choice([0, lost_offsets.start, max(lost_offsets.start - 25, 0)])
        assert set(offsets(log, start)) == {o for o in everything if o >= start} - set(lost_offsets)
        assert [(d.segment, d.position, d.length) for d in log.damage()] == [
            (segment, position, length)
        ]
        assert log.damage()[0].first_offset == lost_offsets.start
        assert log.damage()[0].next_offset in (lost_offsets.stop, None)
        log.close()
        flip(path, bit)
        assert list_segments(tmp_path) == sizes


def test_flips_in_an_index_lose_nothing_and_the_index_is_rebuilt(tmp_path):
    log = small(tmp_path, 400_000)
    fill(log, 100, count=100, size=100)
    log.roll()
    log.sync()
    log.close()
    path = index_path(tmp_path, 0)
    data = path.read_bytes()
    assert len(data) > 100
    rng = random.Random(11)
    for _ in range(60):
        hurt = bytearray(data)
        bit = rng.randrange(len(data) * 8)
        hurt[bit // 8] ^= 1 << bit % 8
        path.write_bytes(hurt)
        log = small(tmp_path, 400_000)
        for batch in (0, 7, 21):
            assert log.read(batch * 100, max_records=1)[0].offset == batch * 100
            assert log.offset_for_time(1000 + batch) == batch * 100
        assert log.damage() == []
        log.close()
        assert path.read_bytes() == data


def test_index_of_another_segment_is_not_used(tmp_path):
    """Every entry is valid by itself but points at no batch of this segment."""
    log = small(tmp_path / "a", 300_000)
    fill(log, 40, count=100, size=100)
    other = small(tmp_path / "b", 300_000)
    fill(other, 40, count=100, size=130)
    log.close()
    other.close()
    index_path(tmp_path / "a", 0).write_bytes(index_path(tmp_path / "b", 0).read_bytes())
    log = small(tmp_path / "a", 300_000)
    assert [log.read(o, max_records=1)[0].offset for o in (0, 1234, 1999)] == [0, 1234, 1999]
    log.close()


def test_verify_finds_damage_that_was_never_read(tmp_path):
    build(tmp_path).close()
    batches = layout(tmp_path)
    for segment, position, length, _ in batches[3:50:10]:
        path = log_path(tmp_path, segment)
        data = bytearray(path.read_bytes())
        data[position + length // 2] ^= 1
        path.write_bytes(data)
    log = small(tmp_path, 40_000)
    assert log.damage() == []
    assert [(d.segment, d.position) for d in log.view.verify()] == [
        (segment, position) for segment, position, *_ in batches[3:50:10]
    ]
    log.close()


def test_two_damaged_batches_side_by_side(tmp_path):
    build(tmp_path).close()
    segment, position, length, first_lost = layout(tmp_path)[4]
    path = log_path(tmp_path, segment)
    data = bytearray(path.read_bytes())
    data[position : position + length + 40] = bytes(length + 40)
    path.write_bytes(data)
    log = small(tmp_path, 40_000)
    lost = set(range(first_lost.start, first_lost.stop + 20))
    assert set(offsets(log)) == set(range(1200)) - lost
    assert [(d.first_offset, d.next_offset) for d in log.damage()] == [
        (first_lost.start, first_lost.stop + 20)
    ]
    log.close()
