"""Many readers of one log: what they cost, how many there may be, and that nothing is left."""

from __future__ import annotations

import time
import weakref
from typing import Any

import pika.exceptions
import pytest

from leveret.broker import log_keeper
from queues.stream import cursor as cursors
from queues.stream import readers as reading
from queues.stream.cursor import CHUNK_BYTES, CROWD, FEW_BYTES, FEW_RECORDS, LARGEST_CHUNK, Crowd
from tests.log.conftest import Home, declare, numbered, publish, wait_for


def call(home: Home, action: Any) -> Any:
    """On the broker's own thread."""
    assert home._running is not None
    return home._running.call(action)


def test_a_record_is_looked_for_in_its_own_partition(home, channel, readers, monkeypatch):
    """Each record made every consumer look at every partition: 300 of them took 0.5 s for one."""
    declare(channel, "log", partitions=40)
    crowd = [readers("log", x_stream_offset="first") for _ in range(5)]
    publish(channel, "log", [b"warm"], "k")
    for one in crowd:
        one.read(1)
    looks = []
    take = cursors.Cursor.take

    def counted(self: Any, most: int) -> Any:
        looks.append(self)
        return take(self, most)

    monkeypatch.setattr(cursors.Cursor, "take", counted)
    publish(channel, "log", [b"one"], "k")
    for one in crowd:
        assert one.read(2).bodies == [b"warm", b"one"]
    channel.queue_declare("log", passive=True)
    assert len(set(looks)) == len(crowd)


def test_all_partitions_are_read_in_turn(channel, readers):
    declare(channel, "log", partitions=7)
    for number in range(7):
        publish(channel, "", numbered(3), f"log-{number}")
    found = readers("log", x_stream_offset="first", prefetch=1).read(21).places
    assert sorted(found) == [(number, offset) for number in range(7) for offset in range(3)]


def test_given_back_records_come_again_at_the_end_of_a_log(channel, readers):
    declare(channel, "log")
    publish(channel, "", numbered(3), "log")
    reader = readers("log", x_stream_offset="first", acks=False).read(3)
    reader.quiet(0.05)
    reader.channel.basic_nack(0, multiple=True)
    assert reader.read(6).bodies == numbered(3) * 2


@pytest.mark.parametrize("arguments", [{}, {"x_group": "new"}])
def test_places_are_limited(channel, readers, monkeypatch, arguments):
    """Of 1,000 partitions each consumer took a megabyte, and each group a row for each."""
    monkeypatch.setattr(reading, "MOST_PLACES", 11)
    declare(channel, "log", partitions=3)
    readers("log", x_group="old")
    first, _ = readers("log"), readers("log")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no more fit") as refused:
        readers("log", **arguments)
    assert refused.value.reply_code == 406
    readers("log", x_group="old")
    first.channel.basic_cancel(first.tag)
    publish(channel, "log", [b"x"], "k")
    assert readers("log", x_stream_offset="first", **arguments).read(1)


def test_chunks_are_smaller_in_a_crowd():
    crowd = Crowd()
    sizes = []
    for count in (1, CROWD, 4 * CROWD, 1_000_000):
        crowd.count = count
        sizes.append((crowd.records, crowd.octets))
    largest = (LARGEST_CHUNK, CHUNK_BYTES)
    quarter = (LARGEST_CHUNK // 4, CHUNK_BYTES // 4)
    assert sizes == [largest, largest, quarter, (FEW_RECORDS, FEW_BYTES)]


def test_who_is_at_the_end_or_has_gone_is_not_in_the_crowd(home, channel, readers):
    declare(channel, "log")
    publish(channel, "", numbered(50), "log")
    crowd = home.hub.logs._keeper._crowd
    behind = readers("log", x_stream_offset="first", prefetch=1, acks=False).read(1)
    ahead = readers("log", x_stream_offset="first").read(50)
    wait_for(lambda: crowd.count == 1, ahead)
    behind.close()
    wait_for(lambda: crowd.count == 0, ahead)


@pytest.mark.usefixtures("nobody_collects")
@pytest.mark.parametrize("partitions", [None, 2])
def test_a_log_that_is_deleted_makes_no_circle(home, channel, readers, partitions):
    declare(channel, "log", partitions=partitions)
    for arguments in ({}, {"x_group": "g"}):
        reader = readers("log", x_stream_offset="first", **arguments)
        publish(channel, "" if partitions is None else "log", [b"x"], "log")
        reader.read(1)
        reader.close()  # what is not acknowledged is kept
    readers("log"), readers("log", x_group="other")
    left = call(
        home,
        lambda: [
            weakref.ref(one)
            for name, one in home.hub.vhosts["/"].queues.items()
            if name.startswith("log")
        ],
    )
    assert len(left) == (partitions or 0) + 1
    channel.queue_delete("log")
    declare(channel, "other")
    publish(channel, "", [b"x"], "other")  # what is remembered of publishes is looked at again

    def is_freed() -> bool:
        home.hub.metrics.sample()
        home.hub.turn.schedule()  # a turn may hold what it has touched until the next
        return all(one() is None for one in left)

    deadline = time.monotonic() + 60
    while not call(home, is_freed):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("partitions", [None, 3])
def test_logs_leave_files_for_others(home, channel, connection, monkeypatch, partitions):
    """Of 1,024 open files 340 logs took all, and nobody could connect."""
    monkeypatch.setattr(log_keeper, "open_files_limit", lambda: 2 * log_keeper.FILES_EACH * 4)
    for number in range(2):
        declare(channel, f"log-{number}")
    declare(channel, "third")
    refused = connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ulimit") as error:
        for number in range(2):
            declare(refused, f"new-{number}", partitions=partitions)
    assert error.value.reply_code == 406
    left = set(home.hub.vhosts["/"].queues)
    assert left >= {"log-0", "log-1", "third"} and len(left) == 3 + (partitions is None)
    channel.queue_delete("third")
    declare(channel, "fourth")
    home.restart()
    assert "fourth" in home.hub.vhosts["/"].queues
