"""Many readers of one log: their cost, their limits, and no leaks."""

from __future__ import annotations

from typing import Any

import pika.exceptions
import pytest

from leveret.broker.logs import manager
from leveret.queues.log import cursor as cursors
from leveret.queues.log import log_queue
from leveret.queues.log import readers as readers_module
from leveret.queues.log.consumer_group import ConsumerGroup
from leveret.queues.log.cursor import (
    FULL_CHUNK_CURSORS,
    MAX_CHUNK_BYTES,
    MAX_CHUNK_RECORDS,
    MIN_CHUNK_BYTES,
    MIN_CHUNK_RECORDS,
    ReadAheadBudget,
)
from leveret.queues.log.log_queue import LogQueue
from tests.log.conftest import Home, declare, numbered, publish, wait_for
from tests.support.polling import wait_until
from tests.support.references import reference_to


def call(home: Home, action: Any) -> Any:
    """Run on the broker's thread."""
    assert home._running is not None
    return home._running.call(action)


def test_new_record_wakes_only_cursors_of_its_partition(home, channel, readers, monkeypatch):
    """Regression: 300 consumers took 0.5 s per record, because each checked every partition."""
    declare(channel, "log", partitions=40)
    consumers = [readers("log", x_stream_offset="first") for _ in range(5)]
    publish(channel, "log", [b"warm"], "k")
    for consumer in consumers:
        consumer.read(1)
    taken_from = []
    take = cursors.Cursor.take

    def counted(self: Any, max_entries: int) -> Any:
        taken_from.append(self)
        return take(self, max_entries)

    monkeypatch.setattr(cursors.Cursor, "take", counted)
    publish(channel, "log", [b"one"], "k")
    for consumer in consumers:
        assert consumer.read(2).bodies == [b"warm", b"one"]
    channel.queue_declare("log", passive=True)
    assert len(set(taken_from)) == len(consumers)


def test_readers_at_the_end_of_a_log_share_one_read(home, channel, readers, monkeypatch):
    """Regression: 2,000 groups read and parsed each new record 2,000 times."""
    declare(channel, "log")
    publish(channel, "", [b"first"], "log")
    consumers = [readers("log", x_group=f"g{n}", x_stream_offset="first") for n in range(20)]
    for consumer in consumers:
        consumer.read(1)
    reads = []
    read_now = LogQueue.read_now

    def counted(self: Any, *arguments: int) -> Any:
        reads.append(arguments)
        return read_now(self, *arguments)

    monkeypatch.setattr(LogQueue, "read_now", counted)
    publish(channel, "", [b"second"], "log")
    for consumer in consumers:
        assert consumer.read(2).bodies == [b"first", b"second"]
    assert len(reads) == 1


def test_many_cursors_are_woken_in_several_ticks(home, channel, readers, monkeypatch):
    """A commit wakes a few of those at the end of the log, and later ticks wake the others."""
    declare(channel, "log")
    consumers = [readers("log", x_group=f"g{n}", x_stream_offset="first") for n in range(10)]
    log = home.hub.vhosts["/"].queues["log"]
    wait_for(lambda: len(log.cursors_at_end) == 10, *consumers)
    monkeypatch.setattr(log_queue, "WOKEN_AT_ONCE", 3)
    woken: list[int] = []
    wake = log_queue.LogQueue._wake_cursors

    def counted(self: Any) -> None:
        before = len(self.cursors_at_end)
        wake(self)
        woken.append(before - len(self.cursors_at_end))

    monkeypatch.setattr(log_queue.LogQueue, "_wake_cursors", counted)
    publish(channel, "", [b"one"], "log")
    publish(channel, "", [b"two"], "log")
    for consumer in consumers:
        assert consumer.read(2).bodies == [b"one", b"two"]
    assert max(woken) == 3


def test_ack_serves_only_the_reader_that_gets_credit(home, channel, readers, monkeypatch):
    """Regression: each ack looked at all consumers of the log."""
    declare(channel, "log")
    publish(channel, "", numbered(9), "log")
    options = {"prefetch": 1, "acks": False, "x_stream_offset": "first"}
    consumers = [readers("log", x_group=f"g{n}", **options).read(1) for n in range(20)]
    channel.queue_declare("log", passive=True)
    served = []
    serve = readers_module.ConsumerReader.serve

    def noted(self: Any) -> None:
        served.append(self.consumer.tag)
        serve(self)

    monkeypatch.setattr(readers_module.ConsumerReader, "serve", noted)
    consumers[7].channel.basic_ack(1)
    consumers[7].read(2)
    assert set(served) == {consumers[7].tag}


def test_long_dispatch_is_continued_in_later_ticks(home, channel, readers, monkeypatch):
    """Regression: 2,000 groups took more than a second of the event loop at once."""
    declare(channel, "log", partitions=3)
    consumers = [readers("log", x_group=f"g{n}", x_stream_offset="first") for n in range(20)]
    ticks: list[int] = []
    serve, serve_one = readers_module.Readers.serve, readers_module.ConsumerReader.serve

    def counted(self: Any) -> None:
        ticks.append(0)
        serve(self)

    def counted_one(self: Any) -> None:
        ticks[-1] += 1
        serve_one(self)

    monkeypatch.setattr(readers_module.Readers, "serve", counted)
    monkeypatch.setattr(readers_module.ConsumerReader, "serve", counted_one)
    monkeypatch.setattr(readers_module, "SERVE_SECONDS", 0.0)
    publish(channel, "log", numbered(30))
    for consumer in consumers:
        assert len(consumer.read(30).records) == 30
    assert max(ticks) == 1 and len(ticks) >= len(consumers)


def test_many_groups_are_rebalanced_in_several_ticks(home, channel, readers, monkeypatch):
    declare(channel, "log", partitions=3)
    publish(channel, "log", numbered(3))
    monkeypatch.setattr(readers_module, "SERVE_SECONDS", 0.0)
    in_this_tick: list[int] = []
    serve, rebalance = readers_module.Readers.serve, ConsumerGroup.rebalance

    def counted(self: Any) -> None:
        in_this_tick.append(0)
        serve(self)

    def counted_one(self: Any) -> None:
        in_this_tick[-1] += 1
        rebalance(self)

    monkeypatch.setattr(readers_module.Readers, "serve", counted)
    monkeypatch.setattr(ConsumerGroup, "rebalance", counted_one)
    reader = readers("log", x_group="g0", x_stream_offset="first")
    for number in range(1, 10):
        arguments = {"x-group": f"g{number}", "x-stream-offset": "first"}
        reader.channel.basic_consume("log", reader._on_record, arguments=arguments)
    reader.read(30)
    assert max(in_this_tick) == 1 and sum(in_this_tick) == 10


def test_consumer_with_credit_by_other_means_than_acks_is_served(channel, readers):
    declare(channel, "log")
    publish(channel, "", numbered(9), "log")
    reader = readers("log", prefetch=1, acks=False, x_stream_offset="first").read(1)
    reader.quiet(0.1)
    assert len(reader.records) == 1
    reader.channel.basic_qos(prefetch_count=5)
    assert len(reader.read(5).quiet(0.1).records) == 5


def test_consumer_reads_all_partitions_in_turn(channel, readers):
    declare(channel, "log", partitions=7)
    for number in range(7):
        publish(channel, "", numbered(3), f"log-{number}")
    positions = readers("log", x_stream_offset="first", prefetch=1).read(21).places
    assert sorted(positions) == [(number, offset) for number in range(7) for offset in range(3)]


def test_requeued_records_are_redelivered_at_the_end_of_a_log(channel, readers):
    declare(channel, "log")
    publish(channel, "", numbered(3), "log")
    reader = readers("log", x_stream_offset="first", acks=False).read(3)
    reader.quiet(0.05)
    reader.channel.basic_nack(0, multiple=True)
    assert reader.read(6).bodies == numbered(3) * 2


@pytest.mark.parametrize("arguments", [{}, {"x_group": "new"}])
def test_positions_per_log_are_limited(channel, readers, monkeypatch, arguments):
    """With 1,000 partitions a consumer takes a megabyte, and a group 1,000 rows."""
    monkeypatch.setattr(readers_module, "MAX_POSITIONS", 11)
    declare(channel, "log", partitions=3)
    readers("log", x_group="old")
    first, _ = readers("log"), readers("log")
    with pytest.raises(
        pika.exceptions.ChannelClosedByBroker, match="which is the maximum"
    ) as refused:
        readers("log", **arguments)
    assert refused.value.reply_code == 406
    readers("log", x_group="old")
    first.channel.basic_cancel(first.tag)
    publish(channel, "log", [b"x"], "k")
    assert readers("log", x_stream_offset="first", **arguments).read(1)


def test_chunks_shrink_with_the_number_of_active_cursors():
    budget = ReadAheadBudget()
    sizes = []
    for count in (1, FULL_CHUNK_CURSORS, 4 * FULL_CHUNK_CURSORS, 1_000_000):
        budget.active_cursors = count
        sizes.append((budget.chunk_records, budget.chunk_bytes))
    largest = (MAX_CHUNK_RECORDS, MAX_CHUNK_BYTES)
    quarter = (MAX_CHUNK_RECORDS // 4, MAX_CHUNK_BYTES // 4)
    assert sizes == [largest, largest, quarter, (MIN_CHUNK_RECORDS, MIN_CHUNK_BYTES)]


def test_cursors_at_the_end_and_closed_ones_are_not_active(home, channel, readers):
    declare(channel, "log")
    publish(channel, "", numbered(50), "log")
    budget = home.hub.log_manager.read_ahead
    behind = readers("log", x_stream_offset="first", prefetch=1, acks=False).read(1)
    ahead = readers("log", x_stream_offset="first").read(50)
    wait_for(lambda: budget.active_cursors == 1, ahead)
    behind.close()
    wait_for(lambda: budget.active_cursors == 0, ahead)


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("partitions", [None, 2])
def test_deleted_log_leaves_no_reference_cycle(home, channel, readers, partitions):
    declare(channel, "log", partitions=partitions)
    notify = {"x_group": "n", "x_rebalance_notify": True}
    for arguments in ({}, {"x_group": "g"}, notify):
        reader = readers("log", x_stream_offset="first", **arguments)
        publish(channel, "" if partitions is None else "log", [b"x"], "log")
        reader.read(1 + ("x_rebalance_notify" in arguments))
        reader.close()  # with unacknowledged records
    readers("log"), readers("log", x_group="other")
    if partitions is not None:
        releasing = readers("log", acks=False, **notify).read(1)
        waiting = readers("log", **notify)
        releasing.read(2).close()
        waiting.close()
    left = call(
        home,
        lambda: [
            reference_to(queue)
            for name, queue in home.hub.vhosts["/"].queues.items()
            if name.startswith("log")
        ],
    )
    assert len(left) == (partitions or 0) + 1
    channel.queue_delete("log")
    declare(channel, "other")
    publish(channel, "", [b"x"], "other")  # cached publish routes are checked again

    def is_freed() -> bool:
        home.hub.metrics.sample()
        home.hub.scheduler.schedule()  # the scheduler may refer to a queue until the next iteration
        return all(queue() is None for queue in left)

    wait_until(lambda: call(home, is_freed))


@pytest.mark.parametrize("partitions", [None, 3])
def test_logs_use_at_most_half_of_the_open_files(
    home, channel, connection, monkeypatch, partitions
):
    """Regression: 340 logs used all of 1,024 files, and no client could connect."""
    monkeypatch.setattr(manager, "max_open_files", lambda: 2 * manager.FILES_PER_LOG * 4)
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
