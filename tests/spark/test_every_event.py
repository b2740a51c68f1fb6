"""Every kind of event, caused once by a real client, and what history records of it.

The events are read three ways: from the table `events`, over the HTTP API, and with
`leveret trace`. No Spark session is needed: Spark gets what the readers return.
"""

from __future__ import annotations

import json
from contextlib import closing

import httpx
import pika
import pytest

from leveret.cli import run
from leveret.spark_sink.arrow.local import LocalSource
from leveret.spark_sink.arrow.schemas import schema_of
from leveret.spark_sink.arrow.selection import EVENT_NAMES, Request
from leveret.spark_sink.arrow.source import ReadStats
from leveret.testing import LeveretBroker

ENTERED = ["published", "enqueued"]
EVENTS = {
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
    "dead-lettered": [*ENTERED, "got", "dead_lettered", *ENTERED],
    "delayed": [*ENTERED, "released", *ENTERED],
    "copied": ["published", "enqueued", "enqueued", "enqueued"],
}
QUEUES: dict[str, list[list[str]]] = {
    "unroutable": [[]],
    "dead-lettered": [["dying"], ["dead"]],
    "delayed": [["later (delayed)"], ["plain"]],
    "copied": [["plain", "short", "dead"]],
}


class Client:
    """Publishes one message per case; its message id is the name of the case."""

    def __init__(self, url: str) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self._declare("plain")
        self._declare("short", **{"x-max-length": 1})
        self._declare("dead")
        dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        self._declare("dying", **dead_letters)
        self._declare("brief", **{"x-message-ttl": 5_000})
        delayed = {"x-delayed-type": "fanout"}
        self.channel.exchange_declare("later", "x-delayed-message", durable=True, arguments=delayed)
        self.channel.queue_bind("plain", "later")

    def _declare(self, name: str, **arguments: str | int) -> None:
        self.channel.queue_declare(name, durable=True, arguments=arguments)

    def send(self, case: str, queue: str, exchange: str = "", **headers: object) -> None:
        properties = pika.BasicProperties(delivery_mode=2, message_id=case, headers=headers or None)
        self.channel.basic_publish(exchange, queue, case.encode(), properties)

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
        self.send("dead-lettered", "dying")
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
        self.send("copied", "plain", CC=["short"], BCC=["dead"])
        self.send("expired", "brief")
        self.send("delayed", "any", "later", **{"x-delay": 5_000})


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """A running broker in which all cases have happened, and its data directory."""
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
        assert answer.status_code == 200  # the events are committed now
        yield broker, data_dir


def rows(data_dir, table):
    with closing(LocalSource(data_dir)) as source:
        batches = source.read(Request(table, 0, 2**62, schema_of(table).column_names), ReadStats())
        return [row for batch in batches for row in batch.to_pylist()]


def messages_of(data_dir, case):
    return [row for row in rows(data_dir, "messages") if row["message_id"] == case]


@pytest.mark.parametrize("case", EVENTS)
def test_table_has_the_events_of_each_case(history, case):
    _, data_dir = history
    numbers = {row["id"] for row in messages_of(data_dir, case)}
    events = [row for row in rows(data_dir, "events") if row["message"] in numbers]
    assert sorted(row["event"] for row in events) == sorted(EVENTS[case])
    in_order = [row["event"] for row in events if row["event"] not in ENTERED]
    assert in_order == [event for event in EVENTS[case] if event not in ENTERED]
    by_client = {"got", "acked", "rejected", "nacked", "requeued", "delivered", "redelivered"}
    assert all(row["user"] == "guest" for row in events if row["event"] in by_client)
    assert all(
        row["consumer_tag"] for row in events if row["event"] in ("delivered", "redelivered")
    )


@pytest.mark.parametrize("case", QUEUES)
def test_messages_name_the_queues_they_were_routed_to(history, case):
    _, data_dir = history
    messages = messages_of(data_dir, case)
    assert [row["queues"] for row in messages] == QUEUES[case]
    for row in messages:
        assert row["queue"] == (row["queues"][0] if row["queues"] else None)


@pytest.mark.parametrize("case", EVENTS)
def test_api_and_command_line_agree(history, case, capsys):
    broker, _ = history
    address = f"{broker.http_url}/api/trace"
    trace = httpx.get(address, params={"message_id": case}, auth=("guest", "guest")).json()
    assert sorted(event["event"] for event in trace["events"]) == sorted(EVENTS[case])
    assert run(["--url", broker.http_url, "trace", case, "--formatter", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == trace["events"]


@pytest.mark.parametrize("case", ["dead-lettered", "delayed"])
def test_copy_names_the_message_it_was_copied_from(history, case, capsys):
    broker, data_dir = history
    original, copy = messages_of(data_dir, case)
    assert (original["parent"], copy["parent"]) == (None, original["id"])
    address, auth = f"{broker.http_url}/api/trace", ("guest", "guest")
    parents = {str(copy["id"]): original["id"]}
    for query in ({"message_id": case}, {"id": copy["id"]}):
        assert httpx.get(address, params=query, auth=auth).json()["parents"] == parents
    assert httpx.get(address, params={"id": original["id"]}, auth=auth).json()["parents"] == {}
    assert run(["--url", broker.http_url, "trace", case]) == 0
    assert f"Message {copy['id']} is a copy of message {original['id']}" in capsys.readouterr().err


def test_other_messages_have_no_parent(history):
    _, data_dir = history
    with_parent = {row["message_id"] for row in rows(data_dir, "messages") if row["parent"]}
    assert with_parent == {"dead-lettered", "delayed"}


def test_every_event_is_covered():
    assert {event for trace in EVENTS.values() for event in trace} == {*EVENT_NAMES}


def test_dead_lettered_event_names_reason_and_exchange(history):
    _, data_dir = history
    (dead,) = (row for row in rows(data_dir, "events") if row["event"] == "dead_lettered")
    assert (dead["queue"], dead["detail"]) == ("dying", "rejected to ''")
