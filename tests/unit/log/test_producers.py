import pytest

from leveret.queues.log.files import ProducerSequence, ProducerState, SequenceResult
from leveret.queues.log.files import partition as partition_module
from leveret.queues.log.files.segment import log_path
from tests.unit.log.helpers import entries, kill, small

A, D, G = SequenceResult.ACCEPTED, SequenceResult.DUPLICATE, SequenceResult.GAP


def test_duplicates_and_gaps():
    """Resending 1 after 2 stores one copy; a gap is rejected."""
    table = ProducerState()
    assert [table.accept(b"p", n) for n in (1, 2, 1, 2, 4, 3, 4)] == [A, A, D, D, G, A, A]
    assert table.last(b"p") == 4


def test_producers_are_independent():
    table = ProducerState()
    assert [table.accept(b"p", 1), table.accept(b"q", 7), table.accept(b"q", 8)] == [A, A, A]
    assert table.accept(b"p", 8) is G


def test_one_producer_on_two_partitions():
    """Gaps are checked over the whole log, duplicates per partition."""
    left, right = ProducerState(), ProducerState()
    assert left.accept(b"p", 1, right.last(b"p")) is A
    assert right.accept(b"p", 2, left.last(b"p")) is A
    assert left.accept(b"p", 3, right.last(b"p")) is A
    assert right.accept(b"p", 5, left.last(b"p")) is G
    assert right.accept(b"p", 2, left.last(b"p")) is D
    # 2 was lost before it reached the right partition, 3 was not: both are sent again.
    right = ProducerState()
    assert right.accept(b"p", 2, left.last(b"p")) is A
    assert left.accept(b"p", 3, right.last(b"p")) is D


def test_least_recent_producer_is_evicted_first():
    table = ProducerState({b"a": 1, b"b": 1}, limit=2)
    table.accept(b"a", 2)
    table.accept(b"c", 1)
    assert (table.last(b"a"), table.last(b"b"), table.last(b"c")) == (2, None, 1)


def test_producer_can_retry_after_a_failed_write():
    table = ProducerState()
    table.accept(b"p", 1)
    table.forget(b"p")
    assert table.accept(b"p", 1) is A


def write(log, producer: bytes, sequence: int) -> None:
    log.write(entries(log.next_offset, 1), 0, [ProducerSequence(0, producer, sequence)])
    log.sync()


def test_state_survives_a_crash(tmp_path):
    log = small(tmp_path)
    write(log, b"p", 5)
    write(log, b"q", 1)
    write(log, b"p", 6)
    kill(log)
    again = small(tmp_path)
    assert again.producers() == {b"q": 1, b"p": 6}
    again.close()


@pytest.mark.parametrize("lost", ["nothing", "committed"])
def test_state_survives_rolls_without_reading_old_segments(tmp_path, lost):
    log = small(tmp_path, 300)
    for i in range(20):
        write(log, b"p%d" % (i % 3), i)
    kill(log)
    if lost != "nothing":
        (tmp_path / lost).unlink()
    again = small(tmp_path, 300)
    assert again.producers() == {b"p0": 18, b"p1": 19, b"p2": 17}
    again.close()


def test_state_survives_a_crash_right_after_a_roll(tmp_path):
    log = small(tmp_path, 100_000)
    write(log, b"p", 1)
    log.roll()
    kill(log)
    log_path(tmp_path, 1).write_bytes(b"")
    again = small(tmp_path, 100_000)
    assert again.producers() == {b"p": 1}
    assert again.next_offset == 1
    again.close()


def test_unsynced_sequences_survive_only_with_their_records(tmp_path):
    log = small(tmp_path)
    write(log, b"p", 1)
    size = log.size
    log.write(entries(1, 1), 0, [ProducerSequence(0, b"p", 2)])
    kill(log)
    path = log_path(tmp_path, 0)
    data = path.read_bytes()
    path.write_bytes(data[: size + 70])
    cut = small(tmp_path)
    assert (cut.producers(), cut.next_offset) == ({b"p": 1}, 1)
    kill(cut)
    path.write_bytes(data)
    complete = small(tmp_path)
    assert (complete.producers(), complete.next_offset) == ({b"p": 2}, 2)
    complete.close()


def test_sequences_are_stored_in_the_batch_of_their_record(tmp_path):
    log = small(tmp_path, 100_000_000)
    big = [(b"", b"", b"", bytes(700_000))] * 3
    log.write(big, 0, [ProducerSequence(i, b"p", 10 + i) for i in range(3)])
    log.sync()
    assert [batch.producers() for batch in log.view.batches(0)] == [
        {b"p": 10},
        {b"p": 11},
        {b"p": 12},
    ]
    log.close()


def test_snapshots_limit_the_reads_of_recovery(tmp_path, monkeypatch):
    monkeypatch.setattr(partition_module, "_SNAPSHOT_INTERVAL", 20_000)
    log = small(tmp_path, 10_000_000)
    write(log, b"early", 1)
    for i in range(200):
        log.write(entries(log.next_offset, 10), 0, [ProducerSequence(9, b"p", i)])
        log.sync()
    snapshot = log._snapshot
    assert log.size - snapshot < 30_000 < log.size
    kill(log)
    again = small(tmp_path, 10_000_000)
    assert again.producers() == {b"early": 1, b"p": 199}
    assert [r.offset for r in again.read(0, 3000)] == list(range(2001))
    again.close()


def test_failed_write_does_not_change_the_state(tmp_path, monkeypatch):
    log = small(tmp_path)
    write(log, b"p", 1)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(Exception, match="No space"):
        log.write(entries(1, 1), 0, [ProducerSequence(0, b"p", 2), ProducerSequence(0, b"q", 1)])
    monkeypatch.undo()
    assert log.producers() == {b"p": 1}
    log.close()
