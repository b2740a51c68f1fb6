"""Full disk: publishers get nacks, partial writes are not readable, and work continues later."""

from __future__ import annotations

import errno
import os
import threading

import pika
import pika.exceptions
import pytest

from tests.log.conftest import declare, publish, wait_for


class Disk:
    """Fails writes to segments while it is full."""

    def __init__(self) -> None:
        self.is_full = False
        self.refused = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._real = os.pwrite

    def pwrite(self, fd, data, at):
        if self.is_full:
            self.refused.set()
            self.may_answer.wait(60)
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._real(fd, data, at)


@pytest.fixture
def disk(monkeypatch):
    disk = Disk()
    monkeypatch.setattr(os, "pwrite", disk.pwrite)
    return disk


def send(channel, sequence):
    headers = {"x-producer-id": "p", "x-producer-seq": sequence}
    channel.basic_publish("", "log", b"%d" % sequence, pika.BasicProperties(headers=headers))


def test_failed_write_is_nacked_and_can_be_retried(home, disk, channel, readers):
    declare(channel, "log")
    reader = readers("log", x_stream_offset="first")
    send(channel, 1)
    disk.is_full = True
    with pytest.raises(pika.exceptions.NackError):
        send(channel, 2)
    assert disk.refused.is_set()
    disk.is_full = False
    wait_for(lambda: not home.hub.alarms.raised, reader)
    send(channel, 2)
    send(channel, 3)
    assert reader.read(3).bodies == [b"1", b"2", b"3"]
    assert reader.offsets == [0, 1, 2]


def test_sequence_numbers_continue_after_a_failed_batch(home, disk, channel, readers):
    """The second write fails while the third is queued: none is lost, repeated or out of order."""
    declare(channel, "log")
    reader = readers("log", x_stream_offset="first")
    log = home.hub.vhosts["/"].queues["log"]
    send(channel, 1)
    disk.is_full = True
    disk.may_answer.clear()
    first, second = (Sending(home, sequence) for sequence in (2, 3))
    first.start()
    assert disk.refused.wait(60)
    second.start()
    wait_for(lambda: log.counters.published == 3)
    disk.is_full = False
    disk.may_answer.set()
    first.join(60)
    second.join(60)
    assert (first.was_nacked, second.was_nacked) == (True, False)
    wait_for(lambda: not home.hub.alarms.raised, reader)
    for sequence in (2, 3, 4):
        send(channel, sequence)
    assert reader.read(4).quiet().bodies == [b"1", b"2", b"3", b"4"]


class Sending(threading.Thread):
    """Sends one sequence number and waits for its confirm, in a thread of its own."""

    def __init__(self, home, sequence):
        super().__init__(daemon=True)
        self._channel = home.connect().channel()
        self._channel.confirm_delivery()
        self._sequence = sequence
        self.was_nacked = False

    def run(self):
        try:
            send(self._channel, self._sequence)
        except pika.exceptions.NackError:
            self.was_nacked = True


@pytest.mark.parametrize("full", ["a", "b"])
def test_full_disk_of_one_log_undoes_the_whole_batch(home, disk, channel, readers, full):
    """The batch is atomic: both logs get the record or neither does. Earlier records stay."""
    for name in ("a", "b"):
        declare(channel, name)
        channel.queue_bind(name, "amq.fanout")
    publish(channel, "amq.fanout", [b"1"])
    view = home.hub.vhosts["/"].queues[full].partition
    real = view.write_columns

    def refuse(*arguments):
        disk.is_full = True
        try:
            return real(*arguments)
        finally:
            disk.is_full = False

    view.write_columns = refuse
    with pytest.raises(pika.exceptions.NackError):
        publish(channel, "amq.fanout", [b"lost"])
    view.write_columns = real
    wait_for(lambda: not home.hub.alarms.raised)
    publish(channel, "amq.fanout", [b"2"])
    for name in ("a", "b"):
        assert readers(name, x_stream_offset="first").read(2).bodies == [b"1", b"2"]


def test_at_most_once_delivery_waits_for_the_disk(home, disk, channel, readers):
    """A record whose offset must be saved before delivery is not delivered until then."""
    declare(channel, "log")
    declare(channel, "other")
    publish(channel, "", [b"1", b"2"], "log")
    transactor = home.hub.store._writer._transactor
    real = transactor.run

    def refuse(batch, now_ms):
        disk.refused.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    reader = readers("log", prefetch=1, x_group="g", x_commit="delivery", x_stream_offset="first")
    reader.acks = False
    reader.read(1)
    transactor.run = refuse
    reader.channel.basic_ack(reader.records[0][0].delivery_tag)
    wait_for(disk.refused.is_set, reader)
    assert reader.quiet(0.2).bodies == [b"1"]
    transactor.run = real
    assert reader.read(2).bodies == [b"1", b"2"]
