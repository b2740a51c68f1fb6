"""`PartitionSink`: a batch that fails leaves nothing readable."""

from __future__ import annotations

import errno
import os

import pytest

from leveret.model.message import Address, Message, encode_properties
from leveret.model.run import Run
from leveret.model.store import SequencedMessage
from leveret.queues.log.files import (
    Partition,
    PartitionSettings,
    PartitionSink,
    RetentionLimits,
)
from leveret.queues.log.files.errors import LogError

ADDRESS = Address.of("x", "key")


def message(body: bytes, time_ms: int = 1) -> Message:
    built = Message.build(ADDRESS, b"\x00\x00", body)
    built.time_ms = time_ms
    return built


@pytest.fixture
def partition(tmp_path):
    partition = Partition(tmp_path / "log", PartitionSettings(max_segment_bytes=10_000))
    yield partition
    partition.close()


@pytest.fixture
def sink(partition):
    return PartitionSink(partition, RetentionLimits())


def bodies(partition):
    return [record.body for record in partition.read(0)]


def test_messages_become_records(sink, partition):
    assert sink.write([message(b"a", 5), message(b"b", 7)]) == 2
    assert bodies(partition) == []
    sink.sync()
    first, second = partition.read(0)
    assert first[2:] == (b"x", b"key", b"\x00\x00", b"a")
    assert (second.offset, second.time_ms) == (1, 7)


def packed(messages):
    """A run as the wire makes it: no single messages."""
    run = Run(
        ADDRESS,
        0,
        [each.frames for each in messages],
        [each.header_size for each in messages],
        [each.body_size for each in messages],
        messages[-1].scan,
    )
    run.ids, run.time_ms = range(len(messages)), messages[-1].time_ms
    assert run.is_packed
    return run


PLAIN = encode_properties({})
TYPED = encode_properties({"content_type": "text/plain", "headers": {"a": 1}})


@pytest.mark.parametrize(
    "contents",
    [
        [(PLAIN, b"1"), (PLAIN, b"2"), (PLAIN, b"3")],
        [(TYPED, b"1")],
        [(TYPED, b""), (TYPED, b"")],
        [(TYPED, b""), (PLAIN, b"1"), (TYPED, b"23")],
        [(PLAIN, b"1"), (PLAIN, b""), (PLAIN, b"")],
        [(PLAIN, b"12"), (TYPED, b"34"), (TYPED, b"5" * 3000)],
    ],
)
def test_run_becomes_the_same_records_as_its_messages(tmp_path, contents):
    messages = [Message.build(ADDRESS, *content) for content in contents]
    stored = []
    for name, records in (
        ("run", [packed(messages), messages[0]]),
        ("one", [*messages, messages[0]]),
    ):
        partition = Partition(tmp_path / name)
        sink = PartitionSink(partition, RetentionLimits())
        assert sink.write(records) == len(messages) + 1
        sink.sync()
        stored.append(partition.read(0))
        partition.close()
    assert stored[0] == stored[1]
    assert [record[4:] for record in stored[0]] == [*contents, contents[0]]


def test_batch_that_fails_after_the_sync_is_undone(sink, partition):
    sink.write([message(b"a")])
    sink.sync()
    sink.write([message(b"lost"), SequencedMessage(message(b"lost, too"), b"p", 1)])
    sink.sync()
    sink.rollback()
    assert partition.next_offset == 1
    assert partition.producers().get(b"p") is None
    assert sink.write([message(b"b")]) == 2
    sink.sync()
    assert bodies(partition) == [b"a", b"b"]
    assert partition.view.verify() == []


def test_batch_that_rolled_a_segment_is_undone(sink, partition):
    sink.write([SequencedMessage(message(bytes(9_000)), b"p", 1)])
    sink.sync()
    sink.write([SequencedMessage(message(bytes(2_000)), b"p", 2)])
    sink.sync()
    assert len(partition.segments()) == 2
    sink.rollback()
    assert (partition.next_offset, partition.producers().get(b"p")) == (1, 1)
    sink.write([message(b"b")])
    sink.sync()
    assert bodies(partition)[1:] == [b"b"]


def test_second_rollback_undoes_nothing(sink, partition):
    sink.write([message(b"a")])
    sink.sync()
    sink.write([message(b"b")])
    sink.sync()
    sink.rollback()
    sink.rollback()
    assert bodies(partition) == [b"a"]


def test_undone_write_does_not_return_after_a_restart(sink, partition, tmp_path):
    sink.write([message(b"a")])
    sink.sync()
    sink.write([message(b"lost")])
    sink.sync()
    sink.rollback()
    partition.close()
    again = Partition(tmp_path / "log")
    assert bodies(again) == [b"a"] and again.next_offset == 1
    again.close()


def test_full_disk_is_reported_as_os_error(sink, partition, monkeypatch):
    sink.write([message(b"a")])
    sink.sync()
    real = os.pwrite

    def full(fd, data, at):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError) as caught:
        sink.write([message(b"lost")])
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.setattr(os, "pwrite", real)
    sink.rollback()
    assert bodies(partition) == [b"a"]
    sink.write([message(b"b")])
    sink.sync()
    assert bodies(partition) == [b"a", b"b"]


def test_retention_is_applied_when_a_segment_is_full(partition):
    sink = PartitionSink(partition, RetentionLimits(max_bytes=25_000))
    for number in range(20):
        sink.write([message(bytes(4_000), number)])
        sink.sync()
    assert partition.next_offset == 20
    assert partition.first_offset > 0
    assert partition.size <= 25_000 + 10_000


def test_failed_log_refuses_writes(sink, partition, monkeypatch):
    def broken(fd):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fdatasync", broken)
    sink.write([message(b"a")])
    with pytest.raises(LogError):
        sink.sync()
    monkeypatch.undo()
    with pytest.raises(LogError):
        sink.write([message(b"b")])
