import subprocess
import sys
from pathlib import Path

import pytest

from leveret.queues.log.files import LogError, LogReader, RetentionLimits, apply_retention, compact
from leveret.queues.log.files.segment import log_path
from tests.unit.log.helpers import entries, fill, small

ROOT = Path(__file__).parents[3]
READ_ALL = """
import sys
from pathlib import Path
from leveret.queues.log.files import LogReader
with LogReader(Path(sys.argv[1])) as reader:
    print(sum(batch.header.record_count for batch in reader.batches(0)), reader.next_offset)
"""


def read_all(reader: LogReader, start: int = 0) -> list[int]:
    return [
        record.offset
        for batch in reader.batches(start)
        for record in batch.records()
        if int(record.body[:9]) == record.offset
    ]


def test_reader_returns_synced_records_only(tmp_path):
    log = small(tmp_path, 2_000)
    fill(log, 10)
    log.write(entries(100, 10), 5000)
    with LogReader(tmp_path) as reader:
        assert read_all(reader) == list(range(100))
        log.sync()
        assert reader.next_offset == 100
        assert reader.refresh() == 110
        assert read_all(reader, 100) == list(range(100, 110))
        assert reader.offset_for_time(5000) == 100
        assert [r.offset for r in reader.read(55, max_records=2)] == [55, 56]
    log.close()


def test_reader_follows_a_growing_log_over_rolls(tmp_path):
    log = small(tmp_path, 3_000)
    with LogReader(tmp_path) as reader:
        for _ in range(30):
            fill(log, 1)
            start = reader.next_offset
            reader.refresh()
            assert read_all(reader, start) == list(range(start, log.next_offset))
    log.close()


def test_reader_changes_no_file(tmp_path):
    log = small(tmp_path, 2_000)
    fill(log, 20)
    log.close()
    for index in tmp_path.glob("*.index"):
        index.unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with LogReader(tmp_path) as reader:
        assert len(read_all(reader)) == 200
        reader.offset_for_time(1010)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_reader_in_another_process(tmp_path):
    log = small(tmp_path, 2_000)
    fill(log, 20)
    result = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert result.stdout.split() == ["200", "200"]
    log.close()


def test_reader_without_a_checkpoint_stops_at_the_last_complete_batch(tmp_path):
    log = small(tmp_path, 100_000)
    fill(log, 10)
    log.close()
    (tmp_path / "committed").unlink()
    with open(log_path(tmp_path, 0), "ab") as file:
        file.write(b"LVB1 torn")
    with LogReader(tmp_path) as reader:
        assert read_all(reader) == list(range(100))
        assert reader.damage() == []


def test_segments_deleted_meanwhile_are_skipped(tmp_path):
    log = small(tmp_path, 2_000)
    fill(log, 40)
    with LogReader(tmp_path) as reader:
        apply_retention(log, RetentionLimits(max_bytes=5_000), 0)
        left = log.first_offset
        assert left > 0
        assert read_all(reader) == list(range(left, 400))
    log.close()


def test_segments_compacted_meanwhile_are_read_in_old_or_new_form(tmp_path):
    log = small(tmp_path, 2_000)
    fill(log, 40)
    with LogReader(tmp_path) as reader:
        batches = reader.batches(0)
        seen = [record.offset for record in next(batches).records()]
        compact(log, now_ms=10_000)
        seen += [record.offset for batch in batches for record in batch.records()]
        assert seen == sorted(set(seen))
        assert set(range(393, 400)) <= set(seen)
        assert reader.damage() == []
    log.close()


def test_last_segment_of_a_reader_is_compacted_meanwhile(tmp_path):
    log = small(tmp_path, 2_000)
    fill(log, 10)
    with LogReader(tmp_path) as reader:
        log.roll()
        fill(log, 30)
        compact(log, now_ms=0)
        seen = [record.offset for batch in reader.batches(0) for record in batch.records()]
        assert set(range(93, 100)) <= set(seen)
        assert reader.damage() == []
        reader.refresh()
        seen = [record.offset for batch in reader.batches(0) for record in batch.records()]
        assert set(range(393, 400)) <= set(seen)
        assert reader.damage() == []
    log.close()


def test_batches_stop_where_asked(tmp_path):
    log = small(tmp_path, 2_000)
    fill(log, 20)
    bases = [batch.header.base_offset for batch in log.view.batches(25, 60)]
    assert bases == [20, 30, 40, 50]
    log.close()


def test_missing_log_is_an_error(tmp_path):
    with pytest.raises(LogError, match="no log"):
        LogReader(tmp_path)
