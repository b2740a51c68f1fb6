"""Messages of more than 1 MiB: kept in pieces, delivered in portions, like any other message."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pika
import pika.exceptions
import pytest
from pamqp.commands import Basic, Queue
from pika.adapters.blocking_connection import BlockingChannel

from leveret.model.message import LARGE_BODY, PARTS_FROM
from leveret.model.store import BatchCommitted, BatchFailed
from leveret.queues.storage.batch import Batch
from leveret.queues.storage.writer import Writer
from leveret.testing import LeveretBroker
from tests.support.rawclient import RawClient

BODY = random.Random(1).randbytes(3 * LARGE_BODY + 12_345)
STORED_IN_PARTS = random.Random(2).randbytes(PARTS_FROM + 12_345)
LARGER_THAN_BEFORE = 17 * 1024 * 1024
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def channel(broker) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    yield connection.channel()
    with suppress(pika.exceptions.AMQPError):  # a test may have killed the broker
        connection.close()


@pytest.fixture
def client(broker) -> Iterator[RawClient]:
    with RawClient(*broker.amqp_address) as client:
        yield client.handshake("/")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LeveretBroker]:
    with LeveretBroker(data_dir=tmp_path, http_enabled=True, history="full") as broker:
        yield broker


def take(channel: BlockingChannel, queue: str, count: int = 1) -> list[bytes]:
    deliveries = channel.consume(queue, auto_ack=True, inactivity_timeout=60)
    bodies = [body for _, (_, _, body) in zip(range(count), deliveries, strict=False)]
    channel.cancel()
    return bodies


def test_a_message_larger_than_16_mib_is_accepted(channel):
    body = bytes(LARGER_THAN_BEFORE)
    channel.queue_declare("q")
    channel.confirm_delivery()
    channel.basic_publish("", "q", body)
    assert take(channel, "q") == [body]


def test_a_large_message_goes_to_several_queues_and_consumers(channel):
    channel.confirm_delivery()
    for queue in ("a", "b"):
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "amq.fanout")
    channel.basic_publish("amq.fanout", "", BODY, PERSISTENT)
    channel.basic_publish("amq.fanout", "", b"small", PERSISTENT)
    other = channel.connection.channel()
    assert take(channel, "a", 2) == [BODY, b"small"]
    assert take(other, "b", 2) == [BODY, b"small"]


@pytest.mark.parametrize("body", [BODY, STORED_IN_PARTS], ids=["one row", "parts"])
def test_a_persistent_large_message_survives_a_restart(broker, channel, body):
    """And is dead-lettered like any other."""
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("dead", durable=True)
    channel.queue_declare("q", durable=True, arguments=arguments)
    channel.confirm_delivery()
    channel.basic_publish("", "q", body, PERSISTENT)
    channel.basic_publish("", "q", b"small", PERSISTENT)
    broker.kill()
    broker.restart()
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        method, _, got = next(channel.consume("q", inactivity_timeout=60))
        assert got == body
        channel.basic_reject(method.delivery_tag, requeue=False)
        channel.cancel()
        assert take(channel, "q") == [b"small"]
        assert take(channel, "dead") == [body]


def test_a_large_body_is_stored_over_several_commits(channel, monkeypatch):
    """The confirms of other clients wait for the commit before theirs, so none may be large."""
    sizes: list[int] = []
    commit = Writer._commit

    def measured(writer: Writer, batch: Batch) -> BatchCommitted | BatchFailed:
        sizes.append(batch.size)
        return commit(writer, batch)

    monkeypatch.setattr(Writer, "_commit", measured)
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "q", bytes(15 * LARGE_BODY), PERSISTENT)
    assert sum(sizes) > 15 * LARGE_BODY
    assert max(sizes) < 5 * LARGE_BODY


def test_a_message_is_published_although_its_publisher_leaves(broker, client):
    """Its body is stored before the message is enqueued, which takes some batches."""
    channel = client.channel()
    channel.declare("q", durable=True)
    channel.publish("", "q", STORED_IN_PARTS, delivery_mode=2)
    client.drop()
    with RawClient(*broker.amqp_address) as other:
        other_channel = other.handshake("/").channel()
        other_channel.wait_ready("q", 1)
        assert other_channel.get_one("q").body == STORED_IN_PARTS


def test_get_and_return_send_the_whole_body(client):
    channel = client.channel()
    channel.declare("q")
    for number in range(3):
        channel.publish("", "q", BODY + bytes([number]))
    channel.send(*[Basic.Get(queue="q", no_ack=True)] * 3, Queue.Declare(queue="q"))
    for number in range(3):
        assert client.content(Basic.GetOk, 1).body == BODY + bytes([number])
    assert channel.expect(Queue.DeclareOk).message_count == 0
    channel.publish("", "nowhere", BODY, mandatory=True)
    assert channel.returned().body == BODY


def test_a_client_closes_while_a_large_message_is_sent(client):
    """The rest of the message comes first, then the answer to the close."""
    channel = client.channel()
    channel.declare("q")
    channel.publish("", "q", BODY)
    channel.consume("q", no_ack=True)
    client.close()


def test_a_large_record_of_a_log(channel):
    channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    channel.basic_publish("", "log", BODY)
    channel.basic_qos(prefetch_count=1)
    arguments = {"x-stream-offset": "first"}
    _, _, body = next(channel.consume("log", arguments=arguments, inactivity_timeout=60))
    assert body == BODY


def test_the_http_api_shows_the_start_of_a_large_message(broker, channel):
    body = bytes(LARGER_THAN_BEFORE)
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "q", body, PERSISTENT)
    with httpx.Client(base_url=broker.http_url, auth=("guest", "guest"), timeout=60) as api:
        path = "/api/queues/%2F/q"
        got = api.post(f"{path}/get", json={"count": 1, "ackmode": "ack_requeue_false"})
        assert got.status_code == 400
        assert "truncate" in got.json()["reason"]
        (cut,) = api.post(f"{path}/get", json={"count": 1, "truncate": 3}).json()
        assert (cut["payload_bytes"], cut["payload"]) == (len(body), "\0\0\0")
        (seen,) = api.get(f"{path}/browse").json()
        assert (seen["payload_bytes"], len(seen["payload"])) == (len(body), 16 * 1024 * 1024)
    assert take(channel, "q") == [body]
