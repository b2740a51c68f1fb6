"""Missing, cut, swapped and copied files of a log: found at start, reported, skipped, counted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from leveret.queues.log.files import (
    LogReader,
    Partition,
    PartitionSettings,
    ProducerSequence,
    RecordedEnd,
    RetentionLimits,
    apply_retention,
    compact,
)
from leveret.queues.log.files.errors import CUT_SEGMENT, MISSING_END, MISSING_SEGMENT, TRUNCATED
from leveret.queues.log.files.segment import index_path, list_segments, log_path
from leveret.queues.log.files.segment_list import NAME
from tests.unit.log.helpers import entries

SMALL = PartitionSettings(max_segment_bytes=500)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A closed log of ten segments with ten records each."""
    log = Partition(tmp_path / "log", SMALL)
    for number in range(10):
        log.write(entries(number * 10, 10, size=50), 1)
        log.sync()
    log.close()
    assert bases(log.directory) == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]
    return log.directory


def bases(directory: Path) -> list[int]:
    return [base for base, _ in list_segments(directory)]


def remove(directory: Path, *segments: int) -> None:
    for base in segments:
        log_path(directory, base).unlink()
        index_path(directory, base).unlink(missing_ok=True)


def lost(directory: Path, settings: PartitionSettings = SMALL) -> list[tuple[int, int | None, str]]:
    """What is lost after two starts: the second one must know it as well."""
    Partition(directory, settings).close()
    log = Partition(directory, settings)
    found = [(each.first_offset, each.next_offset, each.reason) for each in log.damage()]
    log.close()
    with LogReader(directory) as reader:
        seen = [(each.first_offset, each.next_offset, each.reason) for each in reader.damage()]
    assert seen == found
    return found


def offsets(log: Partition) -> list[int]:
    return [record.offset for record in log.read(0, 1000)]


def test_intact_log_has_lost_nothing(directory: Path):
    assert lost(directory) == []
    os.remove(directory / NAME)
    assert lost(directory) == []


@pytest.mark.parametrize("has_list", [True, False])
def test_missing_middle_segment(directory: Path, has_list: bool):
    remove(directory, 30)
    if not has_list:
        os.remove(directory / NAME)
    assert lost(directory) == [(30, 40, MISSING_SEGMENT)]
    log = Partition(directory, SMALL)
    assert offsets(log) == [*range(30), *range(40, 100)]
    assert log.read(35, 1)[0].offset == 40
    assert log.view.count_lost(log.first_offset, log.next_offset) == 10
    assert log.view.lost_between(0, 35) == [(30, 35)]
    log.close()


def test_several_missing_segments(directory: Path):
    remove(directory, 30, 40, 60)
    found = lost(directory)
    assert found == [(base, base + 10, MISSING_SEGMENT) for base in (30, 40, 60)]


def test_missing_first_segment_is_not_mistaken_for_retention(directory: Path):
    remove(directory, 0)
    assert lost(directory) == [(0, 10, MISSING_SEGMENT)]
    log = Partition(directory, SMALL)
    assert (log.first_offset, len(offsets(log))) == (10, 90)
    assert log.view.count_lost(log.first_offset, log.next_offset) == 0
    apply_retention(log, RetentionLimits(max_bytes=log.size // 2), 1)
    assert log.damage() == []  # retention has passed it
    log.close()


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_missing_last_segment_is_not_written_again(directory: Path, has_checkpoint: bool):
    remove(directory, 80, 90)
    if not has_checkpoint:
        os.remove(directory / "committed")
    expected = [(80, 90, MISSING_SEGMENT)] + [(90, 100, MISSING_END)] * has_checkpoint
    assert lost(directory) == expected
    log = Partition(directory, SMALL)
    end = 100 if has_checkpoint else 90
    assert log.write(entries(0, 1), 1) == end
    log.sync()
    assert offsets(log) == [*range(80), end]
    log.close()


def test_all_segments_missing(directory: Path):
    remove(directory, *bases(directory))
    assert lost(directory) == [(0, 90, MISSING_SEGMENT), (90, 100, MISSING_END)]
    log = Partition(directory, SMALL)
    assert (log.first_offset, log.next_offset) == (100, 100)
    log.close()


@pytest.mark.parametrize("left", [0, 1])
def test_empty_or_cut_sealed_segment(directory: Path, left: int):
    """Cut between two batches: every batch that is left is valid."""
    log = Partition(directory, SMALL)
    log.write(entries(100, 2), 1)
    log.sync()
    first = log_path(directory, 100).stat().st_size
    log.write(entries(102, 3), 1)
    log.roll()
    log.close()
    os.truncate(log_path(directory, 100), first * left)
    end = 100 + 2 * left
    assert lost(directory) == [(end, 105, CUT_SEGMENT)]
    log = Partition(directory, SMALL)
    assert offsets(log) == list(range(end))
    log.close()


def test_segment_that_is_back_is_no_longer_missing(directory: Path):
    kept = log_path(directory, 30).read_bytes()
    remove(directory, 30)
    assert lost(directory) == [(30, 40, MISSING_SEGMENT)]
    log_path(directory, 30).write_bytes(kept)
    assert lost(directory) == []
    os.truncate(log_path(directory, 30), 0)
    assert lost(directory) == [(30, 40, CUT_SEGMENT)]
    log_path(directory, 30).write_bytes(kept)
    assert lost(directory) == []


def test_missing_indexes_are_rebuilt(directory: Path):
    for base in bases(directory):
        index_path(directory, base).unlink()
    assert lost(directory) == []
    log = Partition(directory, SMALL)
    assert offsets(log) == list(range(100))
    log.close()


def test_swapped_segments_are_not_read(directory: Path):
    """Same size: noticed when they are read."""
    first, second = log_path(directory, 30), log_path(directory, 60)
    first.rename(directory / "x")
    second.rename(first)
    (directory / "x").rename(second)
    log = Partition(directory, SMALL)
    assert offsets(log) == [o for o in range(100) if o // 10 not in (3, 6)]
    assert {damage.segment for damage in log.damage()} == {30, 60}
    assert log.view.count_lost(0, 100) == 20
    log.close()


def test_copied_segment_is_not_delivered_twice(directory: Path):
    shutil.copy(log_path(directory, 60), log_path(directory, 20))
    log = Partition(directory, SMALL)
    assert offsets(log) == [o for o in range(100) if o // 10 != 2]
    assert log.view.count_lost(0, 100) == 10
    log.close()


def test_copy_under_a_new_name_is_not_delivered(directory: Path):
    shutil.copy(log_path(directory, 60), log_path(directory, 65))
    log = Partition(directory, SMALL)
    assert offsets(log) == list(range(100))
    log.close()


def test_compaction_leaves_no_missing_segments(tmp_path: Path):
    settings = PartitionSettings(max_segment_bytes=500, is_compacted=True)
    log = Partition(tmp_path / "log", settings)
    for number in range(10):
        log.write([(b"", b"key", b"", bytes(50))] * 9 + [(b"", b"%d" % number, b"", b"1")], 1)
        log.sync()
    before = len(log.segments())
    log.write([(b"", b"%d" % number, b"", b"2") for number in range(5)], 1)
    log.sync()
    log.roll()
    compact(log, 1)
    assert len(log.segments()) < before
    log.close()
    assert lost(log.directory, settings) == []
    remove(log.directory, bases(log.directory)[2])
    ((_, _, reason),) = lost(log.directory, settings)
    assert reason == MISSING_SEGMENT


# The recorded end --------------------------------------------------------------------------------


def test_log_that_is_shorter_than_recorded_continues_beyond_the_recorded_end(directory: Path):
    log = Partition(directory, SMALL, recorded=RecordedEnd(150, 200))
    (damage,) = log.damage()
    assert (damage.first_offset, damage.next_offset, damage.reason) == (100, 200, TRUNCATED)
    assert (log.first_offset, log.next_offset) == (0, 200)
    assert log.write(entries(0, 1), 1) == 200
    log.sync()
    assert offsets(log) == [*range(100), 200]
    log.close()
    again = Partition(directory, SMALL, recorded=RecordedEnd(150, 200))
    assert again.damage() == [damage]
    assert again.next_offset == 201
    again.close()


def test_lost_directory_continues_beyond_the_recorded_end(directory: Path):
    shutil.rmtree(directory)
    for _ in range(2):
        log = Partition(directory, SMALL, recorded=RecordedEnd(100, 100))
        ((damage),) = log.damage()
        assert (damage.first_offset, damage.next_offset, damage.reason) == (0, 100, TRUNCATED)
        assert (log.first_offset, log.next_offset) == (100, 100)
        log.close()
        os.remove(directory / "committed")


def test_log_that_is_longer_than_recorded_is_intact(directory: Path):
    log = Partition(directory, SMALL, recorded=RecordedEnd(90, 95))
    assert (log.damage(), log.next_offset) == ([], 100)
    log.close()


def test_idempotent_producers_may_continue_after_lost_records(tmp_path: Path):
    """Otherwise their next number would be refused as a gap, for ever."""
    directory = tmp_path / "log"
    log = Partition(directory, SMALL)
    log.write(entries(0, 2), 1, [ProducerSequence(0, b"a", 7), ProducerSequence(1, b"b", 8)])
    log.close()
    recorded = RecordedEnd(5, 5)
    for _ in range(2):
        log = Partition(directory, SMALL, recorded=recorded)
        assert log.producers() == {}
        log.close()
    log = Partition(directory, SMALL, recorded=recorded)
    log.write(entries(5, 1), 1, [ProducerSequence(0, b"a", 12)])
    log.close()
    log = Partition(directory, SMALL, recorded=recorded)
    assert log.producers() == {b"a": 12}
    log.close()
