"""A real broker under random traffic, killed and started again; then its history.

The ledger holds what a client knows for certain: publishes that were confirmed, settlements
inside a transaction that was committed. What was under way when the broker was killed may or may
not be there, but history and queues must agree about it.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from contextlib import suppress

import pika
import pytest
from rich.console import Console

from spark_sink.chunks import Tally
from spark_sink.errors import SourceError
from spark_sink.export import ExportOptions, export, plan_of
from spark_sink.readers import LocalSource, all_columns
from spark_sink.remote import RemoteSource
from spark_sink.selection import Request, Selection
from tests.spark.test_export import visible
from tests.support.brokers import running_leveret

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
QUEUES = ("work", "dead")
LEAVES = {"acked", "rejected", "nacked", "expired", "dead_lettered", "dropped", "purged"}


class Client:
    """Does random things and remembers the certain ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.counts: Counter[tuple[str, str]] = Counter()
        self.bodies: dict[str, bytes] = {}
        self.maybe: set[str] = set()
        self.records = 0
        self.published = 0

    def connect(self, url: str) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.confirmed = self.connection.channel()
        self.confirmed.confirm_delivery()
        self.settling = self.connection.channel()
        self.settling.tx_select()

    def declare(self) -> None:
        channel = self.confirmed
        channel.exchange_declare("dlx", "fanout", durable=True)
        channel.queue_declare("dead", durable=True)
        channel.queue_bind("dead", "dlx")
        arguments = {"x-dead-letter-exchange": "dlx"}
        channel.queue_declare("work", durable=True, arguments=arguments)
        stream = {"x-queue-type": "stream", "x-partitions": 2}
        channel.queue_declare("feed", durable=True, arguments=stream)

    def publish(self, routing_key: str = "work", exchange: str = "") -> None:
        self.published += 1
        name, body = f"m{self.published}", self.random.randbytes(self.random.randrange(200))
        properties = pika.BasicProperties(delivery_mode=2, message_id=name, headers={"n": 1})
        self.confirmed.basic_publish(exchange, routing_key, body, properties)
        if exchange == "feed":
            self.records += 1
        else:
            self.bodies[name] = body
            self.counts["work", "enqueued"] += routing_key == "work"

    def settle(self, how: str) -> None:
        channel = self.settling
        method, _, _ = channel.basic_get("work")
        if method is None:
            return
        if how == "acked":
            channel.basic_ack(method.delivery_tag)
        elif how == "dead_lettered":
            channel.basic_reject(method.delivery_tag, requeue=False)
        else:
            channel.basic_nack(method.delivery_tag, requeue=True)
        channel.tx_commit()
        if how != "requeued":
            self.counts["work", how] += 1

    def work(self, steps: int) -> None:
        actions = {
            "publish": lambda: self.publish(), "unroutable": lambda: self.publish("nowhere"),
            "record": lambda: self.publish("k", "feed"), "acked": lambda: self.settle("acked"),
            "dead_lettered": lambda: self.settle("dead_lettered"),
            "requeued": lambda: self.settle("requeued"),
        }  # fmt: skip
        weights = (8, 1, 2, 3, 2, 1)
        for name in self.random.choices(list(actions), weights, k=steps):
            actions[name]()

    def drop(self) -> None:
        """Notice that the broker is gone; pika closes its sockets only then."""
        with suppress(pika.exceptions.AMQPError):
            self.connection.process_data_events(time_limit=30)
        assert self.connection.is_closed

    def burst(self) -> None:
        """Publishes that nobody waits for."""
        channel = self.connection.channel()
        for _ in range(200):
            self.published += 1
            name = f"m{self.published}"
            self.maybe.add(name)
            properties = pika.BasicProperties(delivery_mode=2, message_id=name)
            channel.basic_publish("", "work", name.encode(), properties)


def rounds(client: Client, data_dir) -> dict[str, int]:
    """Three lives of a broker, each ended by SIGKILL; then the depths of the queues."""
    for number in range(3):
        with running_leveret("--data-dir", str(data_dir)) as broker:
            client.connect(broker.url)
            if number == 0:
                client.declare()
            client.work(60)
            client.burst()
            os.kill(broker.pid, signal.SIGKILL)
            client.drop()
    with running_leveret("--data-dir", str(data_dir)) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        depths = {
            name: channel.queue_declare(name, passive=True).method.message_count for name in QUEUES
        }
        connection.close()
        assert_http_tells_the_same(f"http://127.0.0.1:{broker.http_port}", data_dir)
    return depths


def assert_http_tells_the_same(url, data_dir):
    remote = RemoteSource(url, "guest", "guest")
    with LocalSource(data_dir) as local:
        assert remote.ranges(Selection()) == local.ranges(Selection())
        for table in ("messages", "events", "logs", "queues"):
            request = Request(table, 0, 2**62, all_columns(table))
            assert remote.count(request) == local.count(request)
            assert remote.splits(request, 50) == local.splits(request, 50)
            told, read = (
                [row for batch in one.read(request, Tally()) for row in batch.to_pylist()]
                for one in (remote, local)
            )
            assert told == read and read
    with pytest.raises(SourceError, match="no queue 'gone'"):
        remote.check(Selection(queues=("gone",)))
    with pytest.raises(SourceError, match="refused the user or the password"):
        RemoteSource(url, "guest", "wrong").ranges(Selection())


def test_history_of_a_killed_broker_is_exact(spark, tmp_path):
    client, data_dir = Client(seed=7), tmp_path / "data"
    depths = rounds(client, data_dir)
    options = ExportOptions(
        to=tmp_path / "out", data_dir=data_dir, tables=("events", "messages", "logs")
    )
    export(spark, plan_of(options), Console(quiet=True))
    events = visible(options).to_pylist()
    counts = Counter((row["queue"], row["event"]) for row in events)

    # What a client knows for certain is there, and nothing that nobody sent.
    sent_later = counts["work", "enqueued"] - client.counts["work", "enqueued"]
    assert 0 <= sent_later <= len(client.maybe)
    for how in ("acked", "dead_lettered"):
        assert counts["work", how] == client.counts["work", how]
    assert counts["dead", "enqueued"] == counts["work", "dead_lettered"]

    # History and queues agree.
    for queue in QUEUES:
        left = sum(counts[queue, event] for event in LEAVES)
        assert counts[queue, "enqueued"] - left == depths[queue]

    # Content is what was sent, and joins its events without orphans.
    messages = visible(options, "messages").to_pylist()
    assert {row["message"] for row in events} == {row["id"] for row in messages}
    bodies = {row["message_id"]: row["body"] for row in messages}
    assert bodies.keys() - client.maybe == client.bodies.keys()
    assert all(bodies[name] == body for name, body in client.bodies.items())

    with LocalSource(data_dir) as source:
        ranges = source.ranges(Selection())
    assert sum(high - low for low, high in ranges.logs.values()) == client.records
    assert visible(options, "logs").num_rows == client.records
