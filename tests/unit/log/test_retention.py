from pathlib import Path

from leveret.queues.log.files import RetentionLimits, apply_retention
from leveret.queues.log.files.segment import list_segments
from tests.unit.log.helpers import entries, fill, kill, offsets, small


def test_max_bytes_deletes_old_segments_only(tmp_path):
    log = small(tmp_path, 2_000)
    fill(log, 60)
    segments = log.segments()
    dropped = apply_retention(log, RetentionLimits(max_bytes=7_000), now_ms=0)
    assert dropped > 0
    assert log.segments() == segments[dropped:]
    assert log.size <= 7_000 < log.size + segments[dropped - 1].size
    assert log.first_offset == segments[dropped].base_offset
    assert offsets(log) == list(range(log.first_offset, 600))
    log.close()


def test_max_age_deletes_segments_that_are_completely_too_old(tmp_path):
    log = small(tmp_path, 2_000)
    fill(log, 60)
    apply_retention(log, RetentionLimits(max_age_ms=20), now_ms=1059)
    first = log.read(0, max_records=1)[0]
    assert log.first_offset == first.offset
    assert 1059 - 20 - 5 <= first.time_ms <= 1059 - 20
    assert offsets(log) == list(range(first.offset, 600))
    log.close()


def test_readers_do_not_wait_for_the_removal_of_files(tmp_path, monkeypatch):
    log = small(tmp_path, 2_000)
    fill(log, 60)
    waited, real = [], Path.unlink

    def unlink(path, *arguments, **options):
        waited.append(log.view.lock.locked())
        real(path, *arguments, **options)

    monkeypatch.setattr(Path, "unlink", unlink)
    dropped = apply_retention(log, RetentionLimits(max_bytes=7_000), now_ms=0)
    assert waited == [False] * 2 * dropped
    log.close()


def test_nothing_is_deleted_within_the_limits(tmp_path):
    log = small(tmp_path, 2_000)
    fill(log, 20)
    assert apply_retention(log, RetentionLimits(10_000, 1 << 20), now_ms=1020) == 0
    assert apply_retention(log, RetentionLimits(), now_ms=1 << 40) == 0
    assert log.first_offset == 0
    log.close()


def test_active_segment_is_never_deleted(tmp_path):
    log = small(tmp_path, 2_000)
    fill(log, 20)
    apply_retention(log, RetentionLimits(max_bytes=0), now_ms=0)
    assert len(log.segments()) == 1
    assert log.next_offset == 200
    log.close()


def test_idle_log_deletes_its_last_records_but_keeps_its_offsets(tmp_path):
    log = small(tmp_path, 1 << 20)
    fill(log, 3)
    apply_retention(log, RetentionLimits(max_age_ms=100), now_ms=5000)
    assert (log.first_offset, log.next_offset) == (30, 30)
    assert log.read(0) == []
    kill(log)
    again = small(tmp_path, 1 << 20)
    assert again.write(entries(30, 1), 6000) == 30
    again.sync()
    assert offsets(again) == [30]
    again.close()


def test_deleted_segments_stay_deleted(tmp_path):
    log = small(tmp_path, 2_000)
    fill(log, 20)
    log.drop_oldest(3)
    files = list_segments(tmp_path)
    first = log.first_offset
    log.close()
    again = small(tmp_path, 2_000)
    assert again.first_offset == first
    assert list_segments(tmp_path) == files
    again.close()
