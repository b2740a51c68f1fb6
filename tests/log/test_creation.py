"""New logs: files are created off the loop, before the declaration is confirmed."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pika
import pika.exceptions
import pytest

from tests.log.conftest import STREAM, declare, publish, wait_for

LOOP = "leveret"
FILE_CALLS = ("open", "mkdir", "fsync", "fdatasync", "pwrite", "rename", "replace", "unlink")


@pytest.fixture
def file_calls(home, channel, monkeypatch):
    """File system calls made by the loop's thread while the fixture is active."""
    seen = []

    def noting(name, real):
        def call(*arguments, **options):
            if threading.current_thread().name == LOOP:
                seen.append((name, arguments))
            return real(*arguments, **options)

        return call

    for name in FILE_CALLS:
        monkeypatch.setattr(os, name, noting(name, getattr(os, name)))
    return seen


@pytest.fixture
def refused(monkeypatch):
    """Directories whose creation fails: name -> errno."""
    refused: dict[str, int] = {}
    real = Path.mkdir

    def mkdir(path, *arguments, **options):
        if path.name in refused:
            raise OSError(refused[path.name], os.strerror(refused[path.name]))
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    return refused


def directories(home):
    return sorted(path.name for path in (home.data_dir / "logs").glob("*"))


def log_named(home, name):
    return home.hub.vhosts["/"].queues[name]


def test_creating_and_deleting_logs_does_no_file_io_on_the_loop(home, channel, file_calls):
    declare(channel, "log")
    declare(channel, "parts", partitions=20)
    assert len(directories(home)) == 21
    publish(channel, "parts", [b"1", b"2"], "key")
    for name in ("log", "parts"):
        channel.queue_delete(name)
    wait_for(lambda: not directories(home))
    assert LOOP in {thread.name for thread in threading.enumerate()}
    assert file_calls == []


def test_files_are_on_disk_when_the_declaration_is_confirmed(home, channel):
    declare(channel, "log")
    assert (home.data_dir / "logs" / str(log_named(home, "log").id) / "log.id").exists()


def test_pipelined_methods_find_the_new_log(home, channel, readers):
    """Publish to it, delete it, declare it again and publish again, without waiting for replies."""
    impl = channel._impl
    for body in (b"gone", b"here"):
        impl.queue_delete("log", callback=None)
        impl.queue_declare("log", durable=True, arguments=STREAM, callback=None)
        impl.basic_publish("", "log", body)
    channel.queue_declare("log", durable=True, arguments=STREAM, passive=True)
    assert readers("log", x_stream_offset="first").read(1).quiet().bodies == [b"here"]
    wait_for(lambda: directories(home) == [str(log_named(home, "log").id)])


def test_two_connections_declare_the_same_log(home, channel):
    others = [home.connect().channel() for _ in range(3)]
    for channel_of_other in others:
        channel_of_other._impl.queue_declare(
            "log", durable=True, arguments={**STREAM, "x-partitions": 3}, callback=None
        )
    for channel_of_other in others:
        declare(channel_of_other, "log", partitions=3)
    assert len(directories(home)) == 3


def test_declaration_waits_for_a_full_disk(home, channel, refused):
    number = log_id_to_come(home)
    refused[number] = errno.ENOSPC
    made = threading.Thread(target=declare, args=(home.connect().channel(), "log"), daemon=True)
    made.start()
    wait_for(lambda: home.hub.alarms.raised)
    assert made.is_alive()
    assert directories(home) == []
    refused.clear()
    made.join(60)
    assert not made.is_alive()
    assert directories(home) == [number]
    publish(channel, "", [b"1"], "log")


def log_id_to_come(home):
    """Queue ids are assigned in order: the id after that of a queue declared now."""
    probe = home.connect().channel()
    probe.queue_declare("probe", durable=True)
    number = log_named(home, "probe").id
    probe.queue_delete("probe")
    return str(number + 1)


def test_failed_creation_is_reported_and_leaves_nothing(home, channel, refused):
    refused[log_id_to_come(home)] = errno.EIO
    declaring = home.connect().channel()
    with pytest.raises(pika.exceptions.ConnectionClosed, match="cannot open queue 'log'"):
        declare(declaring, "log")
    assert "log" not in home.hub.vhosts["/"].queues
    assert directories(home) == []
    declare(channel, "log")
    publish(channel, "", [b"1"], "log")
    home.restart()
    assert log_named(home, "log").next_offset == 1


def test_failed_partition_deletes_the_whole_log(home, channel, refused):
    refused[str(int(log_id_to_come(home)) + 2)] = errno.EIO
    declaring = home.connect().channel()
    with pytest.raises(pika.exceptions.ConnectionClosed, match="cannot open queue 'log-"):
        declare(declaring, "log", partitions=4)
    vhost = home.hub.vhosts["/"]
    assert not [name for name in (*vhost.queues, *vhost.exchanges) if name.startswith("log")]
    wait_for(lambda: directories(home) == [])
    declare(channel, "log", partitions=4)
    assert len(directories(home)) == 4


def test_existing_log_outlives_the_failed_log_it_was_to_join(home, channel, refused):
    declare(channel, "log-0")
    publish(channel, "", [b"kept"], "log-0")
    refused[str(int(log_id_to_come(home)) + 1)] = errno.EIO
    declaring = home.connect().channel()
    with pytest.raises(pika.exceptions.ConnectionClosed, match="cannot open queue 'log-1'"):
        declare(declaring, "log", partitions=2)
    kept = log_named(home, "log-0")
    assert (kept.partition_of, kept.next_offset) == (None, 1)
    publish(channel, "", [b"more"], "log-0")
    assert kept.next_offset == 2


def test_records_for_a_log_that_cannot_be_created_are_dropped(home, channel, refused):
    refused[log_id_to_come(home)] = errno.EIO
    hasty = home.connect().channel()
    hasty.confirm_delivery()
    hasty._impl.queue_declare("log", durable=True, arguments=STREAM, callback=None)
    publish(hasty, "", [b"gone with it"], "log")
    assert "log" not in home.hub.vhosts["/"].queues
    declare(channel, "other")
    publish(channel, "", [b"1"], "other")
    assert not home.hub.alarms.raised
