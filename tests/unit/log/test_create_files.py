"""A new log has no files until the writer creates all of them, or none."""

from __future__ import annotations

import errno
import os

import pytest

from leveret.queues.log.files import (
    CreateFiles,
    LogFailed,
    LogReader,
    ParentDirectories,
    Partition,
    PartitionSettings,
)

ENTRY = (b"", b"key", b"", b"body")


def new_log(directory, durable=True):
    return Partition(directory, PartitionSettings(durable=durable), is_new=True)


def bodies(partition):
    return [record.body for record in partition.read(0)]


@pytest.fixture
def open_errors(monkeypatch):
    """Errors on opening files: end of the path -> errno."""
    real = os.open
    refused: dict[str, int] = {}

    def opened(path, *arguments, **options):
        for ending, number in refused.items():
            if str(path).endswith(ending):
                raise OSError(number, os.strerror(number))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", opened)
    return refused


def test_new_log_is_empty_and_has_no_files(tmp_path):
    log = new_log(tmp_path / "logs" / "1")
    assert (log.first_offset, log.next_offset, log.size, bodies(log)) == (0, 0, 0, [])
    assert len(log.segments()) == 1
    assert log.sync() == 0
    log.roll()
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_create_files_creates_all_files(tmp_path):
    log = new_log(tmp_path / "logs" / "1")
    log.create_files()
    names = {path.name for path in log.directory.iterdir()}
    assert names == {"log.id", "committed", f"{0:020d}.log", f"{0:020d}.index"}
    assert LogReader(log.directory).next_offset == 0
    log.create_files()
    log.write([ENTRY], 1)
    log.sync()
    log.close()
    again = Partition(log.directory)
    assert (again.log_id, bodies(again)) == (log.log_id, [b"body"])
    again.close()


def test_first_write_creates_the_files(tmp_path):
    log = new_log(tmp_path / "1")
    log.write([ENTRY], 1)
    log.sync()
    assert bodies(log) == [b"body"]
    log.close()


def test_first_sync_syncs_segment_and_directory(tmp_path, monkeypatch):
    """Two syncs: a batch may have the first records of a thousand logs."""
    log = new_log(tmp_path / "1")
    log.write([ENTRY], 1)
    synced = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    log.sync()
    first = [os.path.basename(path) for path in synced]
    assert first == [f"{0:020d}.log", "1"]
    log.write([ENTRY], 1)
    log.sync()
    assert synced[2:] == synced[:1]
    log.close()


@pytest.mark.parametrize("ending", [".log", ".index", "committed"])
def test_failed_creation_leaves_nothing_and_can_be_repeated(tmp_path, open_errors, ending):
    log = new_log(tmp_path / "1")
    open_files = len(os.listdir("/proc/self/fd"))
    open_errors[ending] = errno.EMFILE
    with pytest.raises(OSError, match="Too many open files"):
        log.create_files()
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == open_files
    open_errors.clear()
    log.create_files()
    log.write([ENTRY], 1)
    log.close()


def test_existing_directory_is_renamed(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "keep").write_text("me")
    log = new_log(tmp_path / "1")
    log.create_files()
    log.close()
    assert (tmp_path / "1.found-1" / "keep").read_text() == "me"
    assert not (tmp_path / "1" / "keep").exists()


@pytest.mark.parametrize("lost", ["log.id", "committed", f"{0:020d}.log", f"{0:020d}.index"])
@pytest.mark.parametrize("torn", [False, True])
def test_files_lost_in_a_power_failure_are_created_again(tmp_path, lost, torn):
    """The files are not synced before the first record; the directory is."""
    log = new_log(tmp_path / "1")
    log.create_files()
    log.close()
    (tmp_path / "1" / lost).unlink()
    if torn:
        (tmp_path / "1" / lost).touch()
    again = Partition(tmp_path / "1")
    again.write([ENTRY], 1)
    again.sync()
    again.close()
    assert [record.body for record in LogReader(tmp_path / "1").read(0)] == [b"body"]


@pytest.mark.parametrize("torn", [False, True])
def test_the_log_id_is_restored_from_a_segment(tmp_path, torn):
    """It is not synced, so a power failure may take it; the next start writes it again."""
    log = new_log(tmp_path / "1")
    log.write([ENTRY], 1)
    log.close()
    path = tmp_path / "1" / "log.id"
    written = path.read_bytes()
    path.unlink()
    if torn:
        path.write_bytes(bytes(len(written)))
    again = Partition(tmp_path / "1")
    assert bodies(again) == [b"body"]
    again.close()
    assert path.read_bytes() == written


def test_parent_directory_is_synced_once_for_many_logs(tmp_path, monkeypatch):
    parents, logs = ParentDirectories(), [new_log(tmp_path / "logs" / str(n)) for n in range(9)]
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    jobs = [CreateFiles(log, parents) for log in logs]
    for job in jobs:
        job.prepare()
    assert [job.error for job in jobs] == [None] * 9
    assert synced == []
    for job in jobs:
        job.finish()
    assert synced == [str(tmp_path / "logs"), str(tmp_path)]  # the parent is new itself
    more = new_log(tmp_path / "logs" / "more")
    job = CreateFiles(more, parents)
    job.prepare()
    job.finish()
    assert synced[2:] == [str(tmp_path / "logs")]
    for log in (*logs, more):
        log.close()


def test_full_disk_fails_the_batch_and_other_errors_only_the_log(tmp_path, open_errors):
    parents, good, bad = ParentDirectories(), new_log(tmp_path / "1"), new_log(tmp_path / "2")
    open_errors["2/committed"] = errno.ENOSPC
    CreateFiles(good, parents).prepare()
    with pytest.raises(OSError, match="No space left"):
        CreateFiles(bad, parents).prepare()
    open_errors["2/committed"] = errno.EIO
    jobs = [CreateFiles(log, parents) for log in (good, bad)]
    for job in jobs:
        job.prepare()
    assert jobs[0].error is None
    assert jobs[1].error is not None
    assert jobs[1].error.errno == errno.EIO
    for job in jobs:
        job.finish()
    assert sorted(os.listdir(tmp_path)) == ["1"]
    with pytest.raises(LogFailed):
        bad.write([ENTRY], 1)
    good.close()
    bad.close()
