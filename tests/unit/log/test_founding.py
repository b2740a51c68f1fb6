"""A new log has no files until the writer makes them, all or none."""

from __future__ import annotations

import errno
import os

import pytest

from queues.log import FoundingSink, LogFailed, LogReader, Partition, PartitionSettings

ENTRY = (b"", b"key", b"", b"body")


def new_log(directory, durable=True):
    return Partition(directory, PartitionSettings(durable=durable), is_new=True)


def bodies(partition):
    return [record.body for record in partition.read(0)]


@pytest.fixture
def refusing(monkeypatch):
    """Makes files of this ending fail to open, with this error."""
    real = os.open
    refused: dict[str, int] = {}

    def opened(path, *arguments, **options):
        for ending, number in refused.items():
            if str(path).endswith(ending):
                raise OSError(number, os.strerror(number))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", opened)
    return refused


def test_a_new_log_is_empty_and_nowhere(tmp_path):
    log = new_log(tmp_path / "logs" / "1")
    assert (log.first_offset, log.next_offset, log.size, bodies(log)) == (0, 0, 0, [])
    assert len(log.segments()) == 1
    assert log.sync() == 0
    log.roll()
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_it_is_found_with_all_its_files(tmp_path):
    log = new_log(tmp_path / "logs" / "1")
    log.found()
    names = {path.name for path in log.directory.iterdir()}
    assert names == {"log.id", "committed", f"{0:020d}.log", f"{0:020d}.index"}
    assert LogReader(log.directory).next_offset == 0
    log.found()
    log.write([ENTRY], 1)
    log.sync()
    log.close()
    again = Partition(log.directory)
    assert (again.log_id, bodies(again)) == (log.log_id, [b"body"])
    again.close()


def test_the_first_write_founds_it(tmp_path):
    log = new_log(tmp_path / "1")
    log.write([ENTRY], 1)
    log.sync()
    assert bodies(log) == [b"body"]
    log.close()


def test_the_first_sync_syncs_every_file_that_tells_what_the_log_is(tmp_path, monkeypatch):
    log = new_log(tmp_path / "1")
    log.write([ENTRY], 1)
    synced = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    log.sync()
    first = [os.path.basename(path) for path in synced]
    assert first == [f"{0:020d}.log", "log.id", "1"]
    log.write([ENTRY], 1)
    log.sync()
    assert synced[3:] == synced[:1]
    log.close()


@pytest.mark.parametrize("ending", [".log", ".index", "committed"])
def test_what_fails_leaves_nothing_and_can_be_repeated(tmp_path, refusing, ending):
    log = new_log(tmp_path / "1")
    open_files = len(os.listdir("/proc/self/fd"))
    refusing[ending] = errno.EMFILE
    with pytest.raises(OSError, match="Too many open files"):
        log.found()
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == open_files
    refusing.clear()
    log.found()
    log.write([ENTRY], 1)
    log.close()


def test_what_stands_in_its_place_is_set_aside(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "keep").write_text("me")
    log = new_log(tmp_path / "1")
    log.found()
    log.close()
    assert (tmp_path / "1.found-1" / "keep").read_text() == "me"
    assert not (tmp_path / "1" / "keep").exists()


@pytest.mark.parametrize("lost", ["log.id", "committed", f"{0:020d}.log", f"{0:020d}.index"])
@pytest.mark.parametrize("torn", [False, True])
def test_files_that_a_power_failure_took_are_made_anew(tmp_path, lost, torn):
    """They are not synced before there is a record; the directory is."""
    log = new_log(tmp_path / "1")
    log.found()
    log.close()
    (tmp_path / "1" / lost).unlink()
    if torn:
        (tmp_path / "1" / lost).touch()
    again = Partition(tmp_path / "1")
    again.write([ENTRY], 1)
    again.sync()
    again.close()
    assert [record.body for record in LogReader(tmp_path / "1").read(0)] == [b"body"]


def test_many_cost_one_sync_of_their_parent(tmp_path, monkeypatch):
    sink, logs = FoundingSink(), [new_log(tmp_path / "logs" / str(n)) for n in range(9)]
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    assert sink.write(logs) == dict.fromkeys(logs)
    assert synced == []
    sink.sync()
    assert synced == [str(tmp_path / "logs"), str(tmp_path)]  # the parent is new itself
    more = new_log(tmp_path / "logs" / "more")
    sink.write([more])
    sink.sync()
    assert synced[2:] == [str(tmp_path / "logs")]
    for log in (*logs, more):
        log.close()


def test_a_full_disk_fails_the_batch_and_another_error_only_the_log(tmp_path, refusing):
    sink, good, bad = FoundingSink(), new_log(tmp_path / "1"), new_log(tmp_path / "2")
    refusing["2/committed"] = errno.ENOSPC
    with pytest.raises(OSError, match="No space left"):
        sink.write([good, bad])
    sink.rollback()
    refusing["2/committed"] = errno.EIO
    answers = sink.write([good, bad])
    assert isinstance(answers, dict)
    assert answers[good] is None
    assert answers[bad].errno == errno.EIO
    sink.sync()
    assert sorted(os.listdir(tmp_path)) == ["1"]
    with pytest.raises(LogFailed):
        bad.write([ENTRY], 1)
    good.close()
    bad.close()
