"""Opening a log removes a last batch that was never committed."""

from __future__ import annotations

import pytest

from leveret.queues.log.files import Partition, PartitionSettings
from leveret.queues.log.files.batch import ProducerSequence
from leveret.queues.log.files.checkpoint_file import load_checkpoint, save_checkpoint
from tests.unit.log.helpers import FAST, entries, kill, offsets


@pytest.fixture
def log(tmp_path):
    partition = Partition(tmp_path / "log", FAST)
    for start in (0, 3):
        partition.write(entries(start, 3), 1)
        partition.sync()
    yield partition
    kill(partition)


def cut(log: Partition, end: int) -> Partition:
    kill(log)
    return Partition(log.directory, log.settings, end)


@pytest.mark.parametrize("synced", [True, False])
def test_uncommitted_write_is_removed_and_its_offsets_are_reused(log, synced):
    log.write(entries(6, 5), 1)
    if synced:
        log.sync()
    again = cut(log, 6)
    assert offsets(again) == [0, 1, 2, 3, 4, 5]
    assert again.damage() == []
    assert again.write(entries(6, 1), 1) == 6
    again.sync()
    last = cut(again, 7)
    assert offsets(last) == [0, 1, 2, 3, 4, 5, 6]
    last.close()


def test_nothing_is_removed_if_nothing_was_written(log):
    again = cut(log, 6)
    assert offsets(again) == [0, 1, 2, 3, 4, 5]
    again.close()


def test_checkpoint_that_survived_the_cut_is_moved_back(log):
    log.write(entries(6, 5), 1)
    log.sync()
    late = load_checkpoint(log.directory)
    assert late is not None
    again = cut(log, 6)
    kill(again)
    save_checkpoint(log.directory, late)  # a power failure may undo the move, which is unsynced
    last = Partition(log.directory, log.settings, 6)
    assert offsets(last) == [0, 1, 2, 3, 4, 5]
    assert last.damage() == []
    assert last.next_offset == 6
    last.close()


def test_segment_created_for_the_uncommitted_write_is_empty(tmp_path):
    log = Partition(tmp_path / "log", PartitionSettings(2_000, durable=False))
    log.write(entries(0, 10), 1, [ProducerSequence(9, b"p", 4)])
    log.roll()
    log.write(entries(10, 2), 1, [ProducerSequence(0, b"p", 5)])
    log.sync()
    assert len(log.segments()) == 2
    again = cut(log, 10)
    assert offsets(again) == list(range(10))
    assert again.producers().get(b"p") == 4
    assert again.write(entries(10, 1), 1) == 10
    again.close()


def test_producer_state_is_restored(log):
    log.write(entries(6, 1), 1, [ProducerSequence(0, b"p", 1)])
    log.sync()
    log.write(entries(7, 1), 1, [ProducerSequence(0, b"p", 2), ProducerSequence(0, b"new", 1)])
    log.sync()
    again = cut(log, 7)
    assert dict(again.producers()) == {b"p": 1}
    again.close()
