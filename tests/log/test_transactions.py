"""Read, process, write: what comes out of a log and the place in it are committed together."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from functools import partial

import pika
import pika.exceptions

from tests.log.conftest import STREAM, declare, numbered, publish, wait_for
from tests.support.brokers import running_leveret

KILLS = 2
RECORDS = 150
FIRST = {"x_stream_offset": "first"}
READS = {"x-group": "G", "x-stream-offset": "first"}


def committed(home):
    (group,) = home.hub.logs.groups("/", "in")
    return [part["committed"] for part in group["partitions"]]


def test_nothing_of_an_open_or_abandoned_transaction_is_seen(home, channel, readers):
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


def work(port: int) -> None:
    """Each record becomes another one, exactly once; ends with the broker."""
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
        found: list[bytes] = []
        arguments = {"x-stream-offset": "first"}
        for method, _, body in channel.consume(log, arguments=arguments, inactivity_timeout=5):
            if method is None and len(found) >= count:
                return found
            if method is not None:
                channel.basic_ack(method.delivery_tag)
                found.append(body)
    return found


def has_written(port: int, count: int) -> bool:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        found = [channel.queue_declare(f"out-{n}", passive=True) for n in range(2)]
        return bool(sum(answer.method.message_count for answer in found) >= count)


def test_every_record_is_processed_exactly_once_over_kills(tmp_path):
    """The broker is killed in the middle of commits; no output is missing, none is there twice."""
    dice = random.Random(83)
    options = ("--data-dir", str(tmp_path / "data"))
    environment = {"LEVERET_HTTP_ENABLED": "false"}
    found: list[bytes] = []
    for kill in range(KILLS + 1):
        with running_leveret(*options, environment=environment) as target:
            port = target.port
            if kill == 0:
                prepare(port)
            worker = threading.Thread(target=work, args=(port,))
            worker.start()
            if kill == KILLS:
                wait_for(partial(has_written, port, RECORDS))
                found = read_all(port, "out", RECORDS)
            else:
                share = (kill + 1) * RECORDS // (KILLS + 2)
                wait_for(partial(has_written, port, share - dice.randrange(20)))
            os.kill(target.pid, signal.SIGKILL)
        worker.join()
    assert sorted(int(body.split()[1]) for body in found) == list(range(RECORDS))


def prepare(port: int) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("in", durable=True, arguments=STREAM)
        parts = {**STREAM, "x-partitions": 2}
        channel.queue_declare("out", durable=True, arguments=parts)
        for body in numbered(RECORDS):
            channel.basic_publish("", "in", body)
