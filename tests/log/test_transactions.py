"""Read, process, write: outputs and the input offset are committed in one transaction."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from functools import partial
from typing import Any

import pika
import pika.exceptions
import pytest
from pamqp import commands

from tests.log.conftest import STREAM, declare, numbered, publish, wait_for
from tests.support import wire
from tests.support.brokers import running_leveret, target_of

KILLS = 2
RECORDS = 150
FIRST = {"x_stream_offset": "first"}
READS: dict[str, Any] = {"x-group": "G", "x-stream-offset": "first"}


def committed(home):
    (group,) = home.hub.logs.groups("/", "in")
    return [part.committed for part in group.partitions]


def test_open_and_rolled_back_transactions_are_invisible(home, channel, readers):
    declare(channel, "in")
    declare(channel, "out")
    publish(channel, "", numbered(3), "in")
    watcher = readers("out", **FIRST)
    worker = readers("in", acks=False, prefetch=1, x_group="G", **FIRST)
    worker.channel.tx_select()
    worker.read(1)
    worker.channel.basic_publish("", "out", b"0 done")
    worker.channel.basic_ack(worker.records[0][0].delivery_tag)
    assert watcher.quiet(0.1).records == [] and committed(home) == [0]
    worker.channel.tx_rollback()
    assert watcher.quiet(0.1).records == [] and committed(home) == [0]
    worker.channel.basic_publish("", "out", b"0 done again")
    worker.channel.basic_ack(worker.records[0][0].delivery_tag)
    worker.channel.tx_commit()
    assert watcher.read(1).bodies == [b"0 done again"]
    wait_for(lambda: committed(home) == [1], worker)


# Fencing -----------------------------------------------------------------------------------------


def process(worker, *, to="out"):
    """Publish an output for every record received so far, and ack it, without a commit."""
    for method, properties, body in worker.records:
        worker.channel.basic_publish("", to, body, properties)
        worker.channel.basic_ack(method.delivery_tag)


def refused_commit(worker):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        worker.channel.tx_commit()
    assert refused.value.reply_code == 406
    assert "the transaction is rolled back" in refused.value.reply_text


@pytest.fixture
def pipeline(channel, readers):
    """40 records in two partitions of `in`; returns a function that makes a worker for them."""
    declare(channel, "in", partitions=2)
    channel.queue_declare("out", durable=True)
    for partition in range(2):
        publish(channel, "in", numbered(20, 20 * partition), x_partition=partition)

    def make(tx=True, **arguments):
        worker = readers("in", acks=False, x_group="G", **FIRST, **arguments)
        if tx:
            worker.channel.tx_select()
        return worker

    return make


def outputs(channel):
    bodies = []
    while (message := channel.basic_get("out", auto_ack=True))[0]:
        bodies.append(int(message[2]))
    return bodies


def test_commit_after_a_rebalance_is_refused_and_each_record_has_one_output(
    pipeline, home, channel
):
    first = pipeline().read(40)
    process(first)
    second = pipeline().read(20)
    refused_commit(first)
    assert outputs(channel) == [] and committed(home) == [0, 0]
    second.read(40)
    process(second)
    second.channel.tx_commit()
    assert sorted(outputs(channel)) == list(range(40)) and committed(home) == [20, 20]


def test_acks_without_a_transaction_do_not_count_after_a_rebalance(pipeline, home):
    first = pipeline(tx=False).read(40)
    (moved,) = {partition for partition, _ in pipeline().read(20).places}
    first.channel.basic_ack(0, multiple=True)
    first.channel.queue_declare("in", passive=True)  # answered after the acks
    assert committed(home)[moved] == 0 and committed(home)[1 - moved] == 20


def test_acks_repeated_after_a_rollback_are_refused_too(pipeline, home):
    first = pipeline().read(40)
    process(first)
    pipeline().read(20)
    first.channel.tx_rollback()
    process(first)
    refused_commit(first)
    assert committed(home) == [0, 0]


def test_commit_of_records_that_the_member_still_owns_succeeds(pipeline, home, channel):
    """Records of the revoked partition can be returned: nobody waits for them."""
    first = pipeline().read(40)
    second = pipeline().read(20)
    (moved,) = {partition for partition, _ in second.places}
    for (method, _, body), (partition, _) in zip(first.records, first.places, strict=True):
        if partition == moved:
            first.channel.basic_nack(method.delivery_tag, requeue=True)
        else:
            first.channel.basic_publish("", "out", body)
            first.channel.basic_ack(method.delivery_tag)
    first.channel.tx_commit()
    process(second)
    second.channel.tx_commit()
    assert sorted(outputs(channel)) == list(range(40)) and committed(home) == [20, 20]


def cancel(worker, home, channel):
    worker.channel.basic_cancel(worker.tag)


def reset(worker, home, channel):
    home._running.call(lambda: home.hub.logs.reset("/", "in", "G", 5, partition=1))


def delete_log(worker, home, channel):
    channel.queue_delete("in")


@pytest.mark.parametrize("take_away", [cancel, reset, delete_log])
def test_commit_after_the_partition_was_taken_away_is_refused(pipeline, home, channel, take_away):
    worker = pipeline().read(40)
    process(worker)
    take_away(worker, home, channel)
    refused_commit(worker)
    assert outputs(channel) == []


def test_one_lost_partition_rolls_back_the_acks_in_all_groups_and_queues(
    pipeline, home, channel, readers
):
    declare(channel, "other")
    publish(channel, "", numbered(3), "other")
    channel.queue_declare("work", durable=True)
    channel.basic_publish("", "work", b"job")
    worker = pipeline().read(40)
    worker.channel.basic_consume(
        "other", worker._on_record, arguments={"x-group": "H", "x-stream-offset": "first"}
    )
    worker.channel.basic_consume("work", worker._on_record)
    worker.read(44)
    process(worker)
    pipeline().read(20)
    refused_commit(worker)
    (other,) = home.hub.logs.groups("/", "other")
    assert outputs(channel) == [] and other.lag == 3
    assert channel.basic_get("work")[0].redelivered


@pytest.mark.parametrize("mode", ["delivery", "interval"])
def test_acks_that_commit_nothing_are_not_refused(pipeline, home, channel, mode):
    """The offset was committed before the ack; the records will not be delivered again."""
    first = pipeline(x_commit=mode).read(40)
    process(first)
    pipeline(x_commit=mode)
    wait_for(lambda: shares(home) == [[0], [1]])
    first.channel.tx_commit()
    assert sorted(outputs(channel)) == list(range(40))


def shares(home):
    (group,) = home.hub.logs.groups("/", "in")
    return [member.partitions for member in group.members]


@pytest.mark.parametrize("is_commit_first", [True, False])
def test_commit_in_the_same_read_as_a_join_counts(pipeline, home, channel, is_commit_first):
    """Partitions move at the end of a tick, so the commit comes before the move in both orders."""
    consume = commands.Basic.Consume(queue="in", arguments=READS)
    with target_of(home.url).connect() as client:
        first, second = client.channel(1), client.channel(2)
        for member in (first, second):
            member.qos(100)
        first.call(commands.Tx.Select())
        first.call(consume)
        for delivery in first.deliveries(40):
            first.publish("", "out", delivery.body)
        first.ack(0, multiple=True)
        frames = [wire.encode(1, commands.Tx.Commit()), wire.encode(2, consume)]
        client.send_bytes(b"".join(frames if is_commit_first else reversed(frames)))
        first.expect(commands.Tx.CommitOk)
        second.expect(commands.Basic.ConsumeOk)
        wait_for(lambda: shares(home) == [[0], [1]])
        assert committed(home) == [20, 20]
    assert sorted(outputs(channel)) == list(range(40))


# Crashes -----------------------------------------------------------------------------------------


def work(port: int) -> None:
    """Transforms each record exactly once; stops with the broker."""
    parameters = pika.ConnectionParameters("127.0.0.1", port)
    with contextlib.suppress(pika.exceptions.AMQPError, OSError, AssertionError):
        channel = pika.BlockingConnection(parameters).channel()
        channel.basic_qos(prefetch_count=10)
        channel.tx_select()
        for method, _, body in channel.consume("in", arguments=READS, inactivity_timeout=30):
            if method is None:
                return
            channel.basic_publish("out", body.decode(), b"done " + body)
            channel.basic_ack(method.delivery_tag)
            channel.tx_commit()


def read_all(port: int, log: str, count: int) -> list[bytes]:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=100)
        bodies: list[bytes] = []
        arguments = {"x-stream-offset": "first"}
        for method, _, body in channel.consume(log, arguments=arguments, inactivity_timeout=5):
            if method is None and len(bodies) >= count:
                return bodies
            if method is not None:
                channel.basic_ack(method.delivery_tag)
                bodies.append(body)
    return bodies


def has_written(port: int, count: int) -> bool:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        replies = [channel.queue_declare(f"out-{n}", passive=True) for n in range(2)]
        return bool(sum(answer.method.message_count for answer in replies) >= count)


def test_each_record_is_processed_exactly_once_despite_kills(tmp_path):
    """The broker is killed during commits; no output is missing or duplicated."""
    dice = random.Random(83)
    options = ("--data-dir", str(tmp_path / "data"))
    environment = {"LEVERET_HTTP_ENABLED": "false"}
    bodies: list[bytes] = []
    for kill in range(KILLS + 1):
        with running_leveret(*options, environment=environment) as target:
            port = target.port
            if kill == 0:
                prepare(port)
            worker = threading.Thread(target=work, args=(port,))
            worker.start()
            if kill == KILLS:
                wait_for(partial(has_written, port, RECORDS))
                bodies = read_all(port, "out", RECORDS)
            else:
                share = (kill + 1) * RECORDS // (KILLS + 2)
                wait_for(partial(has_written, port, share - dice.randrange(20)))
            os.kill(target.pid, signal.SIGKILL)
        worker.join()
    assert sorted(int(body.split()[1]) for body in bodies) == list(range(RECORDS))


def prepare(port: int) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("in", durable=True, arguments=STREAM)
        parts = {**STREAM, "x-partitions": 2}
        channel.queue_declare("out", durable=True, arguments=parts)
        for body in numbered(RECORDS):
            channel.basic_publish("", "in", body)
