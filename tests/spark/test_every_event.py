"""Each thing that can happen to a message, done once by a real client: what history tells of it.

The same story is read three ways: as the table `events`, as a life over the HTTP API, and as
`leveret trace` shows it. No Spark session: what the readers give is what Spark gets.
"""

from __future__ import annotations

import json
from contextlib import closing

import httpx
import pika
import pytest

from leveret.cli import run
from leveret.testing import LeveretBroker
from spark_sink.chunks import Tally
from spark_sink.events import EVENT_NAMES
from spark_sink.readers import LocalSource, all_columns
from spark_sink.selection import Request

ENTERED = ["published", "enqueued"]
LIVES = {
    "unroutable": ["published", "unroutable"],
    "acked": [*ENTERED, "delivered", "acked"],
    "got": [*ENTERED, "got", "acked"],
    "rejected": [*ENTERED, "got", "rejected"],
    "nacked": [*ENTERED, "got", "nacked"],
    "requeued": [*ENTERED, "got", "requeued", "got", "requeued", "redelivered", "acked"],
    "expired": [*ENTERED, "expired"],
    "dropped": [*ENTERED, "dropped"],
    "purged": [*ENTERED, "purged"],
    "deleted": [*ENTERED, "queue_deleted"],
    "buried": [*ENTERED, "got", "dead_lettered", *ENTERED],
    "delayed": [*ENTERED, "released", *ENTERED],
    "copied": ["published", "enqueued", "enqueued", "enqueued"],
}
QUEUES: dict[str, list[list[str]]] = {
    "unroutable": [[]],
    "buried": [["dying"], ["grave"]],
    "delayed": [["later (delayed)"], ["plain"]],
    "copied": [["plain", "short", "grave"]],
}


class Client:
    """One message of each fate; its message id is the name of the fate."""

    def __init__(self, url: str) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self._declare("plain")
        self._declare("short", **{"x-max-length": 1})
        self._declare("grave")
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
        self._declare("dying", **dead)
        self._declare("brief", **{"x-message-ttl": 5_000})
        delayed = {"x-delayed-type": "fanout"}
        self.channel.exchange_declare("later", "x-delayed-message", durable=True, arguments=delayed)
        self.channel.queue_bind("plain", "later")

    def _declare(self, name: str, **arguments: str | int) -> None:
        self.channel.queue_declare(name, durable=True, arguments=arguments)

    def send(self, fate: str, queue: str, exchange: str = "", **headers: object) -> None:
        properties = pika.BasicProperties(delivery_mode=2, message_id=fate, headers=headers or None)
        self.channel.basic_publish(exchange, queue, fate.encode(), properties)

    def got(self, queue: str = "plain") -> int:
        method, _, _ = self.channel.basic_get(queue)
        assert method is not None
        return int(method.delivery_tag)

    def consumed(self) -> None:
        """The next message of `plain`, delivered and acked."""
        for method, _, _ in self.channel.consume("plain", inactivity_timeout=60):
            assert method is not None
            self.channel.basic_ack(method.delivery_tag)
            break
        self.channel.cancel()

    def settle(self) -> None:
        self.send("unroutable", "nowhere")
        self.send("acked", "plain")
        self.consumed()
        self.send("got", "plain")
        self.channel.basic_ack(self.got())
        self.send("rejected", "plain")
        self.channel.basic_reject(self.got(), requeue=False)
        self.send("nacked", "plain")
        self.channel.basic_nack(self.got(), requeue=False)
        self.send("requeued", "plain")
        self.channel.basic_nack(self.got(), requeue=True)
        self.channel.basic_reject(self.got(), requeue=True)
        self.consumed()
        self.send("buried", "dying")
        self.channel.basic_nack(self.got("dying"), requeue=False)

    def lose(self) -> None:
        self.send("dropped", "short")
        self.send("kept", "short")
        self.send("purged", "plain")
        self.channel.queue_purge("plain")
        self._declare("doomed")
        self.send("deleted", "doomed")
        self.channel.queue_delete("doomed")
        self.channel.queue_purge("short")
        self.send("copied", "plain", CC=["short"], BCC=["grave"])
        self.send("expired", "brief")
        self.send("delayed", "any", "later", **{"x-delay": 5_000})


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A broker that lived through all of it, still running, and its data directory."""
    data_dir = tmp_path_factory.mktemp("events") / "data"
    with LeveretBroker(data_dir=data_dir, http_enabled=True) as broker:
        client = Client(broker.url)
        client.settle()
        client.lose()
        broker.clock.advance(10)
        client.connection.close()
        broker.wait_depth("brief", 0)
        broker.wait_depth("plain", 2)
        answer = httpx.get(f"{broker.http_url}/api/history/ranges", auth=("guest", "guest"))
        assert answer.status_code == 200  # what was recorded is durable now
        yield broker, data_dir


def rows(data_dir, table):
    with closing(LocalSource(data_dir)) as source:
        batches = source.read(Request(table, 0, 2**62, all_columns(table)), Tally())
        return [row for batch in batches for row in batch.to_pylist()]


def of_fate(data_dir, fate):
    return [row for row in rows(data_dir, "messages") if row["message_id"] == fate]


@pytest.mark.parametrize("fate", LIVES)
def test_the_table_tells_what_happened(story, fate):
    _, data_dir = story
    numbers = {row["id"] for row in of_fate(data_dir, fate)}
    told = [row for row in rows(data_dir, "events") if row["message"] in numbers]
    assert sorted(row["event"] for row in told) == sorted(LIVES[fate])
    in_order = [row["event"] for row in told if row["event"] not in ENTERED]
    assert in_order == [event for event in LIVES[fate] if event not in ENTERED]
    by_client = {"got", "acked", "rejected", "nacked", "requeued", "delivered", "redelivered"}
    assert all(row["user"] == "guest" for row in told if row["event"] in by_client)
    assert all(row["consumer_tag"] for row in told if row["event"] in ("delivered", "redelivered"))


@pytest.mark.parametrize("fate", QUEUES)
def test_messages_name_the_queues_that_took_them(story, fate):
    _, data_dir = story
    found = of_fate(data_dir, fate)
    assert [row["queues"] for row in found] == QUEUES[fate]
    for row in found:
        assert row["queue"] == (row["queues"][0] if row["queues"] else None)


@pytest.mark.parametrize("fate", LIVES)
def test_api_and_command_line_tell_the_same(story, fate, capsys):
    broker, _ = story
    address = f"{broker.http_url}/api/trace"
    life = httpx.get(address, params={"message_id": fate}, auth=("guest", "guest")).json()
    assert sorted(event["event"] for event in life["events"]) == sorted(LIVES[fate])
    assert run(["--url", broker.http_url, "trace", fate, "--formatter", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == life["events"]


def test_no_event_was_left_out():
    assert {event for life in LIVES.values() for event in life} == {*EVENT_NAMES}


def test_where_dead_letters_went_is_told(story):
    _, data_dir = story
    (dead,) = (row for row in rows(data_dir, "events") if row["event"] == "dead_lettered")
    assert (dead["queue"], dead["detail"]) == ("dying", "rejected to ''")
