"""The content of a large transaction is stored before its commit, which stays atomic."""

from __future__ import annotations

from contextlib import closing, contextmanager

import pika
import pytest

import leveret
from leveret.broker.publishing.large_bodies import STAGED_FROM
from leveret.model.store import RetentionRequest
from leveret.queues.storage.directory import DATABASE_NAME
from leveret.queues.storage.read_only import open_read_only
from tests.contract.stores import PROPERTIES, Harness, run_of_one

BODY = bytes(1000)
COUNT = 3 * STAGED_FROM // len(BODY)
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def start(tmp_path):
    """Starts a broker; a second one continues with the data of the first."""
    settings = leveret.in_process_settings(memory=False, data_dir=tmp_path / "data")
    return lambda: leveret.ThreadedBroker(settings)


@contextmanager
def channel_of(broker):
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        yield connection.channel()


def query(tmp_path, sql):
    with closing(open_read_only(tmp_path / "data" / DATABASE_NAME)) as connection:
        return connection.execute(sql).fetchone()[0]


def publish_all(channel, queue="q", count=COUNT):
    for number in range(count):
        channel.basic_publish("", queue, b"%09d" % number + BODY, PERSISTENT)


def depth(channel, queue="q"):
    return channel.queue_declare(queue, passive=True).method.message_count


def test_the_messages_are_there_after_the_commit_and_after_a_restart(start, tmp_path):
    with start() as broker, channel_of(broker) as channel:
        channel.queue_declare("q", durable=True)
        channel.tx_select()
        publish_all(channel)
        assert query(tmp_path, "SELECT count(*) FROM body_parts") == 0
        channel.tx_commit()
        assert depth(channel) == COUNT
        assert query(tmp_path, "SELECT count(*) FROM body_parts") >= 3
        assert query(tmp_path, "SELECT sum(count) FROM message_packs WHERE data IS NULL") == COUNT
    with start() as broker, channel_of(broker) as channel:
        assert depth(channel) == COUNT
        bodies = []
        for method, _, body in channel.consume("q", auto_ack=True):
            bodies.append(int(body[:9]))
            assert method.redelivered is False
            if len(bodies) == COUNT:
                break
        assert bodies == list(range(COUNT))
        channel.cancel()


def test_a_rolled_back_transaction_leaves_nothing(start, tmp_path):
    with start() as broker, channel_of(broker) as channel:
        channel.queue_declare("q", durable=True)
        channel.tx_select()
        publish_all(channel)
        channel.tx_rollback()
        channel.tx_commit()
        assert depth(channel) == 0
        assert query(tmp_path, "SELECT count(*) FROM message_packs") == 0


def test_dead_letters_between_the_messages_of_a_transaction(start):
    """A queue that rejects what is too much publishes it again, under ids between the others."""
    half = COUNT // 2
    arguments = {
        "x-max-length": 5,
        "x-overflow": "reject-publish-dlx",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    }
    with start() as broker, channel_of(broker) as channel:
        channel.queue_declare("q", durable=True)
        channel.queue_declare("dead", durable=True)
        channel.queue_declare("short", durable=True, arguments=arguments)
        channel.tx_select()
        for queue in ("q", "short", "q"):
            publish_all(channel, queue, half)
        channel.tx_commit()
    with start() as broker, channel_of(broker) as channel:
        for queue, count in (("q", 2 * half), ("short", 5), ("dead", half - 5)):
            assert depth(channel, queue) == count
            for _ in range(count):
                method, _, body = channel.basic_get(queue, auto_ack=True)
                assert method is not None
                assert body.endswith(BODY)


async def test_content_of_a_client_that_leaves_before_the_commit_is_deleted(tmp_path):
    harness = Harness(tmp_path)
    harness.declare()
    staged = harness.store.stage([run_of_one(0, 1, 0, "", "q1", PROPERTIES, bytes(100_000))])
    await harness.durable()
    request = RetentionRequest(100)
    await harness.store.apply_retention(request)
    assert harness.query("SELECT count(*) FROM body_parts") == [(1,)]
    harness.store.discard(staged)
    harness.publish()
    await harness.durable()
    await harness.store.apply_retention(request)
    assert harness.query("SELECT count(*) FROM body_parts") == [(0,)]
    await harness.close()
