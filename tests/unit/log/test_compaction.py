import errno
import os

import pytest

from leveret.queues.log.files import Partition, ProducerSequence, RawRecord, compact
from leveret.queues.log.files.segment import list_segments, log_path
from tests.unit.log.helpers import fill, kill, offsets, small

DAY = 86_400_000


def put(log: Partition, key: str, value: str, now_ms: int = 0) -> None:
    entry: RawRecord = (b"", key.encode(), b"", value.encode())
    log.write([entry], now_ms)
    log.sync()


def contents(log: Partition) -> list[tuple[str, str, int]]:
    return [(r.routing_key.decode(), r.body.decode(), r.offset) for r in log.read(0)]


@pytest.fixture(params=["one batch each", "one segment each", "one batch"])
def table(request, tmp_path):
    """The example of the feature list, row 80."""
    log = small(tmp_path, 1 if request.param == "one segment each" else 100_000)
    rows = [("k1", "v1"), ("k2", "v1"), ("k1", "v2"), ("k3", "v1"), ("k2", "v2"), ("k1", "v3")]
    if request.param == "one batch":
        log.write([(b"", key.encode(), b"", value.encode()) for key, value in rows], 0)
    else:
        for key, value in rows:
            put(log, key, value)
    log.roll()
    log.sync()
    yield log
    log.close()


def test_newest_record_of_each_key_keeps_its_offset(table):
    result = compact(table, now_ms=0)
    assert result.records_removed == 3
    assert result.bytes_freed > 0
    assert contents(table) == [("k3", "v1", 3), ("k2", "v2", 4), ("k1", "v3", 5)]
    assert table.next_offset == 6


def test_records_addressed_to_the_log_by_name_have_no_key(tmp_path):
    """The default exchange routes by name: every record would have the same key."""
    log = small(tmp_path, 1)
    for exchange, value in ((b"", b"1"), (b"", b"2"), (b"x", b"3"), (b"x", b"4"), (b"", b"")):
        log.write([(exchange, b"table", b"", value)], 0)
    put(log, "other", "active segment")
    result = compact(log, now_ms=DAY * 9, names=frozenset({b"table"}))
    assert result.records_removed == 1
    assert [record.body for record in log.read(0)][:4] == [b"1", b"2", b"4", b""]
    log.close()


def test_compacting_again_changes_nothing(table):
    compact(table, now_ms=0)
    before = list_segments(table.directory)
    assert compact(table, now_ms=0).segments == 0
    assert list_segments(table.directory) == before


def test_compacted_log_after_a_restart_is_readable_from_any_offset(table):
    compact(table, now_ms=0)
    kill(table)
    again = small(table.directory)
    assert [again.read(o, max_records=1)[0].offset for o in range(6)] == [3, 3, 3, 3, 4, 5]
    assert again.damage() == []
    put(again, "k9", "v1")
    assert contents(again)[-1] == ("k9", "v1", 6)
    again.close()


def test_tombstone_is_kept_for_the_delete_retention_time(tmp_path):
    log = small(tmp_path, 1)
    put(log, "k1", "v1", 0)
    put(log, "k2", "v1", 0)
    put(log, "k1", "", 1000)
    put(log, "k3", "v1", 1000)
    compact(log, now_ms=1000 + DAY, delete_retention_ms=DAY)
    assert contents(log) == [("k2", "v1", 1), ("k1", "", 2), ("k3", "v1", 3)]
    compact(log, now_ms=1001 + DAY, delete_retention_ms=DAY)
    assert contents(log) == [("k2", "v1", 1), ("k3", "v1", 3)]
    log.close()


def test_key_can_be_written_again_after_its_tombstone(tmp_path):
    log = small(tmp_path, 1)
    for value in ("v1", "", "v2"):
        put(log, "k1", value)
    put(log, "end", "")
    compact(log, now_ms=10 * DAY)
    assert contents(log)[0] == ("k1", "v2", 2)
    log.close()


def test_records_without_a_key_are_kept(tmp_path):
    log = small(tmp_path, 1)
    for value in ("a", "", "b"):
        put(log, "", value)
    put(log, "end", "e")
    assert compact(log, now_ms=10 * DAY).records_removed == 0
    assert len(contents(log)) == 4
    log.close()


def test_active_segment_is_not_compacted(tmp_path):
    log = small(tmp_path, 100_000)
    put(log, "k1", "v1")
    put(log, "k1", "v2")
    assert compact(log, now_ms=0).segments == 0
    assert len(contents(log)) == 2
    log.close()


def test_crash_before_the_rename_keeps_the_old_segment(tmp_path, monkeypatch):
    log = small(tmp_path, 1)
    for value in ("v1", "v2", "v3"):
        put(log, "k1", value)
    put(log, "k2", "v1")
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.log")}

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", die)
    monkeypatch.setattr(Partition, "swap_segment", die)
    with pytest.raises(KeyboardInterrupt):
        compact(log, now_ms=0)
    monkeypatch.undo()
    kill(log)
    assert list(tmp_path.glob("*.tmp"))
    again = small(tmp_path, 1)
    assert not list(tmp_path.glob("*.tmp"))
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.log")} == before
    assert len(contents(again)) == 4
    again.close()


def test_full_disk_leaves_no_temporary_file(table, monkeypatch):
    newest = {key: value for key, value, _ in contents(table)}

    def refuse(*_: object) -> bytes:
        raise OSError(errno.ENOSPC, "the disk says no")

    monkeypatch.setattr("leveret.queues.log.files.compaction._encoded", refuse)
    with pytest.raises(OSError, match="the disk says no"):
        compact(table, now_ms=0)
    assert not list(table.directory.glob("*.tmp"))
    assert {key: value for key, value, _ in contents(table)} == newest
    monkeypatch.undo()
    compact(table, now_ms=0)
    assert contents(table) == [("k3", "v1", 3), ("k2", "v2", 4), ("k1", "v3", 5)]


def test_crash_between_segments_loses_no_current_record(tmp_path, monkeypatch):
    log = small(tmp_path, 1)
    for i in range(12):
        put(log, f"k{i % 3}", f"v{i}")
    real, left = Partition.swap_segment, [4]

    def die_later(self: Partition, *args: object) -> bool:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Partition, "swap_segment", die_later)
    with pytest.raises(KeyboardInterrupt):
        compact(log, now_ms=0)
    monkeypatch.undo()
    kill(log)
    again = small(tmp_path, 1)
    newest = {key: value for key, value, _ in contents(again)}
    assert newest == {"k0": "v9", "k1": "v10", "k2": "v11"}
    compact(again, now_ms=0)
    assert contents(again) == [("k0", "v9", 9), ("k1", "v10", 10), ("k2", "v11", 11)]
    again.close()


def test_damaged_segment_is_not_rewritten(tmp_path):
    log = small(tmp_path, 2_000)
    fill(log, 40)
    base = log.segments()[2].base_offset
    path = log_path(tmp_path, base)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert compact(log, now_ms=0).segments > 0
    assert path.read_bytes() == data
    assert set(range(393, 400)) <= set(offsets(log))
    log.close()


def test_producer_state_survives_compaction(tmp_path):
    log = small(tmp_path, 1)
    for sequence in range(5):
        entry: RawRecord = (b"", b"k", b"", b"v%d" % sequence)
        log.write([entry], 0, [ProducerSequence(0, b"p", sequence)])
        log.sync()
    compact(log, now_ms=0)
    kill(log)
    again = small(tmp_path, 1)
    assert again.producers() == {b"p": 4}
    again.close()


def test_reading_continues_while_segments_are_replaced(tmp_path):
    log = small(tmp_path, 2_000)
    fill(log, 40)
    assert len(log.read(0, max_records=15)) == 15
    compact(log, now_ms=0)
    rest = offsets(log, 15)
    assert rest == sorted(set(rest))
    assert set(range(393, 400)) <= set(rest)
    log.close()
