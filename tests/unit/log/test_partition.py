import contextlib
import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from leveret.queues.log.files import LogError, LogFailed, Partition, PartitionSettings, RawRecord
from leveret.queues.log.files.checkpoint_file import load_checkpoint
from leveret.queues.log.files.segment import list_segments, log_path
from tests.unit.log.helpers import FAST, entries, entry, fill, kill, offsets, small


@pytest.fixture
def log(tmp_path):
    partition = Partition(tmp_path / "log", FAST)
    yield partition
    partition.close()


def reopened(partition: Partition) -> Partition:
    """Reopen as after a kill: the old object syncs nothing more."""
    kill(partition)
    return Partition(partition.directory, partition.settings)


def test_new_log_is_empty(log):
    assert (log.first_offset, log.next_offset, log.size) == (0, 0, 0)
    assert log.read(0) == []
    assert log.offset_for_time(0) == 0
    assert [s.sealed for s in log.segments()] == [False]


def test_offsets_start_at_0_without_gaps(log):
    assert log.write(entries(0, 3), 1) == 0
    assert log.write(entries(3, 2), 1) == 3
    assert log.sync() == 5
    assert offsets(log) == [0, 1, 2, 3, 4]


def test_records_are_readable_only_after_sync(log):
    log.write(entries(0, 3), 1)
    assert log.read(0) == []
    assert log.next_offset == 0
    log.sync()
    assert len(log.read(0)) == 3


def test_writing_nothing_writes_nothing(log):
    assert log.write([], 1) == 0
    log.sync()
    assert log.size == 0


def test_read_from_the_middle_beyond_the_end_and_below_the_start(log):
    fill(log, 3)
    assert log.read(17)[0].offset == 17
    assert log.read(30) == []
    assert log.read(1000) == []
    assert log.read(-5)[0].offset == 0


def test_read_returns_at_least_one_record_of_any_size(log):
    fill(log, 3, size=500)
    assert [r.offset for r in log.read(4, max_bytes=10)] == [4]
    assert [r.offset for r in log.read(8, max_bytes=1500)] == [8, 9, 10]
    assert [r.offset for r in log.read(8, max_records=3)] == [8, 9, 10]


def test_large_write_becomes_several_batches(log):
    log.write([(b"", b"", b"", bytes([i]) * 700_000) for i in range(3)], 1)
    log.sync()
    assert log.view.batches_read == 0
    assert [r.body[0] for r in log.read(0, max_bytes=10_000_000)] == [0, 1, 2]
    assert log.view.batches_read == 3


def test_small_reads_of_a_large_batch_continue_where_they_stopped(log):
    log.write([(b"", b"", b"", b"%d" % i + bytes(900_000)) for i in range(4)], 1)
    log.write([(b"", b"", b"", b"%d" % i + bytes(3_000_000)) for i in range(4, 6)], 1)
    log.sync()
    assert [log.read(i, max_records=1)[0].body[:1] for i in range(6)] == [
        b"0", b"1", b"2", b"3", b"4", b"5",
    ]  # fmt: skip


def test_times_never_decrease_even_over_a_restart(log):
    log.write(entries(0, 1), 5000)
    log.write(entries(1, 1), 3000)
    log.sync()
    restarted = reopened(log)
    restarted.write(entries(2, 1), 100)
    restarted.sync()
    assert [r.time_ms for r in restarted.read(0)] == [5000, 5000, 5000]
    restarted.close()


def test_segments_roll_by_size(tmp_path):
    log = small(tmp_path, 2_000)
    fill(log, 20)
    segments = log.segments()
    assert len(segments) > 3
    assert [s.next_offset for s in segments[:-1]] == [s.base_offset for s in segments[1:]]
    assert [s.sealed for s in segments] == [True] * (len(segments) - 1) + [False]
    assert all(s.size <= 3_000 for s in segments)
    assert sum(s.size for s in segments) == log.size
    assert offsets(log) == list(range(200))
    log.close()


def test_synced_records_are_recovered(tmp_path):
    log = small(tmp_path, 2_000)
    fill(log, 20)
    log.close()
    restarted = small(tmp_path, 2_000)
    assert offsets(restarted) == list(range(200))
    assert (restarted.cut_bytes, restarted.damage()) == (0, [])
    fill(restarted, 1)
    assert offsets(restarted) == list(range(210))
    restarted.close()


def test_unsynced_write_may_survive_completely(log):
    fill(log, 2)
    log.write(entries(20, 10), 2000)
    restarted = reopened(log)
    assert offsets(restarted) == list(range(30))
    restarted.close()


@pytest.mark.parametrize("keep", [1, 63, 64, 300])
def test_torn_tail_is_cut_and_counted(log, keep):
    fill(log, 2)
    flushed = log.size
    log.write(entries(20, 10), 2000)
    path = log_path(log.directory, 0)
    os.truncate(path, flushed + keep)
    restarted = reopened(log)
    assert restarted.cut_bytes == keep
    assert path.stat().st_size == flushed
    assert restarted.next_offset == 20
    fill(restarted, 1)
    assert offsets(restarted) == list(range(30))
    restarted.close()


def test_sampled_cuts_of_a_real_file_can_be_appended_to(tmp_path):
    log = small(tmp_path / "source", 1 << 20)
    fill(log, 30, size=60)
    data = log_path(log.directory, 0).read_bytes()
    log_id = (log.directory / "log.id").read_bytes()
    log.close()
    for cut in range(0, len(data), 331):
        directory = tmp_path / str(cut)
        directory.mkdir()
        (directory / "log.id").write_bytes(log_id)
        log_path(directory, 0).write_bytes(data[:cut])
        restarted = Partition(directory, FAST)
        recovered = restarted.next_offset
        assert recovered == 10 * (cut * 30 // len(data))
        fill(restarted, 1)
        assert offsets(restarted) == list(range(recovered + 10))
        restarted.close()


def test_damage_in_the_last_synced_batch_does_not_free_its_offsets(log):
    fill(log, 3)
    path = log_path(log.directory, 0)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    restarted = reopened(log)
    assert restarted.cut_bytes == 0
    assert restarted.next_offset == 30
    fill(restarted, 1)
    assert offsets(restarted) == [*range(20), *range(30, 40)]
    assert [(d.first_offset, d.next_offset) for d in restarted.damage()] == [(20, 30)]
    restarted.close()


def test_file_shorter_than_its_synced_data_is_reported(log):
    fill(log, 3)
    os.truncate(log_path(log.directory, 0), log.size - 8)
    restarted = reopened(log)
    assert restarted.next_offset == 30
    assert offsets(restarted) == list(range(20))
    assert len(restarted.damage()) == 1
    fill(restarted, 1)
    assert offsets(restarted)[-11:] == [19, *range(30, 40)]
    restarted.close()
    third = reopened(restarted)
    assert offsets(third)[-11:] == [19, *range(30, 40)]
    third.close()


@pytest.mark.parametrize("name", ["committed", "log.id", "00000000000000000000.index"])
@pytest.mark.parametrize("harm", ["gone", "empty", "flipped"])
def test_small_files_can_be_lost(tmp_path, name, harm):
    log = small(tmp_path, 1 << 20)
    fill(log, 200, size=100)
    path = tmp_path / name
    if harm == "gone":
        path.unlink()
    else:
        data = bytearray(path.read_bytes() if harm == "flipped" else b"")
        if data:
            data[len(data) // 2] ^= 4
        path.write_bytes(data)
    restarted = reopened(log)
    assert offsets(restarted) == list(range(2000))
    assert restarted.damage() == []
    fill(restarted, 1, size=100)
    assert restarted.read(2000)[0].offset == 2000
    restarted.close()


def test_unfinished_compaction_is_cleaned_up(tmp_path):
    log = small(tmp_path)
    fill(log, 2)
    leftover = tmp_path / "00000000000000000000.log.tmp"
    leftover.write_bytes(b"half")
    restarted = reopened(log)
    assert not leftover.exists()
    assert offsets(restarted) == list(range(20))
    restarted.close()


def test_offset_for_time_is_exact(tmp_path):
    log = small(tmp_path, 3_000)
    for i in range(60):
        log.write(entries(10 * i, 10), 1000 + 10 * i)
        log.sync()
    for i in range(60):
        assert log.offset_for_time(1000 + 10 * i) == 10 * i
        assert log.offset_for_time(1000 + 10 * i - 3) == 10 * i
    assert log.offset_for_time(0) == 0
    assert log.offset_for_time(1591) == 600
    log.close()


def test_failed_sync_is_final(log, monkeypatch):
    durable = Partition(log.directory, PartitionSettings())
    fill(durable, 1)
    durable.write(entries(10, 5), 1)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(LogFailed, match="Input/output"):
        durable.sync()
    monkeypatch.undo()
    assert durable.next_offset == 10
    with pytest.raises(LogFailed):
        durable.sync()
    with pytest.raises(LogFailed):
        durable.write(entries(15, 1), 1)
    assert offsets(durable) == list(range(10))
    durable.close()


def test_failed_write_is_undone(log, monkeypatch):
    fill(log, 1)
    real, calls = os.pwrite, []

    def full_disk(fd: int, data: bytes, at: int) -> int:
        calls.append(at)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, bytes(data)[:100], at)

    monkeypatch.setattr(os, "pwrite", full_disk)
    with pytest.raises(LogError, match="No space"):
        log.write(entries(10, 50), 1)
    monkeypatch.undo()
    assert log.write(entries(10, 5), 1) == 10
    log.sync()
    assert offsets(log) == list(range(15))
    assert log.cut_bytes == 0
    restarted = reopened(log)
    assert offsets(restarted) == list(range(15))
    restarted.close()


def test_sync_calls_fsync_for_file_and_directory(tmp_path, monkeypatch):
    synced: list[str] = []
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)

        def record(fd: int, name=name, real=real) -> None:
            target = os.readlink(f"/proc/self/fd/{fd}")
            synced.append(f"{name} {os.path.basename(target)}")
            real(fd)

        monkeypatch.setattr(os, name, record)
    log = Partition(tmp_path / "log", PartitionSettings(max_segment_bytes=500))
    assert "fsync log" in synced
    synced.clear()
    log.write(entries(0, 10), 1)
    log.sync()
    assert synced == ["fdatasync 00000000000000000000.log"]
    synced.clear()
    log.write(entries(10, 10, size=50), 1)
    assert synced == ["fdatasync 00000000000000000000.log", "fsync segments.json.tmp"], (
        "sealed before the next segment is created, and listed"
    )
    synced.clear()
    log.sync()
    assert synced == ["fdatasync 00000000000000000010.log", "fsync log"]
    log.close()


def test_close_twice_and_use_after_close(log):
    log.close()
    log.close()
    with pytest.raises(LogFailed):
        log.write(entries(0, 1), 1)


def test_checkpoint_contains_the_synced_end(log):
    fill(log, 2)
    log.write(entries(20, 5), 1)
    checkpoint = load_checkpoint(log.directory)
    assert checkpoint is not None
    assert (checkpoint.next_offset, checkpoint.position) == (20, log.size)


def test_opening_a_thousand_segments_reads_no_sealed_one(tmp_path, monkeypatch):
    log = small(tmp_path, 1)
    for i in range(1000):
        log.write(entries(5 * i, 5), i)
    log.sync()
    log.close()
    read: list[int] = []
    real = os.pread

    def counted(fd: int, size: int, at: int) -> bytes:
        read.append(size)
        return real(fd, size, at)

    monkeypatch.setattr(os, "pread", counted)
    restarted = small(tmp_path, 1)
    assert len(read) <= 4
    assert len(restarted.segments()) == 1000
    assert [r.offset for r in restarted.read(2503, max_records=4)] == [2503, 2504, 2505, 2506]
    assert len(read) <= 30
    assert restarted.offset_for_time(777) == 777 * 5
    restarted.close()


def test_cost_of_a_read_does_not_grow_with_the_log(tmp_path):
    costs = []
    for batches in (100, 800):
        log = small(tmp_path / str(batches), 200_000)
        fill(log, batches, count=50, size=50)
        end = log.next_offset
        log.close()
        log = small(tmp_path / str(batches), 200_000)
        for offset in (0, end // 2, end - 50):
            before = log.view.bytes_read, log.view.batches_read
            assert log.read(offset, max_records=50)
            costs.append(
                (log.view.bytes_read - before[0] < 400_000, log.view.batches_read - before[1] < 20)
            )
        before_bytes = log.view.bytes_read
        for _ in range(10):
            log.read(end // 2 + 50, max_records=50)
        assert log.view.bytes_read - before_bytes < 10 * 200_000
        log.close()
    assert set(costs) == {(True, True)}


def test_sequential_reads_read_each_batch_once(tmp_path):
    log = small(tmp_path, 50_000)
    fill(log, 100, count=50, size=50)
    assert offsets(log) == list(range(5000))
    small_steps = log.view.batches_read
    assert small_steps < 250
    log.close()


@pytest.mark.parametrize("size", [0, -1, 3_000_000_001])
def test_segment_size_is_checked(tmp_path, size):
    with pytest.raises(LogError, match="segment size"):
        Partition(tmp_path, PartitionSettings(max_segment_bytes=size))


def open_below(directory: Path) -> list[str]:
    """Open files of this directory only; other files of the process may change."""
    paths = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            paths.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in paths if path.startswith(f"{directory}/")]


def test_no_file_descriptor_is_left_open(tmp_path):
    log = small(tmp_path, 1_000)
    fill(log, 50)
    offsets(log)
    assert open_below(tmp_path)
    log.close()
    assert open_below(tmp_path) == []


class LogMachine(RuleBasedStateMachine):
    """A log compared with a list: synced records survive kills, and only they are readable."""

    @initialize(size=st.sampled_from([1, 400, 2_000, 100_000]))
    def open(self, size: int) -> None:
        self.scratch = tempfile.TemporaryDirectory()
        self.settings = PartitionSettings(max_segment_bytes=size, durable=False)
        self.directory = Path(self.scratch.name)
        self.log = Partition(self.directory, self.settings)
        self.synced: list[RawRecord] = []
        self.written: list[RawRecord] = []

    @rule(sizes=st.lists(st.integers(0, 60), max_size=12), key=st.binary(max_size=5))
    def write(self, sizes: list[int], key: bytes) -> None:
        start = len(self.synced) + len(self.written)
        batch = [entry(start + i, key, size) for i, size in enumerate(sizes)]
        assert self.log.write(batch, 10 * start) == start
        self.written += batch

    @rule()
    def sync(self) -> None:
        self.log.sync()
        self.synced += self.written
        self.written = []

    @rule(lost=st.integers(0, 2_000))
    def kill(self, lost: int) -> None:
        """A power failure: some of the unsynced bytes are lost."""
        checkpoint = load_checkpoint(self.directory)
        base, size = list_segments(self.directory)[-1]
        assert checkpoint is not None
        flushed = checkpoint.position if checkpoint.segment == base else 0
        os.truncate(log_path(self.directory, base), max(flushed, size - lost))
        kill(self.log)
        self.log = Partition(self.directory, self.settings)
        recovered = self.log.next_offset
        all_records = self.synced + self.written
        assert len(self.synced) <= recovered <= len(all_records)
        assert self.log.damage() == []
        self.synced, self.written = all_records[:recovered], []

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.synced += self.written
        self.written = []
        self.log = Partition(self.directory, self.settings)
        assert self.log.cut_bytes == 0

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(start=st.integers(0, 100), count=st.integers(1, 20))
    def read(self, start: int, count: int) -> None:
        records = self.log.read(start, max_records=count)
        assert [tuple(r)[2:] for r in records] == self.synced[start : start + count]

    @invariant()
    def reads_what_is_synced(self) -> None:
        if hasattr(self, "log"):
            assert self.log.next_offset == len(self.synced)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
            self.scratch.cleanup()


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
